"""Moves channels to the newest state of their upstream every night, and shows their status."""
