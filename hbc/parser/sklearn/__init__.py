"""Converters of scikit-learn's estimators, one file a family; importing this package registers them all."""

from hbc.parser.sklearn import (
    decomposition,
    dummy,
    encoders,
    ensemble,
    feature_selection,
    gradient_boosting,
    impute,
    linear,
    multiclass,
    multioutput,
    naive_bayes,
    neural_network,
    pipeline,
    preprocessing,
    tree,
    voting,
)

__all__ = [
    "decomposition",
    "dummy",
    "encoders",
    "ensemble",
    "feature_selection",
    "gradient_boosting",
    "impute",
    "linear",
    "multiclass",
    "multioutput",
    "naive_bayes",
    "neural_network",
    "pipeline",
    "preprocessing",
    "tree",
    "voting",
]
