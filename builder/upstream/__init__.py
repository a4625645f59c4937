"""Follows the upstreams of recipes: newer commits, patches that still apply, pins, lock files."""
