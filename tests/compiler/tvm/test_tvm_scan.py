"""The scan of tree ensembles (compiler/tvm/trees/scan/scan.py and scan_few_rows.py) against the operator itself:
random trees, rows at the thresholds."""

from __future__ import annotations

import warnings
from dataclasses import replace

import lightgbm as lgb
import numpy as np
import pytest
from random_trees import RANDOM, random_ensemble, random_tree, rows_at_thresholds

import hbc
from hbc.compiler.base import CompileOptions, load_compiler
from hbc.ir.graph import Graph, Input
from hbc.ir.types import Array, N
from hbc.ops import tensor as t
from hbc.ops.tree import CategoryPlanes, TreeEnsemble, join
from hbc.ops.tree_ranks import MOST_IN_PLANE, rank_encode

pytest.importorskip("tvm")
from hbc.compiler.tvm.run.targets import machine
from hbc.compiler.tvm.tir.dialect import Dialect
from hbc.compiler.tvm.trees.categories import CategoricalTrees, join_sets
from hbc.compiler.tvm.trees.leaves.leaves import widths_of
from hbc.compiler.tvm.trees.pieces.split_order import pieces
from hbc.compiler.tvm.trees.ranks.planes import HALF, ROWS_IN_VECTOR
from hbc.compiler.tvm.trees.scan import scan
from hbc.compiler.tvm.trees.scan.packed_lanes import PAGE
from hbc.compiler.tvm.trees.scan.scan import patching, rows_alone, rows_take_patches, walking
from hbc.compiler.tvm.trees.scan.scan_few_rows import FEW_PLANES, MOST_PLANES_IN_HALVES, fits_lanes


def scanned(op: TreeEnsemble, X: Array, batches: tuple[int, ...], target: dict[str, object] | None = None) -> list[Array]:
    x = Input("X", "f32" if op.threshold.dtype == np.float32 else "f64", (N, X.shape[1]))()
    graph = Graph((x,), {"predict": (replace(op, strategy="scan")(x),)})
    executable = load_compiler("tvm").compile(graph, CompileOptions(threads=1, target=target))
    return [executable.run("predict", [X[:rows]])[0] for rows in batches]


BATCHES = (333, 165, 128, 100, 80, 64, 55, 31, 17, 15, 6, 5, 3, 2, 1, 0)


@pytest.mark.parametrize("kind", RANDOM)
def test_sums_are_those_of_the_operator(kind: str) -> None:
    """One wrong leaf is far beyond the tolerance, which is that of fixed point."""
    op, X = random_ensemble(kind, max(BATCHES))
    tolerance = 1e-5 if op.values.dtype == np.float32 else 1e-9
    for rows, found in zip(BATCHES, scanned(op, X, BATCHES), strict=True):
        expected = op.evaluate(X[:rows])
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("target", [None, {"mcpu": "x86-64-v4"}, {"mcpu": "znver4"}], ids=["own", "v4", "znver4"])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize(
    ("trees", "leaves", "columns"),
    [
        (128, 31, 1),
        (250, 32, 1),
        (120, 20, 3),
        (64, 60, 1),
        (126, 64, 2),
        (100, 31, 2),
        (60, 200, 1),
        (100, 120, 1),
        (40, 90, 1),
    ],
)
def test_any_number_of_rows_gives_the_same_sums(
    trees: int, leaves: int, columns: int, dtype: str, target: dict[str, object] | None
) -> None:
    """What is left of a block goes other ways than whole blocks: by the number of rows and the lanes for a split, to the leaves one of two
    ways (scan_rest.py), or in chunks of 64 rows, or as a whole block. Sums of integers are the same to the last bit."""
    if target is not None and machine("cpu", target).missing is not None:
        pytest.skip("not this processor")
    rng = np.random.default_rng(trees)
    values = rng.normal(size=(500, columns))
    grown = [random_tree(rng, leaves, 5, dtype, values, missing=True) for _ in range(trees)]
    op = join(grown, np.zeros(columns), None)
    X = rows_at_thresholds(rng, op, 5, 330)
    X[rng.random(X.shape) < 0.05] = np.nan
    X[rng.random(X.shape) < 0.03] = np.inf
    X[rng.random(X.shape) < 0.03] = -np.inf
    batches = (
        330,
        *range(1, 51),
        63,
        64,
        65,
        66,
        87,
        88,
        97,
        98,
        100,
        104,
        105,
        127,
        129,
        175,
        176,
        177,
        191,
        193,
        199,
        200,
        223,
        224,
        225,
        255,
        256,
        257,
        258,
        320,
    )
    whole, *parts = scanned(op, X, batches, target)
    np.testing.assert_allclose(whole, op.evaluate(X), rtol=1e-9, atol=1e-9)
    for rows, part in zip(batches[1:], parts, strict=True):
        np.testing.assert_array_equal(part, whole[:rows], err_msg=str(rows))


