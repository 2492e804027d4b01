"""What is made at its first use: attributes of objects, and the methods of records."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar, dataclass_transform, overload

Class = TypeVar("Class", bound=type[Any])

if TYPE_CHECKING or sys.version_info >= (3, 12):
    from functools import cached_property as cached_property
else:

    class cached_property:  # noqa: N801  its name in functools
        """`functools.cached_property` as it is since Python 3.12: without a lock.

        Before 3.12, all objects of a class shared one lock. If a signal handler called a model while its thread held that lock, it waited
        for ever, since the thread that compiles needs the lock too. And a forked child could inherit the locked lock. Without a lock, two
        threads may compute a value at the same time. That does no harm: the values are equal.
        """

        def __init__(self, compute: Any) -> None:
            self.compute = compute
            self.__doc__ = compute.__doc__

        def __set_name__(self, owner: type, name: str) -> None:
            self.name = name

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            if instance is None:
                return self
            values = instance.__dict__
            if self.name not in values:
                values[self.name] = self.compute(instance)
            return values[self.name]


# --- records -------------------------------------------------------------------------------------------------------------


@overload
def record(cls: Class, /) -> Class: ...
@overload
def record(*, eq: bool = True, repr: bool = True) -> Callable[[Class], Class]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: Any = None, /, *, eq: bool = True, repr: bool = True) -> Any:
    """Class decorator: `dataclass(frozen=True)`, which the standard library takes 1 to 2 ms for. This takes 0.1 ms, and `fields`, `replace`
    and `asdict` know the class.

    eq: compare and hash by the fields, otherwise by identity. repr: print the fields.

    `dataclasses` writes six methods as text and compiles them: 40 ms for the classes that `hbc.load` imports, most of which never compare
    or print an object. Here only `__init__` is compiled, when the first object is made.
    """
    if cls is None:
        return lambda found: record(found, eq=eq, repr=repr)  # type: ignore[call-overload]
    dataclass(init=False, eq=False, repr=False)(cls)
    methods: dict[str, Any] = {"__init__": _first_init(cls), "__setattr__": _no_setting, "__delattr__": _no_deleting}
    if repr:
        methods["__repr__"] = _repr
    if eq:
        methods |= _comparison(cls)
    for name, method in methods.items():
        if cls.__dict__.get(name) is None:
            setattr(cls, name, method)
    return cls


def _first_init(cls: Any) -> Callable[..., None]:
    """`__init__` of a record until its first call, which puts the true one in its place."""

    def first(self: Any, /, *args: Any, **values: Any) -> None:
        cls.__init__ = _init(cls)
        cls.__init__(self, *args, **values)

    return first


def _init(cls: Any) -> Any:
    """`__init__` of a record, as `dataclasses` writes it."""
    known: dict[str, Any] = {"put": object.__setattr__, "missing": MISSING}
    parameters, lines = ["self"], []
    for each in sorted(fields(cls), key=attrgetter("kw_only")):  # the others keep their order
        assert (each.init, each.compare, each.repr) == (True, True, True), (
            f"{cls.__qualname__}.{each.name}: no field of a record"
        )
        parameter = value = each.name
        if each.default is not MISSING:
            known[f"default_{each.name}"] = each.default
            parameter = f"{each.name}=default_{each.name}"
        elif each.default_factory is not MISSING:
            known[f"made_{each.name}"] = each.default_factory
            parameter = f"{each.name}=missing"
            value = f"made_{each.name}() if {each.name} is missing else {each.name}"
        if each.kw_only and "*" not in parameters:
            parameters.append("*")
        parameters.append(parameter)
        lines.append(f"    put(self, {each.name!r}, {value})\n")
    if hasattr(cls, "__post_init__"):
        lines.append("    self.__post_init__()\n")
    exec(f"def __init__({', '.join(parameters)}):\n{''.join(lines) or '    pass'}", known)
    known["__init__"].__qualname__ = f"{cls.__qualname__}.__init__"
    return known["__init__"]


def _comparison(cls: Any) -> dict[str, Any]:
    """`__eq__` and `__hash__` by the fields of a record."""
    names = [each.name for each in fields(cls)]
    values = attrgetter(*names) if len(names) > 1 else lambda self: tuple(getattr(self, name) for name in names)

    def equal(self: Any, other: Any) -> Any:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    return {"__eq__": equal, "__hash__": lambda self: hash(values(self))}


def _repr(self: Any) -> str:
    values = ", ".join(f"{each.name}={getattr(self, each.name)!r}" for each in fields(self))
    return f"{type(self).__qualname__}({values})"


def _no_setting(self: Any, name: str, value: Any) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _no_deleting(self: Any, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")
