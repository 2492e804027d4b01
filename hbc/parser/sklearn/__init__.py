"""Converters of scikit-learn's estimators, one file a family; importing this package registers them all."""

from hbc.parser.sklearn import feature_selection, linear, pipeline, preprocessing, tree

__all__ = ["feature_selection", "linear", "pipeline", "preprocessing", "tree"]
