"""An image read without running it, and two images compared."""
