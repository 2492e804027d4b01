"""Tree ensembles: one operator for every library. What differs between libraries (missing values, categories, comparison
signs, dtypes) the parser has already reduced to the one rule of `TreeEnsemble`."""

from __future__ import annotations

from functools import cached_property
from typing import Literal

import numpy as np

from hbc.ir.graph import Node, Operator, operator
from hbc.ir.types import Array, TensorType, type_of

ROWS_PER_BLOCK = 4096  # of the reference evaluation: bounds its memory to rows × trees indices


@operator
class TreeEnsemble(Operator):
    """y[N, K] = base[K] + Σ_t the values of the leaf that row n reaches in tree t, added in the order of the trees.

    Nodes of all M nodes, of all trees, in one numbering: at node i with feature[i] = f ≥ 0 a row goes to left[i] if
    `x[f] <= threshold[i]`, or if x[f] is NaN and missing_left[i]; otherwise to right[i]. The comparison is in x's dtype, which
    is threshold's. A leaf has feature[i] = -1, and left[i] = right[i] = its number l in values and leaf_ids.

    roots i32[T]; feature, left, right i32[M]; threshold f32|f64[M] (0 at leaves); missing_left bool[M];
    values f32|f64[L, V]: V = K if trees have vector leaves (target[t] = 0), else V = 1 and tree t adds to column target[t] (i32[T]);
    leaf_ids i64[L]: the source library's number of each leaf; base [K] in the dtype of values, which is y's.

    output = "leaf" gives i64[N, T] instead: leaf_ids of the leaves reached (`apply`).
    strategy: how it is run ("gemm", "tree_trav", "perf_tree_trav", or one that a compiler brings); "auto" is not chosen yet.
    """

    roots: Array
    feature: Array
    threshold: Array
    left: Array
    right: Array
    missing_left: Array
    values: Array
    target: Array
    leaf_ids: Array
    base: Array
    output: Literal["sum", "leaf"] = "sum"
    strategy: str = "auto"

    removes_missing = True

    def infer(self, x: TensorType) -> TensorType:
        if not x.is_float or type_of(self.threshold).dtype != x.dtype:
            raise TypeError(f"thresholds are {type_of(self.threshold)}")
        if self.feature.size and int(self.feature.max()) >= x.columns:
            raise TypeError(f"the trees read feature {int(self.feature.max())}")
        if self.output == "leaf":
            return TensorType("i64", (x.shape[0], self.n_trees))
        return TensorType(type_of(self.values).dtype, (x.shape[0], self.n_outputs))

    @property
    def n_trees(self) -> int:
        return len(self.roots)

    @property
    def n_outputs(self) -> int:
        return len(self.base)

    @cached_property
    def depths(self) -> Array:
        """The depth of every tree (0 for a single leaf), i32[T]."""
        return self._levels[0]

    @cached_property
    def leaf_counts(self) -> Array:
        """The number of leaves of every tree, i32[T]."""
        return self._levels[1]

    @cached_property
    def _levels(self) -> tuple[Array, Array]:
        depths = np.zeros(self.n_trees, np.int32)
        leaves = np.zeros(self.n_trees, np.int32)
        nodes, trees, level = self.roots.astype(np.int64), np.arange(self.n_trees), 0
        while len(nodes):
            depths[trees] = level
            at_leaf = self.feature[nodes] < 0
            np.add.at(leaves, trees[at_leaf], 1)
            nodes, trees = nodes[~at_leaf], trees[~at_leaf]
            nodes, trees = np.concatenate([self.left[nodes], self.right[nodes]]), np.concatenate([trees, trees])
            level += 1
        return depths, leaves

    def leaves(self, x: Array) -> Array:
        """The number l of the leaf every row reaches in every tree, i32[N, T]."""
        return np.concatenate([self._leaves(x[i : i + ROWS_PER_BLOCK]) for i in range(0, max(len(x), 1), ROWS_PER_BLOCK)])

    def _leaves(self, x: Array) -> Array:
        at = np.broadcast_to(self.roots, (len(x), self.n_trees)).copy()
        for _ in range(int(self.depths.max(initial=0))):
            feature = self.feature[at]
            value = np.take_along_axis(x, np.maximum(feature, 0), axis=1) if x.shape[1] else np.zeros(at.shape, x.dtype)
            goes_left = (value <= self.threshold[at]) | (np.isnan(value) & self.missing_left[at])
            at = np.where(feature < 0, at, np.where(goes_left, self.left[at], self.right[at]))
        return self.left[at]

    def evaluate(self, x: Array) -> Array:
        leaves = self.leaves(x)
        if self.output == "leaf":
            return self.leaf_ids[leaves]
        total = np.tile(self.base, (len(x), 1))
        for tree, target in enumerate(self.target):
            values = self.values[leaves[:, tree]]
            total[:, target : target + values.shape[1]] += values
        return total

    def lower(self, x: Node) -> Node:
        from hbc.ops.tree_strategies import LOWERINGS

        try:
            lowering = LOWERINGS[self.strategy]
        except KeyError:
            raise NotImplementedError(f"strategy {self.strategy!r} is not one of {', '.join(LOWERINGS)}") from None
        return lowering(self, x)
