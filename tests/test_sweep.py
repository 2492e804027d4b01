"""The sweep: every estimator of scikit-learn that predicts or transforms new data converts, or has its reason in `UNSUPPORTED`. The
estimators that convert agree with their source, fitted with default parameters on data that their tags ask for."""

from __future__ import annotations

import functools
import re
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from backends import BACKENDS
from defaults import CONVERTIBLE, ESTIMATORS, REFUSED_BY_DEFAULT, made, refused_by_default
from estimators import all_cases
from estimators.case import Case
from sklearn.utils import get_tags
from test_estimators import check_agreement, source_methods

import hbc
from hbc.parser.unsupported import ON_NEW_DATA, UNSUPPORTED

BY_CLASS = pytest.mark.parametrize("name", CONVERTIBLE, scope="module")  # of that scope: pytest then runs class by class
ROWS, COLUMNS = 60, 4
TREES = 20
"""The number of trees of ensembles that have 50 or 100 by default: fitting and scoring so many would take most of the sweep's time."""

TEXTS = ["the cat sat", "on the mat", "a dog and a cat", "no words of the others", "", "Straße über 東京"]


def inputs(model: Any) -> dict[str, Any]:
    """Kind of data → input, for each kind that the estimator's tags say it takes."""
    tags = get_tags(model)
    takes, rng = tags.input_tags, np.random.default_rng(0)
    X = rng.normal(size=(ROWS, COLUMNS))
    if takes.one_d_array:
        return {"one column": X[:, :1]}
    if not takes.two_d_array:
        if takes.string:
            return {"texts": TEXTS * (ROWS // len(TEXTS))}
        if takes.dict:
            return {"dicts": [{"a": float(i % 3), "b": 1.5, f"c={i % 4}": 2.0} for i in range(ROWS)]}
        if tags.target_tags.two_d_labels:
            return {"sets": [("red", "green", "blue")[i % 3 :] for i in range(ROWS)]}
        return {"labels": rng.choice(["no", "perhaps", "yes"], ROWS)}
    if takes.pairwise and not takes.sparse:
        return {"kernel": X @ X.T}
    if takes.categorical:
        codes = rng.integers(0, 3, X.shape).astype(float)
        strings = {} if takes.positive_only else {"strings": codes.astype(str).astype(object)}
        return {"codes": codes, **strings}
    return {"numbers": np.abs(X) if takes.positive_only or hasattr(model, "skewedness") else X}


def targets(model: Any, X: Any) -> dict[str, Any]:
    """Kind of target → target, for each kind that the estimator can be fitted to. Other estimators than classifiers and regressors may need
    classes, or ignore them."""
    tags, rng = get_tags(model), np.random.default_rng(1)
    if not tags.input_tags.two_d_array and not tags.input_tags.one_d_array:
        return {"nothing": None}
    value = X[:, :2].astype(float).sum(axis=1) + rng.normal(scale=0.3, size=ROWS)
    ranks = np.argsort(np.argsort(value))
    single, several = tags.target_tags.single_output, tags.target_tags.multi_output
    if tags.estimator_type == "regressor":
        value = np.exp(value / 4) if tags.target_tags.positive_only else value
        both = {"values": value, "two values": np.column_stack([value, value[::-1]])}
        return {goal: y for goal, y in both.items() if (several if goal == "two values" else single)}
    if tags.estimator_type != "classifier":
        return {"classes": ranks * 3 // ROWS}
    known: dict[str, Any] = {}
    if single:
        known["two classes"] = ranks * 2 // ROWS
    if single and tags.classifier_tags.multi_class:
        known["three classes"] = np.array(["no", "perhaps", "yes"], object)[ranks * 3 // ROWS]
    if several or tags.classifier_tags.multi_label:
        known["two labels"] = np.column_stack([ranks % 2, ranks * 2 // ROWS])
    return known


def models(name: str, **options: Any) -> list[tuple[str, Any, Any]]:
    """(kind of data, fitted model, data) for all data that the estimator takes, also with NaN if its tags allow that."""
    template = made(name, n_estimators=TREES, **options)
    kinds = []
    for kind, X in inputs(template).items():
        goals = targets(template, X)
        kinds += [(f"{kind}, {goal}", X, y) for goal, y in goals.items()]
        if get_tags(template).input_tags.allow_nan and isinstance(X, np.ndarray) and X.dtype.kind == "f":
            holes = np.where(np.random.default_rng(2).random(X.shape) < 0.1, np.nan, X)
            kinds.append((f"{kind} with NaN, {next(iter(goals))}", holes, next(iter(goals.values()))))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so few rows do not converge
        return [
            (kind, made(name, n_estimators=TREES, **options).fit(*((X,) if y is None else (X, y))), X) for kind, X, y in kinds
        ]


TABLE: dict[str, Case] = {}
for _case in reversed(all_cases()):
    if not _case.name.startswith("ModelProto"):  # of ONNX, whose methods are others
        TABLE |= dict.fromkeys(re.findall(r"\w+", _case.name), _case)  # the first of a class counts


NEAR_ZERO = {"Birch", "BisectingKMeans", "KMeans", "MiniBatchKMeans"}
"""Estimators with a centre at about every row, so that some distances are nearly 0."""


def case_for(name: str, kind: str) -> Case:
    """The case of a class, with the methods and the tolerance (and its reason) that the table has for it."""
    plain = Case(name, lambda: None)
    case = replace(TABLE.get(ESTIMATORS[name].__name__, plain), name=f"{name}: {kind}", sample=True, convert_input=None)
    if ESTIMATORS[name].__name__ in NEAR_ZERO:
        case = replace(
            case, atol=1e-6, reason="the distance from a row to itself is the square root of what cancellation leaves"
        )
    if name == "sklearn.ensemble.BaggingClassifier":
        reason = "that of a probability of 1 is log(exp(0) + … + exp(0)) - log(n): 4e-16 for 20 members, 0 for 6"
        case = replace(case, rounded_logs=reason)
    return case


@functools.lru_cache(maxsize=2)
def converting(name: str) -> list[tuple[str, Any, Any]]:
    return models(name, **refused_by_default(name))


def converted(model: Any, backend: str, X: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return hbc.convert(model, backend, X)


def sweep(name: str, backend: str) -> None:
    """Compares an estimator with its source on one backend, fitted to every kind of data that it takes."""
    for kind, model, X in converting(name):
        check_agreement(case_for(name, kind), model, X, converted(model, backend, X))


def test_every_estimator_converts_or_has_a_reason() -> None:
    """No estimator with a method for new data is left out. Others are recognized by their methods."""
    on_new_data = {name for name, cls in ESTIMATORS.items() if any(hasattr(cls, method) for method in ON_NEW_DATA)}
    missing = sorted(on_new_data - set(CONVERTIBLE) - UNSUPPORTED.keys())
    assert not missing, f"neither a converter nor a reason in hbc/parser/unsupported.py: {missing}"
    assert not set(hbc.supported_operators()) & UNSUPPORTED.keys(), "these convert now: take them off the list"
    assert not [name for name in UNSUPPORTED if name.startswith("sklearn.") and name not in ESTIMATORS]


@pytest.mark.parametrize("backend", BACKENDS)
@BY_CLASS
def test_agrees_with_its_source(name: str, backend: str) -> None:
    """On numpy, everything is compared. On each other backend one kind of data in float64, and another kind for the next class. On tvm,
    where compilation takes longer than all else, only one method: the last of METHODS, which shows most."""
    if backend == "numpy":
        sweep(name, backend)
        return
    kinds = converting(name)
    kind, model, X = kinds[(CONVERTIBLE.index(name) + BACKENDS.index(backend)) % len(kinds)]
    case = case_for(name, kind)
    methods = source_methods(case, model)
    check_agreement(case, model, X, converted(model, backend, X), methods[-1:] if backend == "tvm" else methods, ())


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS[1:])
@BY_CLASS
def test_all_of_it(name: str, backend: str) -> None:
    sweep(name, backend)


@pytest.mark.parametrize("name", [name for name in CONVERTIBLE if ESTIMATORS[name].__name__ in REFUSED_BY_DEFAULT])
def test_refused_by_default(name: str) -> None:
    (_, model, X), *_ = models(name)
    with pytest.raises(hbc.UnsupportedOperatorError):
        hbc.convert(model, "numpy", X)


def test_what_has_no_methods_says_so() -> None:
    from sklearn.cluster import DBSCAN

    with pytest.raises(hbc.UnsupportedOperatorError, match="no predict or transform for new data"):
        hbc.convert(DBSCAN().fit(np.arange(8.0).reshape(4, 2)), "numpy", np.zeros((1, 2)))


@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
def test_the_error_gives_the_reason(name: str) -> None:
    """The error gives the reason also for a model that was not fitted."""
    model = object.__new__(ESTIMATORS[name])
    with pytest.raises(hbc.UnsupportedOperatorError) as caught:
        hbc.convert(model, "numpy", np.zeros((1, 2)))
    assert caught.value.culprits[0].reason == UNSUPPORTED[name]
