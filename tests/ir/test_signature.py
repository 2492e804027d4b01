"""The records of what a source library does with its input: how two of them become one."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from hbc.ir.signature import Arrays, Column, Frames, InputSpec, Joined, Sparse

OTHERS: dict[Any, Any] = {
    bool: lambda value: not value,
    int: lambda _: 8,
    str: lambda _: "a",
    tuple: lambda _: ("a",),
    type(None): lambda _: (3,),
}
"""By type: what gives another value than the neutral one."""


def cases() -> list[Any]:
    return [
        pytest.param(record, field.name, id=f"{record.__name__}.{field.name}")
        for record in (Column, Arrays, Frames, Sparse)
        for field in fields(record)
    ]


@pytest.mark.parametrize(("record", "name"), cases())
def test_neutral_values_change_nothing(record: type[Joined], name: str) -> None:
    neutral: Any = record()
    value = OTHERS[type(getattr(neutral, name))](getattr(neutral, name))
    noted = replace(neutral, **{name: value})
    assert noted != neutral
    assert getattr(noted | neutral, name) == getattr(neutral | noted, name) == getattr(noted | noted, name) == value


@pytest.mark.parametrize(
    ("one", "other", "joined"),
    [
        (Column(integer_bits=8), Column(integer_bits=32, signed=True), Column(integer_bits=32, signed=True)),
        (Sparse(accepted=False), Sparse(nan=False), Sparse(accepted=False, nan=False)),
        (Sparse(dense_methods=("b",)), Sparse(dense_methods=("a", "b")), Sparse(dense_methods=("a", "b"))),
        (Frames(libraries=("pandas", "polars")), Frames(libraries=("pandas",)), Frames(libraries=("pandas",))),
        (Frames(stacked=((1, 2),)), Frames(stacked=((0,), (1, 2))), Frames(stacked=((0,), (1, 2)))),
    ],
)
def test_what_both_say(one: Any, other: Any, joined: Any) -> None:
    assert one | other == other | one == joined


def test_a_spec_is_joined_column_by_column() -> None:
    model = InputSpec((Column(), Column()), ("a", "b"), ndim=2)
    found = InputSpec((Column(signed=True), Column()), own_dtype=(0,), arrays=Arrays(plain_floats=True))
    assert model | found == replace(found, feature_names=("a", "b"))
    assert (model | found | replace(found, own_dtype=(0, 1))).own_dtype == (), "variants of a model that do not agree"


def test_columns_are_found_by_name_unless_all_of_them_are_read_in_order() -> None:
    assert Frames(by_column=True).by_name
    assert not (Frames(by_column=True) | Frames(in_order=True)).by_name
    assert not Frames(in_order=True).by_name
