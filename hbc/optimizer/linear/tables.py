"""Products with one-hot codes as look-ups: each code chooses a row of weights, and the rows are added."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from hbc.ir.graph import Constant, Node
from hbc.ir.types import NUMPY_DTYPES, Array, DType
from hbc.ops import tensor as t
from hbc.ops.checks import Check
from hbc.ops.columns import SelectColumns
from hbc.ops.encoding import PLACES, SPARSEST, Lookup, OneHot
from hbc.ops.linear import TableSum

Coded = tuple[OneHot, Node, Array]
"""A OneHot, the codes that it is applied to, and the weights of its columns."""


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
    if isinstance(codes.op, t.Take) and isinstance(codes.inputs[0].op, Constant) and codes.type.columns == 1:
        values = codes.inputs[0].op.value
        if values.ndim == 1:
            tables.append(_rows(values, op, weights))
            place = codes.inputs[1]
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
    """The places of codes that are integers close together. In a column's table, row 0 is for all smaller numbers, the last row
    for all larger ones, and the row before that for NaN."""
    dtype, is_float = op.value.dtype, codes.type.is_float
    least, most, starts = (np.zeros(len(values), dtype) for _ in range(3))
    for i, (j, known) in enumerate(zip(np.unique(op.source), values, strict=True)):
        least[i], most[i], starts[i] = known[0] - 1, known[-1] + 1, start
        column, rows = _of_column(op, j), weights[op.source == j]
        tables.append(_rows(np.arange(least[i], most[i] + 1, dtype=dtype), column, rows))
        if is_float:
            tables[-1] = np.concatenate([tables[-1], rows[np.isnan(column.value)].sum(axis=0, keepdims=True)])
        start += len(tables[-1])
    first = (starts - least).astype(np.int32)
    inside = t.minimum(t.maximum(codes, least), most)
    if not is_float:
        return t.add(t.cast(inside, "i32"), first)
    missing = t.isnan(codes)
    whole = t.cast(t.where(missing, t.constant(least), inside), "i32")
    place = t.where(t.equal(t.cast(whole, codes.type.dtype), codes), whole, t.constant(least.astype(np.int32)))
    if np.isnan(op.value).any():
        place = t.where(missing, t.constant((most + 1).astype(np.int32)), place)
    return t.add(place, first)


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
