"""Served: one loaded version of a model, and its methods as functions of a request's rows."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hbc.errors import ArtifactError, HbcError, InvalidInputError
from hbc.ir.signature import InputSpec
from hbc.lazy import cached_property
from hbc.runtime.input.columns import names_in_data
from hbc.runtime.model import CompiledModel
from hbc.serve import examples
from hbc.serve.drift import Drift
from hbc.serve.failures import Failure
from hbc.serve.jsonable import jsonable
from hbc.serve.statistics import Statistics

if TYPE_CHECKING:
    from hbc.serve.plans import Plans

Outputs = dict[str, Any]
"""Name of an output → its values: an array [rows, …]. For a single record: one value, or an array without the axis of rows."""

FLOATS = {float}
DTYPES = ("float32", "float64", "int64")
"""The dtypes of numbers for which models are compiled."""
FIRST = ("predict", "predict_proba", "transform")
"""The methods without which a model is not ready, of those that it has. The others may be compiled later."""


class Predictor:
    """A method of a model for the forms in which rows come: `record` (a dict), `records` (a list of dicts), `columns` (a dict of lists or
    arrays) and `matrix` (an array or a list of rows). Each returns Outputs, and raises InvalidInputError as the method does.

    The names of columns count, not their order: an object of JSON has none."""

    def __init__(self, model: CompiledModel, method: str) -> None:
        self.method = method
        self._call: Callable[[Any], Any] = getattr(model, method)
        self._bound = model.bind_record(method)
        spec = model.spec
        self._order = None if spec.frames.by_name or spec.ndim != 2 else examples.column_names(model) or ()
        """The names in order, for models that read frames by position. () for columns without names."""
        self._spec = spec

    def record(self, row: Mapping[str, Any]) -> Outputs:
        order = self._order
        if order is not None and tuple(row) != order:
            row = _in_order(self._spec, row, order, "record")
        result = self._bound(row)
        if type(result) is np.ndarray:
            return {self.method: result[0]}
        return {name: values[0] for name, values in named_outputs(self.method, result).items()}

    def records(self, rows: Sequence[Mapping[str, Any]]) -> Outputs:
        if self._order is not None and any(tuple(row) != self._order for row in rows):
            rows = _records_in_order(self._spec, rows, self._order)
        return named_outputs(self.method, self._bound.rows(rows))

    def columns(self, columns: Mapping[str, Any]) -> Outputs:
        if self._order is not None and tuple(columns) != self._order:
            columns = _in_order(self._spec, columns, self._order, "columns")
        return named_outputs(self.method, self._bound.columns(columns))

    def matrix(self, X: Any) -> Outputs:
        if type(X) is list and len(X) == 1 and type(X[0]) is list and set(map(type, X[0])) == FLOATS:
            X = np.array(X)  # what every source library makes of it; the model's shortest way takes arrays only (3 µs less)
        return named_outputs(self.method, self._call(X))


def _in_order(spec: InputSpec, row: Mapping[str, Any], order: tuple[str, ...], where: str) -> dict[str, Any]:
    """The same with its names in order. Raises InvalidInputError for other names: the model would take them by position."""
    _require_names(order, where)
    names = names_in_data(spec, order, list(row))
    if len(names) < len(order) or len(row) > len(order):
        raise _other_names(row, names, order, where)
    return {name: row[names[name]] for name in order}


def _records_in_order(spec: InputSpec, rows: Sequence[Mapping[str, Any]], order: tuple[str, ...]) -> list[dict[str, Any]]:
    """The records with their names in order. What only some of them have is NaN in the others, as pandas has it. Raises
    InvalidInputError."""
    _require_names(order, "records")
    known: dict[str, None] = {}
    for row in rows:
        known.update(dict.fromkeys(row))
    names = names_in_data(spec, order, list(known))
    if len(names) < len(order) or len(known) > len(order):
        raise _other_names(known, names, order, "records")
    return [{name: row.get(names[name], np.nan) for name in order} for row in rows]


def _require_names(order: tuple[str, ...], where: str) -> None:
    if not order:
        advice = "The model was fitted on columns without names, so that only their order tells them apart."
        raise InvalidInputError(
            found="names of columns", expected="rows: lists of values, or one tensor", where=where, advice=advice
        )


def _other_names(found: Mapping[str, Any], names: Mapping[str, str], order: tuple[str, ...], where: str) -> InvalidInputError:
    missing = [name for name in order if name not in names]
    further = [name for name in found if name not in set(names.values())]
    parts = [f"no {_listed(missing)}"] if missing else []
    parts += [f"{_listed(further)}, which the model does not have"] if further else []
    return InvalidInputError(
        found=" and ".join(parts), expected=f"the {len(order)} columns {_listed(list(order))}", where=where
    )


def _listed(names: list[str]) -> str:
    return ", ".join(f"{name!r:.60}" for name in names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def named_outputs(method: str, result: Any) -> Outputs:
    """The arrays of any result of a method, by name: METHOD itself for one array (a sparse matrix is made dense), METHOD_0, METHOD_1 … for
    a list of arrays, METHOD_COLUMN for a frame."""
    if type(result) is np.ndarray:
        return {method: result}
    if hasattr(result, "columns"):
        return {f"{method}_{name}": result[name].to_numpy() for name in result.columns}
    if isinstance(result, list | tuple):
        return {f"{method}_{place}": np.asarray(each) for place, each in enumerate(result)}
    if hasattr(result, "toarray"):
        return {method: result.toarray()}
    if hasattr(result, "__next__"):  # staged_…: the result after each stage
        return {method: np.stack(list(result), axis=1)}
    return {method: np.asarray(result)}


class Served:
    """One loaded version of a model. It never changes, but for its statistics and what the engine keeps in `cost`.

    methods: those to serve, of which the model may lack some; (): all. Raises ArtifactError if it has none of them."""

    def __init__(
        self,
        name: str,
        version: str,
        path: Path,
        stamp: Any,
        model: CompiledModel,
        statistics: Statistics,
        methods: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.version = version
        self.path = path
        self.stamp = stamp
        """What tells this file from a later one in its place."""
        self.model = model
        self.statistics = statistics
        self.methods = _asked(model, methods, path)
        self.first = (not methods and tuple(method for method in self.methods if method in FIRST)) or self.methods
        """The methods without which it is not ready: those that were asked for, some of FIRST, or all."""
        self.later: tuple[str, ...] = ()
        """The methods that are being compiled elsewhere. Another Served, which has them, will take the place of this one."""
        self.usual = next((m for m in ("predict", "transform") if m in self.methods), self.methods[0])
        """The method that is called if a request names none."""
        names = examples.column_names(model)
        self.names: tuple[str, ...] | None = names
        """The names of the columns, if the model knows them."""
        self.n_features = model.spec.n_features
        self.mixes_rows = any(variant.source.mixes_rows for variant in model.variants.values())
        """Whether a row's result depends on the others of the call. Such requests are never computed together."""
        self.predictors = {method: Predictor(model, method) for method in self.methods}
        self.classes = _labels(getattr(model, "classes_", None))
        """The names of the classes, as JSON values, for a classifier with one target; otherwise None."""
        self.class_labels = jsonable(self.classes)
        """The same as JSON can hold them."""
        self.class_texts = [str(label) for label in self.classes or ()]
        self.known_names = frozenset(names or ())
        self.reads_matrices = _reads_matrices(model.spec)
        """Whether rows of floats in a list are, to the source, the matrix of them."""
        self.outputs: dict[str, dict[str, tuple[np.dtype[Any], tuple[int, ...]]]] = {}
        """Method → name of an output → its dtype, and its shape after the rows, for an example of the input."""
        self.cost = Cost()
        self.drift: Drift | None = None
        """Counts what is unusual in the rows; None: nobody asked for it."""
        self.pending = 0
        """The requests that are waiting or being computed."""

    @cached_property
    def plans(self) -> Plans:
        """How repeated requests are read. Adapters, which need no extra of hbc's, do not ask for it."""
        from hbc.serve.plans import Plans  # reads JSON with orjson

        return Plans()

    def watch(self) -> None:
        """Count missing, unknown and outlying values from now on."""
        self.drift = Drift(self.model, self.statistics)

    def predictor(self, method: str) -> Predictor:
        """The function of a method. Raises Failure for one that the model does not have, or not yet."""
        found = self.predictors.get(method)
        if found is None:
            raise Failure("invalid", f"methods: found {method!r}, expected some of {', '.join(self.methods)}.")
        if method in self.later:
            raise Failure("unavailable", f"model {self.name!r}: {method} is being compiled.", retry_after=2)
        return found

    def warm_up(self, methods: Sequence[str] = ()) -> None:
        """Compile methods for all dtypes, so that no request has to wait for the compiler, and call each for an example. methods: no
        others, which are for `later`; (): all."""
        methods = tuple(methods) or self.methods
        self.later = tuple(method for method in self.methods if method not in methods)
        for dtype in DTYPES:
            with contextlib.suppress(ValueError):  # the model has no variant for this dtype alone
                self.model.warm_up(methods, dtype)
        form, value = examples.row(self.model)
        for method in methods:
            with contextlib.suppress(HbcError):  # a value that only this model rejects
                for _ in range(2):
                    begin = time.perf_counter()
                    outputs = getattr(self.predictors[method], form)(value)
                self.cost.fixed = max(self.cost.fixed, time.perf_counter() - begin)
                axes = 0 if form == "record" else 1
                self.outputs[method] = {name: (np.asarray(v).dtype, np.shape(v)[axes:]) for name, v in outputs.items()}


