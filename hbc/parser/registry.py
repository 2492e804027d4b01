"""Which function converts which class, and the walk through a model. One estimator, one function:

    @converts("sklearn.preprocessing.StandardScaler")
    def standard_scaler(m, x): ...

A converter takes the fitted estimator and its input, and returns the output of `transform` (a Node), or a dict of its methods'
outputs (a Node, or a tuple of Nodes where the method returns a list). What it cannot convert exactly it refuses by raising `Refusal`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from hbc.errors import Culprit, NotFittedError, UnsupportedOperatorError
from hbc.ir.graph import Input, Node
from hbc.ir.types import DTypeError, N
from hbc.ops.checks import Check
from hbc.ops.columns import SelectColumns
from hbc.ops.tensor import Cast, Concat, cast
from hbc.parser.frame import Frame, Refusal, as_matrix
from hbc.parser.unsupported import reason_against

Outputs = dict[str, tuple[Node, ...]]
Result = Node | Frame | Mapping[str, Node | tuple[Node, ...]]
Converter = Callable[[Any, Any], Result]


@dataclass(frozen=True)
class Entry:
    """A converter; `frame`: it takes a Frame (columns of several dtypes), otherwise it is given one matrix."""

    function: Converter
    frame: bool


CONVERTERS: dict[str, Entry] = {}

Described = tuple[int | None, "tuple[str, ...] | None"]
DESCRIPTIONS: dict[str, Callable[[Any], Described]] = {}
"""For classes without scikit-learn's `n_features_in_` and `feature_names_in_`: the number of input columns, and their names."""

MODULES = {
    "sklearn": ("hbc.parser.sklearn",),
    "lightgbm": ("hbc.parser.lightgbm",),
    "xgboost": ("hbc.parser.xgboost",),
    "onnx": ("hbc.parser.onnxml",),
    "catboost": ("hbc.parser.catboost",),
}
"""The modules that hold the converters of a library; imported when the first model of that library comes."""


def converts(*names: str, frame: bool = False) -> Callable[[Converter], Converter]:
    """Register a converter for classes by their public dotted names. A third party registers its own classes in the same way."""

    def register(function: Converter) -> Converter:
        for name in names:
            CONVERTERS[name] = Entry(function, frame)
        return function

    return register


Function = TypeVar("Function")


def _fills(table: dict[str, Function]) -> Callable[..., Callable[[Function], Function]]:
    """A decorator that enters a function of one model into a table, for classes by their public dotted names."""

    def names_of(*names: str) -> Callable[[Function], Function]:
        def register(function: Function) -> Function:
            table.update(dict.fromkeys(names, function))
            return function

        return register

    return names_of


OBJECT_STRINGS: set[str] = {"onnx.ModelProto"}
"""Classes whose methods return strings as Python objects, whatever the labels are."""

TEXT_LABELS: set[str] = {"sklearn.dummy.DummyClassifier", "sklearn.gaussian_process.GaussianProcessClassifier"}
"""Classes that return labels that were Python objects as strings of a fixed width: numpy.where and numpy.tile make those."""

WithoutRows = dict[str, "tuple[str, tuple[int, ...]]"]
WITHOUT_ROWS: dict[str, Callable[[Any], WithoutRows]] = {}
"""For classes that return something else for zero rows than an array [0, K]: its dtype and shape, by method."""
returns_without_rows = _fills(WITHOUT_ROWS)


GIVES_BACK: dict[str, Callable[[Any], bool]] = {}
"""For classes whose `transform` may return what it is given, itself: whether a model's does."""

ITEMS: dict[str, Callable[[Any], str]] = {}
"""For classes whose input is a sequence of objects instead of a matrix: what they are (InputSpec.items)."""
takes_items = _fills(ITEMS)


def items_of(model: Any) -> str:
    """What the rows of a model's input are: "documents", "dicts", "lists", "sets", or "" for those of a matrix."""
    return ITEMS.get(public_name(type(model)), lambda _: "")(model)


ATTRIBUTES: dict[str, Callable[[Any], dict[str, object]]] = {}
"""For classes that do not have scikit-learn's attributes (`classes_`) themselves: those that the compiled model has."""
attributes = _fills(ATTRIBUTES)


describes = _fills(DESCRIPTIONS)

ONE_DIMENSIONAL: set[str] = {"sklearn.preprocessing.LabelEncoder"}
"""Classes whose methods take a vector instead of a matrix."""

