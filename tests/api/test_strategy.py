"""The cost model of tree strategies: its choices, their reasons, and the benchmark that fits it."""

from __future__ import annotations

import functools
import json
import re
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from backends import COMPILED
from random_trees import join, random_tree
from sklearn.ensemble import RandomForestClassifier
from sklearn.tree import DecisionTreeClassifier

import hbc
from benchmarks import strategies as benchmark
from benchmarks.grid import DEPTHS, DEPTHS_OF_FEW
from hbc.compiler.base import CompileOptions, load_compiler
from hbc.compiler.costs import (
    FAR_COPIED,
    FAR_SELECTED,
    FAR_WITHOUT_KEYS,
    FILE,
    RANGE,
    WITHOUT_AVX512,
    Shape,
    choose,
    duration,
    estimate,
    estimates,
    fastest,
    on,
)
from hbc.ir.graph import Input
from hbc.ir.types import N
from hbc.ops.tensor import Concat
from hbc.ops.tree import CategoryPlanes, TreeEnsemble
from hbc.optimizer.strategy import worth_measuring

BACKENDS = COMPILED
SMALL = benchmark.Model(3, 6, 8, 5, "f32", 1, False, 255, 1)
DEEP = benchmark.Model(14, 20, 2000, 5, "f64", 3, True, 4000, 2)


@pytest.fixture(scope="module")
def small() -> TreeEnsemble:
    return benchmark.ensemble(SMALL)


def test_ensembles_are_what_the_grid_says(small: TreeEnsemble) -> None:
    for model, op in ((SMALL, small), (DEEP, benchmark.ensemble(DEEP))):
        shape = Shape.of(op)
        assert (shape.trees, shape.depth, shape.leaves) == (model.trees, model.depth, model.leaves)
        assert (op.leaf_counts == model.leaves).all()
        assert (shape.width, shape.outputs, shape.bytes) == (
            1 + 2 * model.vector,
            model.outputs,
            4 + 4 * (model.dtype == "f64"),
        )
        assert shape.splits == model.trees * (model.leaves - 1)
        assert np.log2(model.leaves) <= shape.mean_depth <= model.depth
        assert shape.columns <= 5
        assert len(np.unique(op.leaves(np.random.default_rng(0).random((200, 5)).astype(op.threshold.dtype))[:, 0])) > 5
    models = benchmark.grid()
    assert models == benchmark.grid()
    assert {m.depth for m in models} == {*DEPTHS, *DEPTHS_OF_FEW}


OF_TVM = (WITHOUT_AVX512, on("tvm", "sapphirerapids"), on("tvm", "znver5"))


@pytest.mark.parametrize("costs", [*BACKENDS, *(OF_TVM if "tvm" in BACKENDS else ())])
def test_every_strategy_has_an_estimate_that_grows_with_the_rows(costs: str, small: TreeEnsemble) -> None:
    document = json.loads(FILE.read_text())
    work = benchmark.work_of(costs)
    assert all(machine["processor"] for machine in document["machines"][costs])
    assert set(document["nanoseconds"][costs]) == set(work)
    for factors in document["nanoseconds"][costs].values():
        assert min(factors.values()) > 0
    for op in (small, benchmark.ensemble(replace(DEEP, leaves=500))):
        for times in estimates(costs, op, work, RANGE).values():
            assert times[0] > 0
            assert times[-1] > 10 * times[0]
            assert all(a <= b for a, b in pairwise(times)), times


