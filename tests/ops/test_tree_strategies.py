"""The tree strategies against the operator's own evaluation, also on trees that no library would grow."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import hbc
from hbc.ir.graph import Graph, Input, Node, Operator
from hbc.ops.tree import CategoryPlanes, Tree, TreeEnsemble, join
from hbc.ops.tree_strategies import LOWERINGS
from hbc.optimizer.lower import Lower

COLUMNS = 5
CUTS = np.array([-np.inf, -2.5, -1e-40, -0.0, 0.0, 1e-40, 0.5, 1.0, 3e38, np.inf])


class OnlyTensorOperators:
    name = "tensor operators"

    def supports(self, op: Operator) -> bool:
        return op.level == "tensor"


def random_tree(rng, depth, width, dtype, missing=True):
    """A tree of at most this depth; about a fifth of its nodes are early leaves."""
    rows: list[list] = []

    def grow(level):
        number = len(rows)
        rows.append([-1, 0.0, -1, -1, False])
        if level < depth and (level == 0 or rng.random() < 0.8):
            left, right = grow(level + 1), grow(level + 1)
            rows[number] = [rng.integers(COLUMNS), rng.choice(CUTS), left, right, missing and rng.random() < 0.5]
        return number

    grow(0)
    feature, threshold, left, right, missing_left = (np.array(column) for column in zip(*rows, strict=True))
    values = rng.normal(size=(len(rows), width))
    return Tree(
        feature, threshold.astype(dtype), left, right, missing_left, values.astype(dtype), rng.permutation(1000)[: len(rows)]
    )


def rows_at_the_cuts(rng, dtype):
    cuts = CUTS.astype(dtype)
    up, down = np.nextafter(cuts, dtype(np.inf)), np.nextafter(cuts, dtype(-np.inf))
    return rng.choice(np.concatenate([cuts, up, down, [np.nan]]).astype(dtype), size=(300, COLUMNS))


def lowered(op, x, strategy):
    source = Input("X", "f32" if x.dtype == np.float32 else "f64", ("N", COLUMNS))()
    node: Node = replace(op, strategy=strategy)(source) if isinstance(op, TreeEnsemble) else op(source)
    graph = Graph((source,), {"y": (node,)}).verify()
    graph = Lower(OnlyTensorOperators())(graph).verify()
    assert all(node.op.level == "tensor" for node in graph.nodes)
    return graph.evaluate(x)["y"][0]


def assert_strategies_agree(op, x):
    for strategy in LOWERINGS:
        for each in (op, replace(op, output="leaf")):
            expected, found = each.evaluate(x), lowered(each, x, strategy)
            assert found.dtype == expected.dtype
            np.testing.assert_array_equal(found, expected, err_msg=strategy)
            np.testing.assert_array_equal(lowered(each, x[:1], strategy), expected[:1], err_msg=strategy)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("depths", [(0,), (1,), (0, 0), (3, 0, 1, 5), (6, 6, 2, 6)], ids=str)
@pytest.mark.parametrize("missing", [False, True])
def test_scalar_and_vector_leaves(dtype, depths, missing):
    """Sums are equal in every bit, because they are added in the order of the trees."""
    rng = np.random.default_rng(len(depths))
    x = rows_at_the_cuts(rng, dtype)
    for width, base in ((1, [0.0]), (1, [0.3]), (3, [0.0, 0.0, 0.0]), (3, [0.1, 0.0, -5.0])):
        trees = [random_tree(rng, depth, width, dtype, missing) for depth in depths]
        assert_strategies_agree(join(trees, np.array(base)), x)


@pytest.mark.parametrize("target", [[0, 1, 2, 0, 1, 2], [0, 0, 1, 0, 1, 1], [2, 2, 2, 2, 2, 2], [1, 0, 0, 0, 0, 0]])
@pytest.mark.parametrize("base", [[0.0, 0.0, 0.0], [1.5, 0.1, -0.7]])
def test_trees_of_several_outputs_in_any_order(target, base):
    rng = np.random.default_rng(sum(target))
    trees = [random_tree(rng, depth, 1, np.float64) for depth in (3, 0, 4, 2, 5, 1)]
    assert_strategies_agree(join(trees, np.array(base), np.array(target)), rows_at_the_cuts(rng, np.float64))


def test_infinite_leaves():
    rng = np.random.default_rng(0)
    trees = [random_tree(rng, 4, 2, np.float32) for _ in range(3)]
    trees[1].values[:] = np.inf
    assert_strategies_agree(join(trees, np.zeros(2)), rows_at_the_cuts(rng, np.float32))


def test_leaves_that_trees_share():
    """Two trees may end at the same leaf, and the base belongs to the sum once."""
    op = join([random_tree(np.random.default_rng(1), 3, 1, np.float64)], np.array([0.25]))
    twice = replace(op, roots=np.repeat(op.roots, 2), target=np.repeat(op.target, 2))
    assert_strategies_agree(twice, rows_at_the_cuts(np.random.default_rng(2), np.float64))


def test_mixed_dtypes():
    """float32 thresholds and float64 leaves, as scikit-learn's forests have."""
    rng = np.random.default_rng(3)
    trees = [random_tree(rng, 4, 1, np.float32) for _ in range(4)]
    trees = [replace(tree, values=tree.values.astype(np.float64) / 3) for tree in trees]
    assert_strategies_agree(join(trees, np.array([0.1])), rows_at_the_cuts(rng, np.float32))


