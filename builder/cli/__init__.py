"""The command line: its commands, a module for each group, and the only place that prints."""
