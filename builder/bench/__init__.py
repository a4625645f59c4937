"""How fast an engine generates, run by run: measured, evaluated, compared, drawn."""
