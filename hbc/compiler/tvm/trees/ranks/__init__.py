"""The numbers of rows as ranks: how many thresholds of their columns are below them. planes.py has the bytes that scans read."""
