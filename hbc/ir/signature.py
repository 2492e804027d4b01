"""What a compiled model knows about the outside: the input it takes and the estimator it stands for. Plain data, saved as JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from hbc.errors import InvalidInputError
from hbc.ir.coded_strings import CodedStrings
from hbc.ir.graph import Graph
from hbc.ir.rows import Rows
from hbc.ir.types import Array, DType


@dataclass(frozen=True)
class InputSpec:
    """The input of a model: its columns in the order of fitting, and how the source library matches them.

    `strings` are the columns that hold strings. `by_name`: columns of a frame are found by name in any order, and further ones
    are ignored (ColumnTransformer); otherwise names must be the fitted ones in their order. `dtype_by_column`: the source treats columns
    of different dtypes differently, so a frame of mixed float dtypes needs a variant of its own. `frames_only`: it names columns,
    and rejects arrays. `integers_as_f64`: it takes the integers of a frame for float64. `sparse`: whether it takes sparse matrices,
    `sparse_nan`: with NaN in them;
    `absent_is_missing`: what they leave out is NaN to it, not 0.
    `integer_bits`: of the columns that are computed with in their own dtype, the least width at which integers are computed as
    int64 are (0 for other columns; empty: there is none).
    `frames_as_f64`: the columns whose float32 it takes for float64 where the frame is not of pandas.
    `narrow_as_f32`: bool and integers of 8 and 16 bits give what they give as float32. `float_entries`: sparse matrices must be floats.
    `own_dtype`: the columns of which `transform` returns an array of their common dtype (empty: it does not).
    `native_order`: that is in the machine's byte order, whatever that of the input is.
    `libraries`: those whose frames it takes (empty: any).
    `reader`: "lightgbm", "xgboost" or "catboost" where that library is given the input itself, and rejects what scikit-learn takes.
    `plain_floats`: it reads arrays of other byte orders, or of more than 64 bits, as something else.
    `stacked`: groups of a frame's columns that it puts beside others as they are, before anything has read them.
    `dates`: groups of columns that it reads together and makes float64 of, dates and time spans too, if all are of one dtype.
    `items`: "documents" (strings), "dicts", "lists" or "sets" for models that take a sequence of these instead of a matrix.
    `functions`: of the columns that it gives to a function as a frame has them, the least width at which integers of pandas' own
    dtypes give what float64 gives (0 for other columns; empty: there is none).
    `beside_numbers`: those to which it gives numbers of 64 bits too, if the frame is of pandas.
    `digits`: the columns of strings where integers and bool stand for their decimal digits, and None is NaN.
    `signed`: of the columns with `integer_bits`, those whose unsigned integers it rejects, whatever their width.
    `objects_stay`: 1 for columns of numbers whose Python objects it does not convert, so that strings are no numbers there, 2 where
    they would come out again, 0 for other columns (empty: there is none).
    `texts_only`: the columns of strings where it rejects a column of floats that are all NaN.
    `objects_only`: the columns of numbers of which it takes Python objects and bool only.
    `fixed_width`: whether it takes numpy's strings of a fixed width, as which lists of strings come.
    `dtypes_apart`: columns of different dtypes give columns of different dtypes, so a frame of them needs a variant of its own.
    `dense_methods`: those that reject sparse matrices, where others take them.
    `none_apart`: the columns of numbers where None is not NaN to the source, and is rejected. `ndim` is 1 for label encoders.
    """

    n_features: int
    feature_names: tuple[str, ...] | None = None
    strings: tuple[int, ...] = ()
    by_name: bool = False
    dtype_by_column: bool = False
    frames_only: bool = False
    integers_as_f64: bool = False
    sparse: bool = True
    sparse_nan: bool = True
    absent_is_missing: bool = False
    ndim: int = 2
    integer_bits: tuple[int, ...] = ()
    none_apart: tuple[int, ...] = ()
    frames_as_f64: tuple[int, ...] = ()
    dates: tuple[tuple[int, ...], ...] = ()
    items: str = ""
    narrow_as_f32: bool = False
    float_entries: bool = False
    own_dtype: tuple[int, ...] = ()
    native_order: bool = False
    stacked: tuple[tuple[int, ...], ...] = ()
    libraries: tuple[str, ...] = ()
    reader: str = ""
    plain_floats: bool = False
    digits: tuple[int, ...] = ()
    functions: tuple[int, ...] = ()
    beside_numbers: tuple[int, ...] = ()
    signed: tuple[int, ...] = ()
    objects_stay: tuple[int, ...] = ()
    texts_only: tuple[int, ...] = ()
    fixed_width: bool = True
    objects_only: tuple[int, ...] = ()
    dtypes_apart: bool = False
    dense_methods: tuple[str, ...] = ()

    def describe_column(self, index: int) -> str:
        return f"column {index}" if self.feature_names is None else f"column {index} ({self.feature_names[index]!r})"


FRAME_LIBRARIES = ("pandas", "polars")
"""In whose frames results may come."""


@dataclass(frozen=True)
class FrameOutput:
    """A result that is a frame (scikit-learn's `set_output`): its library and its column names. `origins`: for every column the
    column of the input that it is, as the caller gave it, or -1 for one that the graph computes; those come in blocks, in order.
    `index`: it has the index of a pandas frame that is given. `native`: the source computes with the caller's frame itself, which
    must then be of this library. `arrays`: whether arrays may be given, of which the source would check columns that are kept."""

    library: str
    names: tuple[str, ...]
    origins: tuple[int, ...]
    index: bool = False
    native: bool = False
    arrays: bool = True


@dataclass(frozen=True)
class ModelInfo:
    """The estimator: its public dotted name, what it exposes besides methods, the numpy dtypes of outputs that the graph's
    types cannot say (labels as `<U3`, `object`, …), by method, and the dtype and shape of what a method returns for zero rows
    where that is not what it returns otherwise. `sparse`: the classes of scipy.sparse in which a method returns what it
    computes of an array, of a CSR matrix, and of a CSC matrix ("" for an array; " i64" behind it stands for indices of int64, " *"
    for an array or a matrix of scipy's as the input is one). `frames`: the methods that return a frame. `given_back`: those that return
    an array as it is given, itself."""

    source: str
    attributes: dict[str, object]
    output_dtypes: dict[str, str]
    without_rows: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    sparse: dict[str, tuple[str, ...]] = field(default_factory=dict)
    frames: dict[str, FrameOutput] = field(default_factory=dict)
    given_back: tuple[str, ...] = ()


Kind = DType | Literal["unread"]
Kinds = tuple[Kind, ...]
"""The dtype of every column of one variant of a model; `unread` columns are not part of its graph's inputs."""


@dataclass(frozen=True)
class Sample:
    """What a sample of the input says: column names, where it has them, and dtypes."""

    names: tuple[str, ...] | None
    kinds: tuple[DType, ...]


NA = "\0pandas.NA"
"""What a pandas.NA among strings becomes: to scikit-learn's encoders it is neither None nor NaN nor any category."""


@dataclass(frozen=True)
class InputLimits:
    """Requirements on one graph input, by column: whether NaN and ±inf may come, and how large |x| may be."""

    allow_nan: Array
    allow_inf: Array
    limit: Array
    owners: tuple[str, ...]
    allow_na: Array = field(default_factory=lambda: np.array(True))
    """Of strings: whether pandas.NA (in the form of `NA`) may come."""

    @property
    def unrestricted(self) -> bool:
        return bool(self.allow_nan.all() and self.allow_inf.all() and np.isinf(self.limit).all())


GUARDED_ROWS = 4096
"""Rows that a guard computes at a time: what it computes can be much wider than the input (distances to all training points)."""


@dataclass(frozen=True)
class Guard:
    """A requirement on a value inside the graph: `graph` computes it from the same inputs in numpy, as its one output "value",
    and `require` raises InvalidInputError for what the source library would reject. Inputs up to the magnitude `safe` need no test.
    `whole`: it is a requirement on all rows together. `accepted` computes bool from the same inputs, as its one output "accepted": where
    all are true, `require` raises nothing. None: no backend's operators say so."""

    graph: Graph
    require: Callable[[Array], None]
    safe: float = 0.0
    whole: bool = False
    accepted: Graph | None = None

    def test(self, arrays: Sequence[Array]) -> None:
        if self.harmless(arrays):
            return
        rows = max(map(len, arrays)) or 1
        step = rows if self.whole or self.graph.mixes_rows else GUARDED_ROWS
        for start in range(0, rows, step):
            (value,) = self.graph.evaluate_rows(*(array[start : start + step] for array in arrays))["value"]
            if isinstance(value, CodedStrings):
                if not self.whole and _passes(self.require, value.distinct()):
                    continue
                value = value.dense()
            self.require(value.values() if isinstance(value, Rows) else value)

    def harmless(self, arrays: Sequence[Array]) -> bool:
        return self.safe > 0 and all(self._harmless(array) for array in arrays)

    def _harmless(self, array: Array) -> bool:
        if array.dtype.kind == "f":
            # The sum of squares bounds every value, unless it overflows or is NaN. A NaN does no harm here: where it is not
            # imputed, it stays NaN, and the limits on the columns say whether it may.
            if np.vdot(array, array) <= min(self.safe * self.safe, 1e37):
                return True
            return not ((array > self.safe).any() or (array < -self.safe).any())
        return array.dtype.kind not in "iu" or self.safe >= 2.0**63


def _passes(require: Callable[[Array], None], x: Array) -> bool:
    try:
        require(x)
    except InvalidInputError:
        return False
    return True


@dataclass(frozen=True)
class Limits:
    """The requirements on all inputs of a graph, in their order, and the least number of rows; `guards` are what no limit on a
    column can say, and are tested after the limits (on copies in host memory, whatever the device)."""

    inputs: tuple[InputLimits, ...]
    min_rows: int
    guards: tuple[Guard, ...] = ()


def input_layout(kinds: Kinds) -> dict[str, tuple[int, ...]]:
    """The graph inputs of a variant and the columns each holds, in order: a matrix `X` of the numbers (a matrix per dtype,
    `X_f32`, `X_f64`, where they differ) and a matrix `S` of the strings."""
    numeric = sorted(set(kinds) - {"str", "unread"})
    layout = {("X" if len(numeric) == 1 else f"X_{kind}"): _positions(kinds, kind) for kind in numeric}
    if "str" in kinds:
        layout["S"] = _positions(kinds, "str")
    return layout


def _positions(kinds: Kinds, wanted: Kind) -> tuple[int, ...]:
    return tuple(i for i, kind in enumerate(kinds) if kind == wanted)
