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
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.tir.dialect import Expr
from hbc.compiler.tvm.tir.vectors import look_up, many, store, vector
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


def sign_tree(edges: list[Array], top: int) -> Array:
    """Search trees of `top` levels, for `node_below`: [columns, 2^top]. edges: those of each column, sorted, finite, and at most
    2^top - 1."""
    sorted_edges = np.full((len(edges), (1 << top) - 1), np.finfo(edges[0].dtype).max, edges[0].dtype)
    for own, some in zip(sorted_edges, edges, strict=True):
        own[: len(some)] = some
    tree = np.zeros((len(edges), 1 << top), sorted_edges.dtype)
    for level in range(top):
        tree[:, 1 << level : 2 << level] = sorted_edges[:, (1 << (top - level - 1)) - 1 :: 1 << (top - level)]
    return tree + tree.dtype.type(0)  # no -0


def node_below(value: Expr, top: int, read: Callable[[int], Expr], dtype: str, lanes: int) -> Expr:
    """For each value of a register: 2^top plus the number of edges of `sign_tree`'s that are below it, as integers as wide as the values.
    2^top and more for NaN, and 2^(top + 1) - 1 for infinity.

    An edge is below a value where their difference has a sign. One instruction shifts the sign into the number of the next node
    (AVX-512 VBMI2). So a level takes three instructions, and 1.5 cycles on Zen 4, where all four pipes take part in it. A level of
    `edges_below` takes five, and 2.5. It must not be 0 - 0 with a sign: no edge is -0. Nor may it be NaN: no edge is infinite.
    """
    bits = int(dtype[1:])
    kind, every = many(f"int{bits}", lanes), lambda number: tirx.Broadcast(tirx.const(number, f"int{bits}"), lanes)
    node = every(1)
    for level in range(top):
        start = (1 << level) // lanes * lanes
        edge = look_up([read(at) for at in range(start, max(2 * start, lanes), lanes)], node, dtype, lanes)
        difference = tirx.reinterpret(kind, tirx.Sub(edge, value))
        node = T.Bind(tirx.call_llvm_pure_intrin(kind, f"llvm.fshl.v{lanes}i{bits}", node, difference, every(1)))
    return node
