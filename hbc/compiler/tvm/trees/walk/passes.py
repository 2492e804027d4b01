"""Walks of one row through many trees whose nodes come from beyond the second cache (AVX2).

Sixteen walks together, as in walk.py, take as many steps as the deepest of their trees has levels, and wait in each for the slowest node.
Here all trees of the row take a step, one after the other, before any takes the next one:

    node[t] = t                                                               # for each tree
    walks = all trees
    several times: for each of these walks: one step, and ask for the cache line of the next node
    while there are walks:
        four times: the same
        walks = those that have not reached a leaf

So a node has the time of all other steps to come. The walks are sorted out by a test without a branch. Were they so in every step, the
processor would take the loads of the next pass for those of this one's stores, and begin them again: 100 trees of 4,095 leaves took 10 µs
a row so, 6.3 now, and 10 by sixteen walks together; from the first cache 9.9, 3.6 and 3.8 (C++, Zen 3).
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.nest.model_data import few_sizes
from hbc.compiler.tvm.tir.dialect import Expr
from hbc.compiler.tvm.trees.leaves.reached import Reached

FIRST = 8  # the passes before any walk is sorted out
BETWEEN = 4  # the passes from then on until the next time
LEAST_BYTES, LEAST_TREES = 4 << 20, 32
"""The fewest bytes of nodes, and the fewest trees. The time of one row over that by sixteen walks together: 100 LightGBM trees of 1,023
leaves (1.6 MB) 1.03, of 2,047 leaves (3.3 MB) 1.03, of 4,095 leaves (6.6 MB) 0.7; 32 trees of these (2.1 MB) 1.02, 48 trees 0.99; 100
extra-trees of 20,000 leaves (32 MB) 0.51 (Zen 3)."""


class Passes:
    """Emits such walks."""

    def __init__(self, walk: Any, reached: Reached, trees: int) -> None:
        """walk: the `Walk` whose steps these are. trees: how many there are."""
        self.reached = reached
        self.f, self.walk, self.trees = walk.f, walk, walk.f.size(trees)
        size = few_sizes(trees)
        self.node, self.tree, self.leaf = (T.alloc_buffer((size,), "int64") for _ in range(3))
        self.count, self.last = (self.f.scratch(1, "i64") for _ in range(2))

    def run(self, row: Expr) -> None:
        """Walk all trees for one row. Then `leaf` has the row of `values` for the leaf of each tree."""
        f, zero = self.f, tirx.const(0, "int64")
        with f.repeat(self.trees) as tree:
            T.buffer_store(self.node, tree, [tree])
            T.buffer_store(self.tree, tree, [tree])
        with f.repeat(FIRST):
            self._pass(self.trees, row)
        T.buffer_store(self.count, self.trees, [0])
        with T.While(tirx.NE(self.count[0], zero)):
            # In memory of its own: TVM would read `count` again where a variable of it is used.
            T.buffer_store(self.last, self.count[0], [0])
            with f.repeat(BETWEEN):
                self._pass(self.last[0], row)
            T.buffer_store(self.count, zero, [0])
            with T.serial(zero, self.last[0]) as i:
                self._keep(T.Bind(self.node[i]), T.Bind(self.tree[i]))

    def _pass(self, count: Expr, row: Expr) -> None:
        """The first `count` walks take a step."""
        with T.serial(tirx.const(0, "int64"), count) as i:
            node = T.Bind(self.walk.step(T.Bind(self.node[i]), row))
            self.walk.ask_for(node)
            T.buffer_store(self.node, node, [i])

    def _keep(self, node: Expr, tree: Expr) -> None:
        """Keep a walk if it has not reached a leaf."""
        inner, place = T.Bind(tirx.Cast("int64", self.walk.inner(node))), T.Bind(self.walk.place(node))
        T.buffer_store(self.leaf, place, [tree])
        self.reached.ask_for(T.Bind(place * (1 - inner)))
        T.buffer_store(self.node, node, [self.count[0]])
        T.buffer_store(self.tree, tree, [self.count[0]])
        T.buffer_store(self.count, self.count[0] + inner, [0])
