"""Scans of a few rows: trees whose likeliest leaf has the same number lie together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from random_trees import join, random_tree, rows_at_thresholds

from hbc.compiler.base import CompileOptions, load_compiler
from hbc.compiler.tvm.run.targets import machine
from hbc.compiler.tvm.trees.leaves.fixed_point import fixed_point
from hbc.compiler.tvm.trees.pieces.packed_pieces import PLANES_IN_UNITS
from hbc.compiler.tvm.trees.pieces.pieces_scan import rows_of_chunk
from hbc.compiler.tvm.trees.pieces.split_order import ranked_trees
from hbc.compiler.tvm.trees.ranks.planes import HALF, ROWS_IN_VECTOR
from hbc.compiler.tvm.trees.scan.likely_leaves import leaf_rows, likeliest_leaves
from hbc.compiler.tvm.trees.scan.packed_lanes import (
    TREES_BY_NUMBER,
    TREES_IN_VECTOR,
    order_of_trees,
    pack_lanes,
    trees_by_number,
)
from hbc.compiler.tvm.trees.scan.packed_trees import pack_trees
from hbc.compiler.tvm.trees.scan.scan_few_rows import fits_lanes
from hbc.compiler.tvm.trees.scan.scan_rest import rows_for_lanes
from hbc.ir.graph import Graph, Input
from hbc.ir.types import N
from hbc.ops.tree import TreeEnsemble
from hbc.ops.tree_ranks import RankedTrees

AVX2 = machine("cpu", {"mcpu": "haswell"}).dialect
VBMI = machine("cpu", {"mcpu": "znver4"}).dialect
ZEN_5 = machine("cpu", {"mcpu": "znver5"}).dialect


def uneven(trees: int, leaves: int, features: int, dtype: str, vector: int = 1) -> TreeEnsemble:
    """Trees of 1 to `leaves` leaves in any order."""
    rng = np.random.default_rng(trees + leaves)
    values = rng.normal(size=(500, vector))
    grown = [random_tree(rng, int(rng.integers(1, leaves + 1)), features, dtype, values, True) for _ in range(trees)]
    return join(grown, rng.normal(size=vector), None)


@pytest.mark.parametrize("target", [None, {"mcpu": "haswell"}], ids=["own", "haswell"])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize(
    ("trees", "leaves", "features", "vector"),
    [(1, 40, 5, 1), (70, 40, 9, 1), (300, 30, 12, 1), (300, 64, 20, 1), (130, 30, 40, 1), (130, 100, 12, 1), (150, 20, 12, 3)],
)
def test_uneven_trees(
    trees: int, leaves: int, features: int, vector: int, dtype: str, target: dict[str, object] | None
) -> None:
    """The largest tree of 64 is not the first of them."""
    op = uneven(trees, leaves, features, dtype, vector)
    X = rows_at_thresholds(np.random.default_rng(0), op, 60, features)
    x = Input("X", "f32" if dtype == "f4" else "f64", (N, features))()
    graph = Graph((x,), {"predict": (replace(op, strategy="scan")(x),)})
    run = load_compiler("tvm").compile(graph, CompileOptions(threads=1, target=target)).run
    expected = op.evaluate(X)
    for rows in (1, 2, 3, 4, 6, 16, 17, 32, 60):
        parts = [run("predict", [X[i : i + rows]])[0] for i in range(0, len(X), rows)]
        np.testing.assert_allclose(np.concatenate(parts), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("leaves", [30, 50])
def test_trees_of_one_size_are_scanned_by_lanes_and_added_by_groups(leaves: int) -> None:
    """Both have the trees in the order of their likeliest leaves, not in their own."""
    rng = np.random.default_rng(leaves)
    values = rng.normal(size=(500, 1))
    op = join([random_tree(rng, leaves, 9, "f4", values, True) for _ in range(190)], rng.normal(size=1), None)
    assert (np.diff(order_of_trees(ranked_trees(op), op.target, VBMI)) < 0).any()
    X = rows_at_thresholds(rng, op, 70, 9)
    x = Input("X", "f32", (N, 9))()
    run = load_compiler("tvm").compile(Graph((x,), {"predict": (replace(op, strategy="scan")(x),)}), CompileOptions(threads=1))
    for rows in (1, 2, 5, 8, 9, 31, 33, 63, 64, 65, 70):
        (found,) = run.run("predict", [X[:rows]])
        np.testing.assert_allclose(found, op.evaluate(X[:rows]), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("leaves", [30, 60, 120, 250])
@pytest.mark.parametrize(("even", "vector"), [(True, 1), (False, 1), (False, 3)])
def test_the_leaves_of_half_a_register_of_rows(even: bool, vector: int, leaves: int) -> None:
    """Each width of tables. Even trees go in lanes up to 46 rows on Zen 4, others in chunks of 32."""
    rng = np.random.default_rng(leaves)
    values = rng.integers(-1000, 1000, (500, vector)).astype("f8")
    sizes = np.full(131, leaves) if even else rng.integers(1, leaves + 1, 131)
    op = join([random_tree(rng, int(size), 9, "f4", values, True) for size in sizes], np.zeros(vector), None)
    X = rows_at_thresholds(rng, op, 300, 9)
    x = Input("X", "f32", (N, 9))()
    graph = Graph((x,), {"predict": (replace(op, strategy="scan")(x),)})
    run, expected = load_compiler("tvm").compile(graph, CompileOptions(threads=1)).run, op.evaluate(X)
    for rows in (7, 8, 16, 17, 19, 20, 31, 32, 33, 38, 46, 47, 48, 49, 50, 63, 64, 65, 97, 110, 300):
        (found,) = run("predict", [X[-rows:]])
        np.testing.assert_array_equal(found, expected[-rows:])


def test_more_rows_go_in_lanes_where_fewer_of_them_are_empty() -> None:
    """Zen 4 has chunks of 32 rows, which come into question where many lanes are empty. Zen 5 has pairs of chunks."""
    rng = np.random.default_rng(0)
    found = []
    for kind, chunk in ((VBMI, HALF), (ZEN_5, ROWS_IN_VECTOR)):
        assert rows_of_chunk(kind) == chunk
        for trees in (640, 115, 100, 70):
            op = join([random_tree(rng, 30, 9, "f4", rng.normal(size=(9, 1)), False) for _ in range(trees)], np.zeros(1), None)
            ranked, fixed = ranked_trees(op), fixed_point(op)
            assert fixed is not None
            lanes = pack_lanes(ranked, op.target, None, kind)
            found.append(rows_for_lanes(pack_trees(op, ranked, fixed, kind), lanes, len(ranked.split_lo), chunk))
    assert found == [(49, 64), (44, 64), (28, 32), None, (64, 128), (46, 64), (40, 64), None]


@pytest.mark.parametrize("planes", [1, PLANES_IN_UNITS, PLANES_IN_UNITS + 1, 256, 257])
def test_records_for_avx2(planes: int) -> None:
    """A record is loaded at once. Few planes are counted in units; more than 256 do not fit in a byte."""
    op = of_so_many_columns(planes)
    ranked = ranked_trees(op)
    assert ranked.planes == planes
    packed = pack_trees(op, ranked, fixed_point(op), AVX2).splits
    assert [each.size for each in packed] == [3, 1]
    assert [each.unit for each in packed] == [4 if planes <= PLANES_IN_UNITS else 1] * 2
    for each in packed:
        assert each.whole == (planes <= 256)
        splits = each.records[:, each.places.planes : each.places.planes + each.size]
        found = np.unique(splits.reshape(-1).astype(np.int64)) // each.unit
        assert set(found.tolist()) <= set(range(planes))
        assert not each.whole or each.records.shape[1] in (4, 16)
    assert all(len(each.records) for each in packed)


@pytest.mark.parametrize("planes", [PLANES_IN_UNITS, PLANES_IN_UNITS + 1, 256, 257])
def test_chunks_of_32_and_64_rows(planes: int) -> None:
    op = of_so_many_columns(planes)
    X = rows_at_thresholds(np.random.default_rng(0), op, 200, planes)
    x = Input("X", "f32", (N, planes))()
    graph = Graph((x,), {"predict": (replace(op, strategy="scan")(x),)})
    run = load_compiler("tvm").compile(graph, CompileOptions(threads=1, target={"mcpu": "haswell"})).run
    expected = op.evaluate(X)
    for rows in (17, 31, 32, 33, 48, 63, 64, 65, 100, 200):
        parts = [run("predict", [X[i : i + rows]])[0] for i in range(0, len(X), rows)]
        np.testing.assert_array_equal(np.concatenate(parts), expected)


def of_so_many_columns(features: int) -> TreeEnsemble:
    """A tree of one split for each column, and larger ones; the sums are of small integers."""
    rng = np.random.default_rng(features)
    values = np.arange(-3.0, 4.0)[:, None]
    stumps = [random_tree(rng, 2, 1, "f4", values, False) for _ in range(features)]
    stumps = [replace(tree, feature=np.where(tree.feature < 0, -1, i)) for i, tree in enumerate(stumps)]
    return join([*stumps, *(random_tree(rng, 20, features, "f4", values, False) for _ in range(9))], np.zeros(1), None)


@pytest.mark.parametrize("ids", [False, True])
def test_leaf_numbers_of_uneven_trees(ids: bool) -> None:
    op = uneven(150, 40, 12, "f4")
    if ids:
        op = replace(op, leaf_ids=np.arange(len(op.values))[::-1] * 7)
    op = replace(op, output="leaf", strategy="scan")
    X = rows_at_thresholds(np.random.default_rng(0), op, 60, 12)
    x = Input("X", "f32", (N, 12))()
    run = load_compiler("tvm").compile(Graph((x,), {"apply": (op(x),)}), CompileOptions(threads=1)).run
    for rows in (1, 2, 5, 60):
        parts = [run("apply", [X[i : i + rows]])[0] for i in range(0, len(X), rows)]
        np.testing.assert_array_equal(np.concatenate(parts), op.evaluate(X))


def likeliest(op: TreeEnsemble, ranked: RankedTrees) -> list[float]:
    """How likely the likeliest leaf of each tree is, by a walk through all of its nodes."""
    counts = {int(feature): ranked.thresholds[column] for column, feature in enumerate(ranked.column_feature)}

    def most(node: int) -> float:
        if op.feature[node] < 0:
            return 1.0
        edges = counts[int(op.feature[node])]
        left = (np.searchsorted(edges, op.threshold[node]) + 1) / (len(edges) + 1)
        return float(max(left * most(op.left[node]), (1 - left) * most(op.right[node])))

    return [most(root) for root in op.roots]


def share(ranked: RankedTrees, tree: int, leaf: int) -> float:
    """How likely a leaf is: the product over the splits above it, found from its number."""
    columns = np.concatenate([ranked.plane_column, ranked.plane_column[ranked.below]])
    firsts = np.concatenate([ranked.plane_first, ranked.plane_first[ranked.below]])
    result, split = 1.0, int(ranked.starts[tree]) if ranked.leaf_counts[tree] > 1 else -1
    while split >= 0:
        plane = ranked.split_plane[split]
        left = (firsts[plane] + ranked.split_rank[split] + 1) / (len(ranked.thresholds[columns[plane]]) + 1)
        below, children = {int(ranked.split_mid[split])}, [int(ranked.split_right[split])]
        while children:
            child = children.pop()
            if child >= 0:
                below |= {int(ranked.split_lo[child]), int(ranked.split_mid[child])}
                children += [int(ranked.split_left[child]), int(ranked.split_right[child])]
        goes_right = leaf in below
        result *= 1 - left if goes_right else left
        split = int((ranked.split_right if goes_right else ranked.split_left)[split])
    return result


def test_the_likeliest_leaf() -> None:
    op = uneven(60, 30, 7, "f4")
    ranked = ranked_trees(op)
    found = likeliest_leaves(ranked)
    np.testing.assert_allclose(
        [share(ranked, tree, leaf) for tree, leaf in enumerate(found)], likeliest(op, ranked), rtol=1e-12
    )


def test_trees_with_the_same_likeliest_leaf_lie_together() -> None:
    op = uneven(500, 30, 12, "f4")
    ranked = ranked_trees(op)
    assert trees_by_number(ranked, op.target, AVX2) == TREES_BY_NUMBER
    assert fits_lanes(op, ranked, None, AVX2)
    packed = pack_lanes(ranked, op.target, None, AVX2)
    likely = np.full(packed.vectors * TREES_IN_VECTOR, -1)
    likely[packed.place] = likeliest_leaves(ranked)
    changes = np.diff(likely[:448].reshape(7, TREES_IN_VECTOR), axis=1)
    assert (changes >= 0).all()


@pytest.mark.parametrize("together", [1, TREES_BY_NUMBER])
def test_every_leaf_has_a_row_of_its_own(together: int) -> None:
    ranked = ranked_trees(uneven(90, 30, 7, "f4"))
    place = np.random.default_rng(0).permutation(90)
    first, rows, size = leaf_rows(ranked, place, 128, together)
    assert len(set(rows.tolist())) == len(ranked.leaves)
    assert rows.max() < size
    assert not set(first[np.setdiff1d(np.arange(128), place)].tolist()) & set(rows.tolist())
    tree = np.repeat(np.arange(90), ranked.leaf_counts)
    number = np.arange(len(tree)) - np.repeat(ranked.leaf_starts[:-1], ranked.leaf_counts)
    np.testing.assert_array_equal(rows, first[place[tree]] + number * together)
