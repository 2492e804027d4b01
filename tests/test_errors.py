"""Every bad model, argument and input gives one of hbc's own errors, which says what was found and what to do."""

from __future__ import annotations

import datetime
import functools
import pickle
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse
import torch
from sklearn.cluster import DBSCAN
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import hbc
from hbc.api import self_test
from hbc.errors import Culprit
from hbc.ir.graph import Graph, Input
from hbc.ir.signature import Column, Guard, InputLimits, InputSpec, Limits
from hbc.ir.types import N
from hbc.runtime.input.gate import ROWS_PER_BLOCK, Gate

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3))
Y = (X.sum(axis=1) > 0).astype(int)
MODEL = LogisticRegression().fit(X, Y)


@pytest.fixture(scope="module")
def compiled():
    return hbc.convert(MODEL, "numpy")


# --- inputs ------------------------------------------------------------------------------------------------------------


def with_value(value: Any, dtype: Any = float) -> Any:
    data = X.astype(dtype)
    data[17, 1] = value
    return data


BAD_INPUTS: dict[str, tuple[Any, str]] = {
    "None": (None, "found None"),
    "a number": (3.5, "a float.*array.reshape"),
    "a string": ("abc", "found a str"),
    "a dict": ({"a": 1.0}, "a dict whose value of .a. is a single one"),
    "a set": ({1.0, 2.0}, "found a set"),
    "a generator": ((row for row in X), "found a generator"),
    "an object": (object(), "found an object"),
    "the model itself": (MODEL, "found a LogisticRegression"),
    "0-D": (np.array(1.0), "shape"),
    "1-D": (X[0], r"vector of shape \(3,\).*array.reshape\(1, -1\)"),
    "a list of numbers": ([1.0, 2.0, 3.0], r"array.reshape\(-1, 1\)"),
    "an empty list": ([], r"shape \(0,\)"),
    "3-D": (X[None], r"\(1, 40, 3\)"),
    "too narrow": (X[:, :2], "2 columns, expected 3 columns"),
    "too wide": (np.hstack([X, X]), "6 columns, expected 3 columns"),
    "no columns": (X[:, :0], "0 columns"),
    "ragged lists": ([[1.0, 2.0, 3.0], [1.0]], "rows of different lengths"),
    "ragged objects": (np.array([[1.0], [1.0, 2.0]], object), "vector of shape"),
    "complex": (X.astype(complex), "complex numbers"),
    "complex objects": (with_value(1j, object), r"1j \(of type complex\) in row 17"),
    "strings": (X.astype(str), "strings before|the string"),
    "a string among objects": (with_value("abc", object), r"column 1: found the string 'abc' in row 17"),
    "strings in lists": ([["a", "b", "c"]], "the string 'a'"),
    "bytes": (X.astype("S"), "bytes"),
    "dates": (np.full((2, 3), np.datetime64("2020-01-01")), "dates"),
    "time spans": (np.full((2, 3), np.timedelta64(1, "s")), "time spans"),
    "dates among objects": (with_value(datetime.date(2020, 1, 1), object), "datetime.date.*row 17"),
    "records": (np.zeros(3, [("a", "f8"), ("b", "f8")]), "vector of shape|records"),
    "objects": (with_value(object(), object), "row 17"),
    "lists among objects": (with_value([1.0], object), r"\[1.0\].*row 17"),
    "pandas.NA among objects": (with_value(pd.NA, object), "NAType.*row 17"),
    "an integer beyond float64": (with_value(10**400, object), "int.*row 17"),
    "an integer that Python does not print": (with_value(10**5000, object), "int.*row 17"),
    "deeply nested lists": (
        with_value(functools.reduce(lambda inner, _: [inner], range(5000)), object),
        r"of type list\) in row 17",
    ),
    "uint64 beyond int64": (np.full((2, 3), 2**63, np.uint64), "9223372036854775808"),
    "np.matrix": (X.view(np.matrix), "np.matrix"),
    "a series": (pd.Series(X[0]), "to_frame"),
    "a polars series": (pl.Series(X[0]), "to_frame"),
    "a lazy frame": (pl.LazyFrame({"a": [1.0]}), "collect"),
    "a frame of strings": (pd.DataFrame(X).assign(**{"1": "x"}).set_axis(range(4), axis=1).iloc[:, [0, 1, 3]], "numbers"),
    "a frame of lists": (pl.DataFrame({"a": [[1.0]], "b": [1.0], "c": [1.0]}), "column 0"),
    "sparse and narrow": (scipy.sparse.csr_matrix(X[:, :2]), "2 columns"),
    "a tensor with a gradient": (torch.tensor(X, requires_grad=True), "detach"),
    "a bfloat16 tensor": (torch.tensor(X).bfloat16(), "float"),
    "a tensor without memory": (torch.empty(2, 3, device="meta"), "device meta"),
    "a sparse tensor": (torch.tensor(X).to_sparse(), "tensor that cannot be read"),
    "NaN": (with_value(np.nan), "column 1: found NaN in row 17.*LogisticRegression rejects missing.*SimpleImputer"),
    "NaN, float32": (with_value(np.nan, np.float32), "found NaN in row 17"),
    "None among objects": (with_value(None, object), "found NaN in row 17"),
    "inf": (with_value(np.inf), "column 1: found inf in row 17"),
    "-inf, float32": (with_value(-np.inf, np.float32), "column 1: found -inf in row 17"),
    "inf in float16": (with_value(np.inf, np.float16), "found inf in row 17"),
    "NaN in a sparse matrix": (scipy.sparse.csr_matrix(with_value(np.nan)), "found NaN in row 17"),
    "several NaN": (np.where(X > 0, np.nan, X), r"NaN in row \d+, and \d+ more below"),
    "zero rows": (X[:0], "found 0 rows, expected at least 1"),
    "zero rows of a frame": (pd.DataFrame(X[:0]), "found 0 rows"),
    "zero rows of integers": (np.empty((0, 3), int), "found 0 rows"),
}


