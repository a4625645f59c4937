"""Images built again without caches, and compared with those that are there.

``run.reproduce`` is the whole of it; ``results`` has what it finds, ``attest`` a signed statement.
"""
