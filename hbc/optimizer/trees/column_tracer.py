"""Follows a column that trees read back towards the model input, step by step: through operators that keep the order of numbers,
and through curves, which may read a column several times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from hbc.ir.graph import Constant, Node, gives_rows, topological
from hbc.ir.types import NUMPY_DTYPES, Array
from hbc.lazy import record
from hbc.ops import tensor as t
from hbc.optimizer.columns.column import Column, earliest
from hbc.optimizer.trees.column_functions import ColumnFunctions
from hbc.optimizer.trees.cuts import Cuts

MOST_OPERATORS = 64
"""The most operators of one curve. A PowerTransformer's curve has 12."""


@record
class Curve:
    """Several operators, or one that is not monotone, between a column and its argument, the column that they are computed from. `start`:
    the operators give NaN for smaller numbers of the argument. `operators`: how many they are."""

    argument: Column
    start: float
    operators: int


@dataclass
class ColumnTracer:
    """Follows columns of values back towards the model input.

    - through_missing: also follow operators that fill in missing values.
    - dtypes: the dtypes with which a chain may end.
    - guards[(a, b)]: inside the curve from a to b, read this node instead of a.
    - stays: nodes at which following stops.

    The other fields are caches. operands: for a column, the column of each operand, None for constants; curves: the Curve that
    ends at a column; found: the cuts of tests on curves.
    """

    through_missing: bool
    dtypes: tuple[str, ...]
    guards: dict[tuple[Node, Node], Node] = field(default_factory=dict)
    stays: set[Node] = field(default_factory=set)
    operands: dict[Column, tuple[Column | None, ...]] = field(default_factory=dict)
    curves: dict[Column, Curve] = field(default_factory=dict)
    found: dict[Any, tuple[Cuts, Mapping[int, dict[float, float]]]] = field(default_factory=dict)
    _monotone: dict[Node, Array] = field(default_factory=dict)
    _depth: dict[Node, int] = field(default_factory=dict)

    def chain(self, column: Column) -> list[Column]:
        """[the column, the column that it is computed from, and so on]. Operators that only choose columns are skipped."""
        column = earliest(column)
        found, floats = [column], 1
        while (source := self._source(column)) is not None:
            column = earliest(source)
            found.append(column)
            if column[0].type.dtype in self.dtypes:
                floats = len(found)
        return found[:floats]

    def described(self, column: Column) -> str:
        """The name of the operator, or of the curve, that computes a column of a chain, for notes."""
        curve = self.curves.get(column)
        if curve is None or curve.operators == 1:
            return type(column[0].op).__name__
        return f"a curve of {curve.operators} operators"

    def _source(self, column: Column) -> Column | None:
        sources = self._operands(column)
        if sources is None or is_guard(column[0]):
            return None
        if self._is_monotone(column):
            (source,) = (source for source in sources if source is not None)
            return source
        if column[0] in self.stays:
            return None
        if column not in self.curves:
            curve = self._curve(column)
            if curve is None:
                return None
            self.curves[column] = curve
        node, index = self.curves[column].argument
        return self.guards.get((node, column[0]), node), index

    def _operands(self, column: Column) -> tuple[Column | None, ...] | None:
        """For each operand: the column from which this column is computed, None for constants. None: it is not computed column by
        column, or must not be followed."""
        if column not in self.operands:
            node, index = column
            varying = [source for source in node.inputs if not isinstance(source.op, Constant)]
            if not varying or any(source.type.shape != node.type.shape or gives_rows(source) for source in varying):
                return None
            if len(node.type.shape) != 2 or not (node.op.columnwise or node.op.elementwise):
                return None
            if node.op.removes_missing and not self.through_missing:
                return None
            self.operands[column] = tuple(
                None if isinstance(source.op, Constant) else earliest((source, index)) for source in node.inputs
            )
        return self.operands[column]

    def _is_monotone(self, column: Column) -> bool:
        node, index = column
        if node not in self._monotone:
            constants = [source.op.value if isinstance(source.op, Constant) else None for source in node.inputs]
            alone = sum(constant is None for constant in constants) == 1
            self._monotone[node] = np.broadcast_to(node.op.monotone(*constants) if alone else False, node.type.columns)
        return bool(self._monotone[node][index])

    def _curve(self, column: Column) -> Curve | None:
        """The curve that ends at a column; None if there is none. It starts at the nearest column from which everything on the way
        is computed. If another curve ends there, it goes on through that one: the floats of its argument lie further apart, so the
        computed function falls between fewer of them."""
        curve: Curve | None = None
        open_: set[Column] = {column}
        members: set[Column] = set()
        while curve is None or (curve.start == -np.inf and not self._is_monotone(curve.argument)):
            while len(open_) > 1 or open_ <= {column, curve and curve.argument} or _is_on_the_way(next(iter(open_))[0]):
                last = max(open_, key=lambda column: self._depth_of(column[0]))  # nothing else is computed from it
                sources = self._operands(last)
                if sources is None or len(members) == MOST_OPERATORS or not (self._is_monotone(last) or last[0].op.encloses):
                    return curve
                members.add(last)
                open_ = (open_ - {last}) | {source for source in sources if source is not None}
            (argument,) = open_
            start = self._start(column, argument, members)
            if start is None:
                return curve
            curve = Curve(argument, start, len(members))
        return curve

    def _start(self, column: Column, argument: Column, members: set[Column]) -> float | None:
        """The number below which the curve gives NaN, or -inf. None: the curve gives a number for NaN although it must not."""
        flow, only = ColumnFunctions({0: [column, argument]}, self.operands), np.zeros(1, np.int64)
        dtype = NUMPY_DTYPES[argument[0].type.dtype]
        if not self.through_missing and not np.isnan(flow.compute(only, np.array([np.nan], dtype))).all():
            return None
        for start in sorted({0.0, *(node.op.rises_from or 0.0 for node, _ in members)} - {-np.inf}):
            below = np.nextafter(np.array([start], dtype), dtype.type(-np.inf))
            if flow.enclose(only, np.array([np.finfo(dtype).min], dtype), below).empty.all():
                return start
        return -np.inf

    def _depth_of(self, node: Node) -> int:
        if node not in self._depth:
            for above in topological([node]):
                self._depth[above] = 1 + max((self._depth[source] for source in above.inputs), default=0)
        return self._depth[node]


