"""Which function converts which class. One estimator, one function:

    @converts("sklearn.preprocessing.StandardScaler")
    def standard_scaler(m, x): ...

A converter takes the fitted estimator and its input, and returns the output of `transform` (a Node), or a dict of its methods'
outputs (a Node, or a tuple of Nodes where the method returns a list). What it cannot convert exactly it refuses by raising `Refusal`.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import pkgutil
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from hbc.ir.graph import Node
from hbc.parser.frame import Frame

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
    "sklearn": "hbc.parser.sklearn",
    "lightgbm": "hbc.parser.lightgbm",
    "xgboost": "hbc.parser.xgboost",
    "onnx": "hbc.parser.onnxml",
    "catboost": "hbc.parser.catboost",
}
"""The module or package that holds the converters of a library; imported when the first model of that library comes."""


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


@functools.cache
def load_library(library: str) -> None:
    """Import hbc's own converters of one library (a top-level package name): all modules of a package, so that a new one is found."""
    if library in MODULES:
        module = importlib.import_module(MODULES[library])
        for found in pkgutil.iter_modules(getattr(module, "__path__", ())):
            importlib.import_module(f"{module.__name__}.{found.name}")


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