@pytest.mark.skipif("tvm" not in BACKENDS, reason="tvm is not installed")
def test_processors_without_avx512_have_times_of_their_own() -> None:
    """Vectors of half the size, and patches only of many columns. Ranges need AVX2 alone or VBMI2."""
    deep = benchmark.ensemble(replace(DEEP, leaves=1000, dtype="f32"))
    narrow, wide = (CompileOptions(target={"kind": "llvm", "mcpu": mcpu}) for mcpu in ("haswell", "x86-64-v4"))
    compiler = load_compiler("tvm")
    assert set(compiler.estimates(deep, wide, (1000,))) == {"walk", "scan", "patches"}
    assert set(compiler.estimates(deep, narrow, (1000,))) == {"walk", "scan", "ranges"}
    columns = benchmark.ensemble(replace(DEEP, leaves=1000, dtype="f32", columns=300))
    assert set(compiler.estimates(columns, narrow, (1000,))) == {"walk", "scan", "patches"}
    assert compiler.estimates(deep, narrow, (1000,))["scan"][0] > 1.3 * compiler.estimates(deep, wide, (1000,))["scan"][0]


@pytest.mark.skipif("tvm" not in BACKENDS, reason="tvm is not installed")
def test_few_trees_over_long_rows_are_scanned() -> None:
    """A walk reads each of its numbers from memory: 20 trees of 200 leaves over 1,661 columns take 2.9 µs a row, scanned 0.75 (Zen 4)."""
    many = benchmark.ensemble(benchmark.Model(20, 16, 200, 1_661, "f32", 1, False, 255, 1))
    options, compiler = CompileOptions(target={"kind": "llvm", "mcpu": "znver4"}), load_compiler("tvm")
    assert compiler.choose_strategy(many, options)[0] == "scan"
    of_hundred, of_more = compiler.estimates(many, options, (100, 1000))["walk"]
    assert of_more > 15 * of_hundred  # the second cache holds 100 rows


def test_choices_wait_for_lines_of_long_rows_that_are_far_away() -> None:
    """One tree of 64 leaves over 53 lines of 2,000 columns takes 0.52 µs a row by choices in calls of 10,000, walked 0.10 (Zen 4)."""
    costs = pytest.importorskip("hbc.compiler.tvm.costs")
    op = benchmark.ensemble(benchmark.Model(6, 1, 64, 2_000, "f32", 4, True, 4000, 1))
    shape, compiler = Shape.of(op), load_compiler("tvm")
    near, far = (costs.select(shape, rows)[FAR_SELECTED] for rows in (64, 10_000))
    assert 0 == near < far
    assert costs.select(replace(shape, lines=13), 10_000)[FAR_SELECTED] == 0
    options = CompileOptions(batch_size=10_000, target={"kind": "llvm", "mcpu": "znver4"})
    assert compiler.choose_strategy(op, options)[0] == "walk"


