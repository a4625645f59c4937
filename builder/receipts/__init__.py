"""Receipts: runs on cards, each of a published image, checked before it is taken."""