@pytest.mark.parametrize("name", BAD_INPUTS)
def test_bad_input(compiled: Any, name: str) -> None:
    """Bad inputs give InvalidInputError with facts. The source rejects them too, or would compute nonsense (strings of digits, dates)."""
    data, message = BAD_INPUTS[name]
    for method in compiled.methods[:1] if name == "a generator" else compiled.methods:
        with pytest.raises(hbc.InvalidInputError, match=f"(?s){message}") as caught:
            getattr(compiled, method)(data)
        assert caught.value.facts["found"]
        assert caught.value.facts["expected"]


def test_accepted_where_the_source_accepts_it(compiled: Any) -> None:
    numbers = X.astype(object)
    numbers[0] = [Decimal("1.5"), "2.5", True]  # scikit-learn converts objects with float()
    np.testing.assert_allclose(compiled.predict_proba(numbers), MODEL.predict_proba(numbers))
    huge = with_value(1e300)
    np.testing.assert_allclose(compiled.decision_function(huge), MODEL.decision_function(huge))


def limits(nan: list[bool], inf: list[bool], limit: list[float]) -> InputLimits:
    owners = tuple(f"pkg.Model{i}" for i in range(len(nan)))
    return InputLimits(np.array(nan), np.array(inf), np.array(limit), owners)


INF = float("inf")
GATES: list[tuple[str, InputLimits, list[list[float]], str | None]] = [
    ("free", limits([True] * 2, [True] * 2, [INF] * 2), [[np.nan, INF]], None),
    ("finite", limits([False] * 2, [False] * 2, [INF] * 2), [[1e30, -1e30]], None),
    ("nan in the first", limits([True, False], [False] * 2, [INF] * 2), [[np.nan, 1]], None),
    (
        "nan in the second",
        limits([True, False], [False] * 2, [INF] * 2),
        [[1, 1], [1, np.nan]],
        r"column 1: found NaN in row 1.*Model1",
    ),
    (
        "inf beside nan",
        limits([True] * 2, [False] * 2, [INF] * 2),
        [[np.nan, 1], [INF, 1]],
        "column 0: found inf in row 1.*Model0",
    ),
    ("inf allowed", limits([False] * 2, [True] * 2, [INF] * 2), [[INF, -INF]], None),
    ("inf allowed, nan not", limits([False] * 2, [True] * 2, [INF] * 2), [[INF, np.nan]], "found NaN"),
    (
        "limit",
        limits([True] * 2, [False] * 2, [1e38, INF]),
        [[1, 1e200], [-2e38, 0]],
        r"column 0: found -2e\+38 in row 1.*at most 1e\+38",
    ),
    ("at the limit", limits([False] * 2, [False] * 2, [1e38, 1e38]), [[1e38, -1e38]], None),
    ("far below", limits([False] * 2, [False] * 2, [1e38, 1e38]), [[1e30] * 2] * 9, None),
]


