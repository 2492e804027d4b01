"""Converts an InputSpec to JSON for a saved model, and back. Saved models of version 1 have other fields, which are read too."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from typing import Any, TypeVar

from hbc.ir.signature import Arrays, Column, Frames, InputSpec, Sparse

Record = TypeVar("Record", Arrays, Column, Frames, Sparse)

NEUTRAL = asdict(Column())


def spec_document(spec: InputSpec) -> dict[str, Any]:
    """The spec as JSON. Neighbouring columns that are alike are written once, with their count and the fields that are not neutral."""
    runs = [(len(list(group)), asdict(column)) for column, group in itertools.groupby(spec.columns)]
    return {
        "columns": [[count, {name: value for name, value in fact.items() if value != NEUTRAL[name]}] for count, fact in runs],
        "feature_names": spec.feature_names,
        "ndim": spec.ndim,
        "items": spec.items,
        "own_dtype": spec.own_dtype,
        "arrays": asdict(spec.arrays),
        "frames": asdict(spec.frames),
        "sparse": asdict(spec.sparse),
    }


def read_spec(document: Mapping[str, Any], version: int, width: int) -> InputSpec:
    """The spec from a document of a saved model of this version. `width` is the number of columns of the model's graphs. Raises ValueError,
    KeyError or TypeError for a document that hbc did not write."""
    spec = READERS[version](document, width)
    groups = (spec.own_dtype or (), *spec.frames.dates, *spec.frames.stacked)
    if any(not 0 <= column < spec.n_features for group in groups for column in group):
        raise ValueError(f"columns beyond the {spec.n_features} of the input")
    if spec.feature_names is not None and len(spec.feature_names) != spec.n_features:
        raise ValueError(f"{len(spec.feature_names)} names for {spec.n_features} columns")
    return spec


def _of_version_2(document: Mapping[str, Any], width: int) -> InputSpec:
    values = dict(document)
    runs = [(int(count), _record(Column, fact)) for count, fact in values.pop("columns")]
    _require_width(sum(abs(count) for count, _ in runs), width)
    columns = tuple(column for count, column in runs for _ in range(count))
    arrays, frames = _record(Arrays, values.pop("arrays")), _record(Frames, values.pop("frames"))
    sparse = _record(Sparse, values.pop("sparse"))
    rest: dict[str, Any] = {name: tuples(value) for name, value in values.items()}
    return InputSpec(columns, arrays=arrays, frames=frames, sparse=sparse, **rest)


def _of_version_1(document: Mapping[str, Any], width: int) -> InputSpec:
    """The spec from a document of version 1: 34 fields in a row, which
    are flags, lists of columns, or lists of a number for each column."""
    old: dict[str, Any] = {name: tuples(value) for name, value in document.items()}
    if unknown := old.keys() - FIELDS_1:
        raise ValueError(f"the fields {', '.join(sorted(unknown))}")
    count = int(old["n_features"])
    _require_width(count, width)
    stay = old["objects_stay"] or (0,) * count
    lists = {name: frozenset(old[name]) for name in COLUMNS_1}
    numbers = {name: old[flag] or (0,) * count for name, flag in NUMBERS_1.items()}
    columns = []
    for i in range(count):
        facts: dict[str, Any] = {name: i in found for name, found in lists.items()}
        facts |= {name: found[i] for name, found in numbers.items()}
        columns.append(Column(**facts, objects_stay=stay[i] > 0, returned=stay[i] > 1))
    reader = READERS_1[old["reader"]]
    return InputSpec(
        tuple(columns),
        *(old["feature_names"], old["ndim"], old["items"], old["own_dtype"]),
        Arrays(old["narrow_as_f32"], old["plain_floats"], old["native_order"], old["fixed_width"]),
        Frames(
            by_column=old["dtype_by_column"],
            in_order=old["dtype_by_column"] and not old["by_name"],
            required=old["frames_only"],
            apart=old["dtypes_apart"],
            integers_as_f64=old["integers_as_f64"],
            libraries=old["libraries"],
            no_numbers=reader,
            dates=old["dates"],
            stacked=old["stacked"],
        ),
        Sparse(
            accepted=old["sparse"],
            nan=old["sparse_nan"],
            absent_is_missing=old["absent_is_missing"],
            floats_only=old["float_entries"],
            matrices_only=old["reader"] == "catboost",
            csr_if_named=old["reader"] == "xgboost",
            dense_methods=old["dense_methods"],
        ),
    )


COLUMNS_1 = ("strings", "signed", "beside_numbers", "frames_as_f64", "objects_only", "none_apart", "texts_only", "digits")
"""Fields of version 1 that are lists of columns, which now are fields of these columns."""

NUMBERS_1 = {"integer_bits": "integer_bits", "function_bits": "functions"}
"""Fields of a column that version 1 had as a list of a number for each column, or an empty one; and the names of those lists."""

READERS_1: dict[str, tuple[str, ...]] = {
    "": (),
    "lightgbm": (
        *("pandas.ObjectDType", "pandas.CategoricalDtype", "pandas.ArrowDtype"),
        *("polars.Float16", "pyarrow.halffloat", "pyarrow.dictionary"),
    ),
    "xgboost": ("pandas.ObjectDType", "pandas.CategoricalDtype", "polars.Float16", "pyarrow.halffloat", "pyarrow.dictionary"),
    "catboost": ("pandas.CategoricalDtype", "pandas.BooleanDtype with NA"),
}
"""The library that version 1 named instead of the dtypes from which it reads no numbers."""

FIELDS_1 = {
    *("n_features", "feature_names", "by_name", "dtype_by_column", "frames_only", "integers_as_f64", "sparse", "sparse_nan"),
    *("absent_is_missing", "ndim", "dates", "items", "narrow_as_f32", "float_entries", "own_dtype", "native_order", "stacked"),
    *("libraries", "reader", "plain_floats", "objects_stay", "fixed_width", "dtypes_apart", "dense_methods"),
    *COLUMNS_1,
    *NUMBERS_1.values(),
}

READERS: dict[int, Callable[[Mapping[str, Any], int], InputSpec]] = {1: _of_version_1, 2: _of_version_2}


def _require_width(count: int, width: int) -> None:
    """Raise ValueError unless there are as many columns as the graphs have: before a list of them is made, which could fill the memory."""
    if count != width:
        raise ValueError(f"{count} columns for graphs of {width}")


def _record(cls: type[Record], document: Mapping[str, Any]) -> Record:
    """The record from a document. Raises ValueError for a value that is not of the type of the field's neutral value."""
    values: dict[str, Any] = {name: tuples(value) for name, value in document.items()}
    types = {field.name: type(field.default) for field in fields(cls)}
    wrong = [name for name, value in values.items() if type(value) is not types.get(name)]
    if wrong:
        raise ValueError(f"the fields {', '.join(wrong)} of {cls.__name__}")
    return cls(**values)


def tuples(value: Any) -> Any:
    """Lists of any depth as tuples."""
    return tuple(map(tuples, value)) if isinstance(value, list) else value
