"""This machine: checked by `builder doctor`, and set up by `./farm`."""
