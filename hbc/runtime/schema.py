"""Schema: the columns that a model takes and the results that it gives, in plain words and numbers, for servers and registries."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from hbc.errors import InvalidInputError
from hbc.ir.graph import Graph
from hbc.ir.origins import Origins
from hbc.ir.signature import Column as Facts
from hbc.ir.signature import InputSpec, ModelInfo, input_layout
from hbc.ir.types import NUMPY_DTYPES, Array
from hbc.lazy import record
from hbc.runtime.input.columns import names_of
from hbc.runtime.input.gate import Gate
from hbc.runtime.variant import Variant


@record
class Column:
    """One column of a model's input."""

    name: str | None
    """Its name. None: the model knows no names, and columns count by their position."""
    kind: str
    """"number", "string", or "category" where the model holds the values that it knows; "document", "dict", "list" or "set" for a model of
    such items; "unread" for a column that nothing reads."""
    dtype: str | None
    """numpy's dtype of its numbers ("float32", "float64", "int64"), or "str". None for items, and for columns that nothing reads."""
    categories: tuple[Any, ...] | None
    """The strings or numbers that the model knows there, without missing values. None: any number or string, or they are not known."""
    required: bool
    """A record or frame must have it."""
    allows_missing: bool
    """The model takes missing values there. None in a record is one."""


@record
class Output:
    """The result of one method."""

    dtype: str
    """numpy's dtype of the result, as numpy writes it: "float64", "int64", "<U7", "object"."""
    shape: tuple[int, ...]
    """Its shape after the rows: () for a number a row."""
    classes: tuple[Any, ...] | None
    """The classes, for the methods of a classifier. For several targets: a tuple of classes for each. None: there are none."""
    names: tuple[str, ...] | None
    """The names of the result's columns: the classes of probabilities, or the columns of a frame. None: they have none."""
    more: tuple[Output, ...] = ()
    """The further arrays of a method that returns several."""


@record
class Schema:
    """What a model takes and gives. `CompiledModel.schema` is it."""

    columns: tuple[Column, ...]
    outputs: Mapping[str, Output]
    """Method → its result."""

    def json(self) -> dict[str, Any]:
        """The schema as dicts, lists, strings and numbers, which `json.dumps` writes."""
        return {
            "columns": [_plain(column) for column in self.columns],
            "outputs": {method: _plain(output) for method, output in self.outputs.items()},
        }


def _plain(value: Any) -> Any:
    if isinstance(value, (Column, Output)):
        return {name: _plain(item) for name, item in vars(value).items() if name != "more" or item}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def schema_of(info: ModelInfo, spec: InputSpec, variants: Mapping[Any, Variant], main: Variant) -> Schema:
    """The schema of a model; `main` is the variant for the dtypes that it was converted for. Its graph is read, and
    not kept."""
    return Schema(_columns(spec, variants, main), {method: _output(info, main, method) for method in main.source.methods})


def _columns(spec: InputSpec, variants: Mapping[Any, Variant], main: Variant) -> tuple[Column, ...]:
    if spec.items:
        return (Column(None, spec.items.removesuffix("s"), None, None, True, False),)
    names = names_of(spec) or (None,) * spec.n_features
    known = _categories(main.source.glance(), spec, main)
    missing = _allows_missing(spec, main, known)
    columns = []
    for i, name in enumerate(names):
        read = any(kinds[i] != "unread" for kinds in variants)
        kind = main.kinds[i]
        dtype = None if kind == "unread" else "str" if kind == "str" else str(NUMPY_DTYPES[kind])
        what = "unread" if not read else "category" if i in known else "string" if kind == "str" else "number"
        columns.append(Column(name, what, dtype, known.get(i), read or not spec.frames.by_name, not read or missing[i]))
    return tuple(columns)


