"""The strategy "ranges": many rows are sorted by ranges of leaves, and each is scanned through the splits of its range alone."""
