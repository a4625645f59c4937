"""The kernel ledger: every kernel of an image with its resources, and how two images differ."""
