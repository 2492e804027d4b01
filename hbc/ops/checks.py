"""Checks: operators that change nothing, and say which values an estimator rejects. `optimizer/limits/checks.py` carries these requirements
back to the columns of the model's input. The runtime tests them there, before anything is computed."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY
from typing import Any, ClassVar

import numpy as np

from hbc.errors import InvalidInputError
from hbc.ir.coded_strings import CodedStrings
from hbc.ir.graph import Node, Operator, operator
from hbc.ir.rows import Rows
from hbc.ir.spans import Span, span_of
from hbc.ir.types import NUMPY_DTYPES, Array, TensorType, type_of
from hbc.lazy import cached_property
from hbc.ops import tensor as t
from hbc.ops.columns import among
from hbc.ops.hash_tables import Known, known


@operator
class Check(Operator):
    """y = x. Rejects an x with NaN (unless `allow_nan`), with ±inf (unless `allow_inf`), with |x| > limit, or with fewer than
    `min_rows` rows, as the source does. `owner` names the estimator for the message (sklearn.utils.check_array)."""

    owner: str
    allow_nan: bool = False
    allow_inf: bool = False
    limit: float = float("inf")
    min_rows: int = 1

    columnwise = True
    keeps_values = True
    keeps_sign = True
    rows = "keeps"
    whole: ClassVar[bool] = False
    """Whether `require` must see all rows of a batch together."""

    def infer(self, x: TensorType) -> TensorType:
        return x

    def evaluate(self, x: Array) -> Array:
        return x

    def of_coded_strings(self, x: CodedStrings) -> CodedStrings:
        return x

    def of_rows(self, x: Rows) -> Rows:
        return x

    def reads(self, kept: Array, inputs: Sequence[Node], finite: bool = False) -> tuple[Array, ...]:
        return (kept,)

    def narrowed(self, kept: Array, columns: Sequence[Array], inputs: Sequence[Node]) -> tuple[Operator, Array]:
        """A plain Check of the remaining columns. The caller's input is tested for all columns before
        (optimizer/limits/checks.py)."""
        return Check(self.owner, self.allow_nan, self.allow_inf, self.limit, self.min_rows), columns[0]

    def lower(self, x: Node) -> Node:
        return x

    def magnitude(self, node: Node, bounds: Sequence[Array]) -> Array:
        return bounds[0]

    def span(self, node: Node, spans: Sequence[Span]) -> Span:
        return (0, 1) if node.type.dtype == "bool" else spans[0]

    def require(self, x: Array) -> None:
        """Raise InvalidInputError for a computed value that the source would have rejected."""
        if x.dtype.kind != "f":
            return
        rejected = np.zeros(x.shape, bool)
        if not self.allow_nan:
            rejected |= np.isnan(x)
        if not self.allow_inf:
            rejected |= np.isinf(x)
        rejected |= np.abs(x) > self.limit
        if rejected.any():
            raise InvalidInputError(
                found=f"values from which the model itself computes {x[rejected][0]}",
                expected=f"values that {self.owner.rpartition('.')[2]} accepts",
            )

    def accepts(self, x: Node) -> Node | None:
        """A node that is true where `require` raises nothing for a number, whatever the other numbers are: bool of x's shape,
        false where this is not certain. None: a backend's operators cannot tell."""
        if not x.type.is_float:
            return None
        most = self._most(x)
        ordinary = t.logical_and(t.less_equal(-most, x), t.less_equal(x, most))
        return t.logical_or(ordinary, t.isnan(x)) if self.allow_nan else ordinary

    def _most(self, x: Node) -> Any:
        """The largest magnitude that is accepted, in the dtype of x."""
        dtype = NUMPY_DTYPES[x.type.dtype].type
        return dtype(min(self.limit, np.inf if self.allow_inf else float(np.finfo(dtype).max)))


