"""What converters say of the model's own input: the dtypes, frames and sparse matrices for which the source library does what the graph
does. Everything noted in one walk through a model is in `Notes`; parse.py makes the InputSpec of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hbc.ir.graph import Node
from hbc.ops.checks import Check
from hbc.ops.columns import SelectColumns
from hbc.ops.tensor import Cast, Concat, cast
from hbc.parser.frame import Frame, as_matrix


@dataclass
class Notes:
    """What has been noted in one walk through a model, and where the walk stands."""

    path: list[str] = field(default_factory=lambda: ["model"])
    columns_by_name: bool = False
    columns_in_order: bool = False
    frames_only: bool = False
    integers_as_f64: bool = False
    absent_is_missing: bool = False
    rejects_sparse: bool = False
    none_apart: list[Node | Frame] = field(default_factory=list)
    digits: list[Node | Frame] = field(default_factory=list)
    functions: dict[int, int] = field(default_factory=dict)
    integer_bits: list[tuple[Node | Frame, int]] = field(default_factory=list)
    signed: list[Node | Frame] = field(default_factory=list)
    objects_stay: list[tuple[Node | Frame, int]] = field(default_factory=list)
    texts_only: list[Node | Frame] = field(default_factory=list)
    texts_as_objects: bool = False
    objects_only: list[Node | Frame] = field(default_factory=list)
    dense_only: set[Node] = field(default_factory=set)
    rounds_sparse: bool = False
    widened: list[Node | Frame] = field(default_factory=list)
    narrow: list[Node | Frame] = field(default_factory=list)
    kept: list[tuple[Node, Node]] = field(default_factory=list)
    stacked: set[tuple[int, ...]] = field(default_factory=set)
    native_order: bool = False
    beside_numbers: set[int] = field(default_factory=set)
    libraries: tuple[str, ...] = ()
    reader: str = ""
    plain_floats: bool = False
    float_entries: bool = False
    polars: set[Node] = field(default_factory=set)
    rejects_sparse_nan: bool = False
    makers: dict[Node, tuple[Any, Node | Frame]] = field(default_factory=dict)
    frames: dict[tuple[Node, ...], Frame] = field(default_factory=dict)


_notes: ContextVar[Notes] = ContextVar("hbc_parser_notes")


@contextmanager
def noting() -> Iterator[Notes]:
    """Around one walk through a model: gives the notes of the converters in it."""
    notes = Notes()
    token = _notes.set(notes)
    try:
        yield notes
    finally:
        _notes.reset(token)


def columns_by_name(*, frames_only: bool = False) -> None:
    """Called by converters of estimators that pick the columns of the model's own input (ColumnTransformer): frames are matched by
    name in any order, and columns of different dtypes are treated apart. `frames_only`: the columns are given by name, and the
    source rejects an input that has none."""
    notes = _notes.get()
    notes.columns_by_name = True
    notes.frames_only = notes.frames_only or frames_only


def columns_in_order() -> None:
    """Called by converters of estimators that give the model's own input to some that pick columns by name and to others: a frame
    must then have the fitted columns in their order, as the others ask for."""
    _notes.get().columns_in_order = True


def integers_of_frames_are_f64() -> None:
    """Called by converters of estimators that take the integers of a frame for float64, but those of an array for something else.
    It counts where the estimator is given the model's own input."""
    notes = _notes.get()
    if len(notes.path) == 1:
        notes.integers_as_f64 = True


def maker(node: Node) -> tuple[Any, Node | Frame] | None:
    """The estimator whose `transform` a node is, and what it was given; None for other nodes."""
    return _notes.get().makers.get(node)


def absent_values_are_missing() -> None:
    """Called by converters of estimators to which the values that a sparse matrix leaves out are missing (NaN), not 0. Where such an
    estimator is not the only one to read the model's input, sparse matrices are rejected."""
    notes = _notes.get()
    if all(place == "best_estimator_" for place in notes.path[1:]):
        notes.absent_is_missing = True
    else:
        notes.rejects_sparse = True


