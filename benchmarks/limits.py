"""The least time that a row of a tree ensemble can take: the instructions of hbc's kernel over the number that the processor's ports can
execute. Beside the comparison with peers it shows how fast hbc could still become. The limit counts the trees; where they are scanned, the
ranks of the columns that they read; the exponentials behind them, and softmax about these. No row is faster than its results are written to
memory. Not counted are the reading of the rows from memory and the adding of leaves."""

from __future__ import annotations

import re
import timeit
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import hbc
from benchmarks.trained import Trained
from hbc.compiler.costs import Shape
from hbc.compiler.tvm.plan.sizes import elements
from hbc.compiler.tvm.run.targets import host_machine
from hbc.compiler.tvm.tir.dialect import Dialect
from hbc.compiler.tvm.trees.patches.packed_patches import columns_of, pack_patches
from hbc.compiler.tvm.trees.patches.packed_patches import cut as patches
from hbc.compiler.tvm.trees.patches.patches import few_in_patches
from hbc.compiler.tvm.trees.patches.scanned_tops import LEVELS, pack_tops
from hbc.compiler.tvm.trees.patches.walked_rows import many_rows_walk
from hbc.compiler.tvm.trees.pieces.packed_pieces import cut
from hbc.compiler.tvm.trees.pieces.split_order import pieces
from hbc.compiler.tvm.trees.ranges.ranges import SIDE, ranges_for
from hbc.compiler.tvm.trees.scan.small_trees import small_trees
from hbc.ir.graph import Graph
from hbc.ir.types import NUMPY_DTYPES
from hbc.ops.tensor import Exp, Sigmoid
from hbc.ops.tree import TreeEnsemble
from hbc.ops.tree_ranks import RankedTrees, rank_encode

SPLITS = {6: 1.0, 25: 1.0, 26: 0.79}
"""Processor family (in /proc/cpuinfo) → the cycles of 64 rows for each split that `cut` counts. Intel with AVX-512 (6): a single port
compares and permutes, one such instruction a cycle (0.279 ns at 3.58 GHz, measured in assembly). AMD Zen 4 (25): 32 rows at a time, four
instructions a cycle, two for each split. AMD Zen 5 (26): 64 rows at a time, two compares into masks or permutations a cycle, three masked
additions; a piece of six splits takes 6.3 cycles (measured in assembly, with everything in registers)."""
SPLITS_IN_HALVES = {25: 1.37}
"""The same without AVX-512. AMD Zen 3 (25): 32 rows at a time, four instructions a cycle, eleven for a piece of three splits and five for
one alone."""
SEARCHES = {6: 1.0, 25: 1.0, 26: 2.0}
"""Processor family → the compares and permutations of whole registers (512 bits) a cycle: Intel's single port, the two halves of Zen 3 and
Zen 4, Zen 5's two ports."""
FLOATS = {6: 2.0, 25: 1.45, 26: 2.9}
"""Processor family → the instructions of `exponentials` a cycle. Intel: two ports for 512 bits. AMD Zen 5: four, but two of three
instructions multiply, which two of the ports do. Zen 3 and Zen 4: the same in halves."""
VISIT = {26: 3.3}
"""Processor family → the cycles of a visit of a patch: twelve instructions with everything in registers, measured in assembly. Loads, the
list of rows and the leaves come on top. Tops of trees are scanned."""
STEP = 1.0
"""The cycles of one step of a walk: six instructions at six a cycle (tree-kernels.md §4), without cache misses."""
ROWS = 256  # whose paths are counted


def limit(trained: Trained, rows: int = 10_000) -> dict[str, Any] | None:
    """{kernel, work, cycles, ranks or tops, exponentials, ghz, written, us}, where us is µs a row of calls of so many rows, and `written`
    those of its results. A unit of work takes 64 rows so many cycles where they are scanned, and a row where it steps or visits. The
    cycles of ranks (scan and ranges), of tops (walk and patches) and of exponentials are those of a row. None if the model has no trees of
    its own, or the processor is not known."""
    graph = _compiled(trained)
    found = _of_trees(trained, _ensembles(graph))
    if found is None:
        return None
    count, dtype, values = exponentials(graph)
    cycles = count / FLOATS[_family()]
    written = writing(rows * values * np.dtype(dtype).itemsize) / rows * 1e6
    us = max(found["us"] + cycles / found["ghz"] / 1e3, written)
    return {**found, "exponentials": cycles, "written": written, "us": us}


