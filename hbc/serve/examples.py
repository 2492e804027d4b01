"""Examples of a model's input, made from its schema. They are valid, not typical: the model does not know its data."""

from __future__ import annotations

from typing import Any, Literal

from hbc.runtime.input.columns import names_of
from hbc.runtime.model import CompiledModel
from hbc.runtime.schema import Column

ITEMS: dict[str, Any] = {"document": "a few words of text", "dict": {"name": 1.0}, "list": ["name"], "set": ["name"]}
"""Kind of item → an example, for models that do not take columns."""


def column_names(model: CompiledModel) -> tuple[str, ...] | None:
    """The names of a model's columns in order. LightGBM's models have such, though they read frames by position. None: there are none."""
    known = names_of(model.spec)
    if known is None and model.spec.ndim == 2:
        fitted = getattr(model, "feature_names_in_", ())
        if len(fitted) == model.spec.n_features and all(isinstance(name, str) for name in fitted):
            return tuple(map(str, fitted))
    return known


def value(column: Column, which: int = 0) -> Any:
    """A value for a column. which: another number gives another value, where there are several."""
    if column.categories:
        known = column.categories[which % len(column.categories)]
        return known.item() if hasattr(known, "item") else known
    if column.kind in ITEMS:
        return ITEMS[column.kind]
    if column.dtype == "str":
        return "text"
    return 1 + which if column.dtype == "int64" else 0.5 + which


def row(model: CompiledModel, which: int = 0) -> tuple[Literal["record", "matrix"], Any]:
    """("record", an object) where columns have names, otherwise ("matrix", a list with one row)."""
    columns = model.schema.columns
    names = column_names(model)
    values = [value(column, which) for column in columns]
    if names is not None and model.spec.ndim == 2:
        return "record", dict(zip(names, values, strict=True))
    return "matrix", values if model.spec.ndim == 1 else [values]