def none_is_not_nan(x: Node | Frame) -> None:
    """Called by converters of estimators that tell None from NaN among Python objects: None is rejected where x is the model's input."""
    _notes.get().none_apart.append(x)


def digits_are_categories(x: Node | Frame) -> None:
    """Called by converters of estimators that take integers and bool among strings, as their decimal digits, where x are columns of
    strings of the model's input. It counts where nobody else reads these."""
    _notes.get().digits.append(x)


ANY_INTEGER = 1
"""bits of `computed_in_own_dtype`: integers and bool of any width become float64 there, as int64 does."""


NO_INTEGER = 128
"""bits of `given_to_a_function`: of integers it gives something else than of float64, whatever their width."""


def given_to_a_function(x: Frame, integer_bits: int, numbers: bool = False) -> None:
    """Called by converters of estimators that give a frame's columns to a function as they are, of dtypes of pandas' own too: integers
    must have `integer_bits` to give what float64 gives, as which they are read. `numbers`: it computes with numbers beside them, which
    have 64 bits where the frame is of pandas. It counts where they are the model's input."""
    functions = _notes.get().functions
    for column in x.columns:
        if column.origin is not None:
            _notes.get().beside_numbers |= {column.origin} if numbers else set()
            functions[column.origin] = max(functions.get(column.origin, ANY_INTEGER), integer_bits)


def computed_in_own_dtype(x: Node | Frame, integer_bits: int) -> None:
    """Called by converters of estimators that compute in their input's own dtype, float16 included. Where x is the model's input,
    floats must be float32 or float64, and integers must have `integer_bits` to give what int64 gives."""
    _notes.get().integer_bits.append((x, integer_bits))


def integers_are_signed(x: Node | Frame) -> None:
    """Called by converters of estimators that reject unsigned integers, beside `computed_in_own_dtype`. It counts as that does."""
    _notes.get().signed.append(x)


def objects_stay_objects(x: Node | Frame, given_back: bool = False) -> None:
    """Called by converters of estimators that do not make numbers of Python objects: strings of digits are rejected where x is the
    model's input. `given_back`: they give objects for objects, which are all rejected where the model transforms."""
    _notes.get().objects_stay.append((x, 1 + given_back))


def floats_are_no_strings(x: Node | Frame) -> None:
    """Called by converters of estimators that fail for a column of floats where they were fitted on strings, also if all are NaN. It
    counts where x is the model's input."""
    _notes.get().texts_only.append(x)


def numbers_must_be_objects(x: Node | Frame) -> None:
    """Called by converters of estimators that were fitted on Python objects, which they cannot compare with numbers of numpy's dtypes.
    It counts where x is the model's input."""
    _notes.get().objects_only.append(x)


def strings_must_be_objects() -> None:
    """Called by converters of estimators that reject arrays of strings of a fixed width, as which lists of strings come."""
    _notes.get().texts_as_objects = True


def computed_of_dense_only(y: Node) -> Node:
    """y, which the source does not compute of a sparse matrix of the model's input, though it does other methods."""
    _notes.get().dense_only.add(y)
    return y


def as_numbers(x: Node | Frame) -> Node:
    """x as one matrix. Beside float32, bool and integers of 8 and 16 bits give float32 in numpy, but int64, which they are here, float64:
    they are rejected."""
    if isinstance(x, Frame) and {"f32", "i64"} <= set(x.dtypes):
        computed_in_own_dtype(x.select([i for i, kind in enumerate(x.dtypes) if kind == "i64"]), 32)
    return as_matrix(x)


def narrow_integers_give_f32(x: Node | Frame) -> None:
    """Called by converters of estimators that compute with float32 parameters in numpy's common dtype: float64 for int64, but float32
    for bool and integers of 8 and 16 bits, where x is the model's input."""
    _notes.get().narrow.append(x)


def in_dtype_of(x: Node, y: Node) -> Node:
    """y, which the source gives in x's own dtype, whatever it is."""
    _notes.get().kept.append((y, x))
    return y


