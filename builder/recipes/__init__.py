"""TOML files become models: the format, the catalog, lock files, and edits of them."""
