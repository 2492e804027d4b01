"""The loop nests of tree ensembles."""
