"""The tree kernels of a GPU that share trees between threads (hbc/compiler/tvm/trees/gpu), run by the emulator (tests/cuda_on_cpu)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest

pytest.importorskip("tvm")
from cuda_on_cpu import cannot_run, emulated, sanitized, without_races
from random_trees import RANDOM, random_ensemble, random_tree, rows_at_thresholds, stump

from hbc.compiler.base import CompileOptions
from hbc.compiler.tvm.compiler import COMPILER
from hbc.compiler.tvm.nest.schedule import MOST_SHARED, WALKERS, GpuFewRows, GpuLaneTrees, GpuRows, GpuTiles
from hbc.compiler.tvm.run.methods import GraphMethods
from hbc.compiler.tvm.run.targets import machine
from hbc.compiler.tvm.trees.gpu import choice
from hbc.compiler.tvm.trees.gpu.choice import FORMS, choose_for_gpu, schedule_for
from hbc.compiler.tvm.trees.gpu.lanes import MOST_TREES, rows_of_lanes, trees_of_turn
from hbc.compiler.tvm.trees.gpu.links import Links
from hbc.compiler.tvm.trees.gpu.memory import CLOCKS_OF_SECTOR, memory_cycles, on_the_way, splits_by_depth
from hbc.compiler.tvm.trees.gpu.perfect import PerfectTrees, perfect_trees
from hbc.compiler.tvm.trees.gpu.tile_sizes import FEW_TILE_BYTES, LARGE_TILE_BYTES, TILE_BYTES, tiles_for_few, tiles_for_many
from hbc.compiler.tvm.trees.pieces.split_order import ranked_trees
from hbc.ir.graph import Graph, Input, Node
from hbc.ir.types import Array
from hbc.ops import tensor as t
from hbc.ops.tree import Tree, TreeEnsemble, join

emulates = pytest.mark.skipif(cannot_run() is not None, reason=str(cannot_run()))
CUDA = CompileOptions(device="cuda")


MOST_PLANES = "planes in four registers, NaN both ways"
"""The kind with more planes than a block has room for: 200."""
MANY_PLANES = (MOST_PLANES, "planes in two registers")
"""The kinds with many columns. Ranks of 16 bits have no room for 100 of them, nor have tensor cores."""


def for_strategy(strategy: str, kind: str, rows: int) -> tuple[TreeEnsemble, Any]:
    """A random ensemble and rows at its thresholds: only the trees that are not too deep for the strategy."""
    op, data = random_ensemble(kind, rows)
    kept = op.depths <= PERFECT.get(strategy, op.depths.max())
    if not kept.any():
        pytest.skip("all of its trees are too deep")
    return replace(op, roots=op.roots[kept], target=op.target[kept]).run_as(strategy), data


FEW, LANE_ROWS = 70, 3
"""`run` sets the numbers of rows to which a call has the kernel for few rows, and the one with a block for each row."""


def run(
    *outputs: Node, data: Any, seed: int = 0, few_rows: int = FEW, lane_rows: int = LANE_ROWS
) -> tuple[list[Any], list[Any], list[Any]]:
    """(results, those of the reference, the launches) of three calls: up to `lane_rows` rows, up to `few_rows`, and the others."""
    (x,) = {node for node in Graph((), {"": outputs}).nodes if isinstance(node.op, Input)}
    graph = Graph((x,), {"predict": outputs}).verify()
    limits = mock.patch.multiple(choice, FEW_ROWS=few_rows, LANE_ROWS=lane_rows)
    with emulated(seed) as card, limits:
        ready = COMPILER.compile(graph, CUDA)
        parts = [ready.run("predict", [part]) for part in np.split(data, [lane_rows, lane_rows + few_rows])]
    found = [np.concatenate(pair) for pair in zip(*parts, strict=True)]
    return found, graph.evaluate(data)["predict"], card.launches


def input_of(data: Any) -> Node:
    return Input("x", "f32" if data.dtype == np.float32 else "f64", ("N", data.shape[1]))()


@emulates
@pytest.mark.parametrize("strategy", FORMS)
@pytest.mark.parametrize("kind", RANDOM)
def test_sums_have_the_bits_of_the_reference(kind: str, strategy: str) -> None:
    """NaN to both sides, ±inf, numbers one ulp beside thresholds; trees that end early, outputs without trees, a thread without rows."""
    op, data = for_strategy(strategy, kind, 301)
    (found,), (expected,), launches = run(op(input_of(data)), data=data, seed=len(kind))
    np.testing.assert_array_equal(found, expected)
    fits = FORMS[strategy].fits(op)
    assert fits == (kind not in MANY_PLANES[: 2 if "wide" in strategy or strategy == "int8_gemm" else 1])
    assert len(launches) == 3
    assert all(bool(launch.dynamic) == fits and launch.dynamic <= MOST_SHARED for launch in launches)
    assert not fits or [launch.grid for launch in launches] == [3, 3, 1]


@emulates
@pytest.mark.parametrize("strategy", FORMS)
@pytest.mark.parametrize(("width", "features"), [(5, 3), (11, 3), (11, 30)])
def test_leaves_of_many_values(width: int, features: int, strategy: str) -> None:
    """Several passes over the trees, of which the last one adds some values again; with few planes and with many."""
    rng = np.random.default_rng(width)
    values = rng.normal(size=(500, width))
    deepest = 4 if strategy == "int8_gemm" else 8  # at depth 5 it takes three values at most
    leaves = 20 if deepest == 8 else 8
    op = join([random_tree(rng, leaves, features, "f4", values, True) for _ in range(30)], rng.normal(size=width))
    kept = op.depths <= deepest
    op = replace(op, roots=op.roots[kept], target=op.target[kept])
    data = rows_at_thresholds(rng, op, 300, features)
    (found,), (expected,), launches = run(op.run_as(strategy)(input_of(data)), data=data, seed=width)
    np.testing.assert_array_equal(found, expected)
    assert all(bool(launch.dynamic) == FORMS[strategy].fits(op) for launch in launches)
    assert FORMS[strategy].fits(op) or (strategy, features) == ("int8_gemm", 30)
    if strategy in SHARED and features == 30 and FORMS[strategy].fits(op):
        assert FORMS[strategy].tiles_of(op)[1].places == 2
        for launch in launches[:2]:  # of few rows
            without_races(launch, seed=1)


def bounded(rng: np.random.Generator, depth: int, features: int, cut: float, width: int = 1) -> Tree:
    """A tree of at most so many levels. cut: how likely a branch ends earlier."""
    feature, left, right, open_leaves = [-1], [0], [0], [(0, 0)]
    while open_leaves:
        node, level = open_leaves.pop()
        if level < depth and (level == 0 or rng.random() >= cut):
            feature[node], left[node], right[node] = int(rng.integers(features)), len(feature), len(feature) + 1
            open_leaves += [(len(feature), level + 1), (len(feature) + 1, level + 1)]
            for column, value in ((feature, -1), (left, 0), (right, 0)):
                column += [value, value]
    size = len(feature)
    thresholds, missing = np.round(rng.normal(size=size), 1).astype("f4"), rng.random(size) < 0.5
    return Tree(np.array(feature), thresholds, np.array(left), np.array(right), missing, rng.normal(size=(size, width)))


PERFECT = {"levels": 8, "wide_levels": 8, "int8_gemm": 5}
"""The strategies whose trees are padded to perfect ones, with the greatest depth that each takes."""


@emulates
@pytest.mark.parametrize(("strategy", "depth"), [(name, depth) for name, most in PERFECT.items() for depth in range(most + 1)])
def test_perfect_trees_of_every_depth(depth: int, strategy: str) -> None:
    """Whatever the model says of the rows that reached a leaf, and by which nodes are swapped for that. Columns are read in fours, and
    trees compare some of them only."""
    rng = np.random.default_rng(depth)
    op = join([bounded(rng, depth, 5, cut) for cut in (0.0, 0.1, 0.4)], np.zeros(1))
    op = replace(
        op, cover=rng.choice([np.nan, -1.0, 0.0, 1.0, 50.0], len(op.feature)), values=op.values.astype(["f4", "f8"][depth % 2])
    )
    op = replace(op, base=op.base.astype(op.values.dtype))
    data = rows_at_thresholds(rng, op, 200, 8)
    (found,), (expected,), launches = run(op.run_as(strategy)(input_of(data)), data=data, seed=depth)
    np.testing.assert_array_equal(found, expected)
    assert all(launch.dynamic for launch in launches)


@emulates
@pytest.mark.parametrize("strategy", FORMS)
def test_features_with_two_columns_are_read_in_fours(strategy: str) -> None:
    """As in large forests, where NaN go to both sides at many thresholds. One feature has one column, and some have none."""
    rng = np.random.default_rng(7)
    depth = PERFECT.get(strategy, 8)
    op = join([bounded(rng, depth, 4, 0.1) for _ in range(12 if depth == 8 else 60)], np.zeros(1))
    feature, size = np.append([1, 2, 4, 7], -1)[op.feature], len(op.feature)
    op = replace(
        op,
        feature=feature.astype(op.feature.dtype),
        threshold=rng.normal(size=size).astype("f4"),
        missing_left=op.missing_left | (feature == 4),
    )
    assert op.once(ranked_trees).column_feature.tolist() == [1, 1, 2, 2, 4, 7, 7]
    data = rows_at_thresholds(rng, op, 300, 8)
    (found,), (expected,), launches = run(op.run_as(strategy)(input_of(data)), data=data, seed=3)
    np.testing.assert_array_equal(found, expected)
    assert all(launch.dynamic for launch in launches)
    assert "(float4*)(x0_ptr" in launches[-1].source  # blocks of many rows


@pytest.mark.parametrize("depth", [6, 8])
def test_leaves_of_many_rows_lie_in_different_banks(depth: int) -> None:
    """No node of the first levels is swapped, and the others so that banks are read as equally as can be."""
    rng = np.random.default_rng(depth)
    op = join([bounded(rng, depth, 5, 0.0) for _ in range(20)], np.zeros(1))
    leaf = op.feature < 0
    rows = np.where(leaf, 1e-3, 0.0)
    for tree in range(20):  # the left half of the tree and its right half have such a leaf at the same place
        at = [op.left[op.roots[tree]], op.right[op.roots[tree]]]
        for _ in range(depth - 1):
            at = [op.right[node] for node in at]
        rows[at] = 1.0
    ranked, trees = op.once(ranked_trees), np.arange(20)

    def most(perfect: PerfectTrees) -> Any:
        read = np.bincount(op.left[leaf], rows[leaf])[perfect.leaves].reshape(20, -1, 32)
        return read.sum(axis=1).max(axis=1)

    plain, swapped = (perfect_trees(replace(op, cover=cover), ranked, trees, depth, 3) for cover in (np.zeros(len(rows)), rows))
    assert not plain.swapped.any()
    assert (most(plain) > 1.9).all()
    assert (most(swapped) < 1.1).all()
    assert not swapped.swapped[:, :8].any()
    np.testing.assert_array_equal(np.sort(plain.leaves), np.sort(swapped.leaves))


SHARED = (*PERFECT, "links")
"""The strategies whose trees pass through shared memory."""


@emulates
@pytest.mark.parametrize(
    ("width", "features", "leaves", "trees", "places"), [(1, 5, 1150, 6, (1, 2)), (4, 100, 390, 5, (1, 1))]
)
def test_trees_too_large_for_two_tiles(width: int, features: int, leaves: int, trees: int, places: tuple[int, int]) -> None:
    """Of blocks for many rows, and of those for few rows too, where their values take much memory."""
    rng = np.random.default_rng(width)
    values = rng.normal(size=(500, width))
    grown = [random_tree(rng, leaves, features, "f4", values, False, digits=6) for _ in range(trees)]
    op = join(grown, np.zeros(width)).run_as("links")
    tiles = Links.tiles_of(op)
    assert tuple(each.places for each in tiles) == places
    data = rows_at_thresholds(rng, op, 100, features)
    (found,), (expected,), launches = run(op(input_of(data)), data=data, seed=width)
    np.testing.assert_array_equal(found, expected)
    assert all(0 < launch.dynamic <= MOST_SHARED for launch in launches)


@pytest.mark.parametrize("head", [0, 16])
def test_which_trees_a_tile_has(head: int) -> None:
    """All of them in their order, in tiles that fit twice. Tiles for few rows have a tree for each warp where there is room."""
    rng = np.random.default_rng(head)
    for most in (5, 40, 100, 900):
        sizes = 16 * rng.integers(1, most, size=200)
        order = rng.permutation(200)
        outputs = [order[:150], order[150:150], order[150:]]
        ends = np.cumsum(sizes[order])
        for cut, room, usual in (
            (tiles_for_many, 32 << 10, TILE_BYTES),
            (tiles_for_many, 80 << 10, LARGE_TILE_BYTES),
            (tiles_for_few, 80 << 10, FEW_TILE_BYTES),
        ):
            tiles = cut(sizes, head, outputs, room)
            counts = np.diff(tiles.trees)
            assert tiles.first[[0, -1]].tolist() == [0, tiles.count]
            assert tiles.trees[tiles.first].tolist() == [0, 150, 150, 200]
            assert (16 * tiles.pieces[1:]).tolist() == ends[tiles.trees[1:] - 1].tolist()
            held = 16 * np.diff(tiles.pieces) + head * counts
            assert tiles.size == held.max()
            assert tiles.places == 2
            assert tiles.bytes <= room
            assert np.all(counts > 0)
            if cut is tiles_for_many:
                assert np.all((held <= usual) | (counts == 1))
            else:
                assert np.all((held <= usual) | (counts <= WALKERS))
                full = np.delete(counts, [tiles.first[1] - 1, tiles.first[3] - 1])  # but for the last ones of an output
                assert most == 900 or np.all(full % WALKERS == 0)


@emulates
@pytest.mark.parametrize(
    ("strategy", "depth"), [(name, depth) for name in ("levels", "int8_gemm") for depth in range(PERFECT[name] + 1)]
)
def test_every_byte_against_every_rank(strategy: str, depth: int) -> None:
    """In perfect trees of each depth. Levels walk the first ones for four rows at once."""
    rng = np.random.default_rng(depth)
    grown = [perfect_tree(rng, depth, rng.permutation(255)[: (1 << depth) - 1]) for _ in range(40)]
    op = join(grown, np.zeros(1)).run_as(strategy)
    data = rng.integers(-1, 256, size=(1000, 3)).astype("f4")
    (found,), (expected,), _ = run(op(input_of(data)), data=data, seed=depth)
    np.testing.assert_array_equal(found, expected)


def perfect_tree(rng: np.random.Generator, depth: int, thresholds: Any, width: int = 1) -> Tree:
    """A tree whose leaves are all of one depth. thresholds: of its splits, and more if need be."""
    splits, size = (1 << depth) - 1, (2 << depth) - 1
    node = np.arange(size)
    inner = node < splits
    return Tree(
        feature=np.where(inner, rng.integers(3, size=size), -1),
        threshold=np.append(thresholds[:splits], np.zeros(size - splits)).astype("f4"),
        left=np.where(inner, 2 * node + 1, 0),
        right=np.where(inner, 2 * node + 2, 0),
        missing_left=np.zeros(size, bool),
        values=rng.normal(size=(size, width)),
    )


@emulates
@pytest.mark.parametrize("strategy", ["levels", "int8_gemm"])
@pytest.mark.parametrize("rows", [(0, 1), (1, 4), (31, 5), (32, 511), (33, 2048), (64, 2049), (65, 4099)])
def test_any_number_of_rows(rows: tuple[int, int], strategy: str) -> None:
    few, many = rows
    op, data = for_strategy(strategy, "float32 sums", 5000)
    (found,), (expected,), launches = run(op(input_of(data)), data=data[: few + many], seed=many, few_rows=few, lane_rows=0)
    np.testing.assert_array_equal(found, expected)
    block = 1024 if strategy == "int8_gemm" else 2048
    wanted = [*([-(-few // 32)] if few else []), -(-many // (block if many > few else 32))]
    blocks = [*([512] if few else []), 256 if many > few else 512]
    assert [(launch.block, launch.grid) for launch in launches] == list(zip(blocks, wanted, strict=True))


@emulates
@pytest.mark.parametrize(
    ("strategy", "kind"),
    [
        *((strategy, "vector leaves") for strategy in FORMS),
        *((strategy, "float32 sums") for strategy in ("levels", "int8_gemm")),
    ],
)
@pytest.mark.parametrize("again", [sanitized, without_races])
def test_blocks_share_memory_without_races(again: Any, strategy: str, kind: str) -> None:
    op, data = for_strategy(strategy, kind, 2050)
    for launch in run(op(input_of(data)), data=data)[2]:
        for found, array in zip(again(launch), [a for a in launch.arguments if isinstance(a, np.ndarray)], strict=True):
            np.testing.assert_array_equal(found, array)


@emulates
@pytest.mark.parametrize(
    ("outputs", "width", "trees"), [(1, 1, MOST_TREES), (1, 1, MOST_TREES + 9), (37, 1, 2 * MOST_TREES + 1), (1, 40, 130)]
)
def test_one_row_walks_trees_in_several_turns(outputs: int, width: int, trees: int) -> None:
    """More trees than threads, outputs whose trees are of two turns, more outputs than lanes, none for some; sums that are -0.0."""
    rng = np.random.default_rng(trees)
    values = rng.normal(size=(500, width))
    op = join([random_tree(rng, 6, 3, "f4", values, True) for _ in range(trees)], np.full(max(outputs, width), -0.0))
    op = replace(op, target=rng.integers(outputs, size=trees)) if outputs > 1 else op
    op = replace(op, values=np.where(op.values < 0, -0.0, op.values))
    data = rows_at_thresholds(rng, op, 80, 3)
    assert trees > trees_of_turn(op) or trees == MOST_TREES
    (found,), (expected,), launches = run(op.run_as("links")(input_of(data)), data=data, seed=trees)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))
    without_races(launches[0])


@emulates
def test_values_before_and_after_trees() -> None:
    """Trees read computed columns, and sums of other trees.

    Ensembles share the memory of a block, one of few planes and one of many. One is walked.
    """
    few, data = for_strategy("levels", "vector leaves", 300)
    many, _ = for_strategy("levels", "planes in two registers", 300)
    others = [for_strategy(strategy, "float32 sums", 300)[0] for strategy in ("walk", "links", "far_links")]
    x = input_of(np.zeros((0, 100), np.float32))
    data = np.concatenate([data] * 34, axis=1)[:, :100]
    sums = few(t.mul(x, np.float32(0.5)))
    outputs = (
        sums,
        t.argmax(sums, axis=1),
        few(t.cast(sums, "f32")),
        many(x),
        *(op(x) for op in others),
        t.add(x, np.float32(1)),
    )
    found, expected, launches = run(*outputs, data=data, seed=3)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    assert [launch.block for launch in launches] == [512, 512, 128]


@emulates
@pytest.mark.parametrize("strategy", FORMS)
def test_a_stump(strategy: str) -> None:
    data = np.array([[0, 0.5], [0, np.nextafter(0.5, 1)], [0, np.nan], [0, -np.inf], [0, np.inf]])
    (found,), (expected,), _ = run(stump().run_as(strategy)(input_of(data)), data=data)
    np.testing.assert_array_equal(found, expected)
    assert found[:, 0].tolist() == [10, 20, 10, 10, 20]


def test_what_is_chosen() -> None:
    """Shallow trees are padded, others keep their shape, large ones stay in the card's memory. What no form takes is walked."""
    all_depths, _ = for_strategy("levels", "several groups of lanes", 1)
    deepest = all_depths.depths == 8
    shallow = replace(all_depths, roots=all_depths.roots[deepest], target=all_depths.target[deepest])
    middle = join(
        [random_tree(np.random.default_rng(i), 150, 9, "f4", np.ones((1, 1)), False) for i in range(150)], np.zeros(1)
    )
    strategy, reason = choose_for_gpu(shallow, shares=True)
    assert strategy == "levels"
    assert reason.startswith("rows a second of an H200, counted and not measured: levels ")
    assert choose_for_gpu(middle, shares=True)[0] == "links"
    assert choose_for_gpu(middle, shares=False)[0] == "walk"
    large = join([random_tree(np.random.default_rng(0), 3000, 5, "f4", np.ones((1, 1)), False)], np.zeros(1))
    assert [name for name, form in FORMS.items() if form.fits(large)] == ["far_links", "wide_links"]
    assert choose_for_gpu(large, shares=True)[0] == "far_links"
    for other in (replace(shallow, output="leaf"), random_ensemble(MOST_PLANES, 1)[0]):
        assert not any(form.fits(other) for form in FORMS.values())
        assert choose_for_gpu(other, shares=True) == ("walk", "the only one on a GPU for trees like these")


