"""Servers of engines: started in a container, asked over HTTP, with a model to serve."""
