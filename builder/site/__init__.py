"""The page of the farm: static files that answer which image runs which model on which card."""
