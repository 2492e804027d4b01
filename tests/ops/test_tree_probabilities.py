"""Probabilities of ensembles are 0 or 1, and logarithms -inf, exactly where the source's are, in whatever way a backend adds the leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import BaggingClassifier, ExtraTreesClassifier, RandomForestClassifier, VotingClassifier
from sklearn.tree import DecisionTreeClassifier

import hbc
from hbc.ir.types import Array

ROWS = (1, 3, 63, 64, 100, 1500)
FEATURES = 5
WAYS = [
    ("tvm", "scan"),
    ("tvm", "walk"),
    ("tvm", "auto"),
    ("torch", "tree_trav"),
    ("torch", "gemm"),
    ("torchscript", "perf_tree_trav"),
    ("onnx", "auto"),
    ("numpy", "auto"),
]


def noise(rng: np.random.Generator, classes: int, outputs: int = 1) -> tuple[Array, Array]:
    """Labels that no feature explains, some of them rare: leaves of every mixture of classes, and many that have not all of them."""
    y = rng.choice(classes, (200, outputs), p=rng.dirichlet(np.full(classes, 0.7)))
    y[:classes] = np.arange(classes)[:, None]
    return rng.normal(size=(200, FEATURES)), y[:, 0] if outputs == 1 else y


def forest(rng: np.random.Generator) -> Any:
    classes, outputs = int(rng.integers(2, 11)), int(rng.choice([1, 1, 1, 2]))
    cls = rng.choice([RandomForestClassifier, ExtraTreesClassifier])
    model = cls(
        n_estimators=int(rng.integers(1, 25)),
        max_depth=rng.choice([1, 3, 6, 9, None]),
        min_samples_leaf=int(rng.choice([1, 2, 5])),
        bootstrap=bool(rng.integers(2)),
        criterion=str(rng.choice(["gini", "entropy"])),
        random_state=int(rng.integers(1000)),
    )
    return model.fit(*noise(rng, classes, outputs))


def of_rare_rows(rng: np.random.Generator) -> Any:
    """Weights of every size, so that some probabilities are positive and far below the precision of a sum."""
    X, y = noise(rng, int(rng.integers(2, 6)))
    weights = 10.0 ** rng.choice([0, -3, -9, -14, -20, -200], len(y))
    return RandomForestClassifier(6, max_depth=int(rng.integers(2, 6)), random_state=0).fit(X, y, sample_weight=weights)


def bagged_forests(rng: np.random.Generator) -> Any:
    member = RandomForestClassifier(5, max_depth=5, random_state=0)
    return BaggingClassifier(member, n_estimators=3, random_state=0).fit(*noise(rng, 5))


def bagged_trees(rng: np.random.Generator) -> Any:
    member = DecisionTreeClassifier(max_depth=int(rng.integers(2, 9)))  # Bagging seeds it
    return BaggingClassifier(member, n_estimators=9, random_state=0).fit(*noise(rng, int(rng.integers(2, 8))))


def voting_forests(rng: np.random.Generator) -> Any:
    members = [
        ("a", RandomForestClassifier(7, max_depth=5, random_state=0)),
        ("b", ExtraTreesClassifier(3, max_depth=12, random_state=0)),
        ("c", DecisionTreeClassifier(max_depth=9, random_state=0)),
    ]
    return VotingClassifier(members, voting="soft", weights=[1, 2, 4]).fit(*noise(rng, 5))


def assert_same_ends(expected: Any, found: Any) -> None:
    """Zeros, ones and infinities are at the same places, and no probability is beyond the source's range."""
    expected, found = np.asarray(expected), np.asarray(found)
    np.testing.assert_array_equal(found == 0, expected == 0)
    np.testing.assert_array_equal(found == 1, expected == 1)
    assert found.min() >= min(expected.min(), 0)
    assert found.max() <= max(expected.max(), 1)
    np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-9)


def check(model: Any, backend: str, strategy: str, rng: np.random.Generator) -> None:
    compiled = hbc.convert(model, backend, strategy=strategy)
    X = rng.normal(size=(max(ROWS), FEATURES))
    with np.errstate(divide="ignore"):
        expected = model.predict_proba(X)
        logarithms = model.predict_log_proba(X) if hasattr(model, "predict_log_proba") else expected
    if not isinstance(expected, list):
        expected, logarithms = [expected], [logarithms]
    for rows in ROWS:
        found = compiled.predict_proba(X[:rows])
        found_logarithms = compiled.predict_log_proba(X[:rows]) if hasattr(model, "predict_log_proba") else found
        if not isinstance(found, list):
            found, found_logarithms = [found], [found_logarithms]
        for k in range(len(expected)):
            assert_same_ends(expected[k][:rows], found[k])
            infinite = np.isneginf(logarithms[k][:rows])
            np.testing.assert_array_equal(np.isneginf(found_logarithms[k]), infinite)
            np.testing.assert_allclose(found_logarithms[k][~infinite], logarithms[k][:rows][~infinite], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("seed", range(8))
def test_forests_of_noise_scanned_by_tvm(seed: int) -> None:
    """One in three of these forests had cells of -5e-14 before the integers of a leaf added up to a whole number."""
    rng = np.random.default_rng(seed)
    for _ in range(2):
        check(forest(rng), "tvm", "scan", rng)


@pytest.mark.parametrize("make", [forest, of_rare_rows, bagged_forests, bagged_trees, voting_forests])
@pytest.mark.parametrize(("backend", "strategy"), WAYS)
def test_ensembles_everywhere(make: Callable[[np.random.Generator], Any], backend: str, strategy: str) -> None:
    rng = np.random.default_rng(5)
    check(make(rng), backend, strategy, rng)
