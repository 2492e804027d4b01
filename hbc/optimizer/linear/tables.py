"""Products with one-hot codes as look-ups: each code chooses a row of weights, and the rows are added."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from hbc.ir.graph import Constant, Node
from hbc.ir.types import NUMPY_DTYPES, Array, DType
from hbc.ops import tensor as t
from hbc.ops.checks import Check
from hbc.ops.columns import SelectColumns
from hbc.ops.encoding import PLACES, SPARSEST, Codes, Lookup, OneHot, before_cast, places_of
from hbc.ops.linear import TableSum

Coded = tuple[OneHot, Node, Array]
"""A OneHot, the codes that it is applied to, and the weights of its columns."""


def made_of(codes: Node) -> Codes:
    """What the codes of a OneHot are made of."""
    if isinstance(codes.op, Lookup) or _is_taken(codes):
        return "found"
    return "floats" if before_cast(codes).type.is_float else "integers"


def _is_taken(codes: Node) -> bool:
    """Whether the codes are a column that was taken from a table."""
    table = codes.inputs[0].op if isinstance(codes.op, t.Take) else None
    return isinstance(table, Constant) and table.value.ndim == 1 and codes.type.columns == 1


def table_sum(coded: Sequence[Coded], bias: Array | None, dtype: DType) -> Node:
    """Σ OneHot(codes) · weights + bias, computed as a sum of table rows, one row for each column of codes."""
    tables: list[Array] = []
    blocks = [_places(part, tables) for one in coded for part in _by_parts(*one)]
    table = np.concatenate(tables)
    if bias is not None:
        table[: len(tables[0])] += bias  # every row of data has one place in the first table
    return TableSum(table.astype(NUMPY_DTYPES[dtype]))(t.concat(blocks))


def _by_parts(op: OneHot, codes: Node, weights: Array) -> Iterator[Coded]:
    """The given (operator, codes, weights), split by the parts of the codes if these are a Concat."""
    while isinstance(codes.op, Check):
        (codes,) = codes.inputs
    if not isinstance(codes.op, t.Concat):
        yield op, codes, weights
        return
    start = 0
    for part in codes.inputs:
        end = start + part.type.columns
        inside = (op.source >= start) & (op.source < end)
        if inside.any():
            yield from _by_parts(OneHot(op.source[inside] - start, op.value[inside], op.dtype), part, weights[inside])
        start = end


def _places(coded: Coded, tables: list[Array]) -> Node:
    """i32[N, C]: the place of each column's code in the concatenated `tables`. The tables of these columns are appended to
    `tables`."""
    op, codes, weights = coded
    used = np.unique(op.source)
    start = sum(map(len, tables))
    if _is_taken(codes):
        table, place = codes.inputs
        assert isinstance(table.op, Constant)
        tables.append(_rows(table.op.value, op, weights))
        return t.cast(t.add(place, start) if start else place, "i32")
    if isinstance(codes.op, Lookup):
        inner = codes.op
        found = np.unique(np.concatenate([inner.codes.ravel(), inner.unknown, inner.missing]))
        x, categories = codes.inputs[0], inner.categories[used]
        starts = start + len(found) * np.arange(len(used))
        of_columns = [np.searchsorted(found, of[used]).astype(np.int32) for of in (inner.codes, inner.unknown, inner.missing)]
        tables += [_rows(found, _of_column(op, j), weights[op.source == j]) for j in used]
        codes_of, *others = (of + starts.reshape(-1, *[1] * (of.ndim - 1)).astype(np.int32) for of in of_columns)
        return Lookup(categories, codes_of, *others)(_chosen(x, used))
    known = [np.unique(op.value[(op.source == j) & (op.value == op.value)]) for j in used]
    counted = _counted if all(map(_is_dense, known)) else _looked_up
    return counted(op, _chosen(codes, used), weights, tables, known, start)


def _is_dense(values: Array) -> bool:
    """Whether the codes are integers so close together that they can be places themselves."""
    if not len(values) or (values.dtype.kind == "f" and (values != np.floor(values)).any()):
        return False
    return bool(np.abs(values).max() < PLACES and values[-1] - values[0] < SPARSEST * len(values))


def _counted(op: OneHot, codes: Node, weights: Array, tables: list[Array], values: list[Array], start: int) -> Node:
    """The places of codes that are integers close together. In a column's table, row 0 is for all smaller numbers, fractions, and NaN; the
    last row is for all larger numbers. If NaN is a category somewhere, it has a row behind that."""
    below, above, starts = (np.zeros(len(values), np.int32) for _ in range(3))
    tells_missing = codes.type.is_float and bool(np.isnan(op.value).any())
    for i, (j, known) in enumerate(zip(np.unique(op.source), values, strict=True)):
        below[i], above[i], starts[i] = known[0] - 1, known[-1] + 1, start
        column, rows = _of_column(op, j), weights[op.source == j]
        tables.append(_rows(np.arange(below[i], above[i] + 1, dtype=op.value.dtype), column, rows))
        if tells_missing:
            tables[-1] = np.concatenate([tables[-1], rows[np.isnan(column.value)].sum(axis=0, keepdims=True)])
        start += len(tables[-1])
    return places_of(codes, below, above, starts - below, tells_missing)


def _looked_up(op: OneHot, codes: Node, weights: Array, tables: list[Array], values: list[Array], start: int) -> Node:
    """The places of codes that may be any numbers. In a column's table, row 0 is for unknown codes, row 1 for NaN, and the others
    for the known values."""
    width = max(1, *map(len, values))
    last = np.inf if op.value.dtype.kind == "f" else np.iinfo(op.value.dtype).max
    categories = np.full((len(values), width), last, op.value.dtype)
    places, unknown = np.zeros(categories.shape, np.int32), np.zeros(len(values), np.int32)
    for i, (j, known) in enumerate(zip(np.unique(op.source), values, strict=True)):
        categories[i, : len(known)] = known
        places[i] = unknown[i] = start
        places[i, : len(known)] += np.arange(2, len(known) + 2, dtype=np.int32)
        column, rows = _of_column(op, j), weights[op.source == j]
        of_nan = rows[np.isnan(column.value)].sum(axis=0) if op.value.dtype.kind == "f" else np.zeros(weights.shape[1])
        tables.append(np.concatenate([np.zeros((1, weights.shape[1])), of_nan[None], _rows(known, column, rows)]))
        start += len(tables[-1])
    return Lookup(categories, places, unknown, unknown + np.int32(1))(codes)


def _of_column(op: OneHot, column: int) -> OneHot:
    return OneHot(op.source[op.source == column] * 0, op.value[op.source == column], op.dtype)


def _chosen(x: Node, columns: Array) -> Node:
    return x if len(columns) == x.type.columns else SelectColumns(columns)(x)


def _rows(values: Array, op: OneHot, weights: Array) -> Array:
    """The row of weights that each value chooses: [V, K], float64."""
    order = np.argsort(op.value, kind="stable")
    rows = np.zeros((len(values), weights.shape[1]))
    first, last = (np.searchsorted(op.value[order], values, side) for side in ("left", "right"))
    for k in range(int((last - first).max(initial=0))):  # of one column of codes a value is nearly always in one
        inside = first + k < last
        rows[inside] += weights[order[first[inside] + k]]
    return rows
