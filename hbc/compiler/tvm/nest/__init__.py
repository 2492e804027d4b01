"""Builds the loop nests of a function: loops over rows, reads and writes of values, and the model as data."""
