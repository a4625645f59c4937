"""Errors, settings, files, archives, progress, and the client for all HTTP."""
