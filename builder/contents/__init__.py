"""What an image has: files, ELF files, texts, GPU code, read from its layers without running it."""
