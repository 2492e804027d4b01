"""Smallest in ONNX: TopK, and for rows where an exact tie decides a Loop of heap pushes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper

from hbc.compiler.onnx.builder import PROTO_DTYPES, Builder, Operand, emits
from hbc.ir.graph import Node
from hbc.ir.types import NUMPY_DTYPES, Array
from hbc.ops.nearest import Smallest


def _several(b: Builder, op_type: str, count: int, *operands: Operand, **attributes: Any) -> list[str]:
    """Adds one ONNX node with `count` outputs, and returns their names."""
    first = b(op_type, *operands, **attributes)
    names = [first, *(f"{first}_{i}" for i in range(1, count))]
    b.nodes[-1].output[:] = names
    return names


def _lowest(b: Builder, x: Operand, k: int) -> list[str]:
    """The k lowest numbers of every row and their columns, ascending. TopK is specified to take the first of equal numbers."""
    return _several(b, "TopK", 2, x, np.array([k]), axis=1, largest=0, sorted=1)


@emits(Smallest)
def _smallest(b: Builder, op: Smallest, node: Node) -> str:
    kind = node.inputs[0].type
    width, k = kind.columns, op.k
    infinite = np.asarray(np.inf, NUMPY_DTYPES[kind.dtype])
    given = b.inputs(node)
    x = b("Where", b("Less", given[0], infinite), given[0], infinite)
    numbers, places = _lowest(b, x, min(k + 1, width))
    if k < width:
        places = b("Slice", places, np.array([0]), np.array([k]), np.array([1]))
    _, order = _lowest(b, places, k)
    places = b("GatherElements", places, order, axis=1)
    found = b("GatherElements", x, places, axis=1)
    places = b("Where", b("Less", found, infinite), places, np.asarray(width))
    _, order = _lowest(b, found, k)
    places = b("GatherElements", places, order, axis=1)
    count = min(k + 1, width) - 1  # the number of pairs of adjacent numbers
    first = k - 1 if op.ties == "column" else 0
    if first == count:
        return places
    one, other = (b("Slice", numbers, np.array([i]), np.array([i + count - first]), np.array([1])) for i in (first, first + 1))
    ties = b("And", b("Equal", one, other), b("Less", other, infinite))
    tied = b("Squeeze", b("NonZero", b.any(ties, axis=1)), np.array([0]))
    rows, pushed = b("Gather", x, tied, axis=0), ""
    if op.block:
        blocks = b("Unsqueeze", b("Gather", given[1], tied, axis=0), np.array([2]))
        columns = b("Add", b("Mul", blocks, np.asarray(op.block)), np.arange(op.block))
        pushed = b("Reshape", columns, np.array([0, width]))
        rows = b("GatherElements", rows, pushed, axis=1)
    found, left = _heaped(b, rows, k, width, infinite)
    if op.ties == "heaps":
        found, again = _heaped(b, found, k, k, infinite)
        left = b("GatherElements", left, again, axis=1)
    if op.block:
        left = b("GatherElements", pushed, left, axis=1)
    left = b("Where", b("Less", found, infinite), left, np.asarray(width))
    if op.ties == "column":
        left, order = _lowest(b, left, k)
        found = b("GatherElements", found, order, axis=1)
    _, order = _lowest(b, found, k)
    left = b("GatherElements", left, order, axis=1)
    return b("ScatterND", places, b("Unsqueeze", tied, np.array([1])), left)


def _heaped(b: Builder, rows: str, k: int, width: int, infinite: Array) -> tuple[str, str]:
    """(the numbers that stay in a heap of k places, in the order of its array, [n, k]; their columns i64[n, k]): see hbc.ops.nearest. It is
    a Loop. Each round pushes, for all rows at once, the next number that enters the heap. For zero rows there is no round."""
    depth = k.bit_length()
    empty = np.full((1, (1 << depth) - 1), -infinite)
    empty[:, :k] = infinite
    count = b("Shape", rows, start=0, end=1)
    heap = b("Expand", empty, b("Concat", count, np.array([empty.shape[1]]), axis=0))
    held = b("Expand", np.zeros((1, 1), np.int64), b("Concat", count, np.array([empty.shape[1]]), axis=0))
    last = b("Expand", np.full((1, 1), -1), b("Concat", count, np.array([1]), axis=0))
    some = b("Squeeze", b("Less", np.array([0]), count), np.array([0]))

    inner = b.body()
    body = _push(inner, rows, depth, width, PROTO_DTYPES["f64" if infinite.dtype == np.float64 else "f32"])
    b.resume(inner)
    first = _several(b, "Loop", 3, "", some, heap, held, last, body=body)
    one, other = (b("Slice", result, np.array([0]), np.array([k]), np.array([1])) for result in first[:2])
    return one, other


def _push(b: Builder, rows: str, depth: int, width: int, dtype: int) -> onnx.GraphProto:
    """The body of the Loop: (round, go on, heap, held, last) → (go on, heap, held, last). `held` are the columns of the numbers in the
    heap, `last` is the column that each row pushed last."""
    prefix = b.new_name()
    step, again, heap, held, last = (f"{prefix}_{name}" for name in ("step", "again", "heap", "held", "last"))
    given = [
        helper.make_tensor_value_info(step, PROTO_DTYPES["i64"], []),
        helper.make_tensor_value_info(again, PROTO_DTYPES["bool"], []),
        helper.make_tensor_value_info(heap, dtype, None),
        helper.make_tensor_value_info(held, PROTO_DTYPES["i64"], None),
        helper.make_tensor_value_info(last, PROTO_DTYPES["i64"], None),
    ]

    def root(values: str) -> str:
        return b("Slice", values, np.array([0]), np.array([1]), np.array([1]))

    def entering(heap: str, last: str) -> str:
        return b("And", b("Less", rows, root(heap)), b("Less", last, np.arange(width)[None]))

    enters = entering(heap, last)
    some = b.any(enters, axis=1, keepdims=True)
    first = b("ArgMax", b.cast(enters, "u8"), axis=1, keepdims=1)
    # A row without a number that enters pushes its root again, which changes nothing.
    new = b("Where", some, first, root(held))
    number = b("Where", some, b("GatherElements", rows, first, axis=1), root(heap))
    following = b("Where", some, first, np.asarray(width))
    at = b("Sub", new, new)
    for _ in range(depth - 1):
        left = b("Add", b("Mul", at, np.asarray(2)), np.asarray(1))
        one, other = (
            b("GatherElements", heap, left, axis=1),
            b("GatherElements", heap, b("Add", left, np.asarray(1)), axis=1),
        )
        child = b("Add", left, b("Cast", b("Less", one, other), to=PROTO_DTYPES["i64"]))
        value = b("GatherElements", heap, child, axis=1)
        down = b("Less", number, value)
        moved = b("Where", down, b("GatherElements", held, child, axis=1), new)
        heap = b("ScatterElements", heap, at, b("Where", down, value, number), axis=1)
        held = b("ScatterElements", held, at, moved, axis=1)
        at = b("Where", down, child, at)
    heap = b("ScatterElements", heap, at, number, axis=1)
    held = b("ScatterElements", held, at, new, axis=1)
    go_on = b.any(entering(heap, following))
    results = [
        helper.make_tensor_value_info(go_on, PROTO_DTYPES["bool"], None),
        helper.make_tensor_value_info(heap, dtype, None),
        helper.make_tensor_value_info(held, PROTO_DTYPES["i64"], None),
        helper.make_tensor_value_info(following, PROTO_DTYPES["i64"], None),
    ]
    return helper.make_graph(b.nodes, "push", given, results)
