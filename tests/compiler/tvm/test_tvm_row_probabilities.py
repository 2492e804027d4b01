"""Probabilities of many classes along the columns of a row (hbc/compiler/tvm/plan/row_probabilities.py): which they are, and that they are
right."""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from lightgbm import LGBMClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from xgboost import XGBClassifier

import hbc
from hbc.compiler.base import CompileOptions
from hbc.ir.graph import Graph, Input, Node, topological
from hbc.ir.types import NUMPY_DTYPES, Array, DType
from hbc.ops import tensor as t
from hbc.ops.linear import Softmax

pytest.importorskip("tvm")

from hbc.compiler.tvm.compiler import COMPILER
from hbc.compiler.tvm.plan.plan import make_plan
from hbc.compiler.tvm.plan.row_probabilities import RowArgMax, RowProbabilities

TARGETS = [None, {"kind": "llvm", "mcpu": "haswell"}] if platform.machine() == "x86_64" else [None]


def given(columns: int, dtype: DType = "f64") -> Node:
    return Input("x", dtype, ("N", columns))()


def softmax(x: Node) -> Node:
    return Softmax().lower(x)


def sigmoid_of_differences(x: Node) -> Node:
    """A sigmoid whose elements don't count as rows (`Plan.row`), since each follows from all columns."""
    return t.sigmoid(t.sub(x, t.max_(x, axis=1, keepdims=True)))


def kinds(*outputs: Node, register: int = 512) -> list[str]:
    nodes = topological(make_plan(outputs, register=register).outputs)
    return [f"{type(node.op).__name__} {node.op.kind}" for node in nodes if isinstance(node.op, RowProbabilities | RowArgMax)]


def test_only_outputs_of_many_columns_go_along_rows() -> None:
    x = given(24)
    assert kinds(softmax(x)) == ["RowProbabilities softmax"]
    assert kinds(t.log(softmax(x))) == ["RowProbabilities log_softmax"]
    assert kinds(t.argmax(softmax(x), 1)) == ["RowArgMax softmax"]
    assert kinds(sigmoid_of_differences(x)) == ["RowProbabilities sigmoid"]
    assert kinds(t.argmax(sigmoid_of_differences(x), 1)) == ["RowArgMax sigmoid"]
    assert kinds(softmax(x), t.argmax(softmax(x), 1)) == ["RowProbabilities softmax", "RowArgMax softmax"]
    assert kinds(softmax(given(23))) == []
    assert kinds(softmax(given(24, "f32"))) == []
    assert kinds(softmax(given(24, "f32")), register=256) == ["RowProbabilities softmax"]
    assert kinds(softmax(x), register=0) == []


def test_other_quotients_and_values_that_are_read_stay() -> None:
    x = given(30)
    shifted = t.exp(t.sub(x, t.max_(x, axis=1, keepdims=True)))
    total = t.sum_(shifted, axis=1, keepdims=True)
    assert kinds(t.div(shifted, t.sum_(shifted, axis=1, keepdims=True, ordered=True))) == []
    assert kinds(t.div(t.exp(x), t.sum_(t.exp(x), axis=1, keepdims=True))) == []
    assert kinds(t.div(t.exp(x), total)) == []
    assert kinds(t.add(softmax(x), 1.0)) == []
    assert kinds(softmax(x), t.add(softmax(x), 1.0)) == []


def hard_rows(columns: int, dtype: DType) -> Array:
    """40 rows: plain ones, large ones, equal ones; with infinities and NaN."""
    rng = np.random.default_rng(columns)
    x = rng.standard_normal((40, columns)) * np.array([1, 10, 1000, 0])[np.arange(40) % 4][:, None]
    x[4] = rng.choice([-1000, 1000], columns)
    x[5] = np.where(np.arange(columns) % 2, -np.inf, 3)
    x[6, [3, columns - 1]] = x[6].max() + 1  # the largest twice
    x[7, columns - 1], x[9, 5], x[10, 0] = np.inf, np.nan, np.nan
    x[8] = -np.inf
    x[11] = np.linspace(-110, 0, columns)  # to below the least normal float32
    return x.astype(NUMPY_DTYPES[dtype])


