"""Binary searches in registers: how many of a column's sorted edges are below each value of a register (AVX-512; float32 also AVX2).

The edges form a binary search tree. The root, node 1, is the middle edge of a column, and node k has the children 2k and 2k + 1. So the
nodes of a level are consecutive and are looked up in as few registers as hold them. The first levels together fit in one.

Nodes have negative numbers, -1 for the root: a condition as an integer of all bits (-1) takes one instruction, as 1 two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import tirx

from hbc.compiler.tvm.tir.dialect import Expr
from hbc.compiler.tvm.tir.vectors import look_up, store, vector
from hbc.ir.types import Array


def padded(edges: Array, size: int) -> Array:
    """The edges of every column, padded to `size` edges with the largest number of the dtype (∞ for floats): no value is above it."""
    largest = np.inf if edges.dtype.kind == "f" else np.iinfo(edges.dtype).max
    result = np.full((len(edges), size), largest, edges.dtype)
    result[:, : edges.shape[1]] = edges
    return result


def search_tree(edges: Array, top: int, lanes: int) -> Array:
    """The first `top` levels of the search trees, for `edges_below`: [columns, nodes]. edges [columns, 2^levels]: sorted, and `padded`.
    lanes: of a register."""
    levels = edges.shape[1].bit_length() - 1
    tree = np.zeros((len(edges), max(1 << top, lanes)), edges.dtype)
    for level in range(top):
        size, start = max(1 << level, lanes), (1 << level) // lanes * lanes
        tree[:, start + -np.arange(1 << level, 2 << level) % size] = edges[
            :, (1 << (levels - level - 1)) - 1 :: 1 << (levels - level)
        ]
    return tree


def edges_below(value: Expr, top: int, read: Callable[[int], Expr], dtype: str, nodes: Any, lanes: int) -> Expr:
    """For each value of a register: how many edges of `search_tree`'s levels are below it, as integers as wide as the values; 0 for NaN.

    lanes: of the register. read: it returns the register of nodes that begins at a place of the column's tree. nodes: memory for a register
    of such integers (`scratch`). A variable in its place would be copied wherever it is read, at eight levels 100,000 times.
    """
    bits = int(dtype[1:])
    every = lambda number: tirx.Broadcast(tirx.const(number, f"int{bits}"), lanes)  # noqa: E731
    store(nodes, every(-1), 0, lanes)
    for level in range(top):
        k = vector(nodes, 0, lanes)
        start = (1 << level) // lanes * lanes
        edge = look_up([read(at) for at in range(start, max(2 * start, lanes), lanes)], k, dtype, lanes)
        above = tirx.Select(tirx.LT(edge, value), every(-1), every(0))
        store(nodes, tirx.Add(tirx.Add(k, k), above), 0, lanes)
    return tirx.Sub(every(-1 << top), vector(nodes, 0, lanes))
