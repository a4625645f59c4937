"""Models as files: their headers, near or far, and files with holes for the weights."""
