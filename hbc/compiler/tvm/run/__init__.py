"""Compiled code: for which machine, where it is kept, and how it is called."""
