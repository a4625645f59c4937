"""The kernel ledger: every kernel of an image with its resources."""
