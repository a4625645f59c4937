"""The recipe format, as pydantic models."""