def _asked(model: CompiledModel, methods: Sequence[str], path: Path) -> tuple[str, ...]:
    there = tuple(method for method in model.methods if not method.startswith("fit"))
    found = tuple(method for method in there if method in methods or not methods)
    if not found:
        raise ArtifactError(path=str(path), found=f"no method {' or '.join(methods)}", expected=f"one of {', '.join(there)}")
    return found


def _reads_matrices(spec: InputSpec) -> bool:
    arrays, frames = spec.arrays, spec.frames
    tells_apart = frames.by_column and (spec.own_dtype or spec.having("returned") or arrays.wide_only)
    return spec.ndim == 2 and not spec.items and arrays.lists and not frames.required and not tells_apart


class Cost:
    """What calls of a model have taken of late, for the engine: `seconds(rows)` is an estimate. It starts with one that is too high for
    many rows, so that the first large call is made in a thread."""

    def __init__(self) -> None:
        self.fixed = 1e-5
        self.per_row = 1e-5

    def seconds(self, rows: int) -> float:
        return self.fixed + rows * self.per_row

    def learn(self, rows: int, seconds: float) -> None:
        """Take a measured call into account. A longer one counts a little only: most of them are the computer's doing, not the model's."""
        if rows <= 2:
            self.fixed = _nearer(self.fixed, seconds)
        else:
            self.per_row = _nearer(self.per_row, max(seconds - self.fixed, 0.0) / rows)


def _nearer(known: float, found: float) -> float:
    return known * 1.25 + 1e-9 if found > known * 1.25 else known + (found - known) * 0.25


def _labels(classes: Any) -> list[Any] | None:
    """The labels as JSON values. None for what is no single array of them."""
    if not isinstance(classes, np.ndarray) or classes.ndim != 1:
        return None
    return [label.item() if isinstance(label, np.generic) else label for label in classes.tolist()]
