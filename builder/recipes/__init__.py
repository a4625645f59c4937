"""TOML files become recipes: the format, the catalog, lock files, and edits of them."""