def _family() -> int:
    """The processor's family; 0 if it is not known."""
    found = re.search(r"^cpu family\s*:\s*(\d+)", _processor(), re.M)
    return int(found[1]) if found else 0


def _of_trees(trained: Trained, trees: list[Any]) -> dict[str, Any] | None:
    """`limit` of the trees alone."""
    family, dialect = _family(), host_machine().dialect
    splits = SPLITS if dialect.wide else SPLITS_IN_HALVES
    if len(trees) != 1 or family not in splits:
        return None
    ghz = frequency()
    op = trees[0]
    if op.strategy in ("scan", "ranges"):
        if op.strategy == "scan":
            work, ranks = _scan(rank_encode(op.once(small_trees)), dialect)
        else:
            ranges = ranges_for(op, dialect)
            (tops, ranks), (inside, _) = _scan(ranges.tops, dialect), _scan(ranges.parts, dialect)
            work = tops + inside * op.n_trees / len(ranges.first_leaf)  # a row is in one range of each tree
            # Four rounds of 16 instructions turn 16 planes of 64 rows, in each tree.
            ranks += op.n_trees * -(-ranges.ranked.planes // SIDE)
        return {
            "kernel": op.strategy,
            "work": work,
            "cycles": splits[family],
            "ranks": ranks / SEARCHES[family],
            "ghz": ghz,
            "us": (work * splits[family] / 64 + ranks / SEARCHES[family]) / ghz / 1e3,
        }
    counted, cycles, tops = op.feature >= 0, STEP, 0.0
    kernel = op.strategy
    scanned = kernel == "patches" and dialect.wide and not few_in_patches(ROWS, len(op.once(columns_of)[0].compared))
    if scanned and dialect.quick_walks and many_rows_walk(op.once(Shape.of)):
        kernel = "walk"
    if kernel == "patches":
        counted, cycles = _patch_begins(op, dialect.wide, LEVELS if scanned else 0), VISIT.get(family, 0.0)
        if scanned:
            work, ranks = _scan(pack_tops(op, pack_patches(op, dialect.wide), dialect).ranked, dialect)
            tops = work * splits[family] / 64 + ranks / SEARCHES[family]
    if not cycles or kernel == "select":
        return None
    passed = path_lengths(op, np.load(trained.rows)[:ROWS].astype(op.threshold.dtype), counted)
    us = (passed * cycles + tops) / ghz / 1e3
    return {"kernel": kernel, "work": passed, "cycles": cycles, "tops": tops, "ghz": ghz, "us": us}


def _scan(ranked: RankedTrees, dialect: Dialect) -> tuple[float, float]:
    """(the splits of 64 rows that a scan counts, the instructions for a row's ranks)."""
    how = cut(dialect)
    work = sum(len(found.split) * (found.size + how.more) for found in pieces(ranked, how.sizes, how.more))
    return work, rank_instructions(ranked.thresholds)


EXP = {"f32": 13, "f64": 18}
"""The arithmetic instructions of hbc's exp of a register (`Lines.exp`): five to divide by ln 2, five and ten coefficients of a polynomial,
the square before it, two sums behind it, and the scaling by 2^n. Its tests for what is out of range are left out."""
AROUND_EXP = 4  # softmax takes the largest sum, subtracts it, adds, and multiplies by the inverse of the sum


def exponentials(graph: Graph) -> tuple[float, str, int]:
    """(the least instructions of whole registers for a row's exponentials, the dtype of the results, their number)."""
    (result, *_) = graph.outputs["predict_proba" if "predict_proba" in graph.outputs else "predict"]
    found, seen, to_do = 0.0, set(), [result]
    while to_do:
        node = to_do.pop()
        if node in seen:
            continue
        seen.add(node)
        to_do += node.inputs
        if isinstance(node.op, Exp | Sigmoid):
            around = AROUND_EXP if isinstance(node.op, Exp) else 0
            found += elements(node.type) * (EXP[node.type.dtype] + around) * int(node.type.dtype[1:]) / 512
    return found, NUMPY_DTYPES[result.type.dtype].name, elements(result.type)


def writing(size: int) -> float:
    """The least seconds to write so many bytes to a new array, as each call returns one. The system clears the pages of a large one first:
    80 MB of probabilities take 1.3 µs for each row of 1,000 classes, and half of that in memory that is there."""
    return min(timeit.repeat(lambda: np.empty(max(size, 1), np.uint8).fill(1), number=1, repeat=10))


def rank_instructions(thresholds: Sequence[np.ndarray[Any, Any]]) -> float:
    """The least compares and permutations for a row's ranks in columns of these thresholds, in registers that hold a value of many rows.

    A binary search takes a look-up and a compare a level. Before it, log2(n) permutations turn n rows into registers of one column each.
    Levels whose thresholds are in several registers take more; that is left out.
    """
    found = 0.0
    for some in thresholds:
        lanes = 64 // some.itemsize
        found += (2 * len(some).bit_length() + lanes.bit_length() - 1) / lanes
    return found


def work(trained: Trained) -> float | None:
    """The cycles of one row: one for each split that it passes in all trees, as a mean, and those of its exponentials. None if the model
    has no trees of its own."""
    graph = _compiled(trained)
    trees = _ensembles(graph)
    rows = np.load(trained.rows, mmap_mode="r")[:ROWS]
    if len(trees) != 1:
        return None
    passed = path_lengths(trees[0], rows.astype(trees[0].threshold.dtype), trees[0].feature >= 0)
    return passed * STEP + exponentials(graph)[0] / FLOATS.get(_family(), 2.0)


def _patch_begins(op: Any, wide: bool, first: int) -> np.ndarray[Any, Any]:
    """For each node, whether a patch begins there, of the level `first` or below. wide: with AVX-512."""
    begins = np.zeros(len(op.feature), bool)
    begins[op.roots] = first == 0
    for depth, level in enumerate(patches(op, op.once(columns_of)[0].form(wide)), 1):
        begins[level.exits[level.inner]] = depth >= first
    return begins


def _compiled(trained: Trained) -> Graph:
    """The graph that is compiled."""
    compiled = hbc.convert(trained.model, "tvm", threads=1, X=np.load(trained.rows, mmap_mode="r")[:1])
    found: Graph = compiled.variants[compiled._main].plan.graph
    return found


def _ensembles(graph: Graph) -> list[Any]:
    """The sums of trees in a graph."""
    operators = dict.fromkeys(node.op for node in graph.nodes)  # XGBoost's methods have each their own
    return [op for op in operators if type(op) is TreeEnsemble and op.output == "sum"]


def path_lengths(op: Any, x: np.ndarray[Any, Any], counted: np.ndarray[Any, Any]) -> float:
    """The number of counted nodes that a row passes in all trees together, as a mean over the rows. counted bool[M]."""
    at = np.broadcast_to(op.roots, (len(x), op.n_trees)).copy()
    passed = 0
    while (inner := op.feature[at] >= 0).any():
        passed += int((inner & counted[at]).sum())
        value = np.take_along_axis(x, np.maximum(op.feature[at], 0), axis=1)
        left = (value <= op.threshold[at]) | (np.isnan(value) & op.missing_left[at])
        at = np.where(inner, np.where(left, op.left[at], op.right[at]), at)
    return passed / len(x)


def frequency() -> float:
    """The clock frequency in GHz, from the time of a product of many numbers: a chain of multiplications of 3 cycles each. On older Intel
    processors a multiplication takes 4 cycles, and the result is a quarter too low."""
    numbers = np.ones(20_000)
    seconds = min(timeit.repeat(lambda: np.multiply.reduce(numbers), number=1, repeat=300))
    return round(3 * len(numbers) / seconds / 1e9, 2)


def _processor() -> str:
    try:
        return Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""
