"""Trees with category sets that are walked: a byte for each set, from the bits of a row's categories (set_keys.py)."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import lightgbm as lgb
import numpy as np
import pytest
import xgboost as xgb
from random_trees import random_tree

import hbc
from hbc.compiler.base import CompileOptions, load_compiler
from hbc.ir.graph import Graph, Input
from hbc.ir.types import Array, N
from hbc.ops import tensor as t
from hbc.ops.tree import CategoryPlanes, TreeEnsemble, join

pytest.importorskip("tvm")
from hbc.compiler.tvm.nest.schedule import CpuBlocks
from hbc.compiler.tvm.run.targets import machine
from hbc.compiler.tvm.trees.categories import CategoricalTrees, join_sets, pack_sets, with_sets
from hbc.compiler.tvm.trees.scan.scan import KEY_OF_SET, rows_alone, time_of_sets, walking
from hbc.compiler.tvm.trees.set_keys import AT_ONCE, turn_sets

WIDTH = 6
"""The columns of numbers; the last three of them are also columns of categories."""
ODD = [np.nan, np.inf, -np.inf, -0.0, -0.5, -1.0, 1.5, 1e30, 2.0**24, 2.0**31]
OWN, V2, AVX2, VBMI = None, "x86-64-v2", "haswell", "znver4"


def random_ensemble(
    most: int, sets: int, trees: int, dtype: str, outputs: int = 1, seed: int = 0
) -> tuple[TreeEnsemble, CategoryPlanes]:
    """Trees that test numbers, whose NaN go both ways, and sets of up to `most` categories in three columns."""
    rng = np.random.default_rng(seed)
    members = [np.unique(rng.integers(0, most, size=int(rng.integers(0, most)))) for _ in range(sets)]
    planes = CategoryPlanes(
        columns=rng.integers(3, WIDTH, size=sets),
        categories=np.concatenate(members),
        offsets=np.cumsum([0, *map(len, members)]),
        inside=rng.random(sets) < 0.5,
        missing=rng.random(sets) < 0.5,
        invalid=rng.random(sets) < 0.5,
        truncate_negative=bool(seed % 2),
        limit=float(2**24),
        whole=seed % 3 == 1,
    )
    values = rng.normal(size=(300, outputs))
    grown = [random_tree(rng, int(rng.integers(1, 60)), WIDTH + sets, dtype, values, missing=True) for _ in range(trees)]
    for tree in grown:
        in_set = tree.feature >= WIDTH
        tree.threshold[in_set] = 0.5
        tree.missing_left[in_set] = False
    return join(grown, np.zeros(outputs)), planes


def odd_numbers(most: int, dtype: str, rows: int, seed: int = 1) -> Array:
    rng = np.random.default_rng(seed)
    X = rng.integers(-2, most + 3, size=(rows, WIDTH)).astype(dtype)
    X[:, :3] = rng.normal(size=(rows, 3))
    return np.where(rng.random(X.shape) < 0.2, rng.choice(np.array(ODD, dtype), X.shape), X)


def target_of(processor: str | None) -> dict[str, str] | None:
    return None if processor is None else {"kind": "llvm", "mcpu": processor}


@pytest.mark.parametrize(
    ("most", "sets", "trees", "dtype", "outputs", "processor"),
    [
        (40, 30, 40, "f4", 1, OWN),
        (40, 500, 60, "f4", 1, OWN),
        (900, 200, 40, "f8", 1, OWN),  # bytes of 64-bit keys
        (40, 40, 30, "f8", 3, OWN),
        (40, 30, 1, "f4", 1, OWN),
        (40, 500, 60, "f4", 1, AVX2),
        (200, 300, 60, "f8", 1, AVX2),
        (40, 500, 60, "f4", 2, V2),
        (200, 300, 40, "f8", 1, V2),
        (40, 500, 60, "f4", 1, VBMI),
        (5000, 100, 40, "f4", 1, OWN),  # more bits than two bytes place
        (200, 3000, 200, "f8", 1, VBMI),  # more bytes than a node of 8 bytes numbers
    ],
)
def test_walked_sets(most: int, sets: int, trees: int, dtype: str, outputs: int, processor: str | None) -> None:
    """Categories in range, unseen, negative, fractional, huge, NaN; sums and leaf numbers; rows with and without NaN."""
    op, planes = random_ensemble(most, sets, trees, dtype, outputs, seed=sets + trees)
    X = odd_numbers(most, dtype, 1000)
    X[500:] = np.nan_to_num(X[500:], nan=1.0)
    x = Input("X", f"f{8 * int(dtype[1])}", (N, WIDTH))()  # type: ignore[arg-type]
    for output in ("sum", "leaf"):
        walked = replace(op, strategy="walk", output=output)
        graph = Graph((x,), {"predict": (walked(t.concat([x, planes(x)])),)})
        executable = load_compiler("tvm").compile(graph, CompileOptions(threads=1, target=target_of(processor)))
        assert isinstance(executable.methods.graph.outputs["predict"][0].op, CategoricalTrees)  # type: ignore[attr-defined]
        expected = walked.evaluate(np.concatenate([X, planes.evaluate(X)], axis=1))
        for rows in (1, 2, 3, 7, 15, 16, 17, 20, 63, 64, 65, 500):
            for part in (slice(rows), slice(700, 700 + rows)):
                found = executable.run("predict", [np.ascontiguousarray(X[part])])[0]
                np.testing.assert_allclose(found, expected[part], rtol=1e-9, atol=1e-9, err_msg=f"{rows} {output}")
        np.testing.assert_allclose(executable.run("predict", [X])[0], expected, rtol=1e-9, atol=1e-9)


def test_the_turned_bits_are_those_of_the_sets() -> None:
    """Each set that a split tests has a byte of its own, and the bits of a row's category are the tests' answers."""
    op, planes = random_ensemble(100, 400, 20, "f4")
    x = Input("X", "f32", (N, WIDTH))()
    graph = join_sets(Graph((x,), {"predict": (replace(op, strategy="walk")(t.concat([x, planes(x)])),)}), {"walk": 0})
    trees = graph.outputs["predict"][0].op
    assert isinstance(trees, CategoricalTrees)
    turned = turn_sets(trees)
    tested = np.unique(op.feature[op.feature >= WIDTH]) - WIDTH
    assert set(np.flatnonzero(turned.place >= 0)) == set(tested)
    assert len(set(turned.place[tested])) == len(tested) < len(planes.columns)
    assert turned.size % AT_ONCE == 0
    assert turned.place.max() < turned.size
    for category in (0, 7, 99, 100, 5000):
        X = np.full((1, WIDTH), category, np.float32)
        answers = planes.evaluate(X)[0]
        keys = np.zeros(turned.size, np.uint8)
        for number, column in enumerate(np.unique(planes.columns)):
            mine = np.concatenate([planes._set(p) for p in np.flatnonzero(planes.columns == column)])
            values = np.unique(mine)
            bit = int(np.searchsorted(values, category)) if category in values else len(values)
            words = turned.words[number]
            first = turned.starts[number] + bit * words
            bits = np.unpackbits(turned.bits[first : first + words].view(np.uint8), bitorder="little")
            keys[turned.first[number] : turned.first[number] + len(bits)] = bits
        np.testing.assert_array_equal(keys[turned.place[tested]], answers[tested])


def test_only_kernels_that_test_sets_are_chosen() -> None:
    """Patches and ranges have none: by their names, an ensemble with many sets is walked. Trees of 300 leaves would take ranges."""
    model, _, _ = fitted("lightgbm", 200, 300)
    for strategy in ("auto", "patches", "ranges"):
        compiled = hbc.convert(model, "tvm", strategy=strategy)
        graph = next(iter(compiled.variants.values())).plan.graph
        trees = [node.op for node in graph.nodes if isinstance(node.op, TreeEnsemble)]
        assert trees
        assert all(op.strategy in (("scan", "walk") if strategy == "auto" else (strategy,)) for op in trees)
        joined = join_sets(graph, CpuBlocks.joins_sets)
        assert all(isinstance(node.op, CategoricalTrees) for node in joined.nodes if isinstance(node.op, TreeEnsemble))


NUMBERS, COLUMNS = 3, 4


def rows_of(most: int, n: int, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    return np.column_stack([rng.normal(size=(n, NUMBERS)), rng.integers(0, most, (n, COLUMNS))])


def fitted(kind: str, most: int, leaves: int) -> tuple[Any, Array, Array]:
    """(a model, odd rows, what its library predicts for them)."""
    X = rows_of(most, 4000, 0)
    effect = np.random.default_rng(9).normal(size=(COLUMNS, most))
    y = X[:, 0] * X[:, 1] + effect[np.arange(COLUMNS), X[:, NUMBERS:].astype(int)].sum(axis=1)
    rng = np.random.default_rng(1)
    odd = rows_of(most, 200, 2)
    strange = [np.nan] if kind == "xgboost" else [np.nan, -1, -7, 0.5, 3.7, -0.5, most, most + 40, 1e6, 2.0**31, 1e30, np.inf]
    odd[:, NUMBERS:] = np.where(rng.random((200, COLUMNS)) < 0.3, rng.choice(strange, (200, COLUMNS)), odd[:, NUMBERS:])
    odd[rng.random(200) < 0.2, 0] = np.nan
    if kind == "xgboost":
        odd, kinds = odd.astype(np.float32), ["float"] * NUMBERS + ["c"] * COLUMNS
        data = xgb.DMatrix(X.astype(np.float32), y, feature_types=kinds, enable_categorical=True)
        options = {"max_depth": 0, "max_leaves": leaves, "grow_policy": "lossguide", "max_cat_to_onehot": 4, "nthread": 1}
        model = xgb.train(options, data, 30)
        return model, odd, model.predict(xgb.DMatrix(odd, feature_types=kinds, enable_categorical=True))
    options = {"n_estimators": 30, "num_leaves": leaves, "min_data_per_group": 1, "min_child_samples": 2, "cat_smooth": 0.1}
    categories = list(range(NUMBERS, NUMBERS + COLUMNS))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = lgb.LGBMRegressor(**options, categorical_feature=categories, verbose=-1, n_jobs=1).fit(X, y)
    return model, odd, model.predict(odd)


@pytest.mark.parametrize(
    ("kind", "most", "leaves", "processor", "strategy"),
    [
        ("xgboost", 60, 300, OWN, "auto"),
        ("xgboost", 60, 300, OWN, "scan"),
        ("xgboost", 60, 300, OWN, "walk"),
        ("xgboost", 60, 300, OWN, "patches"),
        ("xgboost", 60, 300, AVX2, "scan"),
        ("xgboost", 60, 300, V2, "walk"),
        ("lightgbm", 200, 300, OWN, "ranges"),
        ("lightgbm", 200, 300, OWN, "scan"),
        ("lightgbm", 200, 300, AVX2, "auto"),
        ("lightgbm", 200, 300, V2, "scan"),
        ("lightgbm", 60, 31, OWN, "walk"),
        ("lightgbm", 2500, 31, OWN, "auto"),  # more bits than a scan tests
        ("lightgbm", 2500, 31, OWN, "scan"),
        ("lightgbm", 60, 31, AVX2, "walk"),
    ],
)
def test_every_strategy(kind: str, most: int, leaves: int, processor: str | None, strategy: str) -> None:
    """Beside the library: trees of more than 256 leaves too, whose rows alone are walked."""
    model, odd, expected = fitted(kind, most, leaves)
    compiled = hbc.convert(model, "tvm", threads=1, strategy=strategy, target=target_of(processor))  # type: ignore[arg-type]
    for rows in (1, 2, 5, 16, 19, 63, 64, 65, 200):
        found = np.concatenate([compiled.predict(odd[i : i + rows]) for i in range(0, len(odd), rows)])
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6, err_msg=str(rows))


def test_a_chunk_comes_later_where_it_tests_more_sets() -> None:
    """It tests all sets of a tree, and those of a row alone take hardly any time. Without byte look-ups a chunk takes them row by row."""
    trees = {"trees": 100, "splits": 51_000, "values": 1, "leaves": 256, "columns": 10, "planes": 10}
    without = rows_alone(**trees, going=walking(1_800), of_chunk=64, wide=True)
    few, many = (
        rows_alone(**trees, going=walking(1_800) + KEY_OF_SET * n, of_chunk=64, wide=True, testing=1.72 * n)
        for n in (300, 30_000)
    )
    assert without <= few < many <= 64
    op, planes = random_ensemble(40, 500, 60, "f4")
    x = Input("X", "f32", (N, WIDTH))()
    joined = with_sets(op(t.concat([x, planes(x)])), walked=True)
    assert joined is not None
    times = [time_of_sets(pack_sets(joined), 500, machine("cpu", {"mcpu": mcpu}).dialect) for mcpu in (VBMI, AVX2, V2)]
    assert times[1] < times[0] < times[2] / 10
