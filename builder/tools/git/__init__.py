"""tools.git."""
