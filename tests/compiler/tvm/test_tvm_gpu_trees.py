"""The tree kernels of a GPU that share trees between threads (hbc/compiler/tvm/trees/gpu), run by the emulator (tests/cuda_on_cpu)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
from cuda_on_cpu import cannot_run, emulated, sanitized, without_races
from random_trees import RANDOM, random_ensemble, stump

from hbc.compiler.base import CompileOptions
from hbc.compiler.tvm.compiler import COMPILER
from hbc.compiler.tvm.nest.schedule import MOST_SHARED, GpuTiles
from hbc.compiler.tvm.trees.gpu.choice import FORMS, choose_for_gpu, schedule_for
from hbc.ir.graph import Graph, Input, Node
from hbc.ops import tensor as t
from hbc.ops.tree import TreeEnsemble

emulates = pytest.mark.skipif(cannot_run() is not None, reason=str(cannot_run()))
CUDA = CompileOptions(device="cuda")


def shallow(kind: str, rows: int) -> tuple[TreeEnsemble, Any]:
    """The trees of a random ensemble that are not deeper than 8, and rows at their thresholds."""
    op, data = random_ensemble(kind, rows)
    kept = op.depths <= 8
    return replace(op, roots=op.roots[kept], target=op.target[kept]), data


def run(*outputs: Node, data: Any, seed: int = 0) -> tuple[list[Any], list[Any], Any]:
    """(results of the kernel, those of the reference, the launch)."""
    (x,) = {node for node in Graph((), {"": outputs}).nodes if isinstance(node.op, Input)}
    graph = Graph((x,), {"predict": outputs}).verify()
    with emulated(seed) as card:
        found = COMPILER.compile(graph, CUDA).run("predict", [data])
    return found, graph.evaluate(data)["predict"], card.launches[-1]


def input_of(data: Any) -> Node:
    return Input("x", "f32" if data.dtype == np.float32 else "f64", ("N", data.shape[1]))()


@emulates
@pytest.mark.parametrize("kind", RANDOM)
def test_sums_have_the_bits_of_the_reference(kind: str) -> None:
    """NaN to both sides, ±inf, numbers one ulp beside thresholds; trees that end early, outputs without trees, a thread without rows."""
    op, data = shallow(kind, 301)
    (found,), (expected,), launch = run(op.run_as("levels")(input_of(data)), data=data, seed=len(kind))
    np.testing.assert_array_equal(found, expected)
    fits = FORMS["levels"].fits(op)
    assert fits == (kind != "planes in four registers, NaN both ways")  # it has 200 planes
    assert bool(launch.dynamic) == fits
    assert launch.dynamic <= MOST_SHARED


@emulates
@pytest.mark.parametrize("rows", [1, 4, 5, 511, 2048, 2049, 4099])
def test_any_number_of_rows(rows: int) -> None:
    op, data = shallow("float32 sums", 5000)
    data = data[:rows]
    (found,), (expected,), launch = run(op.run_as("levels")(input_of(data)), data=data, seed=rows)
    np.testing.assert_array_equal(found, expected)
    assert (launch.block, launch.grid) == (512, -(-rows // 2048))


@emulates
@pytest.mark.parametrize("again", [sanitized, without_races])
def test_blocks_share_memory_without_races(again: Any) -> None:
    op, data = shallow("vector leaves", 2050)
    _, _, launch = run(op.run_as("levels")(input_of(data)), data=data)
    for found, array in zip(again(launch), [a for a in launch.arguments if isinstance(a, np.ndarray)], strict=True):
        np.testing.assert_array_equal(found, array)


@emulates
def test_values_before_and_after_trees() -> None:
    """Trees read computed columns. Two ensembles share the memory of a block, one of few planes and one of many; a third is walked."""
    few, data = shallow("vector leaves", 300)
    many, _ = shallow("planes in two registers", 300)
    deep, _ = random_ensemble("float32 sums", 300)
    x = input_of(np.zeros((0, 100), np.float32))
    data = np.concatenate([data] * 34, axis=1)[:, :100]
    sums = few.run_as("levels")(t.mul(x, np.float32(0.5)))
    outputs = (sums, t.argmax(sums, axis=1), many.run_as("levels")(x), deep.run_as("walk")(x), t.add(x, np.float32(1)))
    found, expected, launch = run(*outputs, data=data, seed=3)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    assert launch.block == 128


@emulates
def test_trees_of_one_leaf_and_stumps() -> None:
    data = np.array([[0, 0.5], [0, np.nextafter(0.5, 1)], [0, np.nan], [0, -np.inf], [0, np.inf]])
    (found,), (expected,), _ = run(stump().run_as("levels")(input_of(data)), data=data)
    np.testing.assert_array_equal(found, expected)
    assert found[:, 0].tolist() == [10, 20, 10, 10, 20]


def test_what_is_chosen() -> None:
    """Shallow trees share memory. Deeper ones, leaf numbers and too many planes are walked, also if the strategy is asked for."""
    op, _ = shallow("several groups of lanes", 1)
    strategy, reason = choose_for_gpu(op, shares=True)
    assert strategy == "levels"
    assert reason.startswith("rows a second of an H200, counted and not measured: levels ")
    assert choose_for_gpu(op, shares=False)[0] == "walk"
    usual = object()
    deep, _ = random_ensemble("float32 sums", 1)
    many_planes, _ = shallow("planes in four registers, NaN both ways", 1)
    for other in (deep, replace(op, output="leaf"), many_planes):
        assert not FORMS["levels"].fits(other)
        x = Input("x", "f32" if other.threshold.dtype == np.float32 else "f64", ("N", 100))()
        assert schedule_for((other.run_as("levels")(x),), usual) is usual  # type: ignore[arg-type]
    schedule = schedule_for((op.run_as("levels")(Input("x", "f32", ("N", 9))()),), usual)  # type: ignore[arg-type]
    assert isinstance(schedule, GpuTiles)
    assert schedule.threads == 512
    assert schedule.shared <= MOST_SHARED