FITTED_BY_MEMBER: set[str] = {"sklearn.model_selection.FixedThresholdClassifier"}
"""Classes that predict without having been fitted where their `estimator` has been."""


def load_converters(name: str) -> None:
    """Import the converters of the library that a class (by its public name) comes from. Where there is none for the class, those
    of the entry-point group `hbc.converters`: to look for them takes 2 to 6 ms, which was most of the time of a small model."""
    load_library(name.partition(".")[0])
    if name not in CONVERTERS:
        load_plugins()


def load_library(library: str) -> None:
    """Import hbc's own converters of one library (a top-level package name)."""
    for module in MODULES.get(library, ()):
        if importlib.util.find_spec(module) is not None:
            importlib.import_module(module)


def load_plugins() -> int:
    """Import what the entry-point group `hbc.converters` names, and say how many modules these are. What cannot be imported is
    a warning: it may be of no concern here."""
    loaded = 0
    for point in importlib.metadata.entry_points(group="hbc.converters"):
        try:
            point.load()
            loaded += 1
        except Exception as error:  # whatever a third party's module does
            warnings.warn(
                f"the entry point {point.name!r} = {point.value!r} of the group 'hbc.converters' cannot be loaded "
                f"({type(error).__name__}: {error}): its classes do not convert. Repair or uninstall its package.",
                RuntimeWarning,
                stacklevel=2,
            )
    return loaded


def public_name(cls: type) -> str:
    """The dotted name under which a class is registered: the shortest public path to it, without importing anything.

    `sklearn.preprocessing._data.StandardScaler` is registered as `sklearn.preprocessing.StandardScaler`. A subclass has its own
    module and name, so it never passes for its parent.
    """
    parts = cls.__module__.split(".")
    for length in range(1, len(parts) + 1):
        module = ".".join(parts[:length])
        try:
            found = getattr(sys.modules.get(module), cls.__name__, None) is cls
        except ImportError:  # scikit-learn knows its experimental classes by name, but wants an import before it gives them
            found = True
        if found:
            return f"{module}.{cls.__name__}"
    return f"{cls.__module__}.{cls.__qualname__}"


@dataclass
class _Context:
    """One walk through a model: where it stands, and every refusal so far."""

    path: list[str] = field(default_factory=lambda: ["model"])
    culprits: list[Culprit] = field(default_factory=list)
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


_context: ContextVar[_Context] = ContextVar("hbc_parser_context")


@contextmanager
def walk() -> Iterator[_Context]:
    """Around a whole model: walk on behind what is refused, and raise one UnsupportedOperatorError with every culprit at the end."""
    context = _Context()
    token = _context.set(context)
    try:
        yield context
        if context.culprits:
            raise UnsupportedOperatorError(culprits=context.culprits)
    except UnsupportedOperatorError as error:
        culprits = dict.fromkeys([*context.culprits, *error.culprits])
        raise UnsupportedOperatorError(culprits=list(culprits)) from error.__cause__
    finally:
        _context.reset(token)


def convert(model: Any, x: Node | Frame) -> Outputs:
    """All methods of one estimator. Raises UnsupportedOperatorError or NotFittedError."""
    context = _context.get()
    path = ".".join(context.path)
    name = public_name(type(model))
    load_converters(name)
    require_convertible(model)
    entry = CONVERTERS[name]
    try:
        result = entry.function(model, x if entry.frame else as_numbers(x))
    except Refusal as refusal:
        culprit = Culprit(name, path, refusal.reason, refusal.advice)
        raise UnsupportedOperatorError(culprits=[culprit]) from refusal
    except DTypeError as error:
        reason = f"what it is given, or has learned, is of another dtype: {error}."
        culprit = Culprit(name, path, reason, "Fit it on float32 or float64.")
        raise UnsupportedOperatorError(culprits=[culprit]) from error
    if isinstance(result, Frame):
        blocks = result.blocks()
        context.frames[blocks] = result
        result = {"transform": blocks}
    outputs = result if isinstance(result, Mapping) else {"transform": result}
    values = {method: node if isinstance(node, tuple) else (node,) for method, node in outputs.items()}
    for method, nodes in values.items():
        if not str(method).isidentifier() or str(method).startswith("_") or not all(isinstance(node, Node) for node in nodes):
            kinds = ", ".join(type(node).__name__ for node in nodes)
            raise TypeError(
                f"the converter of {name} at {path} returned {kinds} for {method!r}, expected a Node (hbc.ops.tensor makes them), "
                "or a dict from public method names to Nodes."
            )
    return values


