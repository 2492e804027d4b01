"""Products with one-hot codes as sums of rows of weights (hbc/optimizer/linear/tables.py): when, and that predictions stay the source's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from backends import COMPILED, installed
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import KBinsDiscretizer, OneHotEncoder
from sklearn.svm import SVC

import hbc
from hbc.compiler.base import CompileOptions, load_compiler
from hbc.ir.graph import Graph, Input, Node
from hbc.ir.types import NUMPY_DTYPES, N
from hbc.ops import tensor as t
from hbc.ops.encoding import Codes, OneHot, places_of
from hbc.ops.linear import TableSum
from hbc.optimizer.linear.algebra import FoldLinear
from hbc.optimizer.lower import Lower


def looks_up(backend: str, categories: int, outputs: int, dtype: str, rows: int | None = None) -> bool:
    """Whether the product of 36 codes and weights becomes a TableSum."""
    x = Input("X", "i32", (N, 36))()
    hot = OneHot(np.repeat(np.arange(36), categories), np.tile(np.arange(categories, dtype=np.int32), 36), dtype)(x)  # type: ignore[arg-type]
    y = t.matmul(hot, t.constant(np.ones((36 * categories, outputs), NUMPY_DTYPES[dtype])))  # type: ignore[index]
    after = FoldLinear(load_compiler(backend), CompileOptions(batch_size=rows))(Graph((x,), {"transform": (y,)})).graph
    return any(isinstance(node.op, TableSum) for node in after.nodes)


CHOICES = {
    "tvm": {(2, 1): False, (3, 64): True, (5, 2500): True, (200, 1): True},
    "torch": {(2, 1): False, (2, 2500): False, (6, 2500): True, (200, 1): True, (200, 2500): True},
    "onnx": {(2, 64): False, (6, 1): True, (6, 2500): False, (200, 64): True, (200, 2500): True},
}


@pytest.mark.every_case
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("backend", installed(*CHOICES))
def test_few_categories_are_multiplied(backend: str, dtype: str) -> None:
    choices = CHOICES[backend]
    if (backend, dtype) == ("torch", "f32"):
        choices = choices | {(2, 1): True}
    assert {case: looks_up(backend, *case, dtype) for case in choices} == choices


@pytest.mark.parametrize("backend", installed(*CHOICES))
def test_one_row_does_not_read_all_weights_of_a_product(backend: str) -> None:
    assert looks_up(backend, 5, 2500, "f64", rows=1)
    assert looks_up(backend, 5, 2500, "f64", rows=100_000) == (backend != "onnx")


@pytest.mark.parametrize("backend", installed(*CHOICES))
def test_what_codes_are_made_of_counts(backend: str) -> None:
    """Places of floats take more work than those of integers, and places that were looked up none: between 1 and 20 categories of one
    output there is a number that is multiplied for floats and added for what was found."""

    def least(made_of: Codes) -> int:
        chosen = [load_compiler(backend).looks_up(36, made_of, 36 * k, 1, "f64", CompileOptions()) for k in range(1, 21)]
        assert chosen == sorted(chosen)  # once it pays, it pays for more categories too
        assert chosen[-1]
        return chosen.index(True)

    assert least("floats") >= least("integers") >= least("found")
    assert least("floats") > least("found")


@pytest.mark.parametrize("backend", ["numpy", *COMPILED])
@pytest.mark.parametrize("dtype", ["f32", "f64", "i32", "i64"])
@pytest.mark.parametrize("cast", [None, "f32", "f64"])
def test_places(dtype: str, cast: str | None, backend: str) -> None:
    """Ends for numbers far away and infinities, `below` for fractions, and a place for NaN where that is told; also before a cast."""
    numbers = np.array([-(2**30), -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 2**24 + 1, 2**30], NUMPY_DTYPES[dtype])  # type: ignore[index]
    if dtype[0] == "f":
        numbers = np.append(numbers, np.array([0.5, -0.0, 4.999, np.nan, np.inf, -np.inf], numbers.dtype))
    x = Input("X", dtype, (N, 2))()  # type: ignore[arg-type]
    below, above, shift = np.array([-2, 2]), np.array([4, 5]), np.array([2, 98])
    codes = t.cast(x, cast) if cast else x  # type: ignore[arg-type]
    outputs = {
        "transform": (places_of(codes, below, above, shift, True),),
        "predict": (places_of(codes, below, above, shift, False),),
    }
    rows = np.column_stack([numbers, numbers])
    seen = rows.astype(NUMPY_DTYPES[cast]) if cast else rows  # type: ignore[index]
    expected = np.clip(np.where(seen == np.floor(seen), seen, below), below, above).astype(np.int64) + shift
    compiler = load_compiler(backend)
    executable = compiler.compile(Lower(compiler)(Graph((x,), outputs)), CompileOptions())
    np.testing.assert_array_equal(executable.run("predict", [rows])[0], expected)
    with_missing = np.where(np.isnan(seen), above + 1 + shift, expected)
    np.testing.assert_array_equal(executable.run("transform", [rows])[0], with_missing)


@pytest.mark.parametrize("beside", ["transform", "score_samples"])
def test_other_methods_may_read_the_codes(beside: str) -> None:
    """A product looks codes up if an operator of another method reads them, and not if one of its own does, or returns them."""
    x = Input("X", "i32", (N, 1))()
    hot = OneHot(np.zeros(12, int), np.arange(12, dtype=np.int32), "f64")(x)
    y = t.matmul(hot, t.constant(np.arange(48.0).reshape(12, 4)))
    fold = FoldLinear(load_compiler("numpy"), CompileOptions())
    for other in (t.max_(hot, 1), hot):
        outputs: dict[str, tuple[Node, ...]] = {"transform": (y,)}
        outputs[beside] = (*outputs.get(beside, ()), other)
        nodes = fold(Graph((x,), outputs)).graph.nodes
        assert any(isinstance(node.op, TableSum) for node in nodes) == (beside != "transform")


RNG = np.random.default_rng(0)
CODES = np.round(RNG.normal(size=(400, 5)) * 4)
GAPS = np.where(RNG.random(CODES.shape) < 0.1, np.nan, CODES)
STRANGE = np.where(RNG.random(CODES.shape) < 0.1, RNG.choice([77.0, -1e30, 0.5, np.nan], CODES.shape), GAPS)
LABELS = RNG.integers(0, 7, 400)


def encoder(**options: Any) -> OneHotEncoder:
    return OneHotEncoder(sparse_output=False, **options)


MODELS: dict[str, tuple[Pipeline, np.ndarray, np.ndarray]] = {
    "ignored": (make_pipeline(encoder(handle_unknown="ignore"), LogisticRegression(max_iter=5)), GAPS, STRANGE),
    "infrequent": (
        make_pipeline(
            encoder(handle_unknown="infrequent_if_exist", min_frequency=20), SGDClassifier(loss="log_loss", max_iter=5)
        ),
        GAPS,
        STRANGE,
    ),
    "dropped": (make_pipeline(encoder(drop="first"), MLPClassifier((33,), max_iter=2)), GAPS, GAPS),
    "projected": (make_pipeline(encoder(drop="first"), PCA(20)), GAPS, GAPS),
    "bins": (
        make_pipeline(KBinsDiscretizer(9, encode="onehot-dense"), SVC(kernel="poly")),
        CODES,
        CODES * 3.7,
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", COMPILED)
@pytest.mark.parametrize("name", MODELS)
def test_predictions_are_those_of_the_source(name: str, backend: str) -> None:
    """Unknown, infrequent and dropped categories, NaN, numbers far away; float32 and float64; one row and many."""
    model, X, rows = MODELS[name]
    model.fit(X, LABELS)
    compiled = hbc.convert(model, backend)
    method = next(name for name in ("predict_proba", "decision_function", "transform") if hasattr(model, name))
    for kind in (np.float32, np.float64):
        expected = getattr(model, method)(rows.astype(kind))
        found = getattr(compiled, method)(rows.astype(kind))
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
        for i in range(0, 400, 97):
            one = getattr(compiled, method)(rows[i : i + 1].astype(kind))
            np.testing.assert_allclose(one, found[i : i + 1], rtol=1e-12, atol=1e-12)
    if backend == "tvm":
        nodes = [node for variant in compiled.variants.values() for node in variant.plan.graph.nodes]
        assert any(isinstance(node.op, TableSum) for node in nodes)