@operator
class Beside(Operator):
    """y = x. The other operands are computed for their checks only: the source computes them, though a later step drops them."""

    def infer(self, x: TensorType, *dropped: TensorType) -> TensorType:
        return x

    def evaluate(self, x: Array, *dropped: Array) -> Array:
        return x

    def lower(self, x: Node, *dropped: Node) -> Node:
        return x

    def magnitude(self, node: Node, bounds: Sequence[Array]) -> Array:
        return bounds[0]


@operator
class CheckLeast(Check):
    """y = x. Rejects numbers below `least` (rounded to x's dtype) and, where `exclusive`, numbers equal to it, besides what Check
    rejects (sklearn.utils.validation.check_non_negative)."""

    _: KW_ONLY
    least: float = 0.0
    exclusive: bool = False

    def require(self, x: Array) -> None:
        super().require(x)
        least = x.dtype.type(self.least)
        rejected = x <= least if self.exclusive else x < least
        if rejected.any():
            raise InvalidInputError(
                found=f"{x[rejected][0]}",
                expected=f"numbers {'above' if self.exclusive else 'of at least'} {self.least:g} for {self.owner.rpartition('.')[2]}",
            )

    def accepts(self, x: Node) -> Node | None:
        if not x.type.is_float or -self.least > self.limit:
            return None
        compare, least = t.less if self.exclusive else t.less_equal, NUMPY_DTYPES[x.type.dtype].type(self.least)
        return t.logical_and(compare(least, x), t.less_equal(x, self._most(x)))


@operator
class CheckWhole(Check):
    """y = x. Rejects numbers that are no integers, besides what Check rejects: for sources that take integers."""

    def require(self, x: Array) -> None:
        super().require(x)
        rejected = x != np.floor(x)
        if rejected.any():
            raise InvalidInputError(found=f"the number {x[rejected][0]}", expected="integers where the model declares them")

    def accepts(self, x: Node) -> Node | None:
        return None


@operator
class CheckValues(Check):
    """y = x. Rejects an x[n, f] that is none of values[f, :counts[f]]; with `allowed` False, one that is among them. Values are
    sorted where they are numbers. nan[F] and none[F] say whether NaN and None count among the values of a column.

    columns[F] name the columns for the message (sklearn.utils._encode._check_unknown). For strings it runs on the host.
    """

    _: KW_ONLY
    values: Array
    counts: Array
    nan: Array
    none: Array
    columns: tuple[str, ...]
    allowed: bool = True

    def infer(self, x: TensorType) -> TensorType:
        if type_of(self.values).dtype != x.dtype or self.values.shape[0] != x.columns:
            raise TypeError(f"values are {type_of(self.values)}")
        if not len(self.counts) == len(self.nan) == len(self.none) == len(self.columns) == x.columns:
            raise TypeError(f"parameters are not those of {x.columns} columns")
        return x

    def require(self, x: Array) -> None:
        if self.allowed and self._all_known(x):
            return
        for j, rejected in self._rejected(x):
            what = "one of the categories" if self.allowed else "no missing value where there was none"
            raise InvalidInputError(
                found=f"{rejected.tolist()[0]!r} in {self.columns[j]}",
                expected=f"{what} when {self.owner.rpartition('.')[2]} was fitted",
            )

    def accepts(self, x: Node) -> Node | None:
        if x.type.dtype not in ("f32", "f64", "i32", "i64") or not self.counts.all():
            return None
        found = among(x, self.values, self.counts)
        if self.nan.any() and x.type.is_float:
            found = t.logical_or(found, t.logical_and(t.isnan(x), t.constant(self.nan)))
        return found if self.allowed else t.logical_not(found)

    def told_apart(self) -> Sequence[Array] | None:
        return [row[:count] for row, count in zip(self.values, self.counts, strict=True)] if self.allowed else None

    def looks_up(self, inputs: Sequence[Node]) -> Mapping[str | int, range]:
        return {"counts": range(self.values.shape[1] + 1)}

    def span(self, node: Node, spans: Sequence[Span]) -> Span:
        """The span of the known values: an integer that passes is one of them."""
        if not self.allowed or self.values.dtype.kind not in "iu":
            return super().span(node, spans)
        return span_of(*(row[:count] for row, count in zip(self.values, self.counts, strict=True)))

    def _rejected(self, x: Array) -> Iterator[tuple[int, Array]]:
        """(column, rejected values) for each column that has such values."""
        for j, column in enumerate(x.T):
            among = self._texts_among(j, column) if x.dtype.kind == "O" else self._numbers_among(j, column)
            rejected = ~among if self.allowed else among
            if rejected.any():
                yield j, column[rejected]

    @cached_property
    def _known(self) -> Known | None:
        return known(self.values, self.counts)

    def _all_known(self, x: Array) -> bool:
        """Whether all values are numbers found in the hash table of known numbers. This is nearly always so."""
        if x.dtype.kind == "O" or self._known is None:
            return False
        among = self._known.among(x)
        if x.dtype.kind == "f" and self.nan.any() and not among.all():
            among |= np.isnan(x) & self.nan
        return bool(among.all())

    def _numbers_among(self, j: int, column: Array) -> Array:
        values = self.values[j, : self.counts[j]]
        among = np.zeros(len(column), bool)
        if len(values):
            among = values[np.minimum(np.searchsorted(values, column), len(values) - 1)] == column
        return among | np.isnan(column) if self.nan[j] and column.dtype.kind == "f" else among

    def _texts_among(self, j: int, column: Array) -> Array:
        tables: list[set[Any]] | None = self.__dict__.get("_tables")
        if tables is None:
            tables = [set(row[:count].tolist()) for row, count in zip(self.values, self.counts, strict=True)]
            for table, none in zip(tables, self.none, strict=True):
                table.update([None] if none else [])
            object.__setattr__(self, "_tables", tables)
        known, items = tables[j], column.tolist()
        if self.allowed and known.issuperset(items):  # nearly always, and much faster than the question for every row
            return np.ones(len(items), bool)
        return np.array([item in known if item == item else bool(self.nan[j]) for item in items], bool)


