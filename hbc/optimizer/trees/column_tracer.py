"""What a column that trees read is computed from, step by step up to the model's input: operators that keep the order of numbers, and
curves, in which a column may meet itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from hbc.ir.graph import Constant, Node, gives_rows, topological
from hbc.ir.types import NUMPY_DTYPES, Array
from hbc.ops import tensor as t
from hbc.optimizer.columns.column import Column, placed
from hbc.optimizer.trees.column_functions import ColumnFunctions
from hbc.optimizer.trees.cuts import Cuts

MOST_OPERATORS = 64
"""Of one curve; a PowerTransformer's has 12."""


@dataclass(frozen=True)
class Curve:
    """What several operators, or one that is not monotone, compute of one column. `start`: they give NaN of numbers below."""

    base: Column
    start: float
    operators: int


@dataclass
class ColumnTracer:
    """What a column of a value is computed from. through_missing: also what is imputed. dtypes: what it may end with. guards: what
    is read instead of a value (the first) by what is computed of it by curves up to another (the second), and stays: ends of curves that
    are not followed. Found on the way: `operands` of columns, a column of each operand that is no constant; `curves`; and the cuts of
    their tests, `found`."""

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
        """The column itself, but for operators that only choose columns, and those that it is computed from, one from the other."""
        column = placed(column)
        found, floats = [column], 1
        while (source := self._source(column)) is not None:
            column = placed(source)
            found.append(column)
            if column[0].type.dtype in self.dtypes:
                floats = len(found)
        return found[:floats]

    def described(self, column: Column) -> str:
        """What computes a column of a chain."""
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
        node, index = self.curves[column].base
        return self.guards.get((node, column[0]), node), index

    def _operands(self, column: Column) -> tuple[Column | None, ...] | None:
        """The columns that a column is computed from; None where it is not computed from single ones, or not followed."""
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
                None if isinstance(source.op, Constant) else placed((source, index)) for source in node.inputs
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
        """Down to the nearest column that everything on the way is computed from, and on through the curve that this one is at the end of:
        its floats are further apart, and what is computed falls at fewer of them."""
        curve: Curve | None = None
        open_: set[Column] = {column}
        members: set[Column] = set()
        while curve is None or (curve.start == -np.inf and not self._is_monotone(curve.base)):
            while len(open_) > 1 or open_ <= {column, curve and curve.base} or _is_on_the_way(next(iter(open_))[0]):
                last = max(open_, key=lambda column: self._depth_of(column[0]))  # nothing else is computed from it
                sources = self._operands(last)
                if sources is None or len(members) == MOST_OPERATORS or not (self._is_monotone(last) or last[0].op.encloses):
                    return curve
                members.add(last)
                open_ = (open_ - {last}) | {source for source in sources if source is not None}
            (base,) = open_
            start = self._start(column, base, members)
            if start is None:
                return curve
            curve = Curve(base, start, len(members))
        return curve

    def _start(self, column: Column, base: Column, members: set[Column]) -> float | None:
        """Where the curve starts; None where it has a number for NaN, and must not."""
        flow, only = ColumnFunctions({0: [column, base]}, self.operands), np.zeros(1, np.int64)
        dtype = NUMPY_DTYPES[base[0].type.dtype]
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
    """Whether a curve cannot end there, or ends better below."""
    return not node.type.is_float or (type(node.op) is t.Cast and node.inputs[0].type.is_float)


@dataclass
class Guard:
    """What is done to some columns before trees read them instead of curves of them. starts: numbers below are NaN; moves: these numbers
    are taken for others."""

    starts: dict[int, float] = field(default_factory=dict)
    moves: dict[int, Mapping[float, float]] = field(default_factory=dict)

    def __call__(self, x: Node) -> Node:
        base, width = x, x.type.columns
        for turn in range(max(map(len, self.moves.values()), default=0)):
            number, other = np.full(width, np.nan), np.zeros(width)
            for index, moves in self.moves.items():
                if turn < len(moves):
                    number[index], other[index] = sorted(moves.items())[turn]
            x = t.where(t.equal(base, number), t.constant(other, x.type.dtype), x)
        if self.starts:
            start = np.full(width, -np.inf)
            start[list(self.starts)] = list(self.starts.values())
            x = t.where(t.less(base, start), np.nan, x)
        return x


def is_guard(node: Node) -> bool:
    """Whether a value looks as if Guard had made it: then there is nothing more to gain."""
    if type(node.op) is not t.Where:
        return False
    condition, constant, x = node.inputs
    if not isinstance(condition.op, (t.Less, t.Equal)) or not isinstance(constant.op, Constant):
        return False
    if isinstance(condition.op, t.Less) and not np.isnan(constant.op.value).all():
        return False
    return isinstance(condition.inputs[1].op, Constant) and (condition.inputs[0] is x or is_guard(x))


def pieces_of(chain: Sequence[Column], up: ColumnTracer) -> list[list[Column]]:
    """A chain cut up, from the trees upwards: each curve for itself, and what is monotone between them."""
    found: list[list[Column]] = []
    for column, above in pairwise(chain):
        if column in up.curves:
            found.append([column, up.curves[column].base])
        elif found and found[-1][-1] == column and found[-1][0] not in up.curves:
            found[-1].append(above)
        else:
            found.append([column, above])
    return found