METHODS: dict[str, Callable[[Node], Node]] = {
    "softmax": softmax,
    "logarithm": lambda x: t.log(softmax(x)),
    "place": lambda x: t.argmax(softmax(x), 1),
    "sigmoid": sigmoid_of_differences,
    "place of a sigmoid": lambda x: t.argmax(sigmoid_of_differences(x), 1),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("columns", "dtype"), [(64, "f64"), (101, "f64"), (512, "f64"), (51, "f32")])
def test_rows_alone_and_together(columns: int, dtype: DType, target: Any) -> None:
    x = given(columns, dtype)
    graph = Graph((x,), {name: (make(x),) for name, make in METHODS.items()}).verify()
    executable = COMPILER.compile(graph, CompileOptions(threads=1, target=target))
    array = hard_rows(columns, dtype)
    tolerance = {"rtol": 1e-13, "atol": 1e-15} if dtype == "f64" else {"rtol": 1e-5, "atol": 1e-6}
    with np.errstate(all="ignore"):
        expected = graph.evaluate(array)
    for name in METHODS:
        (found,) = executable.run(name, [array])
        np.testing.assert_allclose(found, expected[name][0], **tolerance)
        for rows in (1, 7, 8, 9, 16, 31):
            for first in (0, 9):
                (some,) = executable.run(name, [array[first : first + rows]])
                np.testing.assert_array_equal(some, found[first : first + rows])


def test_quotients_are_rounded_as_divisions_are() -> None:
    """In float64 they are made by multiplication. Here the exponentials are 1 and 0, and their sums 1, 2, 3, …"""
    x, columns = given(300), np.arange(300)
    executable = COMPILER.compile(Graph((x,), {"predict": (softmax(x),)}).verify(), CompileOptions(threads=1))
    ones = columns <= columns[:, None]
    (found,) = executable.run("predict", [np.where(ones, 5.0, -np.inf)])
    np.testing.assert_array_equal(found, ones / (columns[:, None] + 1.0))


CLASSES = 101


def trained(library: str) -> tuple[Any, Array]:
    """A model of many classes, and rows to score, with NaN where the library takes it."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((1500, 6)).astype(np.float32)
    y = np.concatenate([np.arange(CLASSES), ((X[CLASSES:, 0] + X[CLASSES:, 1] * X[CLASSES:, 2]) * 20).astype(int) % CLASSES])
    if library == "mlp":
        return MLPClassifier((8,), max_iter=2, random_state=0).fit(X, y), X[:40]
    if library == "logistic":
        return LogisticRegression(max_iter=3).fit(X, y), X[:40]
    X[rng.random(X.shape) < 0.1] = np.nan
    if library == "xgboost":
        return XGBClassifier(n_estimators=3, max_depth=3, n_jobs=1).fit(X, y), X[:40]
    objective = "multiclassova" if library == "one against all" else "multiclass"
    rate = 1000.0 if library == "large sums" else 0.3
    options = {"num_leaves": 7, "min_child_samples": 3, "n_jobs": 1, "verbose": -1}
    return LGBMClassifier(objective=objective, n_estimators=3, learning_rate=rate, **options).fit(X, y), X[:40]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("library", ["lightgbm", "large sums", "one against all", "xgboost", "mlp", "logistic"])
def test_many_classes_beside_their_library(library: str) -> None:
    model, X = trained(library)
    compiled = hbc.convert(model, "tvm", threads=1, X=X)
    expected = model.predict_proba(X)
    if library == "large sums":
        assert np.ptp(model.predict(X, raw_score=True), axis=1).min() > 1000
    for rows in (1, 2, 5, 16, 23, 40):
        found = compiled.predict_proba(X[:rows])
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected[:rows], rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(compiled.predict(X[:rows]), model.predict(X[:rows]))
    if hasattr(model, "predict_log_proba"):
        np.testing.assert_allclose(compiled.predict_log_proba(X), model.predict_log_proba(X), rtol=1e-5, atol=1e-6)
