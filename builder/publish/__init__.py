"""Verified images get tags: pushes, moves, attachments, signatures, Docker Hub's page."""
