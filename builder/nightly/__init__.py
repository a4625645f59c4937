"""Moves channels to the newest state of their upstream in nightly runs, and shows their status."""