def _categories(graph: Graph, spec: InputSpec, main: Variant) -> dict[int, tuple[Any, ...]]:
    """Column → the values that encoders in the graph know of it, in the order of the first encoder."""
    layout = dict(zip(graph.inputs, input_layout(main.kinds).values(), strict=True))
    found: dict[int, dict[Any, None]] = {}
    origins = Origins()
    for node in graph.nodes:
        values = node.op.told_apart()
        if values is None:
            continue
        for column, categories in enumerate(values):
            operand = node.inputs[0]
            origin = origins.of(operand, column)
            # Numbers may be the codes of another encoder, or computed: the values of those are not the column's own.
            if len(origin) == 1 and len(categories) and (operand.type.dtype == "str" or origins.unchanged(operand, column)):
                ((source, place),) = origin
                found.setdefault(layout[source][place], {}).update(dict.fromkeys(categories.tolist()))
    known = {column: tuple(values) for column, values in found.items()}
    return known | {i: column.category_values for i, column in enumerate(spec.columns) if column.category_values}


def _allows_missing(spec: InputSpec, main: Variant, known: Mapping[int, tuple[Any, ...]]) -> list[bool]:
    """For each column: whether a row passes in which only this one is missing, and the others hold 0 or their first category."""
    limits = main.facts.limits
    gate = Gate(limits, main.kinds, spec)
    allowed = [True] * spec.n_features
    for entry, columns in gate.inputs:
        for place, i in enumerate(columns):
            allowed[i] = bool(entry.allow_nan[place]) or not spec.columns[i].none_is_nan
    if not limits.guards:
        return allowed
    arrays = [
        np.array(
            [[_ordinary(spec.columns[i], main.kinds[i], known.get(i)) for i in columns]], NUMPY_DTYPES[main.kinds[columns[0]]]
        )
        for _, columns in gate.inputs
    ]
    taken = [array[:, 0] if spec.ndim == 1 else array for array in arrays]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of values that the source warns of, such as unknown categories
        if not _passes(gate, taken):
            return allowed
        for array, (_, columns) in zip(arrays, gate.inputs, strict=True):
            for place, i in enumerate(columns):
                if array.dtype.kind not in "fO" or not allowed[i]:
                    continue
                before = array[0, place]
                array[0, place] = np.nan if spec.columns[i].none_is_nan else None
                allowed[i] = _passes(gate, taken)
                array[0, place] = before
    return allowed


def _ordinary(fact: Facts, kind: str, categories: tuple[Any, ...] | None) -> Any:
    if fact.category_values and kind != "str":
        return 0  # the place of the first one
    return categories[0] if categories else "" if kind == "str" else 0


def _passes(gate: Gate, arrays: list[Array]) -> bool:
    try:
        gate(arrays)
    except InvalidInputError:
        return False
    return True


def _output(info: ModelInfo, main: Variant, method: str) -> Output:
    first, *others = [
        Output(info.output_dtypes.get(method) or str(NUMPY_DTYPES[kind.dtype]), tuple(map(int, kind.shape[1:])), None, None)
        for kind in main.facts.results[method]
    ]
    # The `classes_` of CatBoost's regressors have no classes.
    classes = (_classes(info.attributes.get("classes_")) or None) if method in CLASSIFIES else None
    names = info.frames[method].names if method in info.frames else None
    several = classes is not None and isinstance(classes[0], tuple)
    if classes is not None and not several and first.shape == (len(classes),) and method in NAMED_BY_CLASS:
        names = tuple(map(str, classes))
    return Output(first.dtype, first.shape, classes, names, tuple(others))


CLASSIFIES = ("predict", "predict_proba", "predict_log_proba", "predict_joint_log_proba", "decision_function", "raw_score")
"""The methods whose results are about classes."""

NAMED_BY_CLASS = ("predict_proba", "predict_log_proba", "predict_joint_log_proba", "raw_score")
"""The methods that give a number for each class. Three columns of `decision_function` can be the pairs of three classes."""


def _classes(classes: Any) -> tuple[Any, ...] | None:
    if isinstance(classes, (list, tuple)):
        return tuple(_classes(each) if isinstance(each, (list, np.ndarray)) else each for each in classes)
    return tuple(classes.tolist()) if isinstance(classes, np.ndarray) else None
