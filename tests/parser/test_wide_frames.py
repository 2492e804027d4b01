"""What is asked of a frame takes a time that grows with its columns, and not with their square."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from hbc.ir.graph import Input
from hbc.ir.signature import Column, joined_columns
from hbc.ops import tensor as t
from hbc.ops.checks import Check
from hbc.parser import frame
from hbc.parser.frame import Frame, FrameColumn, dtype_givers, untouched


@pytest.mark.parametrize("computed", [False, True])
def test_a_value_of_a_frame_is_looked_at_once(monkeypatch: pytest.MonkeyPatch, computed: bool) -> None:
    """Each of a value's columns looked at all of them: LightGBM of 5,000 columns was not converted in three minutes."""
    x = Input("X", "f32", ("N", 300))()
    node = t.absolute(x) if computed else x
    wide = Frame(tuple(FrameColumn(node, i) for i in range(300)))
    calls: list[Any] = []
    real = frame.untouched

    def counted(value: Any) -> Any:
        calls.append(value)
        return real(value)

    monkeypatch.setattr(frame, "untouched", counted)
    assert untouched(wide) == ([None] * 300 if computed else [(x, i) for i in range(300)])
    assert dtype_givers(wide) == [(x, i) for i in range(300)]
    assert len(calls) < 10


def test_a_few_of_many_columns_are_looked_up_alone() -> None:
    """Each of 3,000 encoders asked where its own column comes from: with a list of all columns each time, they took 10 s of 15."""
    x = Input("X", "f64", ("N", 200_000))()
    checked = Check("an encoder", True, True)(x)
    few, behind = (Frame(tuple(FrameColumn(node, i) for i in (7, 150_000))) for node in (x, checked))
    tracemalloc.start()
    try:
        assert untouched(few) == untouched(behind) == [(x, 7), (x, 150_000)]
        assert tracemalloc.get_traced_memory()[1] < 50_000
    finally:
        tracemalloc.stop()


def test_columns_that_are_alike_are_joined_once() -> None:
    """(100,000 columns took 5.9 s to convert, now 2.7.)"""
    plain, text, noted = Column(), Column(strings=True), Column(integer_bits=8)
    joined = joined_columns((plain, text, plain, noted), (noted, plain, noted, plain))
    assert joined == (plain | noted, text, plain | noted, noted)
    assert joined[0] is joined[2]
