"""Tree ensembles: one operator for all libraries. The libraries differ in missing values, categories, comparison signs and dtypes; the
parser reduces all of these to the one rule of `TreeEnsemble`. `CategoryPlanes` turns set tests into numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

import numpy as np

from hbc.ir.graph import Node, Operator, at_least_one, beside, operator
from hbc.ir.magnitudes import magnitudes
from hbc.ir.spans import Span, span_of
from hbc.ir.types import NUMPY_DTYPES, Array, TensorType, type_of
from hbc.lazy import cached_property, record
from hbc.ops import tensor as t
from hbc.ops.columns import Rank

ROWS_PER_BLOCK = 4096  # in `evaluate`, whose memory is rows × trees indices

Found = TypeVar("Found")


@operator
class TreeEnsemble(Operator):
    """y[N, K] = base[K] + Σ_t the values of the leaf that row n reaches in tree t, added in the order of the trees.

    The nodes of all trees have one numbering, 0 … M - 1. At a node i with feature[i] = f ≥ 0, a row goes to left[i] if `x[f] <=
    threshold[i]`, or if x[f] is NaN and missing_left[i]; otherwise it goes to right[i]. The comparison is in x's dtype, which
    is threshold's. A leaf has feature[i] = -1, and left[i] = right[i] = its number l in values and leaf_ids.

    - roots i32[T]; feature, left, right i32[M]; threshold f32|f64[M] (0 at leaves); missing_left bool[M].
    - values f32|f64[L, V]: V = K if leaves are vectors (target[t] = 0); otherwise V = 1, and tree t adds to column target[t]
      (i32[T]).
    - leaf_ids i64[L]: the source library's number of each leaf. base [K], in the dtype of values, which is y's.
    - output = "leaf" gives i64[N, T] instead: the leaf_ids of the leaves reached (`apply`).
    - strategy: how it is run ("gemm", "tree_trav", "perf_tree_trav", or one that a compiler brings); "auto" is not chosen yet.
    - cover i32|i64|f32|f64[M]: the training data that reached each node, as the source counts it (rows, weights or Hessians), for
      explanations. No result depends on it. None: not known.
    - exact: the sums have the bits of a loop over the trees, since the next operator compares them with a number that some of
      them may equal (IsolationForest). Otherwise a compiler may add in another order or precision, if the error is far below
      the contract's, and if the largest of a row's sums and the sign of a single sum stay those of the loop.
    - near: if `exact`, and for a single output, only sums that are at most so far from 0 have these bits, and others are added as if it
      were not. 0: all sums have them.
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
    exact: bool = False
    near: float = 0.0
    cover: Array | None = beside()

    removes_missing = True
    jumps = True

    def infer(self, x: TensorType) -> TensorType:
        if self.cover is not None and (self.cover.shape != self.feature.shape or self.cover.dtype.kind not in "fiu"):
            raise TypeError(f"cover is {type_of(self.cover)} for {len(self.feature)} nodes")
        if not 0 <= self.near < np.inf:
            raise TypeError(f"near is {self.near}")
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

    @property
    def first_set(self) -> int | None:
        """The first of the features that are category sets, all behind the others, where a compiler has made the sets a part of the
        ensemble. None: there are none."""
        return None

    @property
    def depths(self) -> Array:
        """The depth of every tree (0 for a single leaf), i32[T]."""
        return self.once(TreeEnsemble._levels)[0]

    @property
    def leaf_counts(self) -> Array:
        """The number of leaves of every tree, i32[T]."""
        return self.once(TreeEnsemble._levels)[1]

    def once(self, find: Callable[[TreeEnsemble], Found]) -> Found:
        """find(self), computed once and kept (see `run_as`). The result must depend neither on the strategy nor on the input."""
        if find not in self._found:
            self._found[find] = find(self)
        result: Found = self._found[find]
        return result

    @cached_property
    def _found(self) -> dict[Callable[[TreeEnsemble], Any], Any]:
        return {}

    def outermost(self) -> tuple[Array, Array]:
        splits = self.feature >= 0
        count = int(self.feature.max(initial=-1)) + 1
        low, high = np.full(count, np.inf), np.full(count, -np.inf)
        thresholds = self.threshold[splits].astype(np.float64)
        np.minimum.at(low, self.feature[splits], thresholds)
        np.maximum.at(high, self.feature[splits], thresholds)
        return low, high

    def run_as(self, strategy: str) -> TreeEnsemble:
        """The same trees with a strategy. Facts that were found to choose it
        stay known (finding them takes 0.1 s for 500 trees of 255 leaves)."""
        other = replace(self, strategy=strategy)
        other._found.update(self._found)
        return other

    def _levels(self) -> tuple[Array, Array]:
        depths = np.zeros(self.n_trees, np.int32)
        leaves = np.zeros(self.n_trees, np.int32)
        nodes, trees, level = self.roots.astype(np.int64), np.arange(self.n_trees), 0
        while len(nodes):
            depths[trees] = level
            at_leaf = self.feature[nodes] < 0
            leaves += np.bincount(trees[at_leaf], minlength=self.n_trees).astype(np.int32)
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

    def reads(self, kept: Array, inputs: Sequence[Node], finite: bool = False) -> tuple[Array, ...] | None:
        whole = len(kept) == (self.n_trees if self.output == "leaf" else self.n_outputs)
        return (at_least_one(np.unique(self.feature[self.feature >= 0]).astype(np.int64)),) if whole else None

    def narrowed(self, kept: Array, columns: Sequence[Array], inputs: Sequence[Node]) -> tuple[Operator, Array]:
        feature = np.where(self.feature < 0, -1, np.searchsorted(columns[0], self.feature)).astype(self.feature.dtype)
        return replace(self, feature=feature), kept

    def evaluate(self, x: Array) -> Array:
        leaves = self.leaves(x)
        return self.leaf_ids[leaves] if self.output == "leaf" else self.sums(leaves)

    def sums(self, leaves: Array) -> Array:
        """The sums [N, K] of rows that reach these leaves (i32[N, T], as `leaves` numbers them)."""
        total = np.tile(self.base, (len(leaves), 1))
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

    def magnitude(self, node: Node, bounds: Sequence[Array]) -> Array:
        if self.output == "leaf":
            return np.full(node.type.width, magnitudes(self.leaf_ids).max(initial=0.0))
        return magnitudes(self.base) + self.n_trees * magnitudes(self.values).max(initial=0.0)

    def span(self, node: Node, spans: Sequence[Span]) -> Span:
        return span_of(self.leaf_ids)

    def looks_up(self, inputs: Sequence[Node]) -> Mapping[str | int, range]:
        """`roots`, `left` and `right` name nodes and leaves of the same arrays: see `require_sound`."""
        targets = len(self.base) - self.values.shape[1] + 1
        return {"feature": range(-1, inputs[0].type.columns), "target": range(targets)}

    def require_sound(self) -> None:
        """Raise ValueError unless nodes lead to nodes, leaves lead to values,
        and every node has at most one parent, so that no path is a circle."""
        nodes, leaves = len(self.feature), len(self.values)
        sizes = {len(array) for array in (self.threshold, self.left, self.right, self.missing_left)}
        _require_sound(
            sizes <= {nodes} and len(self.leaf_ids) == leaves and self.values.ndim == 2, "nodes and leaves of different numbers"
        )
        kinds = {array.dtype.kind for array in (self.roots, self.feature, self.left, self.right, self.target, self.leaf_ids)}
        _require_sound(kinds == {"i"} and self.missing_left.dtype.kind == "b", "indices that are no integers")
        _require_sound(self.values.dtype == self.base.dtype and self.base.ndim == 1, "leaves and base of different dtypes")
        _require_sound(_within(self.roots, nodes), "roots that are no nodes")
        at_leaf = self.feature < 0
        children = np.concatenate([self.left[~at_leaf], self.right[~at_leaf]])
        _require_sound(_within(children, nodes), "children that are no nodes")
        _require_sound(_within(self.left[at_leaf], leaves), "leaves without values")
        times = np.bincount(np.concatenate([np.unique(self.roots), children]).astype(np.int64), minlength=1)
        _require_sound(int(times.max(initial=0)) <= 1, "nodes that are reached in two ways")
        _require_sound(len(self.target) == len(self.roots), "targets of other trees")


