"""tools.python."""
