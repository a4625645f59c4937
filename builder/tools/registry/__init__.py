"""tools.registry."""
