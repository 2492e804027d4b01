"""Choosing columns, and finding their numbers in tables: ranks among edges, look-ups by place, codes of categories."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hbc.ir.alike import one_below_the_other, shifted
from hbc.ir.coded_strings import CodedStrings
from hbc.ir.graph import Node, Operator, always, has_nan, operator
from hbc.ir.rows import Rows
from hbc.ir.spans import Span, span_of
from hbc.ir.types import NUMPY_DTYPES, Array, TensorType
from hbc.ops import tensor as t

ABSENT = np.iinfo(np.int64).min
"""A number that is no category's code."""


@operator
class SelectColumns(Operator):
    """y[N, k] = x[N, indices[k]]; dtype kept; indices i64 in range, in any order, repeats allowed."""

    indices: Array

    keeps_values = True
    rows = "keeps"
    keeps_sign = True

    def infer(self, x: TensorType) -> TensorType:
        if len(self.indices) and not 0 <= self.indices.min() <= self.indices.max() < x.columns:
            raise TypeError(f"column indices must lie in 0..{x.columns - 1}")
        return TensorType(x.dtype, (x.shape[0], len(self.indices)))

    def evaluate(self, x: Array) -> Array:
        if len(self.indices) == 1:
            return x[:, self.indices[0] :][:, :1]  # a view: for a row, it takes a tenth of the time
        return x[:, self.indices]

    def of_rows(self, x: Rows) -> Rows:
        return x.select(self.indices)

    def of_coded_strings(self, x: CodedStrings) -> CodedStrings:
        return x.select(self.indices.tolist())

    def reads(self, kept: Array, inputs: Sequence[Node], finite: bool = False) -> tuple[Array, ...]:
        return (np.unique(self.indices[kept]),)

    def narrowed(self, kept: Array, columns: Sequence[Array], inputs: Sequence[Node]) -> tuple[Operator, Array]:
        return SelectColumns(np.searchsorted(columns[0], self.indices[kept])), kept

    def alike(self, node: Node) -> Any:
        return ()

    def joined(self, nodes: Sequence[Node], operand: Callable[[int], Node]) -> Node:
        return SelectColumns(shifted(nodes, "indices"))(operand(0))

    def lower(self, x: Node) -> Node:
        return t.take(x, self.indices, axis=1)

    def looks_up(self, inputs: Sequence[Node]) -> Mapping[str | int, range]:
        return {"indices": range(inputs[0].type.columns)}

    def magnitude(self, node: Node, bounds: Sequence[Array]) -> Array:
        return bounds[0][self.indices]

    def span(self, node: Node, spans: Sequence[Span]) -> Span:
        return (0, 1) if node.type.dtype == "bool" else spans[0]


@operator
class Rank(Operator):
    """y[N, F] = how many of edges[F, E] are < x[N, F], i32; edges (x's dtype) ascend along E and are padded with +inf.

    NaN has rank 0. `edge <= x` is `nextafter(edge, -inf) < x`, so one side serves both (numpy.searchsorted, side="left").
    """

    edges: Array

    columnwise = True
    removes_missing = True
    monotone = always
    jumps = True

    def infer(self, x: TensorType) -> TensorType:
        if x.columns != self.edges.shape[0] or t.constant(self.edges).type.dtype != x.dtype:
            raise TypeError(f"edges are {t.constant(self.edges).type}")
        return x.with_dtype("i32")

    def evaluate(self, x: Array) -> Array:
        columns = [np.searchsorted(edges, column, side="left") for edges, column in zip(self.edges, x.T, strict=True)]
        ranks = np.stack(columns, axis=1) if columns else np.zeros(x.shape)
        return np.where(np.isnan(x), 0, ranks).astype(np.int32)  # searchsorted sorts NaN last

    def alike(self, node: Node) -> Any:
        return str(self.edges.dtype), self.edges.shape[1].bit_length()  # which is the number of steps of a search

    def joined(self, nodes: Sequence[Node], operand: Callable[[int], Node]) -> Node:
        return Rank(one_below_the_other([node.op.edges for node in nodes], [np.inf] * len(nodes)))(operand(0))  # type: ignore[attr-defined]

    def outermost(self) -> tuple[Array, Array]:
        edges = self.edges.astype(np.float64)
        return edges.min(axis=1, initial=np.inf), np.where(np.isinf(edges), -np.inf, edges).max(axis=1, initial=-np.inf)

    def lower(self, x: Node) -> Node:
        below = t.less(self.edges, t.reshape(x, *x.type.shape, 1))
        return t.sum_(t.cast(below, "i32"), axis=2)

    def magnitude(self, node: Node, bounds: Sequence[Array]) -> Array:
        return np.full(len(self.edges), float(self.edges.shape[1]))

    def span(self, node: Node, spans: Sequence[Span]) -> Span:
        return 0, self.edges.shape[1]


