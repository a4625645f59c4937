"""Patches: diffs as data, applied to trees, and explained by upstream's history."""
