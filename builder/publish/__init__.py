"""Publishes images: push, tags and their history, attachments, Docker Hub's page, prune."""
