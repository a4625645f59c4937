"""Fixtures of every test: see support/fixtures.py."""

pytest_plugins = ["support.fixtures"]
