"""The notes that converters take about the model's own input: for which dtypes, frames and sparse matrices the source library computes the
same as the graph. `Notes` holds the notes of one walk through a model. input_spec.py makes an InputSpec from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from hbc.ir.graph import Input, Node
from hbc.ir.signature import FRAME_LIBRARIES, Arrays, Column, Frames, Sparse
from hbc.ir.types import N
from hbc.ops.checks import Check
from hbc.ops.columns import SelectColumns
from hbc.ops.tensor import Cast, Concat, cast
from hbc.parser.frame import Frame, Refusal, as_frame, as_matrix, dtype_givers, nodes_of, untouched

ANY_INTEGER = 1
"""For Column.integer_bits and function_bits: integers of any width and bool give the same result as int64."""

NO_INTEGER = 128
"""For Column.function_bits: integers of every width give another result than float64."""


@dataclass
class Codes:
    """The columns of categories that an estimator reads: from a frame, their places."""

    columns: dict[int, Column]
    """Column of the model's input → what a frame must hold there."""
    owner: str
    """The class of the estimator."""
    path: str
    """Its place in the model."""


@dataclass
class Notes:
    """The notes of one walk through a model, and the place that the walk has reached."""

    path: list[str] = field(default_factory=lambda: ["model"])
    """The place of the estimator that is being converted."""
    packages: set[str] = field(default_factory=set)
    """The packages of the classes that were converted."""
    columns: dict[Node | Frame, Column] = field(default_factory=dict)
    """Value → facts about the input columns that give it its dtype."""
    given: dict[int, Column] = field(default_factory=dict)
    """Input column → facts about it."""
    arrays: Arrays = field(default_factory=Arrays)
    frames: Frames = field(default_factory=Frames)
    sparse: Sparse = field(default_factory=Sparse)
    rounds_sparse: bool = False
    """See `sparse_values_round_otherwise`."""
    dense_only: set[Node] = field(default_factory=set)
    """Results that the source does not compute for a sparse matrix."""
    named_only: set[Node] = field(default_factory=set)
    """Results that the source does not compute for input without names of columns."""
    narrow: list[Node | Frame] = field(default_factory=list)
    """See `narrow_integers_give_f32`."""
    widened: list[Node] = field(default_factory=list)
    """See `read_from_frames`."""
    kept: list[tuple[Node, Node]] = field(default_factory=list)
    """Pairs (y, x): the source gives y in the dtype of x."""
    failing: dict[Node, str] = field(default_factory=dict)
    """Stand-in → why the source library cannot compute the result (`computed_if_it_can_be`)."""
    framed: dict[Node, str] = field(default_factory=dict)
    """Values that the source holds in a frame that an estimator has made, and its library."""
    as_given: set[Node] = field(default_factory=set)
    """Computed values that the source holds in a frame if the model's input is one."""
    widened_in_frames: list[Node] = field(default_factory=list)
    """Integers of the model's input as float32, which the source reads from a frame as float64 (Frames.integers_as_f64)."""
    makers: dict[Node, tuple[Any, Node | Frame]] = field(default_factory=dict)
    """See `maker`."""
    codes: dict[Node, Codes] = field(default_factory=dict)
    """See `note_codes`."""
    looking: set[Node] = field(default_factory=set)
    """See `only_looks`."""
    sampled: tuple[int, ...] | None = None
    """The columns of the model's input that have categories of pandas in the sample. None: there is no sample that says it."""


Parameters = TypeVar("Parameters")

_notes: ContextVar[Notes] = ContextVar("hbc_parser_notes")


@contextmanager
def noting() -> Iterator[Notes]:
    """A context around one walk through a model; it gives the notes that the converters take in it."""
    notes = Notes()
    token = _notes.set(notes)
    try:
        yield notes
    finally:
        _notes.reset(token)


# --- facts about the model's input ---------------------------------------------------------------------------------------


def note(x: Node | Frame, fact: Column) -> None:
    """Note a fact about the columns of the model's input that give x its dtype (`dtype_givers`). Other columns of x do not count."""
    columns = _notes.get().columns
    columns[x] = columns.get(x, Column()) | fact


