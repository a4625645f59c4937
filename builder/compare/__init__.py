"""Two images, directories or files compared: files, ELF sections and symbols, device code.

``images.compare_images`` and ``files.compare_trees`` return a ``results.Comparison``; its ``same``
and ``same_code`` are the verdict, ``layers`` has the difference of each pair of layers.
"""