@pytest.mark.parametrize("dtype", ["f64", "f32"])
@pytest.mark.parametrize(("name", "limit", "rows", "message"), GATES, ids=[gate[0] for gate in GATES])
def test_limits_by_column(name: str, limit: InputLimits, rows: list[list[float]], message: str | None, dtype: str) -> None:
    if dtype == "f32" and np.abs(np.nan_to_num(rows, posinf=0, neginf=0)).max() > 1e100:
        pytest.skip("not a float32")
    gate = Gate(Limits((limit,), 0), (dtype, dtype), InputSpec((Column(),) * 2))  # type: ignore[arg-type]
    array = np.array(rows, np.float32 if dtype == "f32" else np.float64)
    padded = np.vstack([array, np.zeros((2 * ROWS_PER_BLOCK, 2), array.dtype)])
    for data in (array, padded):
        if message is None:
            gate([data])
        else:
            message = message.replace(r"2e\+38", r"(2e\+38|1\.9\d+e\+38)")
            with pytest.raises(hbc.InvalidInputError, match=f"(?s){message}"):
                gate([data])


def test_the_first_bad_row_is_named_in_any_block(compiled: Any) -> None:
    data = np.zeros((3 * ROWS_PER_BLOCK, 3))
    data[2 * ROWS_PER_BLOCK + 5, 2] = np.nan
    with pytest.raises(hbc.InvalidInputError, match=f"column 2: found NaN in row {2 * ROWS_PER_BLOCK + 5}"):
        compiled.predict(data)


def test_guards_are_asked() -> None:
    x = Input("X", "f64", (N, 1))()

    def require(value: Any) -> None:
        if (value > 5).any():
            raise hbc.InvalidInputError(found="six", expected="five")

    free = limits([True], [True], [INF])
    gate = Gate(Limits((free,), 0, (Guard(Graph((x,), {"value": (x,)}), require),)), ("f64",), InputSpec((Column(),)))
    gate([np.ones((2, 1))])
    with pytest.raises(hbc.InvalidInputError, match="six"):
        gate([np.full((2, 1), 6.0)])


def test_missing_strings_are_tested_too() -> None:
    strict = limits([False], [True], [INF])
    gate = Gate(Limits((strict,), 0), ("str",), InputSpec((Column(),)))
    gate([np.array([["a"], [None]], object)])
    with pytest.raises(hbc.InvalidInputError, match="found NaN in row 1"):
        gate([np.array([["a"], [np.nan]], object)])


# --- models and arguments ----------------------------------------------------------------------------------------------

BAD_ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({"backend": "tf"}, "'tf'; known are tvm, torch"),
    ({"backend": None}, "None; known are"),
    ({"backend": 3}, "3; known are"),
    ({"device": "gpu"}, "'gpu'; known are 'cpu', 'cuda'"),
    ({"device": "cuda:x"}, "'cuda:x'"),
    ({"device": None}, r"None \(of type NoneType\); known are"),
    ({"device": np.ones((30, 9))}, r"unknown device array.{60,80}\(of type ndarray\); known are"),
    ({"strategy": "fast"}, "'fast'; backend 'numpy' has auto, gemm, tree_trav, perf_tree_trav"),
    ({"strategy": None}, "strategy: found None .*, expected one of auto, gemm"),
    ({"strategy": np.ones((30, 9))}, r"strategy: found array.{60,80}, expected one of auto, gemm"),
    ({"threads": 0}, "threads must be a positive integer or None, found 0"),
    ({"threads": -1}, "threads"),
    ({"threads": 1.5}, "threads"),
    ({"threads": True}, "threads"),
    ({"batch_size": 0}, "batch_size"),
    ({"batch_size": "many"}, "batch_size"),
    ({"batch_size": np.ones((30, 9))}, r"batch_size must be a positive integer or None, found array.{60,80}$"),
    ({"iteration_range": np.ones((30, 9))}, r"iteration_range: found array.{60,80}, expected \(first, end\)"),
    ({"warm_up": np.ones((30, 9))}, r"methods: found array.{60,80}, expected some of predict"),
    ({"warm_up": 3}, "methods: found 3 .*, expected some of predict"),
    ({"target": "llvm"}, "target must be a dict"),
    ({"target": {"kind": "llvm"}}, "Backend 'tvm' takes one"),
    ({"X": np.ones((2, 7))}, "the sample X: found 7 columns, expected 3"),
    ({"X": "rows"}, "the sample X"),
    ({"X": np.ones((1, 2, 3))}, "the sample X"),
]


