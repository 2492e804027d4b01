"""Products of few outputs, summed along the rows as the caller has them: a register of a row's columns at a time, so that no matrix is
turned over or stored. Knows nothing of TVM; the loops are in kernels/row_dots.py.

118 columns of float64, one output, 10,000 rows: 344 to 133 µs, which is what BLAS takes; with an imputer, a one-hot encoder, a scaler and
the selection of 80 % of the columns before a logistic regression: 706 to 370 µs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from hbc.ir.graph import Constant, Input, Node, Operator, operator
from hbc.ir.rewrite import Rule
from hbc.ir.types import NUMPY_DTYPES, Array, DType, TensorType
from hbc.ops import tensor

MOST_OUTPUTS = 2
"""Each output reads the row anew: squares of rows that are turned over once and read by all are as fast for four (0.9 to 1.3 times)."""
WINDOW = 2.5
"""Columns that take as long first: the rows of a column share an instruction, but are picked out or turned over before. (Measured: plain or
imputed columns 2 to 2.3, one-hot codes 2.2 to 2.5.)"""


@dataclass(frozen=True, eq=False)
class Term:
    """A part of the sum: some columns of a value of which each element follows from one column of the caller's matrix `source`.

    A window is as many columns of the source as a register holds. starts: the first column of each. positions[window, lane]: the
    column of `value` that is computed there; kept[window, lane]: whether one is; weights[output, window, lane]. The windows of
    which all is kept, `whole` in number, come first.
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
    """y[n, k] = Σ over terms and columns of value[n, c] · weights[c, k]"""

    terms: tuple[Term, ...]
    dtype: DType
    width: int
    lanes: int

    level = "tensor"

    def infer(self, *sources: TensorType) -> TensorType:
        return TensorType(self.dtype, ("N", self.width))


def along_rows(register: int, cheap: Callable[[Operator], bool]) -> Rule:
    """The rule `x @ w` → RowDot, for registers of so many bits, where x has parts that only `cheap` operators compute from single columns:
    a few instructions an element."""

    def rule(node: Node) -> Node | None:
        if not isinstance(node.op, tensor.MatMul) or not isinstance(node.inputs[1].op, Constant):
            return None
        x, weights = node.inputs[0], node.inputs[1].op.value
        lanes = register // (8 * NUMPY_DTYPES[node.type.dtype].itemsize)
        outputs = weights.shape[1]
        if not 1 <= outputs <= MOST_OUTPUTS or (outputs > 1 and len(weights) < 2 * lanes):
            return None
        terms: list[Term] = []
        others: list[tuple[Node, Array]] = []
        for part, rows in _parts(x, weights):
            term = _term(part, rows, lanes, cheap)
            if term is None:
                others.append((part, rows))
            else:
                terms.append(term)
        if not terms:
            return None
        sources = tuple(dict.fromkeys(term.source for term in terms))
        total: Node = RowDot(tuple(terms), node.type.dtype, outputs, lanes)(*sources)
        for part, rows in others:
            total = tensor.Add()(total, tensor.MatMul()(part, Constant(rows)()))
        return total

    return rule


def _parts(x: Node, weights: Array) -> Iterator[tuple[Node, Array]]:
    """What is concatenated, with its rows of the weights."""
    if not isinstance(x.op, tensor.Concat):
        yield x, weights
        return
    start = 0
    for part in x.inputs:
        yield from _parts(part, weights[start : start + part.type.columns])
        start += part.type.columns


def _term(value: Node, weights: Array, lanes: int, cheap: Callable[[Operator], bool]) -> Term | None:
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
    return Term(value, source, starts, np.where(kept, positions, 0), kept, chosen)


def _columns(node: Node, cheap: Callable[[Operator], bool]) -> tuple[Node, Array] | None:
    """The caller's matrix that a value follows from, and for each column of the value the column of that matrix; None if not so."""
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
    """The columns that a value is made of, where it only takes columns of another."""
    if not isinstance(node.op, tensor.Take) or node.op.axis != 1 or not isinstance(node.inputs[1].op, Constant):
        return None
    return node.inputs[1].op.value if node.inputs[1].op.value.ndim == 1 else None


def _windows(columns: Array, width: int, lanes: int) -> Iterator[tuple[int, Array]]:
    """Windows of `lanes` columns of a matrix of `width`, and which value's column stands in each place, -1 for none."""
    order = np.argsort(columns, kind="stable")
    ordered = columns[order]
    # Of a column that is read several times, each time belongs to another round.
    rounds = np.arange(len(ordered)) - np.searchsorted(ordered, ordered)
    for number in range(int(rounds.max(initial=-1)) + 1):
        left = np.flatnonzero(rounds == number)
        while len(left):
            start = min(int(ordered[left[0]]), width - lanes)
            inside = left[ordered[left] < start + lanes]
            positions = np.full(lanes, -1)
            positions[ordered[inside] - start] = order[inside]
            yield start, positions
            left = left[len(inside) :]
