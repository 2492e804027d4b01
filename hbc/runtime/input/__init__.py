"""Turns the input of a call into the arrays of a graph's inputs."""
