"""Replaces products of few outputs by sums along the caller's rows (`RowDot`): a register holds some columns of one row, so that no
matrix is transposed or stored. Does not use TVM; the loops are in kernels/row_dots.py.

118 columns of float64, one output, 10,000 rows: 344 to 133 µs, which is what BLAS takes; with an imputer, a one-hot encoder, a scaler and
the selection of 80 % of the columns before a logistic regression: 706 to 370 µs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from hbc.ir.graph import Constant, Input, Node, Operator, operator
from hbc.ir.rewrite import Rule
from hbc.ir.types import NUMPY_DTYPES, Array, DType, TensorType
from hbc.lazy import record
from hbc.ops import tensor

MOST_OUTPUTS = 2
"""The most outputs of such a product. Each output reads the row anew, while transposed squares of rows are made once and read by all. For
four outputs these are as fast (0.9 to 1.3 times)."""
WINDOW = 2.5
"""The number of columns that take as long as a window when they are transposed first. Then the rows of a column share an instruction, but
must be picked out or transposed before. Measured: plain or imputed columns 2 to 2.3, one-hot codes 2.2 to 2.5."""


@record(eq=False)
class Summand:
    """A part of the sum: some columns of `value`. Each element of them follows from one column of the caller's matrix `source`.

    A window is as many columns of the source as a register holds. starts[window]: its first column. positions[window, lane]: the
    column of `value` that the lane computes. kept[window, lane]: whether the lane computes a column at all. weights[output, window, lane].
    The windows whose lanes are all kept come first; there are `whole` of them.
    """

    value: Node
    source: Node
    starts: Array
    positions: Array
    kept: Array
    weights: Array

    @property
    def whole(self) -> int:
        return int(self.kept.all(axis=1).sum())


@operator
class RowDot(Operator):
    """y[n, k] = Σ over summands and columns of value[n, c] · weights[c, k]"""

    summands: tuple[Summand, ...]
    dtype: DType
    width: int
    lanes: int

    level = "tensor"

    def infer(self, *sources: TensorType) -> TensorType:
        return TensorType(self.dtype, ("N", self.width))


def along_rows(register: int, cheap: Callable[[Operator], bool]) -> Rule:
    """A rule that replaces `x @ w` by `RowDot`, for registers of so many bits. It applies if x has parts that `cheap` operators compute
    from single columns: operators of a few instructions an element."""

    def rule(node: Node) -> Node | None:
        if not isinstance(node.op, tensor.MatMul) or not isinstance(node.inputs[1].op, Constant):
            return None
        x, weights = node.inputs[0], node.inputs[1].op.value
        lanes = register // (8 * NUMPY_DTYPES[node.type.dtype].itemsize)
        outputs = weights.shape[1]
        if not 1 <= outputs <= MOST_OUTPUTS or (outputs > 1 and len(weights) < 2 * lanes):
            return None
        summands: list[Summand] = []
        others: list[tuple[Node, Array]] = []
        for part, rows in _parts(x, weights):
            summand = _summand(part, rows, lanes, cheap)
            if summand is None:
                others.append((part, rows))
            else:
                summands.append(summand)
        if not summands:
            return None
        sources = tuple(dict.fromkeys(summand.source for summand in summands))
        total: Node = RowDot(tuple(summands), node.type.dtype, outputs, lanes)(*sources)
        for part, rows in others:
            total = tensor.Add()(total, tensor.MatMul()(part, Constant(rows)()))
        return total

    return rule


def _parts(x: Node, weights: Array) -> Iterator[tuple[Node, Array]]:
    """(part, its rows of the weights) for each part that x concatenates; x itself if it concatenates nothing."""
    if not isinstance(x.op, tensor.Concat):
        yield x, weights
        return
    start = 0
    for part in x.inputs:
        yield from _parts(part, weights[start : start + part.type.columns])
        start += part.type.columns


def _summand(value: Node, weights: Array, lanes: int, cheap: Callable[[Operator], bool]) -> Summand | None:
    found = _columns(value, cheap)
    if found is None:
        return None
    source, columns = found
    if source.type.columns < lanes:
        return None
    windows = sorted(_windows(columns, source.type.columns, lanes), key=lambda window: bool((window[1] < 0).any()))
    if WINDOW * len(windows) > len(columns):
        return None
    starts = np.array([start for start, _ in windows], np.int64)
    positions = np.array([found for _, found in windows], np.int64)
    kept = positions >= 0
    chosen = np.where(kept[None], weights.T[:, np.maximum(positions, 0)], 0).astype(weights.dtype)
    return Summand(value, source, starts, np.where(kept, positions, 0), kept, chosen)


def _columns(node: Node, cheap: Callable[[Operator], bool]) -> tuple[Node, Array] | None:
    """(matrix, columns): column j of the value follows from column columns[j] of the caller's matrix alone. None if that is not so."""
    if isinstance(node.op, Input):
        numbers = node.type.dtype in ("f32", "f64", "i32", "i64")
        return (node, np.arange(node.type.columns)) if len(node.type.shape) == 2 and numbers else None
    if (taken := taken_columns(node)) is not None:
        found = _columns(node.inputs[0], cheap)
        return None if found is None else (found[0], found[1][taken])
    if not cheap(node.op):
        return None
    result = None
    for operand in node.inputs:
        if isinstance(operand.op, Constant):
            continue
        found = _columns(operand, cheap)
        if found is None or len(found[1]) != node.type.columns:
            return None
        if result is not None and not (result[0] is found[0] and np.array_equal(result[1], found[1])):
            return None
        result = found
    return result


def taken_columns(node: Node) -> Array | None:
    """The columns that a node takes of its operand; None if it does more than take columns."""
    if not isinstance(node.op, tensor.Take) or node.op.axis != 1 or not isinstance(node.inputs[1].op, Constant):
        return None
    return node.inputs[1].op.value if node.inputs[1].op.value.ndim == 1 else None


def _windows(columns: Array, width: int, lanes: int) -> Iterator[tuple[int, Array]]:
    """(start, positions) for each window of `lanes` columns in a matrix of `width`. positions[lane]: the value's column; -1 for none."""
    order = np.argsort(columns, kind="stable")
    ordered = columns[order]
    # A column that is read several times is read once in each of several rounds.
    rounds = np.arange(len(ordered)) - np.searchsorted(ordered, ordered)
    for number in range(int(rounds.max(initial=-1)) + 1):
        places = np.flatnonzero(rounds == number)
        read, first = ordered[places], 0  # each column once, ascending
        while first < len(places):
            start = min(int(read[first]), width - lanes)
            # (A look at all that are left in each window took 28 s for 300,000 columns.)
            end = first + int(np.searchsorted(read[first : first + lanes], start + lanes))
            positions = np.full(lanes, -1)
            positions[read[first:end] - start] = order[places[first:end]]
            yield start, positions
            first = end
