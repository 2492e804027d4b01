"""Records do what frozen dataclasses do."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import KW_ONLY, FrozenInstanceError, asdict, dataclass, field, fields, is_dataclass, replace
from typing import Any, ClassVar

import pytest

from hbc.lazy import cached_property, record


class Shape:
    known: ClassVar[int] = 7
    name: str
    sides: int = 4
    tags: list[str] = field(default_factory=list, metadata={"kind": "note"})

    @cached_property
    def double(self) -> int:
        return self.sides * 2


class Large(Shape):
    size: float = 1.5

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", float(self.size))


def made(decorate: Callable[[Any], Any]) -> tuple[Any, Any]:
    """Shape and Large as classes of their own, made by a decorator."""
    shape: Any = type(
        "Shape", (), {name: value for name, value in vars(Shape).items() if name not in ("__dict__", "__weakref__")}
    )
    shape.double.__set_name__(shape, "double")
    shape = decorate(shape)
    large = type(
        "Large", (shape,), {name: value for name, value in vars(Large).items() if name not in ("__dict__", "__weakref__")}
    )
    return shape, decorate(large)


BOTH = list(zip(made(dataclass(frozen=True)), made(record), strict=True))


@pytest.mark.parametrize(("standard", "own"), BOTH, ids=["Shape", "Large"])
def test_a_record_is_what_a_frozen_dataclass_is(standard: Any, own: Any) -> None:
    arguments: list[Any] = [(("a",), {}), (("a", 3), {}), ((), {"name": "b", "tags": ["x"]})]
    for args, values in arguments:
        expected, found = standard(*args, **values), own(*args, **values)
        assert is_dataclass(found)
        assert asdict(found) == asdict(expected) == vars(found) == vars(expected)
        assert repr(found) == repr(expected)
        assert found == own(*args, **values) != own("other")
        assert found != expected
        assert asdict(replace(found, sides=9)) == asdict(replace(expected, sides=9))
        assert copy.copy(found) == found
        assert found.double == expected.double
    assert [(each.name, each.metadata) for each in fields(own)] == [(each.name, each.metadata) for each in fields(standard)]
    assert own.__match_args__ == standard.__match_args__
    assert own("a").tags is not own("a").tags


@pytest.mark.parametrize("place", [0, 1], ids=["dataclass", "record"])
def test_nothing_changes_a_record(place: int) -> None:
    shape = BOTH[0][place]("a")
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'name'"):
        shape.name = "b"
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'other'"):
        shape.other = 1
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'name'"):
        del shape.name


@pytest.mark.parametrize("place", [0, 1], ids=["dataclass", "record"])
def test_wrong_arguments_are_rejected_at_the_first_object_too(place: int) -> None:
    for cls in made([dataclass(frozen=True), record][place]):
        with pytest.raises(TypeError, match="missing 1 required positional argument: 'name'"):
            cls()
        with pytest.raises(TypeError, match="unexpected keyword argument 'corners'"):
            cls("a", corners=3)


@pytest.mark.parametrize("decorate", [dataclass(frozen=True), record], ids=["dataclass", "record"])
def test_fields_by_keyword_come_after_all_others(decorate: Callable[[Any], Any]) -> None:
    @decorate
    class Check:
        owner: str
        _: KW_ONLY
        limit: int = 3
        rows: int

    @decorate
    class Values(Check):
        values: list[int]
        counts: list[int] = field(default_factory=list)

    assert asdict(Values("a", [1], rows=2)) == {"owner": "a", "limit": 3, "rows": 2, "values": [1], "counts": []}
    assert list(asdict(Values("a", [1], rows=2))) == ["owner", "limit", "rows", "values", "counts"]
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'rows'"):
        Values("a", [1])
    with pytest.raises(TypeError, match="takes from 3 to 4 positional arguments"):
        Values("a", [1], [2], 3)


@record
class Point:
    x: int = 0


@record(eq=False, repr=False)
class Same:
    x: int = 0


def test_records_are_pickled_hashed_and_compared() -> None:
    assert pickle.loads(pickle.dumps(Point(3))) == Point(3)
    assert len({Point(3), Point(3), Point(4)}) == 2
    assert hash(Point(3)) == hash((3,))
    assert Same(3) != Same(3)
    assert "Same object" in repr(Same(3))


def test_a_class_keeps_its_own_methods() -> None:
    @record
    class Own:
        x: int = 0

        def __eq__(self, other: object) -> bool:
            return True

        def __repr__(self) -> str:
            return "mine"

    assert Own(1) == Own(2)
    assert hash(Own(1)) == hash((1,))
    assert repr(Own()) == "mine"