@pytest.mark.parametrize("trees", [1, 13, 14, 15, 16, 17, 28, 29, 32])
def test_single_rows_are_walked_through_any_number_of_trees(trees: int) -> None:
    """Trees of more than 256 leaves, which no processor scans for few rows: rounds of 14 walks, and of 16 with float64 thresholds."""
    for dtype in ("f4", "f8"):
        rng = np.random.default_rng(trees)
        values = rng.normal(size=(500, 1))
        op = join([random_tree(rng, 300, 5, dtype, values, missing=True) for _ in range(trees)], np.zeros(1), None)
        X = rows_at_thresholds(rng, op, 5, 5)
        (found,) = scanned(op, X, (5,))
        np.testing.assert_allclose(found, op.evaluate(X), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("trees", "leaves", "features"), [(2, 300, 5), (12, 300, 5), (40, 20, 280), (20, 20, 400)])
def test_few_rows_are_walked_or_scanned(trees: int, leaves: int, features: int) -> None:
    """Ensembles that scan_few_rows.py does not take: their parts are not their trees, or they have too many planes."""
    rng = np.random.default_rng(trees)
    values = rng.normal(size=(500, 1))
    op = join([random_tree(rng, leaves, features, "f4", values, missing=True) for _ in range(trees)], np.zeros(1), None)
    X = rows_at_thresholds(rng, op, features, 500)
    X[rng.random(X.shape) < 0.05] = np.nan
    expected, batches = op.evaluate(X), (*range(1, 67), 127, 128, 129, 130)
    for rows, found in zip(batches, scanned(op, X, batches), strict=True):
        np.testing.assert_allclose(found, expected[:rows], rtol=1e-9, atol=1e-9, err_msg=str(rows))


MANY_PLANES = {  # trees, leaves, features, dtype, outputs, vector leaves, NaN both ways, digits of thresholds
    "five vectors of 16 bytes": (130, 31, 70, "f4", 1, False, False, 2),
    "seven vectors, float64, classes by tree": (192, 31, 110, "f8", 3, False, False, 2),
    "eight vectors, NaN both ways, vector leaves": (190, 31, 60, "f4", 2, True, True, 2),
    "six registers": (130, 31, 350, "f4", 1, False, False, 2),
    "twelve registers, NaN both ways": (150, 31, 300, "f4", 1, False, True, 2),
    "float64, classes by tree": (150, 31, 290, "f8", 3, False, False, 2),
    "sixteen registers, vector leaves": (200, 31, 950, "f4", 2, True, False, 2),
    "some features": (140, 31, 300, "f4", 1, False, False, 2),
    "many thresholds": (520, 128, 3, "f4", 1, False, True, 9),
}


