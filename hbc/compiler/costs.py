"""How long the strategies of a tree ensemble take, and which is the fastest.

The time of a call is a sum of a few terms (how often a split is tested, a node visited, a leaf added …), each with a coefficient in
nanoseconds. Every backend says in its own `costs.py` what the terms of its strategies are; `python -m benchmarks.strategies` measures
a grid of ensembles, fits the coefficients, and writes costs.json, with the machine that they are of. On another machine they are other
numbers, but their ratios, which decide, carry over: `hbc tune` measures there.

One thread is assumed: strategies share rows between threads alike.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hbc.ops.tree import TreeEnsemble
from hbc.ops.tree_ranks import PLANE, thresholds_by_feature
from hbc.ops.tree_strategies import PERFECT_DEPTH

RANGE = (1, 10, 100, 1_000, 10_000, 100_000)
"""Rows of a call where none are said: the strategy is chosen whose time, relative to the fastest at each of these, is least on average."""
SHOWN = (1, 1_000, 100_000)
FILE = Path(__file__).with_name("costs.json")


@dataclass(frozen=True)
class Shape:
    """Of an ensemble, what its time depends on. depth: of the deepest tree; steps: the depths of all, added; mean_depth: of a leaf;
    leaves: of the largest tree; width: values of a leaf; bytes: of a threshold; columns: that splits read; planes: bytes that hold
    the ranks of a row."""

    trees: int
    splits: int
    depth: int
    steps: int
    mean_depth: float
    leaves: int
    width: int
    outputs: int
    bytes: int
    columns: int
    planes: int

    @classmethod
    def of(cls, op: TreeEnsemble) -> Shape:
        thresholds = op.once(thresholds_by_feature)
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
            planes=int(-(-thresholds // PLANE).sum()),
        )


def _mean_depth(op: TreeEnsemble) -> float:
    nodes, level, total = op.roots.astype(np.int64), 0, 0
    while len(nodes):
        inner = nodes[op.feature[nodes] >= 0]
        total += level * (len(nodes) - len(inner))
        nodes, level = np.concatenate([op.left[inner], op.right[inner]]), level + 1
    return total / max(int(op.leaf_counts.sum()), 1)


def beyond(size: float, cache: float) -> float:
    """How many times as large as a cache, as a power of two; 0 for what fits."""
    return float(np.log2(max(size / cache, 1.0)))


Terms = Callable[[Shape, int], Mapping[str, float]]
"""(ensemble, rows of a call) -> how often each term occurs."""


@dataclass(frozen=True)
class Lowered:
    """The paper's strategies, as tensor operators that a backend runs one after the other for blocks of rows, whose widest value takes
    `block_bytes`; their tables are looked up in a cache of `cache` bytes."""

    block_bytes: int
    cache: int = 1 << 20
    least_rows: int = 64

    @property
    def strategies(self) -> dict[str, Terms]:
        return {"gemm": self.gemm, "tree_trav": self.tree_trav, "perf_tree_trav": self.perf_tree_trav}

    def blocks(self, rows: int, row_bytes: int) -> int:
        return -(-rows // max(self.least_rows, self.block_bytes // max(row_bytes, 1)))

    def tree_trav(self, s: Shape, rows: int) -> Mapping[str, float]:
        return self._walk(s, rows, s.splits * (3 * 4 + s.bytes))

    def perf_tree_trav(self, s: Shape, rows: int) -> Mapping[str, float]:
        return self._walk(s, rows, (s.trees << s.depth) * (4 + s.bytes))

    def _walk(self, s: Shape, rows: int, tables: int) -> Mapping[str, float]:
        steps = rows * s.trees * s.depth
        return {
            "call": 1,
            "block and level": self.blocks(rows, 8 * s.trees * s.width) * s.depth,
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


MOST_PRODUCTS, MOST_PADDED = 1 << 23, 1 << 22
"""Numbers in the matrices of gemm and leaves of padded trees, beyond which these are neither measured nor chosen."""


def lowerable(op: TreeEnsemble) -> dict[str, bool]:
    """Which of the paper's strategies are worth a thought."""
    depth, leaves = int(op.depths.max(initial=0)), int(op.leaf_counts.max(initial=1))
    return {
        "gemm": op.n_trees * leaves**2 <= MOST_PRODUCTS,
        "tree_trav": True,
        "perf_tree_trav": depth <= PERFECT_DEPTH and op.n_trees << depth <= MOST_PADDED,
    }


@functools.cache
def coefficients() -> dict[str, dict[str, dict[str, float]]]:
    """Nanoseconds by backend, strategy and term."""
    found: dict[str, dict[str, dict[str, float]]] = json.loads(FILE.read_text())["nanoseconds"]
    return found


def estimate(factors: Mapping[str, float], terms: Mapping[str, float]) -> float:
    """Nanoseconds a call."""
    return sum(factors.get(name, 0.0) * count for name, count in terms.items())


def estimates(backend: str, op: TreeEnsemble, models: Mapping[str, Terms], rows: Sequence[int]) -> dict[str, list[float]]:
    """Nanoseconds a call of every strategy, for each number of rows."""
    shape, known = op.once(Shape.of), coefficients()[backend]
    return {name: [estimate(known[name], terms(shape, count)) for count in rows] for name, terms in models.items()}


def fastest(times: Mapping[str, Sequence[float]]) -> str:
    """The strategy whose times, relative to the least for each number of rows, are least on average."""
    least = [min(column) for column in zip(*times.values(), strict=True)]
    return min(times, key=lambda name: sum(time / best for time, best in zip(times[name], least, strict=True)))


def choose(backend: str, op: TreeEnsemble, models: Mapping[str, Terms], rows: int | None) -> tuple[str, str]:
    """The fastest strategy for calls of so many rows, and why: the estimates of all, or that there is no other."""
    if len(models) == 1:
        return next(iter(models)), "the only one for trees like these"
    found = estimates(backend, op, models, RANGE if rows is None else (rows,))
    chosen = fastest(found)
    shown = [RANGE.index(count) for count in SHOWN] if rows is None else [0]
    ranked = sorted(found, key=lambda name: (name != chosen, sum(found[name])))
    texts = [f"{name} {' | '.join(duration(found[name][i]) for i in shown)}" for name in ranked]
    if rows is None:
        asked = f"of 1 to {RANGE[-1]:,} rows; {' | '.join(f'{count:,}' for count in SHOWN)} rows"
    else:
        asked = f"of {rows:,} row{'s' * (rows > 1)}"
    return chosen, f"estimated for calls {asked}: {', '.join(texts)}"


def duration(nanoseconds: float) -> str:
    """With two digits: "850 ns", "3.1 µs", "12 ms"."""
    value = float(f"{nanoseconds:.2g}")
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if value >= size:
            return f"{value / size:g} {unit}"
    return f"{value:g} ns"
