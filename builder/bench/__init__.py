"""How fast an engine generates, run by run: measured, judged, compared, drawn."""