def require_convertible(model: Any) -> None:
    """Raise UnsupportedOperatorError or NotFittedError for what is known to fail before any input is."""
    name, path = public_name(type(model)), ".".join(_context.get().path)
    if name not in CONVERTERS:
        raise UnsupportedOperatorError(culprits=[_unknown(type(model), name, path)])
    if not _is_fitted(model):
        raise NotFittedError(operator=name, path=path)


def child(model: Any, x: Node | Frame, place: str) -> Outputs:
    """The methods of an estimator inside another; `place` is its path from there, like `steps[0] 'scaler'`.

    A child that is refused is noted, and a stand-in with its output shapes is returned, so that one error can name every culprit.
    """
    context = _context.get()
    context.path.append(place)
    try:
        return convert(model, x)
    except UnsupportedOperatorError as error:
        context.culprits.extend(error.culprits)
        return _stand_in(model)
    finally:
        context.path.pop()


def children(members: Iterable[tuple[Any, Node | Frame, str]]) -> list[Outputs]:
    """`child` of several estimators. Where any is refused, all of them are looked at before the error is raised, so that nobody
    computes with stand-ins."""
    context = _context.get()
    before = len(context.culprits)
    outputs = [child(*member) for member in members]
    if len(context.culprits) > before:
        raise UnsupportedOperatorError(culprits=context.culprits[before:])
    return outputs


@contextmanager
def note_unconvertible(model: Any, place: str) -> Iterator[None]:
    """Inside, the path leads to an estimator that cannot be converted, since its input is not known; a class without a
    converter is noted as a culprit."""
    context = _context.get()
    context.path.append(place)
    name = public_name(type(model))
    load_converters(name)
    if name not in CONVERTERS:
        context.culprits.append(_unknown(type(model), name, ".".join(context.path)))
    try:
        yield
    finally:
        context.path.pop()


def columns_by_name(*, frames_only: bool = False) -> None:
    """Called by converters of estimators that pick the columns of the model's own input (ColumnTransformer): frames are matched by
    name in any order, and columns of different dtypes are treated apart. `frames_only`: the columns are given by name, and the
    source rejects an input that has none."""
    context = _context.get()
    context.columns_by_name = True
    context.frames_only = context.frames_only or frames_only


def columns_in_order() -> None:
    """Called by converters of estimators that give the model's own input to some that pick columns by name and to others: a frame
    must then have the fitted columns in their order, as the others ask for."""
    _context.get().columns_in_order = True


def integers_of_frames_are_f64() -> None:
    """Called by converters of estimators that take the integers of a frame for float64, but those of an array for something else.
    It counts where the estimator is given the model's own input."""
    context = _context.get()
    if len(context.path) == 1:
        context.integers_as_f64 = True


def transform_child(model: Any, x: Node | Frame, place: str) -> Node:
    """The `transform` of an estimator inside another."""
    return as_matrix(transformed_child(model, x, place))


def transformed_child(model: Any, x: Node | Frame, place: str) -> Node | Frame:
    """The same; a Frame, where it has columns of several dtypes."""
    nodes = child(model, x, place)["transform"]
    frame = _context.get().frames.get(nodes)
    if frame is not None:
        return frame
    (node,) = nodes
    given = {column.node for column in x.columns} if isinstance(x, Frame) else {x}
    if node not in given:  # which others have made
        _context.get().makers.setdefault(node, (model, x))
    return node


def maker(node: Node) -> tuple[Any, Node | Frame] | None:
    """The estimator whose `transform` a node is, and what it was given; None for other nodes."""
    return _context.get().makers.get(node)


def absent_values_are_missing() -> None:
    """Called by converters of estimators to which the values that a sparse matrix leaves out are missing (NaN), not 0. Where such an
    estimator is not the only one to read the model's input, sparse matrices are rejected."""
    context = _context.get()
    if all(place == "best_estimator_" for place in context.path[1:]):
        context.absent_is_missing = True
    else:
        context.rejects_sparse = True


def none_is_not_nan(x: Node | Frame) -> None:
    """Called by converters of estimators that tell None from NaN among Python objects: None is rejected where x is the model's input."""
    _context.get().none_apart.append(x)


def digits_are_categories(x: Node | Frame) -> None:
    """Called by converters of estimators that take integers and bool among strings, as their decimal digits, where x are columns of
    strings of the model's input. It counts where nobody else reads these."""
    _context.get().digits.append(x)


