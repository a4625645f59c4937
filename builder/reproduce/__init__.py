"""Images built again without caches, and compared with the first ones.

``reproduction.reproduce`` is the whole of it; ``attest`` writes a signed statement.
"""
