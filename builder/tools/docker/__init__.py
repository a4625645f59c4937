"""tools.docker."""