ANY_INTEGER = 1
"""bits of `computed_in_own_dtype`: integers and bool of any width become float64 there, as int64 does."""


NO_INTEGER = 128
"""bits of `given_to_a_function`: of integers it gives something else than of float64, whatever their width."""


def given_to_a_function(x: Frame, integer_bits: int, numbers: bool = False) -> None:
    """Called by converters of estimators that give a frame's columns to a function as they are, of dtypes of pandas' own too: integers
    must have `integer_bits` to give what float64 gives, as which they are read. `numbers`: it computes with numbers beside them, which
    have 64 bits where the frame is of pandas. It counts where they are the model's input."""
    functions = _context.get().functions
    for column in x.columns:
        if column.origin is not None:
            _context.get().beside_numbers |= {column.origin} if numbers else set()
            functions[column.origin] = max(functions.get(column.origin, ANY_INTEGER), integer_bits)


def computed_in_own_dtype(x: Node | Frame, integer_bits: int) -> None:
    """Called by converters of estimators that compute in their input's own dtype, float16 included. Where x is the model's input,
    floats must be float32 or float64, and integers must have `integer_bits` to give what int64 gives."""
    _context.get().integer_bits.append((x, integer_bits))


def integers_are_signed(x: Node | Frame) -> None:
    """Called by converters of estimators that reject unsigned integers, beside `computed_in_own_dtype`. It counts as that does."""
    _context.get().signed.append(x)


def objects_stay_objects(x: Node | Frame, given_back: bool = False) -> None:
    """Called by converters of estimators that do not make numbers of Python objects: strings of digits are rejected where x is the
    model's input. `given_back`: they give objects for objects, which are all rejected where the model transforms."""
    _context.get().objects_stay.append((x, 1 + given_back))


def floats_are_no_strings(x: Node | Frame) -> None:
    """Called by converters of estimators that fail for a column of floats where they were fitted on strings, also if all are NaN. It
    counts where x is the model's input."""
    _context.get().texts_only.append(x)


def numbers_must_be_objects(x: Node | Frame) -> None:
    """Called by converters of estimators that were fitted on Python objects, which they cannot compare with numbers of numpy's dtypes.
    It counts where x is the model's input."""
    _context.get().objects_only.append(x)


def strings_must_be_objects() -> None:
    """Called by converters of estimators that reject arrays of strings of a fixed width, as which lists of strings come."""
    _context.get().texts_as_objects = True


def computed_of_dense_only(y: Node) -> Node:
    """y, which the source does not compute of a sparse matrix of the model's input, though it does other methods."""
    _context.get().dense_only.add(y)
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
    _context.get().narrow.append(x)


def in_dtype_of(x: Node, y: Node) -> Node:
    """y, which the source gives in x's own dtype, whatever it is."""
    _context.get().kept.append((y, x))
    return y


def in_native_order() -> None:
    """Called by converters of estimators that give numbers of the input's dtype in the machine's byte order, whatever the input's is."""
    _context.get().native_order = True


def read_by(library: str, x: Node | Frame) -> None:
    """Called by converters of estimators of a library that reads other dtypes than scikit-learn, where x is the model's own input."""
    _context.get().plain_floats |= library == "xgboost"
    if isinstance(x, Frame) and any(column.origin is not None for column in x.columns):
        _context.get().reader = library


def frames_must_be_of(x: Node | Frame, *libraries: str) -> None:
    """Called by converters of estimators that fail for other frames, or compute something else of them. It counts where x are columns of
    the model's input."""
    context = _context.get()
    if isinstance(x, Frame) and any(column.origin is not None for column in x.columns):
        context.libraries = tuple(library for library in context.libraries or libraries if library in libraries)


def stacked_as_given(x: Frame) -> None:
    """Called by converters of estimators that put a frame's columns beside others as they are, in an array. It counts where they are
    the model's input."""
    origins = tuple(column.origin for column in x.columns if column.origin is not None)
    if origins:
        _context.get().stacked.add(origins)
    in_native_order()


def sparse_matrices_must_be_floats() -> None:
    """Called by converters of estimators that reject sparse matrices of integers. It counts where they are given the model's own input."""
    context = _context.get()
    if all(place == "best_estimator_" for place in context.path[1:]):
        context.float_entries = True


