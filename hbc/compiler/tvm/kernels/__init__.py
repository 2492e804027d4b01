"""The loop nests of the operators that are more than one expression an element, trees excepted."""
