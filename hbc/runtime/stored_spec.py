"""Converts an InputSpec to JSON for a saved model, and back."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import asdict, fields
from operator import attrgetter
from typing import Any, TypeVar

from hbc.ir.signature import Arrays, Column, Frames, InputSpec, Sparse

Record = TypeVar("Record", Arrays, Column, Frames, Sparse)


def spec_document(spec: InputSpec) -> dict[str, Any]:
    """The spec as JSON. Neighbouring columns that are alike are written once, with their count.

    Of each record, only the fields that are not neutral are written. So an hbc that does not know a field reads the files of a newer one,
    but for models that need it."""
    return {
        "columns": [
            [len(list(group)), _facts(column)]
            for (column, _), group in itertools.groupby(spec.columns, key=attrgetter("alike"))
        ],
        "feature_names": spec.feature_names,
        "ndim": spec.ndim,
        "items": spec.items,
        "own_dtype": spec.own_dtype,
        "arrays": _facts(spec.arrays),
        "frames": _facts(spec.frames),
        "sparse": _facts(spec.sparse),
    }


def _facts(record: Arrays | Column | Frames | Sparse) -> dict[str, Any]:
    """The fields of a record that are not neutral."""
    neutral = asdict(type(record)())
    return {name: value for name, value in asdict(record).items() if value != neutral[name]}


def read_spec(document: Mapping[str, Any], width: int) -> InputSpec:
    """The spec from a document of a saved model. `width` is the number of columns of the model's graphs. Raises ValueError, KeyError or
    TypeError for a document that hbc did not write."""
    values = dict(document)
    runs = [(int(count), _record(Column, fact)) for count, fact in values.pop("columns")]
    require_width(sum(abs(count) for count, _ in runs), width)
    columns = tuple(column for count, column in runs for _ in range(count))
    arrays, frames = _record(Arrays, values.pop("arrays")), _record(Frames, values.pop("frames"))
    sparse = _record(Sparse, values.pop("sparse"))
    rest: dict[str, Any] = {name: tuples(value) for name, value in values.items()}
    return checked(InputSpec(columns, arrays=arrays, frames=frames, sparse=sparse, **rest))


def checked(spec: InputSpec) -> InputSpec:
    """The spec itself. Raises ValueError for columns that it does not have."""
    groups = (spec.own_dtype or (), *spec.frames.dates, *spec.frames.no_bool_alone, *spec.frames.stacked)
    if any(not 0 <= column < spec.n_features for group in groups for column in group):
        raise ValueError(f"columns beyond the {spec.n_features} of the input")
    if spec.feature_names is not None and len(spec.feature_names) != spec.n_features:
        raise ValueError(f"{len(spec.feature_names)} names for {spec.n_features} columns")
    return spec


def require_width(count: int, width: int) -> None:
    """Raise ValueError unless there are as many columns as the graphs have: before a list of them is made, which could fill the memory."""
    if count != width:
        raise ValueError(f"{count} columns for graphs of {width}")


def _record(cls: type[Record], document: Mapping[str, Any]) -> Record:
    """The record from a document. Raises ValueError for a field that it does not have, and for a value that is not of the type of the
    field's neutral value."""
    values: dict[str, Any] = {name: tuples(value) for name, value in document.items()}
    types = {field.name: type(field.default) for field in fields(cls)}
    if unknown := [name for name in values if name not in types]:
        raise ValueError(f"facts about its input that this hbc does not know: {', '.join(unknown)}")
    wrong = [name for name, value in values.items() if type(value) is not types.get(name)]
    if wrong:
        raise ValueError(f"the fields {', '.join(wrong)} of {cls.__name__}")
    return cls(**values)


def tuples(value: Any) -> Any:
    """Lists of any depth as tuples."""
    return tuple(map(tuples, value)) if isinstance(value, list) else value