def in_native_order() -> None:
    """Called by converters of estimators that give numbers of the input's dtype in the machine's byte order, whatever the input's is."""
    _notes.get().native_order = True


def read_by(library: str, x: Node | Frame) -> None:
    """Called by converters of estimators of a library that reads other dtypes than scikit-learn, where x is the model's own input."""
    _notes.get().plain_floats |= library == "xgboost"
    if isinstance(x, Frame) and any(column.origin is not None for column in x.columns):
        _notes.get().reader = library


def frames_must_be_of(x: Node | Frame, *libraries: str) -> None:
    """Called by converters of estimators that fail for other frames, or compute something else of them. It counts where x are columns of
    the model's input."""
    notes = _notes.get()
    if isinstance(x, Frame) and any(column.origin is not None for column in x.columns):
        notes.libraries = tuple(library for library in notes.libraries or libraries if library in libraries)


def stacked_as_given(x: Frame) -> None:
    """Called by converters of estimators that put a frame's columns beside others as they are, in an array. It counts where they are
    the model's input."""
    origins = tuple(column.origin for column in x.columns if column.origin is not None)
    if origins:
        _notes.get().stacked.add(origins)
    in_native_order()


def sparse_matrices_must_be_floats() -> None:
    """Called by converters of estimators that reject sparse matrices of integers. It counts where they are given the model's own input."""
    notes = _notes.get()
    if all(place == "best_estimator_" for place in notes.path[1:]):
        notes.float_entries = True


def read_from_frames(x: Node) -> Node:
    """x as `check_array(dtype=FLOAT_DTYPES)` reads it from a frame. It looks for float32 among the dtypes of pandas only: from any
    other library's frame it makes float64, of the caller's and of those that `set_output` makes between two estimators."""
    notes = _notes.get()
    if not _is_computed(x, notes.makers):
        notes.widened.append(x)
    return cast(x, "f64") if x.type.dtype == "f32" and _is_polars(x, notes.polars) else x


def _is_computed(x: Node, makers: Mapping[Node, Any]) -> bool:
    """Whether another estimator has made x, which is then an array (but for `set_output`)."""
    passes = isinstance(x.op, (Check, Concat, SelectColumns, Cast)) and bool(x.inputs)
    return x in makers or (passes and all(_is_computed(source, makers) for source in x.inputs))


def given_as_pandas(m: Any, x: Frame) -> Frame:
    """x, where the source hands it on as a frame of pandas that m has made, whatever the caller's frame is."""
    makers = _notes.get().makers
    made = {}
    for node in {column.node for column in x.columns if column.node.type.dtype != "str"}:
        made[node] = SelectColumns(np.arange(node.type.columns))(node)
        makers.setdefault(made[node], (m, x))
    return replace(x, columns=tuple(replace(column, node=made.get(column.node, column.node)) for column in x.columns))


def given_as_polars(x: Node | Frame) -> None:
    """Called where the source hands on a frame of polars."""
    _notes.get().polars.update({column.node for column in x.columns} if isinstance(x, Frame) else {x})


def _is_polars(x: Node, known: set[Node]) -> bool:
    passes = isinstance(x.op, (Check, Concat, SelectColumns, Cast)) and bool(x.inputs)
    return x in known or (passes and all(_is_polars(source, known) for source in x.inputs))


def sparse_values_round_otherwise() -> None:
    """Called by converters of estimators that compute a sparse matrix of the model's input in another order than a dense one: where
    a decision follows, sparse matrices are rejected."""
    _notes.get().rounds_sparse = True


def sparse_matrices_differ() -> None:
    """Called by converters of estimators that compute something else of a sparse matrix of the model's input than of a dense one:
    sparse matrices are rejected."""
    _notes.get().rejects_sparse = True


def missing_values_cannot_be_sparse() -> None:
    """Called by converters of estimators that take NaN in the model's own input, but not in a sparse matrix."""
    _notes.get().rejects_sparse_nan = True
