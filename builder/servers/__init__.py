"""Servers of engines: how they are started, spoken to, and given a model to serve."""
