"""The smoke test: a finished image is checked against its recipe; the checks make a verdict."""
