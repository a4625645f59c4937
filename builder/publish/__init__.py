"""Publishes what the pipeline verified: gets records and images, gives tags and what is attached.

It also decides which image of a registry counts.  Nightly runs and commands call it.
"""
