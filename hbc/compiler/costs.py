"""Estimates how long each strategy of a tree ensemble takes, and chooses the fastest.

A strategy does several kinds of work: it tests splits, visits nodes, adds leaves … The estimated time of a call is a sum over these kinds:
how often the work is done, times a coefficient in nanoseconds. The `costs.py` of each backend counts the work of its strategies.
`python -m benchmarks strategies` measures a grid of ensembles, fits the coefficients to the times of all processors in benchmarks/results,
and writes them to costs.json together with the names of the machines. Other machines have other coefficients, but their ratios, which
decide, are similar. `hbc tune` measures on the user's machine.

One thread is assumed: all strategies share rows between threads in the same way.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from hbc.compiler.memory import LINE
from hbc.lazy import record
from hbc.ops.encoding import Codes
from hbc.ops.tree import TreeEnsemble
from hbc.ops.tree_ranks import MOST_IN_PLANE, thresholds_by_feature
from hbc.ops.tree_strategies import PERFECT_DEPTH

RANGE = (1, 10, 100, 1_000, 10_000, 100_000)
"""The numbers of rows for which a strategy is chosen if the user gives none: the one whose time, relative to the fastest strategy at each
of these, is least on average."""
SHOWN = (1, 1_000, 100_000)
"""The numbers of rows whose estimates the reason of a choice shows."""
NARROW = 63
"""The most thresholds of a column whose ranks every processor with AVX-512 searches in registers."""
FILE = Path(__file__).with_name("costs.json")
OF_ONE_TREE = " of one tree"
"""How the names of the work of one tree end. Without AVX-512 its times were measured on Zen 3 with models like those of
tests/compiler/tvm/test_lone_trees.py, and brought to the scale of the others by the strategy "select"."""
FURTHER_PLANE = "row and further plane"
"""The work of a scan without AVX-512 for each plane of a column but the first. Its time follows from a profile of a forest of depth 10
on Zen 3, whose columns have six or seven planes: ranks and planes take a sixth of its scan. The choices for the grid do not depend on
it. A fit to the grid would make it as long as a search. By that this forest would be walked, though its scan takes three quarters of the
time (1,000 rows and more)."""
KEYS_IN_MEMORY = "row and patch of keys in memory"
"""What a visit of a patch takes longer where the keys of a row do not fit in registers. No model of the grid has so many columns. On Zen 5
100 extra-trees (regressor, 4,000 leaves) take 1.9 µs a row with 784 columns and 1.45 with 256. A sixth of a µs of that are more keys."""
WITHOUT_KEYS, ALONE_WITHOUT_KEYS = "row and step without keys", "single row and level without keys"
"""The steps of walks that compare numbers as they stand in a row (lone.py). Nearly all of these walks are of a few trees."""
CALL_WITHOUT_KEYS = "call without keys"
"""A call of such a walk. It needs no memory for keys: 0.26 µs, and 0.4 with keys (fitted to Zen 4)."""
FAR_WITHOUT_KEYS, FAR_COPIED, FAR_SELECTED = (
    "row and line without keys, by doublings beyond L2",
    "row and line of few numbers, by doublings beyond L2",
    "row and line, by doublings beyond L2",
)
"""What such a walk waits for the cache lines of a row where the rows of a call are far away, since nothing asks for a line before a step
needs it; a scan that copies numbers one by one, because it reads few of a row; and the strategy "select" over long rows. In the grid only
rows of a few trees have so many lines of which little is read."""
IN_TURN = "row and patch in turn"
"""What a visit of a patch takes longer where the trees of a row go together and are few, since these visits wait for each other. 1,000 rows
of one tree of 2,000 leaves over 100 columns take 67 µs by patches, and 33 walked (Zen 5)."""
WITHOUT_AVX512 = "tvm without AVX-512"
"""The name in costs.json of the times of tvm's code for processors without AVX-512."""


def on(backend: str, processor: str) -> str:
    """The name in costs.json of the times of one processor, by LLVM's name. Only processors with AVX-512 that were measured have times of
    their own. Others have those that fit all of these together. On Sapphire Rapids a step of a walk takes half as long again, by the side
    of a patch, as on Zen 5."""
    return f"{backend} on {processor}"