@pytest.mark.parametrize("target", [{"kind": "cuda", "arch": "sm_75"}, {"kind": "cuda", "arch": "sm_90a"}])
def test_cards_whose_blocks_have_too_little_shared_memory(target: dict[str, Any]) -> None:
    op, _ = for_strategy("levels", "several groups of lanes", 1)
    shares = target["arch"] == "sm_90a"
    options = CompileOptions(device="cuda", target=target)
    assert (COMPILER.choose_strategy(op, options)[0] in FORMS) == shares
    graph = Graph((x := Input("x", "f32", ("N", 9))(),), {"predict": (op(x),)}).verify()
    function = GraphMethods(graph, options, machine("cuda", target)).kernel("predict").function
    assert ("shared.dyn" in function.script()) == shares


@pytest.mark.parametrize("strategy", FORMS)
def test_on_a_cpu_the_trees_are_walked(strategy: str) -> None:
    op, data = for_strategy(strategy, "float32 sums", 40)
    graph = Graph((x := input_of(data),), {"predict": (op(x),)}).verify()
    (found,) = COMPILER.compile(graph, CompileOptions()).run("predict", [data])
    np.testing.assert_array_equal(found, graph.evaluate(data)["predict"][0])


def test_the_schedule_of_a_method() -> None:
    usual: Any = object()
    op, _ = for_strategy("levels", "several groups of lanes", 1)
    x = Input("x", "f32", ("N", 9))()
    assert schedule_for((op.run_as("walk")(x),), usual) is usual
    assert schedule_for((replace(op, output="leaf")(x),), usual) is usual
    schedule = schedule_for((op(x), op.run_as("links")(x)), usual)
    assert isinstance(schedule, GpuTiles)
    assert (schedule.threads, schedule.rows_of_thread) == (512, 4)
    assert schedule.shared <= MOST_SHARED
    assert isinstance(schedule.few, GpuFewRows)
    assert (schedule.few_rows, schedule.few.threads) == (choice.FEW_ROWS, 512)
    assert schedule.few.shared <= MOST_SHARED
    assert isinstance(schedule.few.few, GpuLaneTrees)
    assert (schedule.few.few_rows, schedule.few.few.threads) == (rows_of_lanes(op, FORMS["levels"]), 512)
    assert schedule.fewest is schedule.few.few


