"""Converters of scikit-learn's estimators, one file a family; importing this package registers them all."""

from hbc.parser.sklearn import (
    decomposition,
    encoders,
    ensemble,
    feature_selection,
    gradient_boosting,
    impute,
    linear,
    naive_bayes,
    neural_network,
    pipeline,
    preprocessing,
    tree,
)

__all__ = [
    "decomposition",
    "encoders",
    "ensemble",
    "feature_selection",
    "gradient_boosting",
    "impute",
    "linear",
    "naive_bayes",
    "neural_network",
    "pipeline",
    "preprocessing",
    "tree",
]
