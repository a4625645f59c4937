"""A recipe with all inputs resolved: its Dockerfile and its build key. No engine, no network."""
