"""A service written down: as a command line, or as a file of another program."""