def test_eight_rows_a_thread() -> None:
    """Only where a thread has one sum for each, and reads what trees compare from X."""
    op, data = for_strategy("levels", "float32 sums", 1)
    x = input_of(data)
    assert op.n_outputs == 1
    for nodes, shape in (
        ((op(x),), (256, 8)),
        ((op(x), op.run_as("links")(x)), (512, 4)),
        ((op(x), op(t.Concat()(x))), (512, 4)),
    ):
        schedule = schedule_for(nodes, usual=GpuRows())
        assert isinstance(schedule, GpuTiles)
        assert (schedule.threads, schedule.rows_of_thread) == shape


def assert_chosen(op: TreeEnsemble, fitting: list[str], data: Array, seed: int) -> None:
    """That an ensemble fits these strategies alone, that "auto" takes the first of them, and that this one is exact."""
    assert [name for name, form in FORMS.items() if form.fits(op)] == fitting
    assert choose_for_gpu(op, shares=True)[0] == fitting[0]
    (found,), (expected,), launches = run(op.run_as(fitting[0])(input_of(data)), data=data, seed=seed)
    np.testing.assert_array_equal(found, expected)
    assert all(0 < launch.dynamic <= MOST_SHARED for launch in launches)


@emulates
@pytest.mark.parametrize(("width", "dtype"), [(1, "f4"), (3, "f8")])
def test_many_thresholds_a_feature(width: int, dtype: str) -> None:
    """More planes of bytes than a block has room for, NaN to both sides."""
    rng = np.random.default_rng(width)
    values = rng.normal(size=(500, width))
    grown = [random_tree(rng, 900, 3, dtype, values, True, digits=6) for _ in range(60)]
    op = join(grown, np.zeros(width))
    assert_chosen(op, ["wide_links"], rows_at_thresholds(rng, op, 1300, 3), width)


