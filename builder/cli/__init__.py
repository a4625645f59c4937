"""The command line, and the only place that prints."""