def test_walks_and_scans_wait_for_lines_of_rows_that_are_far_away() -> None:
    """Where walks make no keys, and where scans copy few numbers of a row. Seven lines of 100 float32 columns, of which 30 are read."""
    costs = pytest.importorskip("hbc.compiler.tvm.costs")
    walk, scan = FAR_WITHOUT_KEYS, FAR_COPIED
    op = benchmark.ensemble(benchmark.Model(4, 1, 16, 100, "f32", 1, False, 255, 1))
    shape = Shape.of(op)
    assert shape.lines == len({feature * 4 // 64 for feature in op.feature if feature >= 0})
    shape = replace(shape, trees=3, columns=30, lines=7, steps=12)
    near, far = (costs.strategies()["walk"](shape, rows) for rows in (1_024, 102_400))
    assert 0 == near[walk] < far[walk] < costs.walk(replace(shape, lines=13), 102_400)[walk]
    less = costs.walk(replace(shape, steps=2), 102_400)[walk]
    assert less == pytest.approx(far[walk] * 2 / 5)  # of the seven, two come by themselves
    assert walk not in costs.walk(shape, 102_400, lone=False)
    near, far = (costs.strategies()["scan"](replace(shape, columns=10), rows) for rows in (1_024, 102_400))
    assert 0 == near[scan] < far[scan]
    assert costs.scan(shape, 102_400)[scan] == 0  # Zen 4 transposes them
    assert costs.scan(shape, 102_400, pairs=True)[scan] > 0
    assert costs.scan(replace(shape, columns=60), 102_400, pairs=True)[scan] == 0


def test_a_single_leaf_has_estimates_too() -> None:
    leaf = benchmark.ensemble(replace(SMALL, depth=0, leaves=1))
    for backend in BACKENDS:
        chosen, why = load_compiler(backend).choose_strategy(leaf, CompileOptions())
        assert chosen in hbc.strategies(backend)
        assert "estimated" in why


def test_the_leaf_of_one_small_tree_is_chosen_without_a_walk() -> None:
    """A walk of it takes 2.4 to 10 times as long, also where its number is only the way to a table."""
    X = np.random.default_rng(0).normal(size=(300, 4))
    tree = DecisionTreeClassifier(max_depth=4, random_state=0).fit(X, (X[:, 0] * 2).astype(int))
    told = hbc.convert(tree, "tvm", X).explain()
    chosen = re.findall(r"TreeEnsemble of 1 trees, depth ≤ 4, \d+ leaves at most: (\w+)", told)
    assert len(chosen) >= 3  # predict, predict_proba, apply
    assert set(chosen) == {"select"}


def test_the_choice_is_the_least_estimate(small: TreeEnsemble) -> None:
    work = load_compiler("torch").work  # type: ignore[attr-defined]
    for rows in (1, 1000):
        times = {name: row[0] for name, row in estimates("torch", small, work, [rows]).items()}
        chosen, why = choose("torch", small, work, rows)
        assert times[chosen] == min(times.values())
        assert f"of {rows:,} row" in why
        assert all(name in why and duration(time) in why for name, time in times.items())


def test_without_rows_the_average_of_relative_times_decides() -> None:
    assert fastest({"even": [1.1, 1.1, 1.1], "twice first": [1, 1, 3], "last": [9, 9, 1]}) == "even"


def test_durations_have_two_digits() -> None:
    assert [duration(t) for t in (3.14159, 851, 999.9, 12_345, 2.5e6, 3.1e9)] == [
        "3.1 ns",
        "850 ns",
        "1 µs",
        "12 µs",
        "2.5 ms",
        "3.1 s",
    ]


def test_explain_shows_the_estimates() -> None:
    X = np.random.default_rng(0).random((200, 4)).astype(np.float32)
    forest = RandomForestClassifier(5, max_depth=3, random_state=0).fit(X, X[:, 0] > 0.5)
    said = hbc.convert(forest, "torch", batch_size=10).explain()
    assert "estimated for calls of 10 rows: " in said
    for name in ("gemm", "tree_trav", "perf_tree_trav", "scan"):
        assert f"{name} " in said.split("estimated for calls")[1].splitlines()[0]


def test_one_large_tree_does_not_count_for_all() -> None:
    """64 trees that are scanned together take as long as the largest of them, not as the largest of all."""
    costs = pytest.importorskip("hbc.compiler.tvm.costs")
    rng = np.random.default_rng(0)
    trees = [random_tree(rng, leaves, 9, "f4", rng.normal(size=(500, 1)), False) for leaves in [200] + 299 * [20]]
    op = join([trees[i] for i in rng.permutation(300)], np.zeros(1), None)
    assert Shape.of(op).longest == 199 + 4 * 19
    alike = replace(Shape.of(op), longest=None)
    name = "four rows and split, trees in lanes"
    for wide in (True, False):
        work = functools.partial(costs.strategies(wide)["scan"], rows=4)
        assert work(alike).get(name, np.inf) > 2 * work(Shape.of(op))[name] > 0  # with AVX2 they would be walked
    chosen, _ = load_compiler("tvm").choose_strategy(op, CompileOptions(batch_size=1, target={"mcpu": "znver4"}))
    assert chosen == "scan"


def test_a_single_candidate_is_not_estimated(small: TreeEnsemble) -> None:
    models = {"walk": load_compiler("torch").work["walk"]}  # type: ignore[attr-defined]
    assert choose("torch", small, models, None) == ("walk", "the only one for trees like these")


def test_what_was_found_out_to_choose_stays_known(small: TreeEnsemble) -> None:
    asked = []

    def leaves(op: TreeEnsemble) -> int:
        asked.append(op)
        return int(op.leaf_counts.sum())

    expected = SMALL.trees * SMALL.leaves
    assert small.once(leaves) == small.once(leaves) == small.run_as("scan").once(leaves) == expected
    assert asked == [small]
    assert small.run_as("scan") == replace(small, strategy="scan")
    assert replace(small, output="leaf").once(leaves) == expected
    assert len(asked) == 2


SM_90 = {"kind": "cuda", "arch": "sm_90"}


def test_what_tune_measures(small: TreeEnsemble) -> None:
    compiler = load_compiler("tvm")
    known = hbc.strategies("tvm")[1:]
    x = Input("X", "f32", (N, 5))()
    names, left_out = worth_measuring(compiler, [small(x)], CompileOptions(), (1, 1000), known)
    assert names[0] == "auto"
    assert {*names[1:], *left_out} == set(known)
    many = benchmark.ensemble(replace(SMALL, trees=300))
    names, left_out = worth_measuring(compiler, [many(x)], CompileOptions(), (100_000,), known)
    assert "estimated" in left_out["walk"]
    names, left_out = worth_measuring(compiler, [small(x)], CompileOptions("cuda", target=SM_90), (1,), known)
    assert {"auto", "walk", "links", "far_links", "gemm"} <= set(names)
    assert {"scan", "patches"} <= left_out.keys()
    names, _ = worth_measuring(load_compiler("torch"), [small(x)], CompileOptions("cuda"), (1,), ("walk", "scan"))
    assert names == ["auto", "walk", "scan"]


def test_planes_of_sets_are_one_column_to_a_compiler_that_tests_the_sets() -> None:
    """(Counted as columns, 500 planes made 500 trees too wide for a scan. They were walked, which took 31 instead of 0.4 µs a row.)"""
    planes = 500
    flags = np.zeros(planes, bool)
    x = Input("X", "f32", (N, 5))()
    tests = CategoryPlanes(flags * 0, np.arange(planes) % 50, np.arange(planes + 1), flags, ~flags, ~flags)(x)
    trees = benchmark.ensemble(replace(SMALL, trees=500))
    feature = np.where(trees.feature < 0, -1, 5 + np.arange(trees.feature.size) % planes)
    trees = replace(trees, feature=feature.astype("i4"))
    node = trees(Concat()(x, tests))
    tvm, torch = load_compiler("tvm"), load_compiler("torch")
    assert torch.seen(node, CompileOptions()) is trees
    on_card = tvm.seen(node, CompileOptions("cuda", target=SM_90))
    assert np.array_equal(np.unique(on_card.feature), [-1, 5])  # type: ignore[attr-defined]
    joined = tvm.seen(node, CompileOptions())
    assert isinstance(joined, TreeEnsemble)
    shape, of_card = Shape.of(joined), Shape.of(on_card)  # type: ignore[arg-type]
    assert (shape.sets, shape.columns, shape.splits) == (planes, 1, of_card.splits)
    assert replace(shape, sets=0, planes=of_card.planes, narrow=of_card.narrow) == of_card
    times = [tvm.estimates(op, CompileOptions(), (10_000,))["scan"][0] for op in (trees, joined)]
    assert times[1] < times[0] / 2


def points(factors: dict[str, dict[str, float]]) -> list[benchmark.Point]:
    """The measurements that these coefficients would give."""
    work: dict[str, Any] = load_compiler("torch").work  # type: ignore[attr-defined]
    found = []
    for number, model in enumerate(benchmark.grid()):
        if model.depth <= 6 and model.leaves <= 64 and model.trees <= 100:
            shape = Shape.of(benchmark.ensemble(model))
            for rows in RANGE:
                times = {name: 1e-9 * estimate(factors[name], work[name](shape, rows)) for name in factors}
                found.append(benchmark.Point(replace(model, seed=number), shape, rows, times))
    return found


def test_the_fit_finds_coefficients_again() -> None:
    walk = {"call by blocks": 4e4, "row, tree and block": 8.0, "call": 8e4, "row and full level": 2.0}
    truth = {
        "walk": walk,
        "tree_trav": {"call": 5e4, "row and step": 6.0},
        "gemm": {"call": 2e4, "row and product": 0.5},
        "scan": {"call": 9e4, "row and split": 0.25, "block and step": 9e3}
        | {f"walk: {name}": time for name, time in walk.items()},
    }
    measured = points(truth)
    fitted = benchmark.fit("torch", measured)
    terms = [(name, term) for name, factors in truth.items() for term in factors]
    for name, term in terms:
        assert fitted[name][term] == pytest.approx(truth[name][term], rel=0.02), (name, term)
    # Some points were measured while the processor was half as fast: the ratio of two times hardly depends on that.
    slow = np.where(np.random.default_rng(0).random(len(measured)) < 0.3, 2, 1).tolist()
    points_then = [replace(p, seconds={n: k * t for n, t in p.seconds.items()}) for p, k in zip(measured, slow, strict=True)]
    fitted = benchmark.fit("torch", points_then)
    ratios = [fitted[name][term] / truth[name][term] for name, term in terms]
    assert max(ratios) < 1.15 * min(ratios)
    judged = benchmark.judged("torch", measured)
    assert (judged["cost model, rows known"] <= benchmark.WITHIN).mean() > 0.95
    assert (judged["always gemm"] <= benchmark.WITHIN).mean() < 0.9
    assert all(p.seconds["scan"] == p.seconds["walk"] for p in measured if p.rows == 1), "few rows of a scan are walked"
    again = benchmark.from_json(json.loads(json.dumps(benchmark.as_json(measured))))
    assert [(p.model, p.shape, p.rows) for p in again] == [(p.model, p.shape, p.rows) for p in measured]
    assert "| torch |" in benchmark.table({"torch": again})


def test_a_model_is_measured(small: TreeEnsemble) -> None:
    found = benchmark.measure("torch", SMALL, (1, 20))
    assert [point.rows for point in found] == [1, 20]
    assert set(found[0].seconds) == {"scan", "walk", "gemm", "tree_trav", "perf_tree_trav"}
    assert min(found[1].seconds.values()) > 0


def test_two_chunks_of_a_scan_take_less_than_twice_one() -> None:
    """100 rows are a pair of chunks, and not one with 36 rows behind it."""
    pytest.importorskip("tvm")
    from hbc.compiler.tvm.costs import COST_OF_PAIR, COST_OF_WIDE_HALF, scan

    numbers = {"leaves": 255, "width": 1, "outputs": 1, "bytes": 4, "columns": 10, "planes": 10}
    shape = Shape(trees=10, splits=2540, depth=16, steps=150, mean_depth=9.0, **numbers)
    alone, paired = scan(shape, 100), scan(shape, 100, pairs=True)
    assert (alone["64 rows"], paired["64 rows"]) == (1 + COST_OF_WIDE_HALF, 2 * COST_OF_PAIR)
    assert alone["four rows and split, trees in lanes"] > 0 == paired["four rows and split, trees in lanes"]
    for rows in (1, 64, 65, 256, 1000):
        assert scan(shape, rows) == scan(shape, rows, pairs=True)
    assert scan(shape, 32)["64 rows"] == COST_OF_WIDE_HALF


def test_planes_beyond_l1_take_longer_beside_much_of_a_model() -> None:
    """300 trees of 800 leaves, with 28 and 308 planes: 2.0 and 3.3 µs a row on Zen 4; of 200 leaves the same.

    Over 129 columns, trees come in no turns."""
    costs = pytest.importorskip("hbc.compiler.tvm.costs")
    name = "256 rows and split"
    for leaves, least, most in ((800, 1.3, 1.6), (50, 1.0, 1.0)):
        shape = Shape(300, 300 * (leaves - 1), 18, 5400, 11.5, leaves, 1, 1, 4, 28, 28)
        few, many = (costs.scan(replace(shape, columns=129, planes=planes), 2048)[name] for planes in (28, 308))
        assert least <= many / few <= most
    assert costs.scan(replace(shape, planes=308), 2048, wide=False)[name] > 0


def test_many_rows_are_scanned_through_the_tops_of_trees() -> None:
    pytest.importorskip("tvm")
    from hbc.compiler.tvm.costs import patches

    numbers = {"leaves": 2000, "width": 1, "outputs": 1, "bytes": 4, "columns": 10, "planes": 30}
    shape = Shape(trees=10, splits=19_990, depth=30, steps=290, mean_depth=14.0, **numbers)
    few, many = patches(shape, 191), patches(shape, 10_240)
    assert few == patches(shape, 191, tops=False)
    assert (few["row and patch behind a top"], many["row and patch"]) == (0, 0)
    assert few["row and patch"] > 0 < many["row and patch behind a top"]
    assert patches(shape, 10_240, tops=False)["row and patch"] > many["row and patch behind a top"]


def test_older_measurements_are_fitted_to_the_work_of_their_time() -> None:
    """Of two measurements one was made before the tops of trees were scanned, when trees that are the result were computed twice."""
    pytest.importorskip("tvm")
    older, newer = (
        benchmark.Kernels.of({"time": time, "cpu": cpu})
        for time, cpu in (("2026-11-26 23:26:57 +0000", "sapphirerapids"), ("2026-11-30 00:00:00 +0000", "sapphirerapids"))
    )
    assert older == benchmark.Kernels(tops=False, twice=True)
    assert newer == benchmark.Kernels(pairs=True)
    assert benchmark.Kernels.of({"time": "2026-11-30 00:00:00 +0000", "cpu": "znver5"}) == replace(newer, walks=True)
    assert benchmark.Kernels.of({"time": "2026-11-30 00:00:00 +0000", "cpu": "znver4"}) == benchmark.Kernels()
    truth = {
        "walk: row and column": 0.2,
        "row and patch": 2.0,
        "row and patch behind a top": 3.0,
        "row and column, scanned": 0.5,
    }
    measured = []
    for model in benchmark.grid():
        if model.leaves > 800 and model.trees <= 30 and model.dtype == "f32":
            shape = Shape.of(benchmark.ensemble(model))
            for kernels, rows in ((kernels, rows) for kernels in (older, newer) for rows in RANGE):
                work = benchmark.work_of("tvm", kernels)
                times = {
                    "walk": 1e-9 * estimate({"row and column": 0.2, "row and tree": 3.0}, work["walk"](shape, rows)),
                    "patches": 1e-9 * estimate(truth, work["patches"](shape, rows)),
                }
                measured.append(benchmark.Point(model, shape, rows, times, kernels))
    fitted = benchmark.fit("tvm", measured)["patches"]
    assert {name: fitted[name] for name in truth} == pytest.approx(truth, rel=0.05)


def test_processors_that_were_measured_have_times_of_their_own() -> None:
    """The others have those that fit all of them together."""
    deep, times = benchmark.ensemble(replace(DEEP, leaves=1000, dtype="f32")), {}
    for mcpu, costs in (("znver5", on("tvm", "znver5")), ("icelake-server", "tvm"), ("haswell", WITHOUT_AVX512)):
        options = CompileOptions(target={"kind": "llvm", "mcpu": mcpu})
        times[mcpu] = load_compiler("tvm").estimates(deep, options, (1,))["walk"]
        assert times[mcpu] == estimates(costs, deep, {"walk": benchmark.work_of(costs)["walk"]}, (1,))["walk"]
    assert len({time for (time,) in times.values()}) == 3
