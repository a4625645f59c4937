"""One owner for each thing outside of builder: Docker, PyPI, apt, ELF files."""
