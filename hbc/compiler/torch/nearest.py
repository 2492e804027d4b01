"""Smallest in PyTorch: torch.topk, and a heap for rows where an exact tie decides."""

from __future__ import annotations

import torch
from torch import Tensor

from hbc.compiler.torch.exact import Function, scripted
from hbc.compiler.torch.rules import runs
from hbc.ir.graph import Node
from hbc.ops.nearest import Smallest

TIES = {"column": 0, "heap": 1, "heaps": 2}


def heaped(rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """(the numbers of rows[n, M] that stay in a heap of k places, in the order of its array, [n, k]; their columns i64[n, k]): see
    hbc.ops.nearest."""
    width = rows.size(1)
    depth = 1
    while (1 << depth) - 1 < k:
        depth += 1
    heap = torch.full([rows.size(0), (1 << depth) - 1], -float("inf"), dtype=rows.dtype, device=rows.device)
    heap[:, :k] = float("inf")
    held = torch.zeros_like(heap, dtype=torch.int64)
    place = torch.arange(width, device=rows.device).unsqueeze(0)
    last = torch.full([rows.size(0), 1], -1, dtype=torch.int64, device=rows.device)
    enters = rows < heap[:, :1]
    while bool(enters.any()):
        some = enters.any(1, keepdim=True)
        # A row without a number that enters pushes its root again, which changes nothing.
        first = torch.argmax(enters.to(torch.uint8), 1, keepdim=True)
        new = torch.where(some, first, held[:, :1])
        number = torch.where(some, torch.gather(rows, 1, first), heap[:, :1])
        last = torch.where(some, first, width)
        at = torch.zeros_like(new)
        for _ in range(depth - 1):
            left = 2 * at + 1
            child = left + (torch.gather(heap, 1, left) < torch.gather(heap, 1, left + 1)).to(torch.int64)
            value = torch.gather(heap, 1, child)
            down = number < value
            heap = heap.scatter(1, at, torch.where(down, value, number))
            held = held.scatter(1, at, torch.where(down, torch.gather(held, 1, child), new))
            at = torch.where(down, child, at)
        heap = heap.scatter(1, at, number)
        held = held.scatter(1, at, new)
        enters = (rows < heap[:, :1]) & (place > last)
    return heap[:, :k], held[:, :k]


def smallest(x: Tensor, columns: Tensor, k: int, ties: int) -> Tensor:
    """Smallest of x[N, M], i64[N, k]. columns[N or 1, M] holds the columns in the order in which the source pushes them; `ties`: see
    TIES."""
    width = x.size(1)
    x = torch.where(x < float("inf"), x, float("inf"))
    best = torch.topk(x, min(k + 1, width), 1, False, True)
    numbers, places = best[0], best[1][:, :k]
    places = torch.sort(places, 1)[0]
    found = torch.gather(x, 1, places)
    places = torch.where(found < float("inf"), places, width)
    places = torch.gather(places, 1, torch.sort(found, stable=True, dim=1)[1])
    first = k - 1 if ties == 0 else 0
    equal = (numbers[:, first:-1] == numbers[:, first + 1 :]) & (numbers[:, first:-1] < float("inf"))
    tied = torch.nonzero(equal.any(1)).squeeze(1)
    if tied.numel() > 0:
        pushed = columns.expand(x.size(0), width)[tied]
        found, held = heaped(torch.gather(x[tied], 1, pushed), k)
        if ties == 2:
            found, again = heaped(found, k)
            held = torch.gather(held, 1, again)
        left = torch.where(found < float("inf"), torch.gather(pushed, 1, held), width)
        if ties == 0:
            left, by_column = torch.sort(left, 1)
            found = torch.gather(found, 1, by_column)
        places = places.index_copy(0, tied, torch.gather(left, 1, torch.sort(found, stable=True, dim=1)[1]))
    return places


@runs(Smallest)
def _smallest(op: Smallest, node: Node) -> Function:
    k, block, ties = op.k, op.block, TIES[op.ties]

    def natural(x: Tensor) -> Tensor:
        return scripted(smallest)(x, torch.arange(x.size(1), device=x.device).unsqueeze(0), k, ties)

    def ordered(x: Tensor, order: Tensor) -> Tensor:
        columns = order.unsqueeze(2) * block + torch.arange(block, device=x.device)
        return scripted(smallest)(x, columns.flatten(1), k, ties)

    return ordered if block else natural