def _within(array: Array, size: int) -> bool:
    return not array.size or bool(0 <= array.min() <= array.max() < size)


def _require_sound(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


@record
class Tree:
    """One tree in its own numbering of nodes, where node 0 is the root. A parser reads it from a library, then calls `join`.

    feature (< 0 at leaves), left, right: integers [M]; threshold [M]; missing_left bool[M]; values [M, V], read at leaves only;
    ids i64[M]: the source's number of each node, if it is not its place. cover [M]: see TreeEnsemble.
    """

    feature: Array
    threshold: Array
    left: Array
    right: Array
    missing_left: Array
    values: Array
    ids: Array | None = None
    cover: Array | None = None


def join(trees: Sequence[Tree], base: Array, target: Array | None = None) -> TreeEnsemble:
    """One ensemble of many trees. Thresholds and values keep the dtypes of the trees; `base` is cast to that of the values."""
    starts = np.cumsum([0, *(len(tree.feature) for tree in trees)])
    feature = np.concatenate([tree.feature for tree in trees]).astype(np.int32)
    at_leaf = feature < 0
    feature[at_leaf] = -1
    number = np.cumsum(at_leaf) - 1
    left, right = (
        np.where(at_leaf, number, np.concatenate([side(tree) + start for tree, start in zip(trees, starts[:-1], strict=True)]))
        for side in (lambda tree: tree.left, lambda tree: tree.right)
    )
    threshold = np.concatenate([tree.threshold for tree in trees])
    values = np.concatenate([tree.values for tree in trees])[at_leaf]
    covers = [tree.cover for tree in trees if tree.cover is not None]
    ids = [np.arange(len(tree.feature)) if tree.ids is None else tree.ids for tree in trees]
    return TreeEnsemble(
        roots=starts[:-1].astype(np.int32),
        feature=feature,
        threshold=np.where(at_leaf, threshold.dtype.type(0), threshold),
        left=left.astype(np.int32),
        right=right.astype(np.int32),
        missing_left=np.concatenate([tree.missing_left for tree in trees]).astype(bool) & ~at_leaf,
        values=values,
        target=np.zeros(len(trees), np.int32) if target is None else np.asarray(target, np.int32),
        leaf_ids=np.concatenate(ids)[at_leaf].astype(np.int64),
        base=np.asarray(base, values.dtype),
        cover=np.concatenate(covers) if len(covers) == len(trees) else None,
    )


@operator
class CategoryPlanes(Operator):
    """y[N, P] = 1 or 0 in x's dtype: set tests of trees as numbers, so that TreeEnsemble can test `plane <= 0.5` on [x, planes].

    With v = x[n, columns[p]] and the set S_p = categories[offsets[p] : offsets[p + 1]] (integers ≥ 0), y[n, p] is

    - inside[p] if v, without its fraction, is in S_p; not inside[p] if it is another category
    - missing[p] if v is NaN
    - invalid[p] if v < 0 (with truncate_negative: if v <= -1, so that -0.5 is category 0), or v >= limit, or v has a fraction
      and `whole`

    columns, categories, offsets i64; inside, missing, invalid bool[P]. How libraries set them:

    - LightGBM (a set goes left; C's cast to int): inside False, missing and invalid True, truncate_negative, limit 2^31.
    - XGBoost (a set goes right, anything else left): inside True, invalid False, missing = not default_left, limit 2^24.
    - scikit-learn's HistGradientBoosting encodes categories before its trees: codes 0, 1, … or NaN, and only `missing` matters.
    - scikit-learn's OneHotEncoder: inside True, missing and invalid False, whole.
    """

    columns: Array
    categories: Array
    offsets: Array
    inside: Array
    missing: Array
    invalid: Array
    truncate_negative: bool = False
    limit: float = 2.0**31
    whole: bool = False

    removes_missing = True

    @classmethod
    def of_sets(cls, columns: Sequence[int] | Array, sets: Sequence[Sequence[int] | Array], **options: Any) -> CategoryPlanes:
        """The planes of tests whether x[n, columns[p]] is in sets[p]. `options` are the other parameters."""
        return cls(
            np.asarray(columns, np.int64),
            np.concatenate([np.zeros(0, np.int64), *(np.asarray(one, np.int64) for one in sets)]),
            np.cumsum([0, *map(len, sets)]).astype(np.int64),
            **options,
        )

    def infer(self, x: TensorType) -> TensorType:
        planes = len(self.columns)
        if not x.is_float or (planes and not 0 <= self.columns.min() <= self.columns.max() < x.columns):
            raise TypeError(f"x must be floats, and columns within 0..{x.columns - 1}")
        if len(self.offsets) != planes + 1 or (self.categories.size and self.categories.min() < 0):
            raise TypeError("offsets must be one more than columns, and categories not negative")
        return TensorType(x.dtype, (x.shape[0], planes))

    def reads(self, kept: Array, inputs: Sequence[Node], finite: bool = False) -> tuple[Array, ...]:
        return (np.unique(self.columns[kept]),)

    def narrowed(self, kept: Array, columns: Sequence[Array], inputs: Sequence[Node]) -> tuple[Operator, Array]:
        sets = [self._set(plane) for plane in kept]
        return replace(
            self,
            columns=np.searchsorted(columns[0], self.columns[kept]),
            categories=np.concatenate(sets),
            offsets=np.cumsum([0, *map(len, sets)]),
            inside=self.inside[kept],
            missing=self.missing[kept],
            invalid=self.invalid[kept],
        ), kept

    def _set(self, plane: int) -> Array:
        return self.categories[self.offsets[plane] : self.offsets[plane + 1]]

    def evaluate(self, x: Array) -> Array:
        result = np.empty((len(x), len(self.columns)), x.dtype)
        for plane, column in enumerate(self.columns):
            value = x[:, column]
            valid = ((value > -1) if self.truncate_negative else (value >= 0)) & (value < self.limit)
            valid &= (np.floor(value) == value) | (not self.whole)
            member = np.isin(np.where(valid, value, 0).astype(np.int64), self._set(plane))
            result[:, plane] = np.where(valid, member == self.inside[plane], self.invalid[plane])
            result[np.isnan(value), plane] = self.missing[plane]
        return result

    def lower(self, x: Node) -> Node:
        """The planes by one look-up each, in a table [P, C + 3]: the categories
        (their ranks, where they are large), another category, invalid, NaN."""
        columns, place = np.unique(self.columns, return_inverse=True)
        x = t.take(x, columns, axis=1)
        valid = t.less(-1.0, x) if self.truncate_negative else t.less_equal(0.0, x)
        valid = t.logical_and(valid, t.less(x, self.limit))
        valid = t.logical_and(valid, t.equal(t.floor(x), x)) if self.whole else valid
        known = np.arange(self.categories.max(initial=-1) + 1)
        if len(known) * len(self.columns) > TABLE_LIMIT:
            known = np.unique(self.categories)
        code = _ranks(t.where(valid, x, 0.0), known)
        code = t.where(valid, code, t.constant(len(known) + 1, "i32"))
        code = t.where(t.isnan(x), t.constant(len(known) + 2, "i32"), code)
        table = np.empty((len(self.columns), len(known) + 3), bool)
        for plane in range(len(self.columns)):
            table[plane, : len(known)] = np.isin(known, self._set(plane)) == self.inside[plane]
        table[:, len(known) :] = np.stack([~self.inside, self.invalid, self.missing], axis=1)
        row = t.constant(np.arange(len(self.columns))[None, :] * table.shape[1], "i32")
        values = table.ravel().astype(NUMPY_DTYPES[x.type.dtype])
        return t.take(values, t.add(t.take(code, place, axis=1), row), axis=0)

    def looks_up(self, inputs: Sequence[Node]) -> Mapping[str | int, range]:
        return {"columns": range(inputs[0].type.columns), "offsets": range(len(self.categories) + 1)}

    def require_sound(self) -> None:
        _require_sound(bool((np.diff(self.offsets) >= 0).all()), "offsets that do not ascend")
        lengths = {len(self.inside), len(self.missing), len(self.invalid), len(self.columns)}
        _require_sound(len(lengths) == 1, "planes of different numbers")


TABLE_LIMIT = 1 << 22
"""The most entries of a CategoryPlanes table (32 MiB in float64) in which categories are places themselves."""


def _ranks(x: Node, known: Array) -> Node:
    """The place of x > -1, without its fraction, in the ascending integers `known`; len(known) if it is not among them."""
    size = len(known)
    if size == 0 or known[-1] == size - 1:
        return t.cast(t.minimum(x, float(size)), "i32")
    whole = t.floor(t.maximum(x, 0.0))
    edges = np.broadcast_to(known.astype(NUMPY_DTYPES[x.type.dtype]), (x.type.columns, size))
    rank = t.minimum(Rank(edges)(whole), t.constant(size - 1, "i32"))
    found = t.equal(t.take(edges[0], rank, axis=0), whole)
    return t.where(found, rank, t.constant(size, "i32"))