@record
class Shape:
    """The numbers of a tree ensemble on which its time depends."""

    trees: int
    """The number of trees."""
    splits: int
    """The number of inner nodes of all trees."""
    depth: int
    """The depth of the deepest tree."""
    steps: int
    """The sum of the depths of all trees."""
    mean_depth: float
    """The mean depth of a leaf."""
    leaves: int
    """The number of leaves of the largest tree."""
    width: int
    """The number of values of a leaf."""
    outputs: int
    """The number of output columns."""
    bytes: int
    """The size of a threshold."""
    columns: int
    """The number of input columns that splits read."""
    planes: int
    """The number of bytes that hold the ranks of a row."""
    numbers: bool = False
    """Whether the output is leaf numbers."""
    missing: bool = False
    """Whether some split sends NaN to the left."""
    narrow: int = 0
    """The number of input columns with at most NARROW thresholds."""
    longest: int | None = None
    """The splits of the largest of each 64 trees, sorted by size, added up: what 64 trees that are scanned together take. None: all trees
    have `leaves`, as in the measured grid."""
    lines: int = 0
    """The number of cache lines of a row that splits read."""
    sets: int = 0
    """The number of category sets that splits test, where the compiler tests them itself. All together they count as one column."""

    @classmethod
    def of(cls, op: TreeEnsemble) -> Shape:
        """The shape of an ensemble."""
        thresholds, sets = op.once(thresholds_by_feature), 0
        if op.first_set is not None:
            sets = int((thresholds[op.first_set :] > 0).sum())
            thresholds = np.append(thresholds[: op.first_set], [1] * (sets > 0))
        return cls(
            trees=op.n_trees,
            splits=int((op.leaf_counts - 1).sum()),
            depth=int(op.depths.max(initial=0)),
            steps=int(op.depths.sum()),
            mean_depth=_mean_depth(op),
            leaves=int(op.leaf_counts.max(initial=1)),
            width=op.values.shape[1],
            outputs=op.n_outputs if op.output == "sum" else op.n_trees,
            bytes=op.threshold.itemsize,
            columns=int((thresholds > 0).sum()),
            planes=int(-(-thresholds // MOST_IN_PLANE).sum()),
            numbers=op.output == "leaf",
            missing=bool((op.missing_left & (op.feature >= 0)).any()),
            narrow=int(((thresholds > 0) & (thresholds <= NARROW)).sum()),
            longest=int((np.sort(op.leaf_counts)[::-64] - 1).sum()),
            lines=len(np.unique(np.flatnonzero(thresholds) * op.threshold.itemsize // LINE)),
            sets=sets,
        )


def _mean_depth(op: TreeEnsemble) -> float:
    """The mean depth of the leaves of all trees."""
    nodes, level, total = op.roots.astype(np.int64), 0, 0
    while len(nodes):
        inner = nodes[op.feature[nodes] >= 0]
        total += level * (len(nodes) - len(inner))
        nodes, level = np.concatenate([op.left[inner], op.right[inner]]), level + 1
    return total / max(int(op.leaf_counts.sum()), 1)


def beyond(size: float, cache: float) -> float:
    """log2(size / cache): how often the size of a cache must double to hold `size` bytes; 0 if they fit."""
    return float(np.log2(max(size / cache, 1.0)))


Work = Callable[[Shape, int], Mapping[str, float]]
"""(shape of an ensemble, rows of a call) → how often each kind of work is done, by its name."""


@record
class Lowered:
    """The work of the paper's three strategies in a backend that runs their tensor operators one after the other, for blocks of rows."""

    block_bytes: int
    """The size of the widest value of a block."""
    cache: int = 1 << 20
    """The size of the cache in which tables are looked up."""
    least_rows: int = 64
    """The least number of rows of a block."""

    @property
    def strategies(self) -> dict[str, Work]:
        """The work by strategy."""
        return {"gemm": self.gemm, "tree_trav": self.tree_trav, "perf_tree_trav": self.perf_tree_trav}

    def blocks(self, rows: int, row_bytes: int) -> int:
        """The number of blocks of a call, if the widest value takes `row_bytes` for a row."""
        return -(-rows // max(self.least_rows, self.block_bytes // max(row_bytes, 1)))

    def tree_trav(self, s: Shape, rows: int) -> Mapping[str, float]:
        return self._walk(s, rows, s.splits * (3 * 4 + s.bytes))

    def perf_tree_trav(self, s: Shape, rows: int) -> Mapping[str, float]:
        return self._walk(s, rows, (s.trees << s.depth) * (4 + s.bytes))

    def _walk(self, s: Shape, rows: int, tables: int) -> Mapping[str, float]:
        steps = rows * s.trees * s.depth * (STEP_WITH_NAN if s.missing else 1)
        return {
            "call": 1,
            "block and level": self.blocks(rows, max(8 * s.trees * s.width, s.columns * s.bytes)) * s.depth,
            "row and step": steps,
            "row and step, by doublings of the tables beyond L2": steps * beyond(tables, self.cache),
            "row and value of a leaf": rows * s.trees * s.width,
        }

    def gemm(self, s: Shape, rows: int) -> Mapping[str, float]:
        inner, blocks = s.leaves - 1, self.blocks(rows, 4 * s.trees * s.leaves)
        return {
            "call": 1,
            "block and tree": blocks * s.trees,
            "block and product": blocks * s.trees * inner * s.leaves,
            "row and product": rows * s.trees * inner * s.leaves,
            "row and leaf": rows * s.trees * s.leaves,
            "row and value of a leaf": rows * s.trees * s.leaves * s.width,
        }


STEP_WITH_NAN = 1.5
"""How long a step of the paper's traversals takes where they must look for NaN, which they need not in the measured grid: 3.1 µs a row
instead of 2.1 in PyTorch, for 100 trees of depth 8."""
MOST_PRODUCTS, MOST_PADDED = 1 << 23, 1 << 22
"""Limits beyond which a strategy is neither measured nor chosen: the numbers in the matrices of gemm, and the leaves of padded trees."""


def lowerable(op: TreeEnsemble) -> dict[str, bool]:
    """Strategy → whether it is considered for this ensemble, for the paper's three strategies."""
    depth, leaves = int(op.depths.max(initial=0)), int(op.leaf_counts.max(initial=1))
    return {
        "gemm": op.n_trees * leaves**2 <= MOST_PRODUCTS,
        "tree_trav": True,
        "perf_tree_trav": depth <= PERFECT_DEPTH and op.n_trees << depth <= MOST_PADDED,
    }


@functools.cache
def coefficients() -> dict[str, dict[str, dict[str, float]]]:
    """The coefficients in nanoseconds, by backend, strategy and kind of work; read from costs.json."""
    found: dict[str, dict[str, dict[str, float]]] = json.loads(FILE.read_text())["nanoseconds"]
    return found


def estimate(factors: Mapping[str, float], counts: Mapping[str, float]) -> float:
    """The estimated nanoseconds of a call: the sum of coefficient (`factors`) times count, over the kinds of work."""
    return sum(factors.get(name, 0.0) * count for name, count in counts.items())


def estimates(backend: str, op: TreeEnsemble, strategies: Mapping[str, Work], rows: Sequence[int]) -> dict[str, list[float]]:
    """The estimated nanoseconds of a call, by strategy, for each number of rows."""
    shape, known = op.once(Shape.of), coefficients()[backend]
    return {name: [estimate(known[name], work(shape, count)) for count in rows] for name, work in strategies.items()}


def fastest(times: Mapping[str, Sequence[float]]) -> str:
    """The strategy whose time, relative to the fastest one at each number of rows, is least on average. `times`: by strategy, for each
    number of rows."""
    least = [min(column) for column in zip(*times.values(), strict=True)]
    return min(times, key=lambda name: sum(time / best for time, best in zip(times[name], least, strict=True)))


def choose(backend: str, op: TreeEnsemble, strategies: Mapping[str, Work], rows: int | None) -> tuple[str, str]:
    """(the fastest strategy for calls of so many rows, the reason). The reason lists the estimates of all strategies. None: see RANGE."""
    if len(strategies) == 1:
        return next(iter(strategies)), "the only one for trees like these"
    found = estimates(backend, op, strategies, RANGE if rows is None else (rows,))
    chosen = fastest(found)
    shown = [RANGE.index(count) for count in SHOWN] if rows is None else [0]
    ranked = sorted(found, key=lambda name: (name != chosen, sum(found[name])))
    texts = [f"{name} {' | '.join(duration(found[name][i]) for i in shown)}" for name in ranked]
    if rows is None:
        asked = f"of 1 to {RANGE[-1]:,} rows; {' | '.join(f'{count:,}' for count in SHOWN)} rows"
    else:
        asked = f"of {rows:,} row{'s' * (rows > 1)}"
    return chosen, f"estimated for calls {asked}: {', '.join(texts)}"


CACHED, READ = 1 << 20, 0.3
"""The bytes of weights that stay in the caches from call to call, and the nanoseconds to read each other one. One row of a product with 360
one-hot columns and 2,600 outputs of float64 takes 2.0 ms with tvm and 2.4 with ONNX Runtime; sums of table rows 0.07 and 0.26 (Zen 3)."""


@record
class OneHotCosts:
    """The nanoseconds of the two ways to multiply one-hot codes with weights, by what there is of it. A processor that computes twice as
    fast does so both ways; their ratios decide."""

    floats: tuple[float, float]
    """To find the places of floats in a table: for each row and code, and for each call."""
    integers: tuple[float, float]
    """To find those of integers, which are no fractions and not NaN."""
    added: float
    """To add a number of the table: for each row, code and output."""
    column: float
    """To make a one-hot column, for each row."""
    multiplied: float
    """To multiply and add a weight: for each row, one-hot column and output."""
    bytes: int
    """The size of a weight."""
    call: float
    """A call of a small model with a product."""

    def looks_up(self, codes: int, made_of: Codes, columns: int, outputs: int, rows: int | None) -> bool:
        """Whether adding rows of a table is the faster way for calls of so many rows. None: see RANGE."""
        place, more = {"floats": self.floats, "integers": self.integers, "found": (0.0, 0.0)}[made_of]
        row = codes * (place + self.added * outputs)
        product = columns * (self.column + self.multiplied * outputs)
        read = READ * max(self.bytes * columns * outputs - CACHED, 0)  # a single row needs all weights of a product
        counts = RANGE if rows is None else (rows,)
        sums, products = ([self.call + more + row * n for n in counts], [self.call + read + product * n for n in counts])
        return fastest({"sum": sums, "product": products}) == "sum"


def duration(nanoseconds: float) -> str:
    """A duration with two digits: "850 ns", "3.1 µs", "12 ms"."""
    value = float(f"{nanoseconds:.2g}")
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if value >= size:
            return f"{value / size:g} {unit}"
    return f"{value:g} ns"
