"""The table of converters: which function converts which class. Each estimator has one function:

    @converts("sklearn.preprocessing.StandardScaler")
    def standard_scaler(m, x): ...

A converter takes the fitted estimator and its input. It returns the output of `transform` (a Node), or a dict from method names to
outputs (a Node, or a tuple of Nodes if the method returns a list). It raises `Refusal` for an estimator that it cannot convert exactly.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import pkgutil
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from hbc.ir.graph import Node
from hbc.lazy import record
from hbc.parser.frame import Frame

Outputs = dict[str, tuple[Node, ...]]
Result = Node | Frame | Mapping[str, Node | tuple[Node, ...]]
Converter = Callable[[Any, Any], Result]


@record
class Entry:
    """A registered converter."""

    function: Converter
    frame: bool
    """It takes a Frame (columns of several dtypes). Otherwise it takes one matrix."""


CONVERTERS: dict[str, Entry] = {}

Described = tuple[int | None, "tuple[str, ...] | None"]
DESCRIPTIONS: dict[str, Callable[[Any], Described]] = {}
"""For classes without scikit-learn's `n_features_in_` and `feature_names_in_`: a function that returns (the number of input columns, their
names); None for what the model does not know."""

MODULES = {
    "sklearn": "hbc.parser.sklearn",
    "lightgbm": "hbc.parser.lightgbm",
    "xgboost": "hbc.parser.xgboost",
    "onnx": "hbc.parser.onnxml",
    "catboost": "hbc.parser.catboost",
}
"""Library → the module or package of its converters. It is imported when the first model of that library is converted."""


def converts(*names: str, frame: bool = False) -> Callable[[Converter], Converter]:
    """Register a converter for classes by their public dotted names. A third party registers its own classes in the same way.

    Args:
        names: the public dotted names of the classes.
        frame: True for a converter of a Frame (columns of several dtypes). Otherwise it takes one matrix, a Node of type [rows, columns].

    Returns:
        A decorator. The function takes the fitted estimator and its input. It returns the output of `transform` (a Node), or a dict from
        names of methods to outputs. It raises `Refusal` for an estimator that it cannot convert exactly.

    Example:
        >>> @hbc.converts("mypackage.Doubler")
        ... def doubler(m, x):
        ...     from hbc.ops import tensor as t
        ...     return t.mul(t.cast(x, "f64"), 2.0)
    """

    if wrong := [name for name in names if not isinstance(name, str) or "." not in name]:
        found = ", ".join(map(repr, wrong))
        raise TypeError(f'hbc.converts: found {found}, expected public dotted names of classes, such as "mypackage.Doubler"')

    def register(function: Converter) -> Converter:
        for name in names:
            CONVERTERS[name] = Entry(function, frame)
        return function

    return register


Function = TypeVar("Function")


def _fills(table: dict[str, Function]) -> Callable[..., Callable[[Function], Function]]:
    """A decorator that puts a function into a table, under the public
    dotted names of classes. The function takes a model of such a class."""

    def names_of(*names: str) -> Callable[[Function], Function]:
        def register(function: Function) -> Function:
            table.update(dict.fromkeys(names, function))
            return function

        return register

    return names_of


OBJECT_STRINGS: set[str] = {"onnx.ModelProto"}
"""Classes whose methods return strings as Python objects, even if the labels have a dtype of fixed width."""

OWN_LABELS: dict[str, Callable[[Any], bool]] = {
    "sklearn.gaussian_process.GaussianProcessClassifier": lambda m: (
        m.classes_.dtype == object and (m.n_classes_ == 2 or m.multi_class == "one_vs_rest")
    ),
}
"""For classifiers whose labels may have another dtype than `classes_`, since numpy or the library makes it: a function that says
whether the dtype in the graph is the source's. Python objects become strings of a fixed width there."""
has_own_labels = _fills(OWN_LABELS)

WithoutRows = dict[str, "tuple[str, tuple[int, ...]]"]
WITHOUT_ROWS: dict[str, Callable[[Any], WithoutRows]] = {}
"""For classes whose result for zero rows is not an array [0, K]: a function that returns method → (dtype, shape)."""
returns_without_rows = _fills(WITHOUT_ROWS)


def without_rows_of(model: Any) -> WithoutRows:
    """Method → (dtype, shape) of a model's result for zero rows, where it is not an array [0, K]."""
    return WITHOUT_ROWS.get(public_name(type(model)), lambda _: {})(model)


GIVES_BACK: dict[str, Callable[[Any], bool]] = {}
"""For classes whose `transform` may return the very array that it receives: a function that says whether a model's does."""

ITEMS: dict[str, Callable[[Any], str]] = {}
"""For classes whose input is a sequence of objects instead of a matrix: a function that returns the kind of object (InputSpec.items)."""
takes_items = _fills(ITEMS)


def items_of(model: Any) -> str:
    """The kind of object in a model's input: "documents", "dicts", "lists" or "sets"; "" if the input is a matrix."""
    return ITEMS.get(public_name(type(model)), lambda _: "")(model)


ATTRIBUTES: dict[str, Callable[[Any], dict[str, object]]] = {}
"""For classes without scikit-learn's attributes (such as `classes_`): a function that returns the attributes of the compiled model."""
attributes = _fills(ATTRIBUTES)


describes = _fills(DESCRIPTIONS)

ONE_DIMENSIONAL: set[str] = {"sklearn.preprocessing.LabelEncoder"}
"""Classes whose methods take a vector instead of a matrix."""

FITTED_BY_MEMBER: set[str] = {"sklearn.model_selection.FixedThresholdClassifier"}
"""Classes that predict without having been fitted themselves, if their `estimator` is fitted."""


def load_converters(name: str) -> None:
    """Import the converters of the library of a class, given its public name. If none of them converts the class, import the plugins
    (`load_plugins`) too. Looking for plugins takes 2 to 6 ms, which was most of the time to convert a small model."""
    load_library(name.partition(".")[0])
    if name not in CONVERTERS:
        load_plugins()


@functools.cache
def load_library(library: str) -> None:
    """Import hbc's own converters of one library (a top-level package name). Of a package all modules are imported, so that a new module
    needs no entry anywhere. Converters of others that are there already stay. Does nothing for other libraries."""
    if library in MODULES:
        others = dict(CONVERTERS)
        module = importlib.import_module(MODULES[library])
        for found in pkgutil.iter_modules(getattr(module, "__path__", ())):
            importlib.import_module(f"{module.__name__}.{found.name}")
        CONVERTERS.update(others)


def load_plugins() -> int:
    """Import the entry points of the group `hbc.converters`, and return how many were imported. One that cannot be imported causes a
    RuntimeWarning, not an error, since this model may not need it."""
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
    """The dotted name under which a class is registered: the shortest public path to it. Nothing is imported to find it.

    `sklearn.preprocessing._data.StandardScaler` is registered as `sklearn.preprocessing.StandardScaler`. A subclass has its own
    module and name, so it is never taken for its parent.
    """
    parts = cls.__module__.split(".")
    for length in range(1, len(parts) + 1):
        module = ".".join(parts[:length])
        try:
            found = getattr(sys.modules.get(module), cls.__name__, None) is cls
        except ImportError:  # scikit-learn has its experimental classes by name, but raises until they are enabled by an import
            found = True
        if found:
            return f"{module}.{cls.__name__}"
    return f"{cls.__module__}.{cls.__qualname__}"
