"""The model as data: constant arrays and numbers that each call passes, so that the code does not depend on them."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import tirx

from hbc.compiler.memory import aligned
from hbc.compiler.tvm.tir.dialect import DTYPES, Expr
from hbc.compiler.tvm.tir.vectors import vector
from hbc.ir.types import NUMPY_DTYPES, Array
from hbc.lazy import record

LARGE = 1 << 15
"""The bytes from which on a constant array is an argument of its own, so that all methods share it. Smaller arrays are joined, since each
argument costs a call about 20 ns."""

ALIGNED = 64
"""Arrays begin at multiples of so many elements of a joined table, or bytes of an ensemble's data: at vectors and cache lines."""


def few_sizes(size: int) -> int:
    """`size` rounded up to a power of two, 32 at least. So models of many sizes share code."""
    return 1 << max(5, (size - 1).bit_length())


class Tables:
    """The constant arrays of a function: one table for each dtype, and a table for each large array.

    The place of an array in its table is a constant in the code, which takes the fewest instructions for pipelines of small operators.
    Arrays are known by identity, so whoever adds one must keep it alive.
    """

    def __init__(self) -> None:
        self.buffers: dict[tuple[str, int], Any] = {}  # by storage dtype and number; table 0 is the joined one
        self.arrays: dict[tuple[str, int], list[Array]] = {}
        self.places: dict[tuple[str, int], tuple[tuple[str, int], int]] = {}  # array → its table, and its offset there
        self.sizes: dict[str, int] = {}

    def elements(self, array: Array, dtype: str, position: Expr, lanes: int = 1) -> Expr:
        """One element of an array of a storage dtype, or a vector of consecutive ones."""
        key = (dtype, id(array))
        if key not in self.places:
            self.places[key] = self._add(array, dtype)
        table, offset = self.places[key]
        return vector(self.buffers[table], position + offset, lanes)

    def _add(self, array: Array, dtype: str) -> tuple[tuple[str, int], int]:
        table = (dtype, len(self.buffers) + 1 if array.nbytes >= LARGE else 0)
        offset = 0 if table[1] else self.sizes.get(dtype, 0)
        if table not in self.buffers:
            length = tirx.Var("size", "int64")
            self.buffers[table] = tirx.decl_buffer((length,), DTYPES[dtype], name=f"{dtype}_table{table[1] or ''}")
        self.arrays.setdefault(table, []).append(array)
        if not table[1]:
            self.sizes[dtype] = offset + -(-array.size // ALIGNED) * ALIGNED
        return table, offset

    def joined(self) -> dict[str, Array]:
        """The tables by the names of their buffers."""
        tables = {}
        for (dtype, number), arrays in self.arrays.items():
            name = f"{dtype}_table{number or ''}"
            if number:
                tables[name] = arrays[0].reshape(-1).view(NUMPY_DTYPES[dtype])  # bools as the bytes that they are
                continue
            tables[name] = aligned(max(self.sizes[dtype], 1), dtype)
            for array in arrays:
                offset = self.places[dtype, id(array)][1]
                tables[name][offset : offset + array.size] = array.reshape(-1)
        return tables


@record
class Part:
    """An array of an ensemble's data: the number that says at which of its elements it begins, its first byte, its bytes, and those of an
    element."""

    number: int
    start: int
    size: int
    itemsize: int


class ModelData:
    """The arrays and numbers of one tree ensemble, as one argument of a call: first the numbers, then the arrays.

    The code reads the numbers once, before its loops. The place of each array is such a number too. So ensembles that differ only in sizes
    and contents have the same code, and share it when it is compiled (run/cache.py).
    """

    def __init__(self, name: str) -> None:
        self.words = tirx.decl_buffer((tirx.Var("size", "int64"),), "int64", name=name)
        self.views: dict[str, Any] = {}  # the same memory, by dtype
        self.numbers: list[int | float] = []
        self.variables: list[tuple[Any, str]] = []  # the code's names for the numbers, with their dtypes
        self.arrays: list[tuple[Array, int]] = []  # (array, the number that says where it begins)
        self.places: dict[int, Any] = {}  # id of an array → the variable of its place, in elements

    def number(self, value: int | float, dtype: str = "i64") -> Expr:
        """The variable of a number (i64 or f64), which the code reads from the data."""
        variable = tirx.Var(f"number{len(self.numbers)}", DTYPES[dtype])
        self.numbers.append(value)
        self.variables.append((variable, dtype))
        return variable

    def elements(self, array: Array, dtype: str, position: Expr, lanes: int = 1) -> Expr:
        """One element of an array of a storage dtype, or a vector of consecutive ones. If `dtype` is a narrower one, its elements are parts
        of those of the array."""
        if id(array) not in self.places:
            self.arrays.append((array, len(self.numbers)))
            self.places[id(array)] = self.number(0)
        parts, first = array.itemsize // NUMPY_DTYPES[dtype].itemsize, self.places[id(array)]
        return vector(self._view(dtype), position + (first if parts == 1 else first * parts), lanes)

    def _view(self, dtype: str) -> Any:
        """The data as a buffer of a dtype."""
        if dtype not in self.views:
            # Nothing tests the length. If it weren't a constant, TVM would add an offset to vectors of indices.
            self.views[dtype] = tirx.decl_buffer(
                (1 << 30,), DTYPES[dtype], name=f"{self.words.name}_{dtype}", data=self.words.data, layout=None
            )
        return self.views[dtype]

    def prelude(self) -> list[Any]:
        """The statements that declare the views and read the numbers."""
        reads = [
            tirx.Bind(variable, self._view(dtype)[tirx.const(place, "int64")])
            for place, (variable, dtype) in enumerate(self.variables)
        ]
        return [*(tirx.DeclBuffer(view, data=self.words.data) for view in self.views.values()), *reads]

    def joined(self) -> Array:
        """The argument of a call: one array i64 that begins at a cache line."""
        parts = self.parts
        size = max([_in_lines(8 * len(self.numbers)), *(part.start + _in_lines(part.size) for part in parts)])
        table = aligned(size // 8, "i64")
        for place, (value, (_, dtype)) in enumerate(zip(self.numbers, self.variables, strict=True)):
            table[place : place + 1].view(NUMPY_DTYPES[dtype])[0] = value
        memory = table.view(np.uint8)
        for (array, place), part in zip(self.arrays, parts, strict=True):
            table[place] = part.start // part.itemsize
            memory[part.start : part.start + part.size].view(array.dtype)[...] = array.reshape(-1)
        return table

    @property
    def parts(self) -> tuple[Part, ...]:
        """The arrays in `joined`."""
        parts, at = [], _in_lines(8 * len(self.numbers))
        for array, number in self.arrays:
            parts.append(Part(number, at, array.nbytes, array.itemsize))
            at += _in_lines(array.nbytes)
        return tuple(parts)


def _in_lines(size: int) -> int:
    """A number of bytes, rounded up to whole cache lines."""
    return -(-size // ALIGNED) * ALIGNED
