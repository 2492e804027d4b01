"""Methods that somebody has replaced on an instance, as by `model.predict = …`. hbc compiles what the class computes: it refuses these."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from hbc.parser.registry import MODULES

TRAINING = ("fit", "partial_fit", "fit_predict", "fit_transform", "score", "get_params", "set_params", "get_feature_names_out")
"""Methods that no prediction calls. Replacing them on an instance (to log a training, for example) does not change predictions."""


def replaced_methods(model: Any) -> list[str]:
    """The names of methods that were replaced on the instance, as by `model.predict = …`.

    These are the callables among its attributes that have the name of a method of its class. Other callables, such as the function of a
    FunctionTransformer, do not count. Names with two leading underscores are left out: Python does not look for these on an instance
    (but the onnx package puts a `__repr__` there)."""
    own = getattr(model, "__dict__", {})
    candidates = [name for name, value in own.items() if callable(value) and name not in TRAINING and not name.startswith("__")]
    return [name for name in candidates if callable(getattr(type(model), name, None))]


def replaced_inside(model: Any, known: set[int]) -> Iterator[tuple[str, Any, list[str]]]:
    """Yields (place, object, its replaced methods) for the objects that a fitted model holds, at every depth: the trees of a forest, the
    Booster of an LGBMClassifier. A converter may read such objects without a converter of their own.

    Objects whose id is in `known` are left out, since they have been looked at; those found are added. Parameters of the constructor are
    no part of a fitted model: their names have no underscore at either end."""
    waiting = list(_fitted(model, ""))
    while waiting:
        place, value = waiting.pop()
        if isinstance(value, (list, tuple)):
            waiting += [(f"{place}[{i}]", each) for i, each in enumerate(value)] if value and _may_hold(value[0]) else []
        elif isinstance(value, dict):
            some = next(iter(value.values()), None)
            waiting += [(f"{place}[{key!r}]", each) for key, each in value.items()] if _may_hold(some) else []
        elif isinstance(value, np.ndarray):
            if value.dtype == object and value.size and _may_hold(value.flat[0]):
                waiting += [(f"{place}[{', '.join(map(str, i))}]", each) for i, each in np.ndenumerate(value)]
        elif id(value) not in known and type(value).__module__.partition(".")[0] in MODULES:
            known.add(id(value))
            if names := replaced_methods(value):
                yield place, value, names
            waiting += _fitted(value, f"{place}.")


def _fitted(model: Any, place: str) -> list[tuple[str, Any]]:
    """The fitted attributes of an object, with their places: all of them, or of an estimator those that scikit-learn ends in an underscore
    and other libraries begin with one. `estimator_` is left out: where no converter has looked at it, it is what an ensemble has cloned,
    and clones have the methods of the class."""
    own = getattr(model, "__dict__", {})
    if hasattr(model, "get_params"):
        own = {name: value for name, value in own.items() if (name[-1] == "_" or name[0] == "_") and name != "estimator_"}
    return [(f"{place}{name}", value) for name, value in own.items()]


def _may_hold(value: Any) -> bool:
    """Whether a container whose first value this is may hold objects with methods. (A vocabulary has a million strings and numbers.)"""
    return not isinstance(value, (str, bytes, int, float, np.generic, type(None)))
