"""Variables, conditions, constants and parameters of the functions that are emitted for the host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.tir.dialect import Expr

ZERO, ONE = tirx.const(0, "int64"), tirx.const(1, "int64")


class Cell:
    """A variable in the emitted code."""

    def __init__(self, dtype: str, value: int = 0) -> None:
        self.dtype, self.buffer = dtype, T.alloc_buffer((1,), dtype, scope="global")
        self.set(tirx.const(value, dtype))

    @property
    def value(self) -> Expr:
        return self.buffer[0]

    def set(self, value: Expr) -> None:
        T.buffer_store(self.buffer, value, [0])

    def add(self, value: Expr) -> None:
        self.set(self.value + value)


@contextmanager
def when(condition: Expr) -> Iterator[None]:
    """The statements in here run if the condition is true."""
    with T.If(condition), T.Then():
        yield


def whole(value: int, dtype: str = "int64") -> Expr:
    """A constant of an integer dtype."""
    return tirx.const(int(value), dtype)


def argument(name: str, dtype: str, *shape: Any) -> Any:
    """A parameter of a function: a buffer of one dimension, or of `shape`."""
    sizes = shape or (tirx.Var(f"{name}_size", "int64"),)
    return tirx.decl_buffer(sizes, dtype, name=name, data_alignment=np.dtype(dtype).itemsize)
