"""Images read from their blobs: documents, and the files of layers as a container sees them.

``image`` reads manifests and configurations, ``entries`` one layer, ``tree`` lays layers over each
other.
"""
