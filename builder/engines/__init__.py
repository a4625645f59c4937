"""The families: how each kind of engine, and of base, is configured, installed and started."""
