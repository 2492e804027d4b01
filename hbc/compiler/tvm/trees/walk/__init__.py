"""The strategy "walk": rows go from node to node."""