def note_given(x: Frame, fact: Column) -> None:
    """Note a fact about the columns of x that are unchanged columns of the model's input."""
    given = _notes.get().given
    for column in x.columns:
        if column.origin is not None:
            given[column.origin] = given.get(column.origin, Column()) | fact


def note_input(fact: Arrays | Frames | Sparse, given: Node | Frame | None = None) -> None:
    """Note a fact about the model's input as a whole. With `given`, note it only
    if `given` is a frame that contains unchanged columns of the model's input."""
    notes = _notes.get()
    if given is not None and not given_columns(given):
        return
    match fact:
        case Arrays():
            notes.arrays |= fact
        case Frames():
            notes.frames |= fact
        case Sparse():
            notes.sparse |= fact


def given_columns(x: Node | Frame) -> tuple[int, ...]:
    """The columns of the model's input that a frame contains unchanged; none for a matrix."""
    return tuple(column.origin for column in x.columns if column.origin is not None) if isinstance(x, Frame) else ()


def holds_categories(x: Node | Frame, column: int) -> bool:
    """Whether an estimator finds categories of pandas in a column of x, if the caller's frame has them: no step has made an array of it."""
    if not isinstance(x, Frame) or x.columns[column].origin is None or container_of(x) not in ("given", "pandas"):
        return False
    node = x.columns[column].node
    while isinstance(node.op, SelectColumns) or node in _notes.get().looking:
        (node,) = node.inputs
    return isinstance(node.op, Input)


def only_looks(checked: Node) -> Node:
    """`checked`, a Check of the model's input, after noting that the source hands on the columns of a pandas frame as they are: categories
    stay categories."""
    _notes.get().looking.add(checked)
    return checked


def columns_in_sample(x: Frame) -> list[int] | None:
    """The columns of x that have categories of pandas in the sample; None without such a sample."""
    sampled = _notes.get().sampled
    return None if sampled is None else [i for i, column in enumerate(x.columns) if column.origin in sampled]


def note_numbers_for_categories(x: Node | Frame) -> None:
    """Note that an estimator that was fitted on categories of pandas finds none in x, whatever frame the model is given. Its source then
    rejects frames, and takes the places of the categories from an array. Raises Refusal where a step makes a frame of arrays too."""
    container = container_of(x)
    if container in FRAME_LIBRARIES:
        reason = "it was fitted on categories of pandas, but a step before it gives it a frame without them, which the source rejects."
        raise Refusal(reason, "Fit the pipeline as a whole.")
    if container == "given":
        note_input(Frames(rejected=True))


def note_codes(read: Node, x: Node | Frame, columns: Mapping[int, Column], owner: str) -> None:
    """Note that an estimator of class `owner` computes with the places of categories in these columns of x, which `read` holds. The graph
    is then given the places in these columns of the model's input, so that other estimators must not read them."""
    if not columns:
        return
    notes, frame = _notes.get(), as_frame(x)
    if container_of(x) != "given":
        note_input(Frames(required=True, libraries=("pandas",)))  # a frame that a step makes of others has no categories
    origins = {frame.columns[column].origin: fact for column, fact in columns.items()}
    known = {origin: fact for origin, fact in origins.items() if origin is not None}
    notes.codes[read] = Codes(known, owner, ".".join(notes.path))


def is_alone() -> bool:
    """Whether the estimator that is being converted is the whole model, or the best estimator of a search that is the whole model."""
    return all(place == "best_estimator_" for place in _notes.get().path[1:])


def as_numbers(x: Node | Frame) -> Node:
    """x as one matrix. If x has float32 columns beside integers, and none of float64, notes that narrow
    integers of the input are rejected: in the source the common dtype of float32 and bool or integers of
    8 and 16 bits is float32. In the graph they are int64, and the common dtype is float64."""
    if isinstance(x, Frame) and {"f32", "i64"} <= set(x.dtypes) and "f64" not in x.dtypes:
        note(x.select([i for i, kind in enumerate(x.dtypes) if kind == "i64"]), Column(integer_bits=32))
    return as_matrix(x)


