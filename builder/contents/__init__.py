"""The contents of an image: files, ELF files, texts, GPU code, read from its layers without running
it."""
