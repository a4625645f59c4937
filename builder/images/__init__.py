"""Images are built in the engine, checked, named, and found again."""
