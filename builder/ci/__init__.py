"""Continuous integration: the matrix of jobs."""
