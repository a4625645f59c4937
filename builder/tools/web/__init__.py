"""tools.web."""
