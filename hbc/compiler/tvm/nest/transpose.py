"""Copies between the caller's rows and the columns of a block, in vector registers.

A wide matrix is cut into squares that are transposed in registers: five times as fast as element by element. The rows of a matrix of few
columns are dealt out, so that each column fills a whole register. The next statement loads it faster than one that was written in parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.nest.function import Chunk, Row
from hbc.compiler.tvm.tir.vectors import as_vector, shuffled, store, vector
from hbc.ir.graph import Node
from hbc.ir.types import TensorType

BITS = {"f32": 32, "i32": 32, "f64": 64, "i64": 64}
SMALLEST = 4  # the least side of a square; smaller ones gain nothing


def side(f: Chunk, kind: TensorType) -> int:
    """The side of the squares that a matrix is cut into; 0 if it is copied in another way."""
    if f.lanes == 1 or len(kind.shape) != 2 or kind.dtype not in BITS:
        return 0
    side = min(f.schedule.register_bits(f.dialect) // BITS[kind.dtype], f.lanes)
    while side > kind.columns:
        side //= 2
    return side if side >= SMALLEST else 0


NARROW = 8  # the most columns of a matrix whose rows are dealt out


def narrow(f: Chunk, kind: TensorType) -> int:
    """The number of rows that are dealt out at once, as many as a register has elements; 0 if the matrix is copied in another way."""
    if f.lanes == 1 or len(kind.shape) > 2 or kind.dtype not in BITS or not 1 <= _columns(kind) <= NARROW:
        return 0
    # With 256 bits an exchange between two registers takes three instructions.
    return min(512 // BITS[kind.dtype], f.lanes) if f.dialect.wide or _columns(kind) == 1 else 0


def _columns(kind: TensorType) -> int:
    return int(kind.shape[1]) if len(kind.shape) == 2 else 1


def _shuffled(pair: list[Any], places: list[int]) -> Any:
    """`shuffled`, with a name in the code."""
    return T.Bind(shuffled(pair, places))


def dealt(vectors: list[Any], size: int) -> list[Any]:
    """Rows → columns. `vectors` hold `size` rows one after the other, and are as many as there are columns. Returns a vector a column."""
    count = len(vectors)
    if count == 1:
        return vectors
    if count % 2 == 0:  # the elements of even columns stand in even places
        pairs = [[vectors[i], vectors[i + 1]] for i in range(0, count, 2)]
        halves = [dealt([_shuffled(pair, [2 * k + odd for k in range(size)]) for pair in pairs], size) for odd in (0, 1)]
        return [column for both in zip(*halves, strict=True) for column in both]
    # Each register in turn puts in the elements that it has.
    columns = []
    for j in range(count):
        homes = [divmod(j + count * k, size) for k in range(size)]
        columns.append(_collected(vectors, homes, size))
    return columns


def _collected(vectors: list[Any], homes: list[tuple[int, int]], size: int) -> Any:
    """A vector of elements of `vectors`. Place p gets element j of vectors[i], where homes[p] = (i, j)."""
    result = vectors[0]
    for i in range(1, len(vectors)):
        kept = [at if i == 1 and home == 0 else k if i > 1 else 0 for k, (home, at) in enumerate(homes)]
        result = _shuffled([result, vectors[i]], [size + at if home == i else kept[k] for k, (home, at) in enumerate(homes)])
    return result


def gathered(columns: list[Any], size: int) -> list[Any]:
    """Columns → rows: the reverse of `dealt`."""
    count = len(columns)
    if count == 1:
        return columns
    if count % 2 == 0:
        even, odd = (gathered(columns[start::2], size) for start in (0, 1))
        zipped = [[k // 2 + (size if k % 2 else 0) for k in range(start, start + size)] for start in (0, size)]
        return [_shuffled([a, b], places) for a, b in zip(even, odd, strict=True) for places in zipped]
    positions = [[divmod(i * size + k, count) for k in range(size)] for i in range(count)]
    return [_collected(columns, [(column, row) for row, column in some], size) for some in positions]


@contextmanager
def _rows(f: Chunk, node: Node, size: int) -> Iterator[tuple[Any, Any, Any]]:
    """Loop over the current vector, `size` rows at a time. Yields (origin, pool, inside): the place of these rows in the caller's matrix;
    the pool of the node's slot, and the place of their first column there."""
    with f.grid([f.lanes // size]) as (group,):
        row = Row(f.start + group * size, group * size)
        pool, at = f.place(node, tirx.const(0, "int64"), row)
        outside = (f.base + row.block) * _columns(node.type)
        # Loops of one round, see `_squares`.
        with T.serial(outside, outside + 1) as origin, T.serial(at, at + 1) as inside:
            yield origin, pool, inside


def deal(f: Chunk, node: Node, size: int, chosen: list[int]) -> None:
    """Copy the chosen columns of a full vector of rows from the caller's matrix to the node's slot, for `narrow` matrices."""
    with _rows(f, node, size) as (origin, pool, inside):
        flat = as_vector(f.arguments[node])
        columns = dealt([T.Bind(vector(flat, origin + i * size, size)) for i in range(_columns(node.type))], size)
        for j, column in enumerate(chosen):
            store(pool, columns[column], inside + j * f.stride(node), size)


def gather(f: Chunk, node: Node, output: Any, size: int) -> None:
    """Copy a full vector of rows from the node's slot to the caller's array, for `narrow` matrices."""
    with _rows(f, node, size) as (origin, pool, inside):
        flat = as_vector(output)
        columns = [T.Bind(vector(pool, inside + j * f.stride(node), size)) for j in range(_columns(node.type))]
        for i, rows in enumerate(gathered(columns, size)):
            store(flat, rows, origin + i * size, size)


def turned(vectors: list[Any]) -> list[Any]:
    """The transpose of a square, a vector a row. Stage d exchanges the off-diagonal quarters of every 2d × 2d block."""
    size = len(vectors)
    distance = 1
    while distance < size:
        upper = [j if not j & distance else size + j - distance for j in range(size)]
        lower = [j + distance if not j & distance else size + j for j in range(size)]
        following = list(vectors)
        for i in range(size):
            if not i & distance:
                pair = [vectors[i], vectors[i + distance]]
                following[i] = _shuffled(pair, upper)
                following[i + distance] = _shuffled(pair, lower)
        vectors = following
        distance *= 2
    return vectors


BYTES_SIDE = 16
"""The side of the squares of bytes that `turned_bytes` takes: an instruction interleaves bytes within parts of so many."""


def turned_bytes(registers: list[Any], size: int) -> list[Any]:
    """The transposes of squares of 16 × 16 bytes, one in each part of 16 registers of `size` bytes.

    Each round interleaves the bytes of registers i and i + 8 (vpunpcklbw and vpunpckhbw). So the highest bit of a register's number becomes
    the lowest of a byte's place, and after four rounds the two have changed places.
    """
    half = BYTES_SIDE // 2
    # Of two registers: the lower, and the upper eight bytes of each part of 16, interleaved.
    interleaved = [
        [part + upper + i // 2 + i % 2 * size for part in range(0, size, BYTES_SIDE) for i in range(BYTES_SIDE)]
        for upper in (0, half)
    ]
    for _ in range(4):
        pairs = list(zip(registers[:half], registers[half:], strict=True))
        registers = [_shuffled(list(pair), places) for pair in pairs for places in interleaved]
    return registers


@contextmanager
def _squares(f: Chunk, node: Node, size: int) -> Iterator[tuple[Any, Any, Any]]:
    """Loop over the squares of the current vector. Yields (origin, pool, inside): the place of the square in the caller's matrix; the pool
    of the node's slot, and the square's place there. If columns are left over, the last square overlaps its neighbour."""
    columns = node.type.columns
    with f.grid([-(-columns // size), f.lanes // size]) as (tile, group):
        column = T.Bind(tirx.Min(tirx.const(columns - size, "int64"), tirx.const(size, "int64") * tile))
        row = Row(f.start + group * size, group * size)
        pool, at = f.place(node, column, row)
        outside = (f.base + row.block) * columns + column
        # Loops of one round: TVM keeps a run of elements whole only if it begins at a loop variable.
        with T.serial(outside, outside + 1) as origin, T.serial(at, at + 1) as inside:
            yield origin, pool, inside


def take_in(f: Chunk, node: Node, size: int) -> None:
    """Copy a full vector of rows from the caller's matrix to the node's slot, in squares."""
    with _squares(f, node, size) as (origin, pool, inside):
        flat = as_vector(f.arguments[node])
        rows = [T.Bind(vector(flat, origin + i * node.type.columns, size)) for i in range(size)]
        for j, column in enumerate(turned(rows)):
            store(pool, column, inside + j * f.stride(node), size)


def give_out(f: Chunk, node: Node, output: Any, size: int) -> None:
    """Copy a full vector of rows from the node's slot to the caller's array, in squares."""
    with _squares(f, node, size) as (origin, pool, inside):
        columns = [T.Bind(vector(pool, inside + j * f.stride(node), size)) for j in range(size)]
        flat = as_vector(output)
        for i, row in enumerate(turned(columns)):
            store(flat, row, origin + i * node.type.columns, size)