@pytest.mark.parametrize(
    ("arguments", "message"), BAD_ARGUMENTS, ids=[str(next(iter(a.items())))[:30] for a, _ in BAD_ARGUMENTS]
)
def test_bad_argument(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"(?s){message}"):
        hbc.convert(MODEL, **{"backend": "numpy", **arguments})


class Mine(LogisticRegression):
    pass


BAD_MODELS: dict[str, tuple[Any, type[Exception], str]] = {
    "a class": (LogisticRegression, hbc.NotFittedError, "LogisticRegression.*class, not an instance"),
    "None": (None, hbc.UnsupportedOperatorError, "NoneType.*not a model"),
    "a dict": ({}, hbc.UnsupportedOperatorError, "dict.*not a model"),
    "an array": (X, hbc.UnsupportedOperatorError, "ndarray.*not a model"),
    "a path": ("model.pkl", FileNotFoundError, "model.pkl: no such file"),
    "a function": (len, hbc.UnsupportedOperatorError, "not a model"),
    "a module": (np, hbc.UnsupportedOperatorError, "not a model"),
    "not fitted": (LogisticRegression(), hbc.NotFittedError, r"LogisticRegression at model is not fitted.*fit\(\)"),
    "a pipeline that is not fitted": (make_pipeline(StandardScaler(), LogisticRegression()), hbc.NotFittedError, "not fitted"),
    "no converter": (DBSCAN().fit(X), hbc.UnsupportedOperatorError, "sklearn.cluster.DBSCAN at model.*converts"),
    "a subclass": (Mine().fit(X, Y), hbc.UnsupportedOperatorError, "subclass of sklearn.linear_model.LogisticRegression"),
}


@pytest.mark.parametrize("name", BAD_MODELS)
def test_bad_model(name: str) -> None:
    model, error, message = BAD_MODELS[name]
    with pytest.raises(error, match=f"(?s){message}"):
        hbc.convert(model, "numpy")


def test_backend_names_and_aliases() -> None:
    assert hbc.convert(MODEL, "NumPy").backend == "numpy"
    assert hbc.convert(MODEL, "PyTorch").backend == "torch"
    assert hbc.convert(MODEL, "torch.jit").backend == "torchscript"
    assert set(hbc.backends()) >= {"tvm", "torch", "torchscript", "onnx", "numpy"}
    assert hbc.strategies("numpy")[:4] == ("auto", "gemm", "tree_trav", "perf_tree_trav")
    with pytest.raises(ValueError, match="known are"):
        hbc.strategies("nothing")


@pytest.mark.parametrize("backend", list(hbc.backends()))
def test_self_test(backend: str) -> None:
    self_test(backend)


def test_device_that_is_not_there() -> None:
    with pytest.raises(hbc.BackendUnavailableError, match=r"numpy.*cuda"):
        hbc.convert(MODEL, "numpy", device="cuda:7")


def test_supported_operators_are_sorted_dotted_names() -> None:
    names = hbc.supported_operators()
    assert names == sorted(names)
    assert "sklearn.linear_model.LogisticRegression" in names
    assert all("." in name for name in names)
    assert not [name for name in names if name.rpartition(".")[2].startswith("_")]


# --- the error tree ----------------------------------------------------------------------------------------------------

ERRORS: list[tuple[hbc.HbcError, tuple[type[Exception], ...]]] = [
    (hbc.UnsupportedOperatorError(culprits=[Culprit("a.B", "model", "no.", "Do.")]), (NotImplementedError,)),
    (hbc.InvalidInputError(found="1", expected="2", where="X", advice="Look."), (ValueError,)),
    (hbc.NotFittedError(operator="a.B"), (ValueError, AttributeError)),
    (hbc.ArtifactError(path="p", found="1", expected="2"), (ValueError,)),
    (hbc.BackendUnavailableError(backend="tvm", reason="missing", extra="tvm"), (ImportError,)),
]


@pytest.mark.parametrize(("error", "parents"), ERRORS, ids=[type(error).__name__ for error, _ in ERRORS])
def test_errors_travel_and_have_their_parents(error: hbc.HbcError, parents: tuple[type[Exception], ...]) -> None:
    assert isinstance(error, (hbc.HbcError, *parents))
    assert all(isinstance(error, parent) for parent in parents)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.facts == error.facts