@pytest.mark.parametrize("kind", MANY_PLANES)
def test_many_planes_are_scanned_for_few_rows(kind: str) -> None:
    """Ensembles of more than 64 planes, or 256: their sums and their leaf numbers, for all numbers of rows that go in lanes."""
    trees, leaves, features, dtype, outputs, vector, missing, digits = MANY_PLANES[kind]
    rng = np.random.default_rng(trees)
    values = rng.normal(size=(500, outputs if vector else 1))
    grown = [random_tree(rng, leaves, features, dtype, values, missing, digits) for _ in range(trees)]
    width = features
    if kind == "some features":  # two of three columns, and one of them with more thresholds than are counted
        width = 3 * features // 2
        for tree in grown:
            tree.feature[:] = np.where(tree.feature < 0, -1, tree.feature * 3 // 2)
            tree.feature[0] = 7
    op = join(grown, np.zeros(outputs), None if vector else np.arange(trees) % outputs)
    ranked = rank_encode(op)
    dialect = machine("cpu", None).dialect
    assert ranked.planes > PAGE or FEW_PLANES < ranked.planes <= MOST_PLANES_IN_HALVES
    in_lanes = fits_lanes(op, ranked, None, dialect)
    assert in_lanes or not (dialect.byte_permute or (dialect.byte_lookup and ranked.planes <= PAGE)), ranked.planes
    X = rows_at_thresholds(rng, op, 300, width)
    X[rng.random(X.shape) < 0.05] = np.nan
    batches = (300, *range(1, 21), 33, 70)
    whole, *parts = scanned(op, X, batches)
    np.testing.assert_allclose(whole, op.evaluate(X), rtol=1e-9, atol=1e-9)
    for rows, part in zip(batches[1:], parts, strict=True):
        tolerance = 0.0 if in_lanes else 1e-9  # other rows alone are walked, which adds in the order of the source
        np.testing.assert_allclose(part, whole[:rows], rtol=tolerance, atol=tolerance, err_msg=str(rows))
    numbers = replace(op, output="leaf", leaf_ids=np.concatenate([np.arange(count) for count in op.leaf_counts]))
    for rows, found in zip((41, 7, 2, 1), scanned(numbers, X, (41, 7, 2, 1)), strict=True):
        np.testing.assert_array_equal(found, numbers.evaluate(X[:rows]), strict=True)


@pytest.mark.parametrize("counts", [(1, 33, 2), (32, 32, 32), (40, 40, 3), (3,) * 40, (200, *(5,) * 20), (300, *(5,) * 30)])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_columns_of_few_thresholds_are_counted(counts: tuple[int, ...], dtype: str) -> None:
    """Columns of few and of many thresholds side by side, as stumps, so that each threshold tells."""
    rng = np.random.default_rng(len(counts))
    feature = np.repeat(np.arange(len(counts)), counts)
    edges = np.concatenate([rng.choice(1000, count, replace=False) for count in counts]).astype(dtype)
    grown = [
        replace(
            random_tree(rng, 2, 1, dtype, rng.normal(size=(50, 1)), missing=True),
            feature=np.array([column, -1, -1]),
            threshold=np.array([edge, 0, 0], dtype),
        )
        for column, edge in zip(feature, edges, strict=True)
    ]
    op = join(grown, np.zeros(1), None)
    X = rng.choice(edges, (300, len(counts)))
    X = np.where(rng.random(X.shape) < 0.5, X, np.nextafter(X, rng.choice(np.array([-np.inf, np.inf], dtype), X.shape)))
    X[rng.random(X.shape) < 0.1] = np.nan
    for rows, found in zip((300, 40, 17, 5, 2, 1), scanned(op, X, (300, 40, 17, 5, 2, 1)), strict=True):
        np.testing.assert_allclose(found, op.evaluate(X[:rows]), rtol=1e-9, atol=1e-9)


def test_the_rows_alone_grow_with_what_a_chunk_takes() -> None:
    small = rows_alone(100, 3000, 1, 31, walking(1069), 300, 300, ROWS_IN_VECTOR, True)
    large = rows_alone(99, 19762, 2, 256, walking(593), 20, 80, ROWS_IN_VECTOR, True)
    assert 1 < small < large < ROWS_IN_VECTOR
    assert rows_alone(1, 100_000, 1, 256, walking(0), 0, 0, ROWS_IN_VECTOR, True) == ROWS_IN_VECTOR
    assert rows_alone(1, 1, 1, 2, walking(100_000), 1, 1, ROWS_IN_VECTOR, True) == 1
    wide, halves = (
        rows_alone(300, 51623, 1, 256, walking(2642), 28, 28, chunk, chunk != HALF) for chunk in (ROWS_IN_VECTOR, HALF)
    )
    assert wide / 2 < halves < wide


def test_rows_alone_take_longer_paths_through_larger_trees() -> None:
    assert 0 < patching(100, 100, 28) < patching(200, 100, 28) < patching(800, 100, 28) < 3 * patching(100, 100, 28)


def test_rows_alone_are_walked_through_even_trees_of_few_nodes() -> None:
    assert rows_take_patches(51_000, 100, 2642, 28)  # LightGBM's, of 511 leaves
    assert not rows_take_patches(41_000, 100, 1000, 28)  # of depth 10
    assert rows_take_patches(82_000, 100, 1200, 28)  # more than the cache holds


def test_rows_alone_of_many_large_trees_take_patches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where their nodes are too many for the cache, which no ensemble of a test has."""
    monkeypatch.setattr(scan, "MOST_NODES_WALKED", 0)
    rng = np.random.default_rng(5)
    values = rng.normal(size=(500, 1))
    op = join([random_tree(rng, 400, 12, "f4", values, missing=True) for _ in range(9)], np.zeros(1), None)
    X = rows_at_thresholds(rng, op, 90, 12)
    for rows, found in zip((90, 64, 9, 1), scanned(op, X, (90, 64, 9, 1)), strict=True):
        np.testing.assert_allclose(found, op.evaluate(X[:rows]), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "kind", ["one leaf table register", "two registers, float64 thresholds", "leaves of 16 bits", "single leaf"]
)
@pytest.mark.parametrize("ids", ["as counted", "of any size"])
def test_leaf_numbers_are_those_of_the_operator(kind: str, ids: str) -> None:
    op, X = random_ensemble(kind, 70)
    counted = np.concatenate([np.arange(count) for count in op.leaf_counts])
    op = replace(op, output="leaf", leaf_ids=counted if ids == "as counted" else counted * 1_000_003 - 7)
    for rows, found in zip((70, 6, 5, 3, 1), scanned(op, X, (70, 6, 5, 3, 1)), strict=True):
        np.testing.assert_array_equal(found, op.evaluate(X[:rows]), strict=True)


OTHER_TARGETS = {  # what compares of bytes give, and in how long registers
    "masks of 64 bits": {"kind": "llvm", "mcpu": "x86-64-v4", "mattr": ["+avx512vbmi"]},
    "masks of 64 bits, lookups in 16 bytes": {"kind": "llvm", "mcpu": "x86-64-v4"},
    "bytes of halves": {"kind": "llvm", "mcpu": "znver4"},
    "bytes": {"kind": "llvm", "mcpu": "haswell"},
    "AVX-512 without compares of bytes": {"kind": "llvm", "mcpu": "x86-64-v3", "mattr": ["+avx512f"]},
}


@pytest.mark.parametrize("name", OTHER_TARGETS)
def test_other_processors(name: str) -> None:
    target = OTHER_TARGETS[name]
    if machine("cpu", target).missing:
        pytest.skip("this computer cannot run its code")
    rng = np.random.default_rng(7)
    for leaves, columns, dtype in ((14, 1, "f8"), (31, 2, "f8"), (60, 1, "f4"), (300, 1, "f8")):
        values = rng.normal(size=(500, columns))
        grown = [random_tree(rng, int(rng.integers(1, leaves + 1)), 5, dtype, values, missing=True) for _ in range(15)]
        op = join(grown, np.zeros(columns), None)
        op = replace(op, values=op.values.astype(dtype), base=op.base.astype(dtype))
        X = rows_at_thresholds(rng, op, 400, 5)
        batches = (400, 250, 100, 64, 48, 40, 39, 33, 32, 17, 16, 7, 3, 2)
        found, *parts = scanned(op, X, batches, target)
        tolerance = 1e-9 if dtype == "f8" else 1e-5
        np.testing.assert_allclose(found, op.evaluate(X), rtol=tolerance, atol=tolerance)
        for rows, part in zip(batches[1:], parts, strict=True):
            np.testing.assert_allclose(part, found[:rows], rtol=tolerance, atol=tolerance, err_msg=str(rows))


def test_leaves_are_looked_up_where_that_is_faster_than_gathering() -> None:
    """16 bytes at a time: two tables for each digit of 31 leaves, four of 64."""
    lookup, permute = Dialect(llvm=True, byte_lookup=True), Dialect(llvm=True, byte_lookup=True, byte_permute=True)
    assert widths_of(np.array([9, 31, 64]), lookup, 5).tolist() == [16, 32, 64]
    assert widths_of(np.array([31]), lookup, 9).tolist() == [32]
    assert widths_of(np.array([40]), lookup, 6) is None
    assert widths_of(np.array([65]), lookup, 4) is None
    assert widths_of(np.array([65]), permute, 9).tolist() == [128]
    assert widths_of(np.array([2]), Dialect(llvm=True), 4) is None


@pytest.mark.parametrize("sizes", [(6, 3), (5, 3), (3, 1), (1,)])
def test_pieces_change_leaves_as_their_splits_do(sizes: tuple[int, ...]) -> None:
    """Any outcomes of all splits, applied one by one and in pieces."""
    rng = np.random.default_rng(3)
    grown = [random_tree(rng, int(rng.integers(1, 100)), 5, "f4", np.ones((500, 1)), missing=False) for _ in range(30)]
    ranked = rank_encode(join(grown, np.zeros(1), None))
    tree = np.repeat(np.arange(len(grown)), np.diff(ranked.starts))
    left = rng.random((len(tree), 50)) < 0.5
    expected, found = (np.zeros((len(grown), 50), np.int64) for _ in range(2))
    for split, (lo, mid) in enumerate(zip(ranked.split_lo, ranked.split_mid, strict=True)):
        reached = expected[tree[split]] == lo
        expected[tree[split]][reached & ~left[split]] = mid
    parts = pieces(ranked, sizes, 1)
    for part in parts:
        for members, leaves in zip(part.split, part.leaf, strict=True):
            leaf, lo = found[tree[members[0]]], ranked.split_lo[members[0]]
            # The bits of splits that are not there may be any.
            number = sum(left[split] << i for i, split in enumerate(members))
            leaf[:] = np.where(leaf == lo, leaves[number], leaf)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(
        np.sort(np.concatenate([part.split[part.split >= 0] for part in parts])), np.arange(len(tree))
    )


def test_a_feature_whose_nan_go_both_ways_is_ranked_once() -> None:
    rng = np.random.default_rng(5)
    grown = [random_tree(rng, 40, 3, "f4", np.ones((500, 1)), missing=True, digits=1) for _ in range(10)]
    ranked = rank_encode(join(grown, np.zeros(1), None))
    assert (len(ranked.column_feature), len(ranked.below), ranked.planes) == (3, 3, 6)
    assert (ranked.missing_rank == MOST_IN_PLANE).all()


@pytest.mark.parametrize("trees", [30, 80])
def test_thousands_of_thresholds(trees: int) -> None:
    """Two and three levels of pivots above the lines of 16 thresholds."""
    rng = np.random.default_rng(trees)
    values = rng.normal(size=(500, 1))
    op = join([random_tree(rng, 250, 1, "f4", values, missing=True, digits=9) for _ in range(trees)], np.zeros(1))
    assert (rank_encode(op).most_thresholds > 8191) == (trees > 30)
    X = rows_at_thresholds(rng, op, 1000, 1)
    (found,) = scanned(op, X, (1000,))
    np.testing.assert_allclose(found, op.evaluate(X), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("most", "outputs", "trees", "width", "target"),
    [
        (40, 1, 40, 4, None),
        (700, 3, 40, 4, None),
        (150, 1, 40, 4, {"kind": "llvm", "mcpu": "haswell"}),  # two tables of 16 bytes
        (700, 1, 40, 4, {"kind": "llvm", "mcpu": "haswell"}),
        (1000, 2, 40, 4, {"kind": "llvm", "mcpu": "haswell"}),
        (30, 1, 150, 20, {"kind": "llvm", "mcpu": "haswell"}),  # two parts of planes, and three vectors of trees
        (30, 3, 70, 60, {"kind": "llvm", "mcpu": "haswell"}),
        (40, 1, 300, 100, {"kind": "llvm", "mcpu": "haswell"}),
        (700, 1, 40, 4, {"kind": "llvm", "mcpu": "x86-64-v2"}),  # row by row
        (40, 1, 200, 300, None),  # more than 256 planes
    ],
)
def test_category_sets(most: int, outputs: int, trees: int, width: int, target: dict[str, str] | None) -> None:
    """Trees that test numbers and category sets: categories in range, unseen, negative, fractional, huge, NaN."""
    rng = np.random.default_rng(most)
    features, sets = width + 2, 50
    members = [np.unique(rng.integers(0, most, size=int(rng.integers(0, most)))) for _ in range(sets)]
    planes = CategoryPlanes(
        columns=np.sort(rng.integers(1, features, size=sets)),
        categories=np.concatenate(members),
        offsets=np.cumsum([0, *map(len, members)]),
        inside=rng.random(sets) < 0.5,
        missing=rng.random(sets) < 0.5,
        invalid=rng.random(sets) < 0.5,
        truncate_negative=outputs == 1,
        limit=float(2**24),
    )
    values = rng.normal(size=(300, 1))
    grown = [random_tree(rng, int(rng.integers(1, 40)), width + sets, "f4", values, missing=False) for _ in range(trees)]
    for tree in grown:
        tests_set = tree.feature >= width
        tree.feature[tests_set] += features - width
        tree.threshold[tests_set] = 0.5
    op = join(grown, np.zeros(outputs), np.arange(len(grown)) % outputs)
    X = rng.integers(-2, most + 3, size=(300, features)).astype(np.float32)
    odd = rng.choice(np.array([np.nan, np.inf, -np.inf, -0.0, -0.5, 1.5, 1e30, 2.0**24, 2.0**31], np.float32), X.shape)
    X = np.where(rng.random(X.shape) < 0.2, odd, X)
    x = Input("X", "f32", (N, features))()
    y = replace(op, strategy="scan")(t.concat([x, planes(x)]))
    executable = load_compiler("tvm").compile(Graph((x,), {"predict": (y,)}), CompileOptions(threads=1, target=target))
    assert isinstance(executable.methods.graph.outputs["predict"][0].op, CategoricalTrees)
    for rows in (300, 100, 64, 31, 16, 7, 6, 5, 4, 3, 2, 1):
        for part in (X[:rows], X[-rows:]):
            expected = op.evaluate(np.concatenate([part, planes.evaluate(part)], axis=1))
            np.testing.assert_allclose(executable.run("predict", [part])[0], expected, rtol=1e-9, atol=1e-9)
    numbers = replace(op, strategy="scan", output="leaf", leaf_ids=np.concatenate([np.arange(c) for c in op.leaf_counts]))
    graph = Graph((x,), {"predict": (numbers(t.concat([x, planes(x)])),)})
    executable = load_compiler("tvm").compile(graph, CompileOptions(threads=1, target=target))
    whole = numbers.evaluate(np.concatenate([X, planes.evaluate(X)], axis=1))
    for rows in (300, 6, 3, 2, 1):
        np.testing.assert_array_equal(executable.run("predict", [X[:rows]])[0], whole[:rows], strict=True)


@pytest.mark.parametrize("values", [[[1 / 3, 2 / 3], [2 / 3, 1 / 3]], [[0.1, 0.9], [0.9, 0.1], [0.5, 0.5]]])
def test_ties_are_decided_by_the_source_s_own_rounding(values: list[list[float]]) -> None:
    """Class probabilities that tie but for the last bit: the largest is the one that a loop over the trees finds."""
    rng = np.random.default_rng(0)
    op = join([random_tree(rng, 8, 4, "f4", np.array(values), False) for _ in range(10)], np.zeros(2))
    X = rows_at_thresholds(rng, op, 2000, 4)
    expected = op.evaluate(X)
    near = np.abs(expected[:, 0] - expected[:, 1]) < 1e-12
    assert near.sum() > 20
    (found,) = scanned(op, X, (len(X),))
    np.testing.assert_array_equal(found[near], expected[near])
    np.testing.assert_array_equal(found.argmax(axis=1), expected.argmax(axis=1))


def test_sets_are_joined_with_the_trees() -> None:
    """Also where numbers are read of some columns only, which a selection brings before the trees."""
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=(400, 3)), rng.integers(0, 40, (400, 3))])
    model = lgb.LGBMRegressor(n_estimators=20, categorical_feature=[3, 4, 5], min_data_per_group=2, verbose=-1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, X[:, 0] + X[:, 3] % 7 + X[:, 4] % 3)
    compiled = hbc.convert(model, "tvm")
    graph = join_sets(compiled.variants[("f64",) * 6].plan.graph, {"scan": 0})
    assert [
        type(node.op).__name__ for node in graph.nodes if isinstance(node.op, TreeEnsemble) and node.op.output == "sum"
    ] == ["CategoricalTrees"]
    np.testing.assert_allclose(compiled.predict(X), model.predict(X), rtol=1e-9, atol=1e-9)
