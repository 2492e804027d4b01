"""What is asked of a frame takes a time that grows with its columns, and not with their square."""

from __future__ import annotations

from typing import Any

import pytest

from hbc.ir.graph import Input
from hbc.ops import tensor as t
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