def chain(depth):
    """A tree of one leaf at every level."""
    number = np.arange(2 * depth + 1)
    inner = (number % 2 == 0) & (number < 2 * depth)
    feature = np.where(inner, 0, -1)
    values = np.arange(2.0 * depth + 1)[:, None]
    return Tree(feature, np.where(inner, number / 2, 0), number + 1, number + 2, np.zeros(len(number), bool), values)


@pytest.mark.parametrize(("strategy", "depth"), [("perf_tree_trav", 17), ("gemm", 9000)])
def test_too_large_for_a_strategy(strategy, depth):
    """A strategy that would need too much padding is refused by its name."""
    op = join([chain(depth)], np.zeros(1))
    with pytest.raises(hbc.UnsupportedOperatorError, match=f"'{strategy}'.*limit"):
        lowered(op, np.zeros((1, COLUMNS)), strategy)


def test_a_deep_tree_is_walked():
    op = join([chain(60)], np.zeros(1))
    x = np.arange(-2.0, 70.0).repeat(COLUMNS).reshape(-1, COLUMNS)
    np.testing.assert_array_equal(lowered(op, x, "tree_trav"), op.evaluate(x))
    assert len(np.unique(op.evaluate(x))) == 61


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("truncate", [False, True])
@pytest.mark.parametrize("limit", [20.0, 2.0**24, 2.0**31])
@pytest.mark.parametrize("largest", [30, 10**7])
def test_category_planes(dtype, truncate, limit, largest):
    """Known, unknown, negative, fractional, huge and missing categories, in small and large sets."""
    rng = np.random.default_rng(largest)
    sets = [np.unique(rng.integers(0, largest, size)) for size in (0, 1, 3, 8, 2, 5)]
    inside, missing, invalid = rng.integers(0, 2, (3, len(sets))).astype(bool)
    offsets = np.cumsum([0, *map(len, sets)])
    columns = rng.integers(0, COLUMNS, len(sets))
    op = CategoryPlanes(columns, np.concatenate(sets), offsets, inside, missing, invalid, truncate, limit)
    special = [np.nan, np.inf, -np.inf, -0.0, -0.5, -1.0, -0.999, 1e30, -1e30, 2.0**24, 2.0**31, 1e-40]
    pool = np.concatenate([np.concatenate(sets), np.arange(-3, 40), np.arange(10) + 0.75, special])
    x = rng.choice(pool, size=(400, COLUMNS)).astype(dtype)
    expected = op.evaluate(x)
    np.testing.assert_array_equal(lowered(op, x, ""), expected)
    for n in range(0, 400, 7):
        for plane, column in enumerate(columns):
            v = x[n, column]
            if np.isnan(v):
                wanted = missing[plane]
            elif v >= limit or (v <= -1 if truncate else v < 0):
                wanted = invalid[plane]
            else:
                wanted = inside[plane] == (int(v) in sets[plane])
            assert expected[n, plane] == wanted


def test_category_planes_reject_wrong_columns():
    op = CategoryPlanes(np.array([9]), np.array([1]), np.array([0, 1]), *(np.array([True]),) * 3)
    with pytest.raises(TypeError, match="columns within"):
        op(Input("X", "f32", ("N", COLUMNS))())
