"""The scan of one tree: its splits in pieces, and the code that tests them. Scans, ranges and the tops of patches share it."""