def read_as_f64_from_frames(x: Node, read: Node) -> Node:
    """`read`, x as float32, after noting that the source reads integers of the caller's frames as float64 instead."""
    note_input(Frames(integers_as_f64=True, no_integers=None in untouched(x)))
    _notes.get().widened_in_frames.append(read)
    return read


def narrow_integers_give_f32(x: Node | Frame) -> None:
    """Note that x is computed with float32 parameters in numpy's common dtype. This is float64 for int64, but float32 for bool and integers
    of 8 and 16 bits. If all columns of the input are noted so and nothing else reads them, such integers enter the graph as float32;
    otherwise they are rejected."""
    _notes.get().narrow.append(x)


def in_dtype_of(x: Node, y: Node) -> Node:
    """y, after noting that the source returns it in the dtype of x, whatever that dtype is."""
    _notes.get().kept.append((y, x))
    return y


def note_no_bool_alone(x: Node | Frame) -> None:
    """Note that the source computes with x in its own dtype, in which integers of every width give the same, and rejects bool. A frame of
    bool beside numbers has the dtype of these."""
    columns = given_columns(x)
    alone = isinstance(x, Frame) and len(columns) == len(x)
    note(x, Column(integer_bits=ANY_INTEGER if alone else 8))
    if alone:
        note_input(Frames(no_bool_alone=(columns,)))


def stacked_as_given(x: Frame) -> None:
    """Note that the source puts the columns of x, unchanged, beside others in one array."""
    if columns := given_columns(x):
        note_input(Frames(stacked=(columns,)))
    note_input(Arrays(native_order=True))


# --- sparse matrices -----------------------------------------------------------------------------------------------------


def computed_of_dense_only(y: Node) -> Node:
    """y, after noting that the source does not compute it for a sparse matrix. It may compute other methods for one."""
    _notes.get().dense_only.add(y)
    return y


def computed_of_names_only(y: Node) -> Node:
    """y, after noting that the source does not compute it for input without
    names of columns. It may compute other methods for such input."""
    _notes.get().named_only.add(y)
    return y


def computed_if_it_can_be(parameters: Callable[[], Parameters], result: Callable[[Parameters], Node], *shape: int) -> Node:
    """result(parameters()); or a stand-in f64[N, *shape] if `parameters` raises an error.

    For parameters that the source library computes anew in each call of a method. `parameters` must run nothing but code of the source
    library, or the same linear algebra. If it raises, the source's method raises too, for every input, while other methods may work.
    So the model converts, and the methods that need the stand-in raise UnsupportedOperatorError with the source's reason when they are
    called (`failing_methods`)."""
    try:
        with np.errstate(all="ignore"):
            found = parameters()
    except Warning:  # the caller has turned warnings into errors
        raise
    except Exception as error:  # whatever the source library raises
        stand_in = Input("failing", "f64", (N, *shape))()
        _notes.get().failing[stand_in] = " ".join(f"{type(error).__name__}: {error}".split())
        return stand_in
    return result(found)


def failing_methods(notes: Notes, outputs: Mapping[str, Sequence[Node]]) -> dict[str, str]:
    """Method → the source's reason, for the methods that need a stand-in of `computed_if_it_can_be`."""
    found = {}
    for method, nodes in outputs.items() if notes.failing else ():
        waiting, seen = list(nodes), set(nodes)
        while waiting:
            node = waiting.pop()
            if node in notes.failing:
                found[method] = notes.failing[node]
            waiting += set(node.inputs) - seen
            seen |= set(node.inputs)
    return found


def sparse_values_round_otherwise() -> None:
    """Note that the source computes a sparse matrix in another order than a dense one, and so rounds it differently. If an operator of the
    graph then jumps (a tree, for example), the model rejects sparse matrices."""
    _notes.get().rounds_sparse = True


# --- values that estimators hand on --------------------------------------------------------------------------------------


def maker(node: Node) -> tuple[Any, Node | Frame] | None:
    """(the estimator whose `transform` returned a node, the input of that estimator); None for other nodes."""
    return _notes.get().makers.get(node)


