"""scikit-learn's estimators with their default parameters, for the sweep (tests/test_sweep.py) and for the benchmark of operators."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils import all_estimators

import hbc
from hbc.parser.registry import public_name

ESTIMATORS: dict[str, type[BaseEstimator]] = {public_name(cls): cls for _, cls in all_estimators()}
CONVERTIBLE = sorted(ESTIMATORS.keys() & set(hbc.supported_operators()))
CLASSIFIER, REGRESSOR = LogisticRegression(), Ridge()
PARAMETERS: dict[str, dict[str, Any]] = {
    "CCA": {"n_components": 1},
    "ClassifierChain": {"estimator": CLASSIFIER},
    "ColumnTransformer": {"transformers": [("scaled", StandardScaler(), [0, 2])], "remainder": "passthrough"},
    "FeatureUnion": {"transformer_list": [("scaled", StandardScaler()), ("same", "passthrough")]},
    "FixedThresholdClassifier": {"estimator": CLASSIFIER},
    "FrozenEstimator": {"estimator": StandardScaler().fit(np.arange(8.0).reshape(2, 4) ** 2)},
    "GaussianRandomProjection": {"n_components": 3},
    "GridSearchCV": {"estimator": CLASSIFIER, "param_grid": {"C": [0.1, 1.0]}},
    "HalvingGridSearchCV": {"estimator": CLASSIFIER, "param_grid": {"C": [0.1, 1.0]}},
    "HalvingRandomSearchCV": {"estimator": CLASSIFIER, "param_distributions": {"C": [0.1, 1.0]}},
    "LocalOutlierFactor": {"novelty": True},
    "MultiOutputClassifier": {"estimator": CLASSIFIER},
    "MultiOutputRegressor": {"estimator": REGRESSOR},
    "OneVsOneClassifier": {"estimator": CLASSIFIER},
    "OneVsRestClassifier": {"estimator": CLASSIFIER},
    "OutputCodeClassifier": {"estimator": CLASSIFIER},
    "PLSSVD": {"n_components": 1},
    "PLSCanonical": {"n_components": 1},
    "Pipeline": {"steps": [("scaled", StandardScaler()), ("classifier", CLASSIFIER)]},
    "RFE": {"estimator": CLASSIFIER},
    "RFECV": {"estimator": CLASSIFIER},
    "RandomizedSearchCV": {"estimator": CLASSIFIER, "param_distributions": {"C": [0.1, 1.0]}, "n_iter": 2},
    "RegressorChain": {"estimator": REGRESSOR},
    "SelectFromModel": {"estimator": CLASSIFIER},
    "SelfTrainingClassifier": {"estimator": CLASSIFIER},
    "SequentialFeatureSelector": {"estimator": CLASSIFIER},
    "SparseRandomProjection": {"n_components": 3},
    "SparseCoder": {"dictionary": np.eye(4)[:3] + 0.1},
    "StackingClassifier": {"estimators": [("tree", DecisionTreeClassifier(max_depth=3)), ("linear", CLASSIFIER)]},
    "StackingRegressor": {"estimators": [("ridge", REGRESSOR)]},
    "TunedThresholdClassifierCV": {"estimator": CLASSIFIER},
    "VotingClassifier": {"estimators": [("tree", DecisionTreeClassifier(max_depth=3)), ("linear", CLASSIFIER)]},
    "VotingRegressor": {"estimators": [("ridge", REGRESSOR)]},
}
"""Options that a class needs: they have no default (an estimator inside another), or the default does not fit small data or gives no
methods for new data."""

REFUSED_BY_DEFAULT: dict[str, dict[str, Any]] = {
    "DictionaryLearning": {"transform_algorithm": "threshold"},
    "KernelDensity": {"kernel": "exponential"},
    "MiniBatchDictionaryLearning": {"transform_algorithm": "threshold"},
    "SparseCoder": {"transform_algorithm": "threshold"},
}
"""Classes that convert with these options, but not with their defaults."""


def made(name: str, **options: Any) -> Any:
    """An unfitted estimator with these options and random_state=0. Options that the class does not have are left out."""
    cls = ESTIMATORS[name]
    known = inspect.signature(cls).parameters
    given = {key: value for key, value in {"random_state": 0, **options}.items() if key in known}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some are deprecated
        return cls(**PARAMETERS.get(cls.__name__, {}) | given)


def refused_by_default(name: str) -> dict[str, Any]:
    """The options that a class needs to be converted."""
    return REFUSED_BY_DEFAULT.get(ESTIMATORS[name].__name__, {})