@operator
class TakeByColumn(Operator):
    """y[N, F] = table[F, x[N, F]]; x are i32 or i64 from 0 to the table's width - 1."""

    table: Array

    columnwise = True
    removes_missing = True
    jumps = True

    @property
    def creates_missing(self) -> bool:
        return has_nan(self.table)

    def infer(self, x: TensorType) -> TensorType:
        if x.dtype not in ("i32", "i64") or self.table.ndim != 2 or x.columns != len(self.table):
            raise TypeError(f"the operand must be places in {len(self.table)} columns")
        return x.with_dtype(t.constant(self.table).type.dtype)

    def evaluate(self, x: Array) -> Array:
        return self.table[np.arange(len(self.table)), x]

    def lower(self, x: Node) -> Node:
        starts = np.arange(0, self.table.size, self.table.shape[1]).astype(NUMPY_DTYPES[x.type.dtype])
        return t.take(self.table.ravel(), t.add(x, starts), axis=0)

    def looks_up(self, inputs: Sequence[Node]) -> Mapping[str | int, range]:
        return {0: range(self.table.shape[1])}

    def span(self, node: Node, spans: Sequence[Span]) -> Span:
        return span_of(self.table) if self.table.dtype.kind in "iu" else super().span(node, spans)


def among(x: Node, values: Array, counts: Array) -> Node:
    """A node that is true where x[N, F] is one of values[F, :counts[F]]. These ascend, have x's dtype, and each column has at
    least one. NaN is none of them."""
    inside = np.arange(values.shape[1]) < counts[:, None]
    largest = np.inf if x.type.is_float else np.iinfo(values.dtype).max
    last = values[np.arange(len(values)), counts - 1]
    candidates = np.append(np.where(inside, values, last[:, None]), last[:, None], axis=1)
    return t.equal(TakeByColumn(candidates)(Rank(np.where(inside, values, largest).astype(values.dtype))(x)), x)


@operator
class Categorize(Operator):
    """y[N, 1] = the index i with categories[i] = x[N, 0], or `unknown` where there is none; i64.

    categories[K] are different numbers (of x's dtype, not NaN) or strings (numpy `<U`). `nan` and `none` are the codes of NaN
    and of None (in a column of strings). On strings this runs on the host.
    """

    categories: Array
    nan: int = -1
    none: int = -1
    unknown: int = -1

    columnwise = True
    removes_missing = True
    jumps = True

    def infer(self, x: TensorType) -> TensorType:
        if x.columns != 1 or t.constant(self.categories).type.dtype != x.dtype:
            raise TypeError(f"categories are {t.constant(self.categories).type}")
        return x.with_dtype("i64")

    def evaluate(self, x: Array) -> Array:
        column = x[:, 0]
        if self.categories.dtype.kind in "UO":
            codes, items = self._codes, column.tolist()
            if len(codes) <= 256:
                with contextlib.suppress(KeyError, ValueError):  # an unknown string, or a code that is no byte
                    return np.frombuffer(bytes(map(codes.__getitem__, items)), np.uint8).astype(np.int64)[:, None]
            found = np.fromiter(map(codes.get, items, itertools.repeat(ABSENT)), np.int64, len(items))
            for row in np.flatnonzero(found == ABSENT).tolist():
                found[row] = self.nan if items[row] != items[row] else self.unknown
            return found[:, None]
        order = np.argsort(self.categories)
        ordered = self.categories[order]
        if not len(ordered):
            return np.where(np.isnan(column), self.nan, self.unknown).astype(np.int64)[:, None]
        place = np.minimum(np.searchsorted(ordered, column), len(ordered) - 1)
        found = np.where(ordered[place] == column, order[place], self.unknown)
        return np.where(np.isnan(column), self.nan, found).astype(np.int64)[:, None]

    def of_coded_strings(self, x: CodedStrings) -> Array:
        return x.looked_up(self.evaluate(x.distinct()))

    @property
    def _codes(self) -> dict[str | None, int]:
        cached: dict[str | None, int] | None = self.__dict__.get("_code_table")
        if cached is None:
            cached = {str(category): i for i, category in enumerate(self.categories)}
            cached[None] = self.none
            object.__setattr__(self, "_code_table", cached)
        return cached

    def alike(self, node: Node) -> Any:
        return None  # it has one column

    def told_apart(self) -> Sequence[Array]:
        return (self.categories,)

    def lower(self, x: Node) -> Node:
        order = np.argsort(self.categories)
        ordered = self.categories[order]
        missing = t.isnan(x) if x.type.is_float else None
        codes = t.constant(np.full((1, 1), self.unknown, np.int64))
        if len(ordered):
            # The rank finds the only candidate: two look-ups a row instead of K comparisons.
            place = _rank(x, ordered)
            found = t.equal(t.take(ordered, place, axis=0), x)
            codes = t.where(found, t.take(order.astype(np.int64), place, axis=0), codes)
        if missing is not None:
            codes = t.where(missing, t.constant(np.full((1, 1), self.nan, np.int64)), codes)
        return codes if codes.type.batched else t.add(codes, t.cast(t.equal(x, x), "i64"))

    def magnitude(self, node: Node, bounds: Sequence[Array]) -> Array:
        return np.full(1, float(max(len(self.categories), abs(self.nan), abs(self.none), abs(self.unknown))))

    def span(self, node: Node, spans: Sequence[Span]) -> Span:
        return span_of(np.array([self.nan, self.none, self.unknown]), np.arange(len(self.categories)))


def _rank(x: Node, ordered: Array) -> Node:
    """The index of the first of `ordered` that is ≥ x, at most that of the last: i32[N, 1]."""
    if x.type.is_float:
        return t.minimum(Rank(ordered[None, :])(x), len(ordered) - 1)
    below = t.less(ordered[None, None, :], t.reshape(x, *x.type.shape, 1))
    return t.minimum(t.sum_(t.cast(below, "i32"), axis=2), len(ordered) - 1)