@operator
class CheckNotAll(CheckValues):
    """y = x. Rejects a batch in which every row equals values[:, 0] in every column, because the source treats such a batch
    differently. Any other batch passes."""

    whole = True
    span = Check.span  # other values pass

    def require(self, x: Array) -> None:
        if len(x) and (x == self.values[:, 0]).all():
            owner = self.owner.rpartition(".")[2]
            raise InvalidInputError(
                found="rows in which every value is missing",
                expected=f"some value, since {owner} does not iterate over a batch that has none",
            )

    def accepts(self, x: Node) -> None:
        return None


@operator
class WarnValues(CheckValues):
    """y = x. Warns of values that CheckValues would reject, once for all rows and columns, as the source does. `columns` are the
    columns' numbers there; `become` says how unknown categories are encoded."""

    _: KW_ONLY
    become: str

    whole = True
    span = Check.span  # other values pass

    def require(self, x: Array) -> None:
        found = ", ".join(self.columns[j] for j, _ in self._rejected(x))
        if found:
            message = (
                f"Found unknown categories in columns [{found}] during transform. These unknown categories will be encoded as "
            )
            warnings.warn(message + self.become, UserWarning, stacklevel=2)


@operator
class CheckAgreed(Check):
    """y = x. Rejects a batch in which some of the truth values x[N, 1] are true and others are not, because the source looks at
    all rows of a batch to decide how to read them. `what`: the truth value in words, for the message."""

    _: KW_ONLY
    what: str

    whole = True

    def require(self, x: Array) -> None:
        if x.any() and not x.all():
            raise InvalidInputError(
                found=f"{int(x.sum())} rows of {len(x)} whose {self.what}",
                expected="all rows or none, since all rows of a call together decide how each is read",
                advice="Pass these rows in a call of their own.",
            )

    def accepts(self, x: Node) -> Node | None:
        return None
