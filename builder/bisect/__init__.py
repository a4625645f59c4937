"""Finds the upstream commit that broke an engine: asks git, builds, evaluates, keeps the state."""
