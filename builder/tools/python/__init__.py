"""The Python package index: files by digest, wheels that fit, and uv's resolver."""