def _is_on_the_way(node: Node) -> bool:
    """Whether a curve cannot start at this node, or had better start at its operand."""
    return not node.type.is_float or (type(node.op) is t.Cast and node.inputs[0].type.is_float)


@dataclass
class Guard:
    """Changes some columns before trees read them instead of their curves. starts: smaller numbers of the column become NaN;
    moves: these numbers are replaced by others."""

    starts: dict[int, float] = field(default_factory=dict)
    moves: dict[int, Mapping[float, float]] = field(default_factory=dict)

    def __call__(self, x: Node) -> Node:
        given, width = x, x.type.columns
        for turn in range(max(map(len, self.moves.values()), default=0)):
            number, other = np.full(width, np.nan), np.zeros(width)
            for index, moves in self.moves.items():
                if turn < len(moves):
                    number[index], other[index] = sorted(moves.items())[turn]
            x = t.where(t.equal(given, number), t.constant(other, x.type.dtype), x)
        if self.starts:
            start = np.full(width, -np.inf)
            start[list(self.starts)] = list(self.starts.values())
            x = t.where(t.less(given, start), np.nan, x)
        return x


def is_guard(node: Node) -> bool:
    """Whether a Guard could have made this value. Then following it gains nothing more."""
    if type(node.op) is not t.Where:
        return False
    condition, constant, x = node.inputs
    if not isinstance(condition.op, (t.Less, t.Equal)) or not isinstance(constant.op, Constant):
        return False
    if isinstance(condition.op, t.Less) and not np.isnan(constant.op.value).all():
        return False
    return isinstance(condition.inputs[1].op, Constant) and (condition.inputs[0] is x or is_guard(x))


def pieces_of(chain: Sequence[Column], up: ColumnTracer) -> list[list[Column]]:
    """The pieces of a chain, from the trees towards the input. Each curve is a piece of its own, and so is each run of monotone
    operators between curves."""
    found: list[list[Column]] = []
    for column, above in pairwise(chain):
        if column in up.curves:
            found.append([column, up.curves[column].argument])
        elif found and found[-1][-1] == column and found[-1][0] not in up.curves:
            found[-1].append(above)
        else:
            found.append([column, above])
    return found