@emulates
@pytest.mark.parametrize(("width", "dtype"), [(1, "f4"), (3, "f8")])
def test_many_thresholds_a_feature_in_levels(width: int, dtype: str) -> None:
    """The same in trees that are not deep. One feature has numbers only, and one whose NaN go to one side."""
    rng = np.random.default_rng(width)
    grown = [bounded(rng, 8, 4, 0.02, width) for _ in range(200)]
    op = join(grown, np.zeros(width))
    op = replace(
        op,
        threshold=rng.normal(size=len(op.feature)).astype(dtype),
        missing_left=(op.missing_left | (op.feature == 1)) & (op.feature != 2),
    )
    assert_chosen(op, ["wide_levels", "wide_links"], rows_at_thresholds(rng, op, 1300, 4), width)


@emulates
def test_a_tree_of_more_leaves_than_16_bits_tell_apart() -> None:
    rng = np.random.default_rng(0)
    op = join([random_tree(rng, leaves, 5, "f4", rng.normal(size=(500, 1)), True) for leaves in (70_000, 1, 40)], np.zeros(1))
    data = rows_at_thresholds(rng, op, 300, 5)
    (found,), (expected,), _ = run(op.run_as("far_links")(input_of(data)), data=data)
    np.testing.assert_array_equal(found, expected)


