"""Publishes verified images: gets records and images, gives tags and attachments.

It also decides which image of a registry counts.  Nightly runs and commands call it.
"""