def read_from_frames(x: Node) -> Node:
    """x as `check_array(dtype=FLOAT_DTYPES)` reads it from a frame. It looks for float32 among the dtypes of pandas only: from any
    other library's frame it makes float64, of the caller's and of those that `set_output` makes between two estimators."""
    context = _context.get()
    if not _is_computed(x, context.makers):
        context.widened.append(x)
    return cast(x, "f64") if x.type.dtype == "f32" and _is_polars(x, context.polars) else x


def _is_computed(x: Node, makers: Mapping[Node, Any]) -> bool:
    """Whether another estimator has made x, which is then an array (but for `set_output`)."""
    passes = isinstance(x.op, (Check, Concat, SelectColumns, Cast)) and bool(x.inputs)
    return x in makers or (passes and all(_is_computed(source, makers) for source in x.inputs))


def given_as_pandas(m: Any, x: Frame) -> Frame:
    """x, where the source hands it on as a frame of pandas that m has made, whatever the caller's frame is."""
    makers = _context.get().makers
    made = {}
    for node in {column.node for column in x.columns if column.node.type.dtype != "str"}:
        made[node] = SelectColumns(np.arange(node.type.columns))(node)
        makers.setdefault(made[node], (m, x))
    return replace(x, columns=tuple(replace(column, node=made.get(column.node, column.node)) for column in x.columns))


def given_as_polars(x: Node | Frame) -> None:
    """Called where the source hands on a frame of polars."""
    _context.get().polars.update({column.node for column in x.columns} if isinstance(x, Frame) else {x})


def _is_polars(x: Node, known: set[Node]) -> bool:
    passes = isinstance(x.op, (Check, Concat, SelectColumns, Cast)) and bool(x.inputs)
    return x in known or (passes and all(_is_polars(source, known) for source in x.inputs))


def sparse_values_round_otherwise() -> None:
    """Called by converters of estimators that compute a sparse matrix of the model's input in another order than a dense one: where
    a decision follows, sparse matrices are rejected."""
    _context.get().rounds_sparse = True


def sparse_matrices_differ() -> None:
    """Called by converters of estimators that compute something else of a sparse matrix of the model's input than of a dense one:
    sparse matrices are rejected."""
    _context.get().rejects_sparse = True


def missing_values_cannot_be_sparse() -> None:
    """Called by converters of estimators that take NaN in the model's own input, but not in a sparse matrix."""
    _context.get().rejects_sparse_nan = True


def _stand_in(model: Any) -> Outputs:
    """Values of the right shapes for an estimator that was refused; they never reach a graph, since the refusal is raised."""

    def value(name: str, *shape: int) -> tuple[Node, ...]:
        return (Input(f"refused_{name}", "f64", (N, *shape))(),)

    classes = np.size(getattr(model, "classes_", (0, 1)))
    outputs: Outputs = {
        "predict": value("predict"),
        "predict_proba": value("predict_proba", classes),
        "decision_function": value("decision_function"),
    }
    try:
        width = len(model.get_feature_names_out())
    except Exception:
        width = None
    if not width and hasattr(model, "transform"):
        # Nothing behind it can be looked at: what is known so far is raised now.
        raise UnsupportedOperatorError(culprits=_context.get().culprits)
    if width:
        outputs["transform"] = value("transform", width)
    return outputs


def _unknown(cls: type, name: str, path: str) -> Culprit:
    parents = [public_name(base) for base in cls.__mro__[1:] if public_name(base) in CONVERTERS]
    reason = reason_against(cls, name) or "no converter is registered for this class."
    if parents:
        reason = f"no converter is registered for this subclass of {parents[0]}, which may compute something else."
    return Culprit(name, path, reason, f'Register one with @hbc.converts("{name}"), or replace it by a supported estimator.')


def _is_fitted(model: Any) -> bool:
    """sklearn.utils.validation.check_is_fitted, for whatever has scikit-learn's interface; anything else counts as fitted."""
    if isinstance(model, type) or not (hasattr(model, "fit") and hasattr(model, "get_params")):
        return not isinstance(model, type)
    if hasattr(model, "__sklearn_tags__") and not model.__sklearn_tags__().requires_fit:
        return True
    if hasattr(model, "__sklearn_is_fitted__"):
        return bool(model.__sklearn_is_fitted__())
    if public_name(type(model)) in FITTED_BY_MEMBER and _is_fitted(model.estimator):
        return True
    return any(name.endswith("_") and not name.startswith("__") for name in vars(model))
