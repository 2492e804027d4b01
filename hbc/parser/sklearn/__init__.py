"""Converters of scikit-learn's estimators, one file a family; importing this package registers them all."""

from hbc.parser.sklearn import linear, pipeline, preprocessing, tree

__all__ = ["linear", "pipeline", "preprocessing", "tree"]
