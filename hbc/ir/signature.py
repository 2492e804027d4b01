"""Records of a compiled model's interface: the input that it takes, and the estimator that it stands for. Plain data, saved as JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, fields
from functools import lru_cache
from operator import or_
from typing import Any, Literal, TypeVar

import numpy as np

from hbc.errors import InvalidInputError
from hbc.ir.coded_strings import CodedStrings
from hbc.ir.graph import Graph
from hbc.ir.rows import Rows
from hbc.ir.types import Array, DType
from hbc.lazy import record


def either(a: bool, b: bool) -> bool:
    return a or b


def both(a: bool, b: bool) -> bool:
    return a and b


def union(a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(sorted({*a, *b}))


def common(a: tuple[str, ...], b: tuple[str, ...]) -> tuple[str, ...]:
    """The names in both; () stands for all names."""
    return tuple(name for name in a if name in b) if a and b else a or b


def same(a: Any, b: Any) -> Any:
    """The value of both, or () if they differ. None is no value: the other one counts."""
    return b if a is None else a if b is None or a == b else ()


def given(a: Any, b: Any) -> Any:
    """The value that is not neutral. Only one estimator of a model gives one."""
    return a or b


def first(a: Any, b: Any) -> Any:
    """a: the value comes from the model itself, and converters add nothing to it."""
    return a


def joins(join: Callable[[Any, Any], Any], neutral: Any) -> Any:
    """A field of a record: its neutral value, and how the values of two records become one."""
    return field(default=neutral, metadata={"join": join})


NESTED = {"join": or_}
"""The metadata of a field that is a record itself."""

Record = TypeVar("Record", bound="Joined")


class Joined:
    """A record that can be joined with another: `a | b` is the record of a model for which both a and b have been
    found. Fields are joined one by one (see `joins`). Every field has a neutral value, which changes nothing."""

    def __or__(self: Record, other: Record) -> Record:
        if self is other:
            return self
        values = {f.name: f.metadata["join"](getattr(self, f.name), getattr(other, f.name)) for f in fields(self)}  # type: ignore[arg-type]
        return type(self)(**values)


@record
class Column(Joined):
    """Facts about one column of the input: how the source library treats it. A column without notes has the neutral values."""

    strings: bool = joins(either, False)
    """It holds strings. All other columns hold numbers; the fields up to `none_apart` are about those."""
    integer_bits: int = joins(max, 0)
    """The source computes in the column's own dtype, and integers of at least this many bits give
    the same as int64. 0: it computes in a dtype of its own, so that the width does not matter."""
    signed: bool = joins(either, False)
    """Unsigned integers are rejected, whatever their width. Only beside `integer_bits`."""
    unsigned: bool = joins(either, False)
    """int64 is rejected. Only beside `integer_bits`."""
    f32_at_once: bool = joins(either, False)
    """The source makes float32 of integers at once. Where hbc makes float64 of them before (in a frame of several dtypes, in a dtype of
    pandas' own), or the other way round (in a list), an integer that then gives another float32 is rejected."""
    f64_between: bool = joins(either, False)
    """hbc makes float64 of integers before in every case, in an array of integers too."""
    function_bits: int = joins(max, 0)
    """A function receives the column as a frame holds it, and integers of pandas' own dtypes with at least this many bits give the same as
    float64. 0: there is no such function."""
    beside_numbers: bool = joins(either, False)
    """That function computes with Python numbers beside the column. In a frame of pandas it must then have 64 bits."""
    frames_as_f64: bool = joins(either, False)
    """Float32 counts as float64 in a frame that is not of pandas."""
    objects_stay: bool = joins(either, False)
    """Python objects are not converted to numbers, so that the string "1" is no number."""
    returned: bool = joins(either, False)
    """`transform` returns the column as it was given, so that Python objects would come out again: they are rejected."""
    objects_only: bool = joins(either, False)
    """The model was fitted on Python objects, which the source cannot compare with numbers of numpy's dtypes but bool."""
    none_apart: bool = joins(either, False)
    """None is not NaN to the source, and is rejected."""
    texts_only: bool = joins(either, False)
    """A column of strings: one of floats is rejected, even if all of them are NaN."""
    knows_none: bool = joins(either, False)
    """A column of strings: None is one of its categories, or what an imputer replaces."""
    knows_nan: bool = joins(either, False)
    """The same of NaN."""
    categories_only: bool = joins(either, False)
    """A column of strings: only one of categories in a frame of pandas is taken. With `category_values`, all of them must be among these,
    whether they stand there or not, and those of polars and dictionaries of Arrow are taken too (XGBoost)."""
    category_values: tuple[Any, ...] = joins(given, ())
    """A frame of pandas must have categories there. Their places among these numbers (bool, strings) are what the source computes with, and
    what an array holds itself."""
    category_dtype: str = joins(given, "")
    """The dtype that the categories must have. All of them must be among `category_values`, and frames of other libraries are rejected
    (XGBoost). "": of any dtype; others are missing, and frames of other libraries hold the places themselves (LightGBM)."""
    category_of_frame: bool = joins(either, False)
    """Beside `category_values`: records are rejected, since the model does not surely say that this is the column."""
    category_as_object: bool = joins(either, False)
    """Beside `category_values`: another estimator makes Python objects of a frame with categories, and of them float64."""
    numbers_unknown: bool = joins(either, False)
    """A column of strings: numbers among the Python objects there are categories that no estimator knows."""
    picked: bool = joins(either, False)
    """An estimator picks the column of a frame by its name, so that the frame must have it, though nothing may read it."""
    digits: bool = joins(either, False)
    """A column of strings: integers and bool stand for their decimal digits, and None is NaN."""

    @property
    def none_is_nan(self) -> bool:
        """Whether a missing value in a record is NaN there. Otherwise it is None, unless the column holds numbers."""
        return not self.strings or (self.knows_nan and not self.knows_none)

    @property
    def alike(self) -> Any:
        """What distinguishes it from other columns: (False, True) equals (0, 1) in Python, but they are other categories."""
        return self, tuple(map(type, self.category_values))

    def __or__(self, other: Column) -> Column:
        return super().__or__(other) if self.category_values or other.category_values else self._joined(other)

    @lru_cache(maxsize=1024)  # noqa: B019  most columns of a wide model are alike: to join two takes 5 µs, to look it up 1
    def _joined(self, other: Column) -> Column:
        return super().__or__(other)


def keeps_dtype(methods: Sequence[str]) -> str:
    """The method of a model that may return an array in the dtype of its input: `transform`; without one, `decision_function` (that of an
    AdaBoostClassifier of one class)."""
    return "transform" if "transform" in methods else "decision_function"


@record
class Arrays(Joined):
    """Facts about arrays and lists: how the source library treats them.
    `narrow_as_f32` and `native_order` are also about the numbers of frames."""

    narrow_as_f32: bool = joins(either, False)
    """Bool and integers of 8 and 16 bits give the same as float32."""
    plain_floats: bool = joins(either, False)
    """Numbers of the other byte order, or of more than 64 bits, are read as something else: they are rejected."""
    native_order: bool = joins(either, False)
    """A result in the input's own dtype is in the machine's byte order, whatever the order of the input."""
    fixed_width: bool = joins(both, True)
    """Strings of a fixed width are taken, numpy's dtype of a list of strings."""
    tuples: bool = joins(both, True)
    """Tuples of rows are taken, as lists are."""
    objects_as_f32: Literal["", "lists", "all", "exact", "stacked"] = joins(given, "")
    """Python objects become float32: those of lists, or all. "exact": they must be numbers that float32 holds, since one estimator may read
    them as float32, and another as float64. "stacked": they become float64, and so do integers that a step takes for objects."""
    lists: bool = joins(both, True)
    """Lists of rows are taken, and tuples if `tuples` says so."""
    wide_only: bool = joins(either, False)
    """Python objects and float16 are rejected."""


@record
class Frames(Joined):
    """How the source library reads a frame: how it finds columns, and which libraries and dtypes it takes."""

    by_column: bool = joins(either, False)
    """An estimator picks columns (ColumnTransformer): it finds them by name in any order and ignores further ones. It treats columns of
    different dtypes differently, so that a frame of several float dtypes needs a variant of its own."""
    in_order: bool = joins(either, False)
    """The frame must have the fitted names in their order all the same, since another estimator reads it as a whole."""
    required: bool = joins(either, False)
    """The columns are picked by name, so that arrays are rejected."""
    apart: bool = joins(either, False)
    """Columns of different dtypes give columns of different dtypes, so that a frame of them needs a variant of its own."""
    integers_as_f64: bool = joins(either, False)
    """The integers of a frame count as float64, those of an array do not."""
    integers_exact: bool = joins(either, False)
    """Beside `integers_as_f64`: another estimator computes with the integers themselves. They must be such as float32 holds, which are the
    same numbers to both."""
    no_integers: bool = joins(either, False)
    """The integers and bool of a frame are rejected."""
    plain_dtypes: bool = joins(either, False)
    """The columns that are read must be of numpy's dtypes, of at least 32 bits, and no Python objects."""
    libraries: tuple[str, ...] = joins(common, ())
    """The libraries of the frames that are accepted; () for any."""
    no_numbers: tuple[str, ...] = joins(union, ())
    """The dtypes of columns that are not accepted as numbers, with their library, such as "pandas.CategoricalDtype"
    (FrameView.rejected_by)."""
    text_names: bool = joins(either, False)
    """Names that are no strings count as their text, and have to be the fitted names too. Otherwise such a frame is read by position."""
    tuples_as_text: bool = joins(either, False)
    """Beside `text_names`: the text of a tuple, the name of a column of several levels, is "('a', 'b')" and not "a b"."""
    numbered: bool = joins(either, False)
    """The fitted names are the numbers of the columns, "0", "1" and so on, which `feature_names` leaves out."""
    names: tuple[str, ...] = joins(given, ())
    """Names, as text, that an estimator inside the model was fitted with, if the model itself knows none."""
    unnamed: bool = joins(either, False)
    """If the model knows no names, those of a frame have to be no strings, since an estimator may compare names made of them."""
    named_methods: tuple[str, ...] = joins(union, ())
    """The methods that reject input without names of columns (arrays, lists, sparse matrices). The other methods take it."""
    integer_categories: tuple[int, ...] | None = joins(same, None)
    """How many categories each categorical column of a frame of pandas must have, in order of the columns: the integers from 0 on. The
    values are then their own codes. () or None: nothing is asked."""
    rejected: bool = joins(either, False)
    """Every frame is rejected: see `Codes` in hbc/parser/front_door.py."""
    validated: bool = joins(either, False)
    """An estimator of scikit-learn reads the frame too, beside libraries that read it in ways of their own (`text_names`, `no_numbers`). It
    rejects names of different types, and reads sparse columns otherwise."""
    rows_required: bool = joins(either, False)
    """A frame of pandas must have rows."""
    dates: tuple[tuple[int, ...], ...] = joins(union, ())
    """Groups of columns that are read together, as float64: dates and time spans too, if all columns of a group have one dtype."""
    no_bool_alone: tuple[tuple[int, ...], ...] = joins(union, ())
    """Groups of columns that are read together, in their common dtype, which must not be bool."""
    stacked: tuple[tuple[int, ...], ...] = joins(union, ())
    """Groups of columns that are put beside others unchanged, before any estimator has converted them. A group holds its columns twice if a
    frame holds them beside computed numbers."""

    @property
    def by_name(self) -> bool:
        """Columns are found by name in any order, and further ones are
        ignored. Otherwise the names must be the fitted ones in their order."""
        return self.by_column and not self.in_order


@record
class Sparse(Joined):
    """Facts about sparse matrices: how the source library treats them."""

    accepted: bool = joins(both, True)
    """It takes them."""
    nan: bool = joins(both, True)
    """It takes NaN in them."""
    absent_is_missing: bool = joins(either, False)
    """The values that they leave out are NaN, not 0."""
    floats_only: bool = joins(either, False)
    """They must be of float32 or float64."""
    matrices_only: bool = joins(either, False)
    """scipy's older classes only: csr_matrix, not csr_array."""
    csr_if_named: bool = joins(either, False)
    """csr_matrix only, if the model knows names of columns."""
    csc: bool = joins(both, True)
    """It computes of CSC what it computes of CSR."""
    dense_methods: tuple[str, ...] = joins(union, ())
    """The methods that reject sparse matrices. The other methods take them."""


def joined_columns(a: tuple[Column, ...], b: tuple[Column, ...]) -> tuple[Column, ...]:
    """The facts of both about each column. Most columns of a wide model are the same two objects, which are joined once."""
    joined: dict[tuple[int, int], Column] = {}
    for one, other in zip(a, b, strict=False):
        if (id(one), id(other)) not in joined:
            joined[id(one), id(other)] = one | other
    return tuple([joined[id(one), id(other)] for one, other in zip(a, b, strict=False)])


@record
class InputSpec(Joined):
    """The input of a model: its columns in the order of fitting, and how the source library treats arrays, frames and sparse matrices."""

    columns: tuple[Column, ...] = joins(joined_columns, ())
    """One record for each column."""
    feature_names: tuple[str, ...] | None = joins(first, None)
    """The names of the columns, where the model knows them."""
    ndim: int = joins(first, 2)
    """2 for a matrix. 1 for a vector, which label encoders take, and for `items`."""
    items: str = joins(first, "")
    """"documents" (strings), "dicts", "lists" or "sets" for a sequence of these instead of a matrix."""
    own_dtype: tuple[int, ...] | None = joins(same, None)
    """The method that `keeps_dtype` names returns an array in the common dtype of these columns. () or None: in a dtype of its own."""
    arrays: Arrays = field(default_factory=Arrays, metadata=NESTED)
    frames: Frames = field(default_factory=Frames, metadata=NESTED)
    sparse: Sparse = field(default_factory=Sparse, metadata=NESTED)

    @property
    def n_features(self) -> int:
        return len(self.columns)

    def having(self, fact: str) -> list[int]:
        """The columns for which a field of Column is not neutral (0 or False)."""
        return [i for i, column in enumerate(self.columns) if getattr(column, fact)]

    def describe_column(self, index: int) -> str:
        return f"column {index}" if self.feature_names is None else f"column {index} ({self.feature_names[index]!r})"


FRAME_LIBRARIES = ("pandas", "polars")
"""The libraries of the frames in which results may come."""


@record
class FrameOutput:
    """A result that is a frame (scikit-learn's `set_output`)."""

    library: str
    """One of FRAME_LIBRARIES."""
    names: tuple[str, ...]
    """The names of its columns."""
    origins: tuple[int, ...]
    """For each column: the number of the input column that it is, unchanged, or -1 if the graph computes it. The graph gives the computed
    columns in blocks, in order."""
    index: bool = False
    """A frame of pandas gets the index of the frame that is given."""
    native: bool = False
    """The source computes with the caller's frame itself, which must then be of this library."""
    arrays: bool = True
    """Arrays are accepted. If not: the source would check the values of the columns that come out unchanged, which hbc does not."""


@record
class ModelInfo:
    """The estimator that a compiled model stands for."""

    source: str
    """Its public dotted name."""
    attributes: dict[str, object]
    """Its attributes: `classes_`, `n_features_in_`, …"""
    output_dtypes: dict[str, str]
    """Method → the numpy dtype of its result, if no type of the graph can express it, such as labels of `<U3` or `object`."""
    without_rows: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    """Method → (dtype, shape) of its result for zero rows, if it differs from an array [0, …] of the usual dtype."""
    sparse: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Method → the class of scipy.sparse of its result for an array, for a CSR matrix and for a CSC matrix; "" for an array.
    " i64" behind the name stands for indices of int64, " *" for scipy's sparse array or matrix, whichever the input is."""
    frames: dict[str, FrameOutput] = field(default_factory=dict)
    """The methods that return a frame."""
    given_back: tuple[str, ...] = ()
    """The methods that return the very array that they receive."""
    failing: dict[str, str] = field(default_factory=dict)
    """Method → why the source's own method fails for every input. The compiled one raises an error with this reason."""
    kind: str = ""
    """Its kind in scikit-learn's words: "classifier", "regressor", "clusterer" …; "" for none, or if a file does not say."""
    score: str = ""
    """The metric of `predict` that its `score` is: "accuracy" or "r2"; "" for any other, or if a file does not say."""
    options: str = ""
    """The library whose options its `predict` hands on: "lightgbm" or "xgboost", of the last step of a Pipeline. Otherwise ""."""


Kind = DType | Literal["unread"]
Kinds = tuple[Kind, ...]
"""The dtype of every column of one variant of a model; `unread` columns are not part of its graph's inputs."""


@record
class Sample:
    """The names and dtypes of the columns of a sample of the input."""

    names: tuple[str, ...] | None
    """Their names, if it has any."""
    kinds: tuple[DType, ...]
    """Their dtypes."""
    categories: tuple[int, ...] | None = None
    """The columns of categories in a frame of pandas; None for another sample."""


NA = "\0pandas.NA"
"""Stands for pandas.NA among strings. To scikit-learn's encoders it is neither None nor NaN nor any category."""


class NumberAmongStrings(str):
    """Stands for a number among strings (Column.numbers_unknown): a string that is no category, and looks like the number in errors."""

    __slots__ = ()

    def __new__(cls, number: Any) -> NumberAmongStrings:
        return super().__new__(cls, f"\0number {number!r}")

    def __repr__(self) -> str:
        return self.partition(" ")[2]


@record
class InputLimits:
    """The values that the columns of one graph input may hold. Every array has an element for each column."""

    allow_nan: Array
    """Whether NaN is accepted."""
    allow_inf: Array
    """Whether ±inf is accepted."""
    limit: Array
    """The largest |x|."""
    owners: tuple[str, ...]
    """The estimators that reject all other values, for messages."""
    allow_na: Array = field(default_factory=lambda: np.array(True))
    """Whether pandas.NA is accepted among strings, as `NA`."""

    @property
    def unrestricted(self) -> bool:
        return bool(self.allow_nan.all() and self.allow_inf.all() and np.isinf(self.limit).all())

    def largest(self, dtype: np.dtype[Any], safe: float = np.inf) -> Array:
        """For each column the largest magnitude of a float of `dtype` that passes, and that no guard need look at, given up to which
        magnitude that is `safe`."""
        finite = float(np.finfo(dtype).max)
        return np.minimum(self.limit, np.where(self.allow_inf, safe, min(safe, finite))).astype(dtype)

    def sum_of_squares(self, dtype: np.dtype[Any], safe: float = np.inf) -> Any:
        """The largest sum of the squares of all numbers of `dtype` at which each of them surely passes, and no guard need look at one.
        None if every number passes. For integers it is None or -inf, which no sum is: theirs overflows, and may be negative."""
        if dtype.kind != "f":
            return None if (self.limit >= BEYOND_INTEGERS).all() else -np.inf
        most = min(safe * safe, float(np.finfo(dtype).max))
        if self.unrestricted or not self.limit.size:
            return None if np.isinf(safe) else dtype.type(most)
        smallest = float(self.limit.min())
        return dtype.type(min(most, smallest * smallest * 0.999) if smallest < 1e150 else most)


BEYOND_INTEGERS = 2.0**64
"""No integer is larger."""
GUARDED_ROWS = 4096
"""The rows that a guard computes at a time. Its value can be much wider than the input (distances to all training points)."""


@record
class Guard:
    """A requirement on a value inside the graph."""

    graph: Graph
    """Computes the value in numpy from the inputs of the model's graph. Its one output is called "value"."""
    require: Callable[[Array], None]
    """Raises InvalidInputError for a value that the source library would reject."""
    safe: float = 0.0
    """Inputs up to this magnitude need no test."""
    whole: bool = False
    """It is a requirement on all rows together, so that they cannot be tested in blocks."""
    accepted: Graph | None = None
    """Computes bool from the same inputs with operators that backends run. If all are true, `require` would raise nothing. Its one output
    is called "accepted". None: there is no such graph."""

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
            # The sum of squares bounds every value, unless it overflows or is NaN. A NaN does no harm here: if it is not imputed, it stays
            # NaN, and the limits on the columns say whether that is allowed.
            if sum_of_squares(array) <= min(self.safe * self.safe, 1e37):
                return True
            return not ((array > self.safe).any() or (array < -self.safe).any())
        return array.dtype.kind not in "iu" or self.safe >= 2.0**63


def sum_of_squares(array: Array) -> Any:
    """The sum of the squares of all numbers, by BLAS. It never warns. A matrix whose columns lie together, as in a frame, is read in the
    order of its memory: numpy would copy it twice, which took 33 of the 34 ms of a call of 10,000 rows of 30 columns."""
    lying = array.T if array.flags.fnc else array
    return np.vdot(lying, lying)


def _passes(require: Callable[[Array], None], x: Array) -> bool:
    try:
        require(x)
    except InvalidInputError:
        return False
    return True


@record
class Limits:
    """The requirements of a graph on its inputs."""

    inputs: tuple[InputLimits, ...]
    """The limits of each input, in the order of the inputs."""
    min_rows: int
    """The fewest rows of a call."""
    guards: tuple[Guard, ...] = ()
    """Requirements that no limit on a column can express. They are tested after the limits, on copies in host memory, for every device."""

    @property
    def tests(self) -> tuple[Guard, ...]:
        """The guards that look at every input. The others need not look at small numbers."""
        return tuple(guard for guard in self.guards if not guard.safe)

    @property
    def strictest(self) -> Guard | None:
        """The guard that lets the least numbers pass unseen, of those that let some."""
        return min((guard for guard in self.guards if guard.safe), key=lambda guard: guard.safe, default=None)

    @property
    def safe(self) -> float:
        """The magnitude up to which only `tests` need look at a number."""
        return np.inf if self.strictest is None else self.strictest.safe


def name_of(kinds: Kinds) -> str:
    """The name of a variant: "f32" where all columns have one dtype, otherwise "f64 × 3 + str × 2"."""
    if len(set(kinds)) == 1:
        return kinds[0]
    return " + ".join(f"{kind} × {kinds.count(kind)}" for kind in sorted(set(kinds)))


def input_layout(kinds: Kinds) -> dict[str, tuple[int, ...]]:
    """Name of a graph input → the columns that it holds, in order, for a variant with columns of the dtypes `kinds`. Numbers
    are in a matrix `X`, or if they have several dtypes in a matrix for each (`X_f32`, `X_f64`). Strings are in a matrix `S`."""
    numeric = sorted(set(kinds) - {"str", "unread"})
    layout = {("X" if len(numeric) == 1 else f"X_{kind}"): _positions(kinds, kind) for kind in numeric}
    if "str" in kinds:
        layout["S"] = _positions(kinds, "str")
    return layout


def _positions(kinds: Kinds, wanted: Kind) -> tuple[int, ...]:
    return tuple(i for i, kind in enumerate(kinds) if kind == wanted)