@emulates
@pytest.mark.parametrize("strategy", ["far_links", "wide_links"])
@pytest.mark.parametrize(("width", "dtype"), [(1, "f8"), (2, "f8"), (3, "f8"), (4, "f4")])
def test_forks_of_every_shape(width: int, dtype: str, strategy: str) -> None:
    """Forks without a child, with one on either side, and with two; at the top, at the end, and one below the other. Leaves whose values
    are read at once, and others."""
    rng = np.random.default_rng(width)
    shapes = [
        "",
        "s",
        "ls",
        "rs",
        "lrs",
        "lls",
        "rrs",
        "rls",
        *("".join(rng.choice(["l", "r"], 61)) for _ in range(4)),
        "l" * 40,
        "r" * 41,
    ]
    grown = [chain(rng, shape, width) for shape in shapes] + [
        perfect_tree(rng, depth, np.arange(31) / 8, width) for depth in range(6)
    ]
    op = join(grown, rng.normal(size=width))
    op = replace(op, values=op.values.astype(dtype), base=op.base.astype(dtype))
    data = rows_at_thresholds(rng, op, 1200, 3)
    (found,), (expected,), launches = run(op.run_as(strategy)(input_of(data)), data=data, seed=width)
    np.testing.assert_array_equal(found, expected)
    assert all(launch.dynamic for launch in launches)