def read_from_frames(x: Node) -> Node:
    """x as `check_array(dtype=FLOAT_DTYPES)` reads it from a frame. Float32 stays float32 in a pandas frame, but becomes float64 in any
    other frame, since check_array looks at pandas' dtypes only. This holds for the caller's frames (it is noted) and for the frames that
    `set_output` makes between two estimators (x is cast)."""
    notes = _notes.get()
    if not _is_computed(x, notes.makers):
        notes.widened.append(x)
    return cast(x, "f64") if x.type.dtype == "f32" and _is_polars(x, notes.framed) else x


def _is_computed(x: Node, makers: Mapping[Node, Any]) -> bool:
    """Whether another estimator has made x. It is then an array, unless `set_output` says otherwise."""
    passes = isinstance(x.op, (Check, Concat, SelectColumns, Cast)) and bool(x.inputs)
    return x in makers or (passes and all(_is_computed(source, makers) for source in x.inputs))


def handed_on(m: Any, x: Node | Frame, library: str) -> Node | Frame:
    """x as new nodes that count as made by m: the source hands x on in a frame of its own, whatever the model's input is held in."""
    notes = _notes.get()
    made, places = {}, {}
    used = [(column.node, column.index) for column in as_frame(x).columns]
    for node in dict.fromkeys(node for node, _ in used):
        new, indices = node, list(range(node.type.columns))
        if node.type.dtype != "str":
            # Columns that nothing hands on must not count as read.
            indices = sorted({index for source, index in used if source is node})
            new = SelectColumns(np.asarray(indices, np.int64))(node)
            notes.makers.setdefault(new, (m, x))
        made[node], places[node] = new, {index: place for place, index in enumerate(indices)}
        notes.framed[new] = library
    if isinstance(x, Node):
        return made[x]
    return replace(x, columns=tuple(replace(c, node=made[c.node], index=places[c.node][c.index]) for c in x.columns))


def held_alike(y: Node, x: Node | Frame) -> Node:
    """y, after noting that the source holds it in a container of the kind of x."""
    notes = _notes.get()
    kind = container_of(x)
    if kind == "given":
        notes.as_given.add(y)
    elif kind != "array":
        notes.framed[y] = kind
    return y


def container_of(x: Node | Frame) -> str:
    """The container in which the source holds x: "array"; the library of the frame that an estimator has made; or "given", for the kind of
    container that the caller passes."""
    notes = _notes.get()
    for node in nodes_of(x):
        if node in notes.framed:
            return notes.framed[node]
    return "given" if given_columns(x) or x in notes.as_given else "array"


def keeps_dtypes(x: Node | Frame) -> bool:
    """Whether the dtype of the model's input decides the dtype or the container of x: x holds its columns, or a function of a frame."""
    as_given = _notes.get().as_given
    waiting = set(nodes_of(x))
    while waiting:
        node = waiting.pop()
        if node in as_given:
            return True
        waiting |= set(node.inputs) if isinstance(node.op, (Check, Concat, SelectColumns)) else set()
    return bool(dtype_givers(x))


def note_dtypes_of_made_frames(x: Node | Frame) -> None:
    """Note which dtypes are rejected if the source puts the model's input into a frame, and a library that looks at dtypes then reads x."""
    if keeps_dtypes(x) and container_of(x) in FRAME_LIBRARIES:
        note_input(Arrays(wide_only=True))
        note_input(Frames(plain_dtypes=True))


def note_names(x: Node | Frame, names: Sequence[str]) -> None:
    """Note that an estimator compares these names with those of the caller's frame, if it is given all its columns in order, or what a
    function has computed of each."""
    if not names or container_of(x) != "given":
        return
    if given_columns(x) == tuple(range(len(names))):
        note_input(Frames(names=tuple(names)))
    elif isinstance(x, Node) and x.type.columns == len(names):
        note_input(Frames(names=tuple(names), text_names=True))


def _is_polars(x: Node, framed: Mapping[Node, str]) -> bool:
    passes = isinstance(x.op, (Check, Concat, SelectColumns, Cast)) and bool(x.inputs)
    if x in framed:
        return framed[x] == "polars"
    return passes and all(_is_polars(source, framed) for source in x.inputs)
