"""From what callers pass to the arrays of a graph's inputs."""