def chain(rng: np.random.Generator, ways: str, width: int) -> Tree:
    """A tree with a split for each letter. At "l" the next split is its left child, at "r" the right one; the other child is a leaf."""
    size = 2 * len(ways) + 1
    node = np.arange(size)
    inner = node < 2 * len(ways)
    inner[1::2] = False  # each split is followed by its leaf, and then by the next split
    left = np.array([step != "r" for step in ways for _ in range(2)] + [False])
    return Tree(
        feature=np.where(inner, rng.integers(3, size=size), -1),
        threshold=np.round(rng.normal(size=size), 1).astype("f4"),
        left=np.where(inner, np.where(left, node + 2, node + 1), 0),
        right=np.where(inner, np.where(left, node + 1, node + 2), 0),
        missing_left=rng.random(size) < 0.5,
        values=rng.normal(size=(size, width)),
    )


def test_what_the_cost_model_expects_of_the_card_s_memory() -> None:
    """Forests and boosted trees are read about as often as counted on rows that they have not seen."""
    counts = pytest.importorskip("cuda_on_cpu.counts")
    rng = np.random.default_rng(0)
    X = rng.normal(size=(6_000, 8)).astype("f4")
    y = X[:, 0] * X[:, 1] + np.sin(3 * X[:, 2]) + 0.1 * rng.normal(size=len(X))
    for name in ("forest, unlimited, 3 trees", "LightGBM, 31 leaves"):
        model = counts.models()[name](X[1024:], y[1024:])
        op = counts.trees_of(model)
        counted = counts.walked_forks(op, X[:1024])
        splits = splits_by_depth(op)
        assert (splits.sum(axis=1) == op.leaf_counts - 1).all()
        lines, from_l2 = memory_cycles(op, 16, 2)
        assert 0.7 < lines / op.n_trees / sum(counted.lines) < 1.5
        assert from_l2 == 0 or 0.7 < from_l2 / CLOCKS_OF_SECTOR / op.n_trees / sum(counted.sectors) < 1.5
        assert 0 < counted.first_sectors < sum(counted.sectors)


def test_where_rows_are_expected() -> None:
    """All leaves get as many rows: a quarter each of a perfect tree of two levels, and of a chain of three splits."""
    rng = np.random.default_rng(0)
    op = join([perfect_tree(rng, 2, np.arange(3.0)), chain(rng, "lls", 1), chain(rng, "", 1)], np.zeros(1))
    splits = splits_by_depth(op)
    assert splits.tolist() == [[1, 2, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0]]
    assert on_the_way(splits).tolist() == [[1, 1, 0, 0], [1, 0.75, 0.5, 0], [0, 0, 0, 0]]
