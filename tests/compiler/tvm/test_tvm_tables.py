"""Constant arrays of every dtype: small ones, which are joined to one table, and large ones (hbc/compiler/tvm/nest/model_data.py)."""

from __future__ import annotations

import numpy as np
import pytest

import hbc
from hbc.compiler.base import CompileOptions, load_compiler
from hbc.ir.graph import Graph, Input
from hbc.ir.types import NUMPY_DTYPES, N
from hbc.ops import tensor as t

pytest.importorskip("tvm")
from sklearn.ensemble import RandomForestClassifier

from hbc.compiler.tvm.nest.model_data import LARGE


@pytest.mark.every_case
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside a small one"])
@pytest.mark.parametrize("larger", [-1, 0, 1])
@pytest.mark.parametrize("dtype", [dtype for dtype in NUMPY_DTYPES if dtype != "str"])
def test_constants_of_every_dtype_on_both_sides_of_the_limit(dtype: str, larger: int, beside: bool) -> None:
    kind = NUMPY_DTYPES[dtype]
    rng = np.random.default_rng(0)
    table = rng.integers(0, 2 if dtype == "bool" else 100, LARGE // kind.itemsize + larger).astype(kind)
    index = rng.integers(0, len(table), (50, 1))
    x = Input("X", "i64", (N, 1))()
    outputs = {"predict": (t.take(table, x, axis=0),)}
    if beside:
        outputs["transform"] = (t.take(table[:7], t.minimum(x, t.constant(6)), axis=0), *outputs["predict"])
    executable = load_compiler("tvm").compile(Graph((x,), outputs), CompileOptions(threads=1))
    expected = [table[:7][np.minimum(index, 6)], table[index]] if beside else [table[index]]
    for found, value in zip(executable.run(list(outputs)[-1], [index]), expected, strict=True):
        assert found.dtype == value.dtype
        np.testing.assert_array_equal(found, value)


def test_the_sides_of_missing_values_in_a_deep_forest() -> None:
    """`perf_tree_trav` looks them up in a table of booleans a level."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 6))
    X[rng.random(X.shape) < 0.2] = np.nan
    model = RandomForestClassifier(40, max_depth=12, random_state=0).fit(X, rng.integers(0, 3, len(X)))
    compiled = hbc.convert(model, "tvm", strategy="perf_tree_trav")
    np.testing.assert_allclose(compiled.predict_proba(X), model.predict_proba(X), rtol=1e-12)
