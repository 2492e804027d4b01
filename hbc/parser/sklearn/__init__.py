"""Converters of scikit-learn's estimators, one file a family; importing this package registers them all."""

from hbc.parser.sklearn import (
    decomposition,
    feature_selection,
    gradient_boosting,
    linear,
    naive_bayes,
    neural_network,
    pipeline,
    preprocessing,
    tree,
)

__all__ = [
    "decomposition",
    "feature_selection",
    "gradient_boosting",
    "linear",
    "naive_bayes",
    "neural_network",
    "pipeline",
    "preprocessing",
    "tree",
]
