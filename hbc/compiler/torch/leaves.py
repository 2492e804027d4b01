"""What the strategies "scan" and "walk" do with the leaves that rows reach: they add up their values, in the order of the trees."""

from __future__ import annotations

import torch
from torch import Tensor

from hbc.compiler.torch.exact import exporting
from hbc.ir.types import Array
from hbc.ops.tree import TreeEnsemble

ROWS_OF = 6
"""The fewest values of a leaf that are looked up together, as a row of a matrix. With 7, one row of 500 trees of depth 8 takes 56 µs and 72
one by one, 32 rows 11.5 and 13 a row, and many rows the same. With 5, many rows take 10 % longer (Zen 5)."""


def as_rows(values: int) -> bool:
    """Whether so many values of a leaf lie side by side, to be looked up together: ROWS_OF or more, or two, which are a complex number."""
    return values == 2 or values >= ROWS_OF


def add_leaves(total: Tensor, leaf: Tensor, values: Tensor, target: Tensor, memory: Tensor, step: int) -> None:
    """Adds the values of the leaves reached to `total` (see `totals`), tree by tree. leaf: i32[T, N]; values, target: see `pack_values`;
    memory: for the values of `step` trees, which are looked up together.

    Each row of `values` is looked up apart, since index_select takes 0.35 ns for a number of a vector, and 1.8 ns for a row of a matrix
    with up to 4 columns. Two values are looked up as a complex number: with their sums they take 1.0 to 1.4 ns, and 1.4 to 1.9 one by one
    (Zen 4). Not for torch.export, since few that read its graphs have complex numbers.

    On a CPU index_add adds rows in their order, on a GPU in any, so there each tree is added apart. The number of its sum stays a tensor:
    to read it, the host would wait for the GPU at every tree."""
    pairs = values.dim() == 3 and values.size(2) == 2
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        pairs = pairs and not exporting()
    for first in range(0, leaf.size(0), step):
        reached, targets = leaf[first : first + step].reshape(-1), target[first : first + step]
        if values.requires_grad:
            reached = reached.clone()  # autograd keeps it, and the next trees are written to the memory of `leaf`
        for column in range(values.size(0)):
            if values.requires_grad:
                terms = values[column].index_select(0, reached)
            else:
                place = memory[: targets.size(0) * total.size(1)]
                if values.dim() == 3:
                    place = place.reshape(reached.size(0), values.size(2))
                if pairs:
                    torch.index_select(torch.view_as_complex(values[column]), 0, reached, out=torch.view_as_complex(place))
                    terms = place
                else:
                    terms = torch.index_select(values[column], 0, reached, out=place)
            terms = terms.reshape(targets.size(0), total.size(1))
            if total.is_cuda:
                for tree in range(targets.size(0)):
                    total.index_add_(0, targets.narrow(0, tree, 1) + column, terms.narrow(0, tree, 1))
            else:
                total.index_add_(0, targets + column, terms)


def read_values(values: Tensor, first: int, end: int, trees: int, memory: Tensor) -> None:
    """Reads the values of the leaves of the trees first … end - 1 of so many, one after the other, which brings them to the cache. Look-ups
    would wait for each of them: 500 trees of 256 leaves of seven values take 5.0 instead of 5.8 µs a row (2,048 rows, Zen 5). It is right
    where all trees have as many leaves, and harmless elsewhere. memory: some numbers that have no meaning yet."""
    each = values.size(1) // trees
    memory[:1].copy_(values.narrow(1, first * each, (end - first) * each).sum())


def totals(base: Tensor, values: Tensor, rows: int) -> Tensor:
    """The sums of rows before their leaves are added: [K, N], or [1, N · K] if the values of a leaf are a row."""
    if values.dim() == 3:
        return base.reshape(1, -1).repeat(1, rows)
    return base.repeat(1, rows)


def of_rows(total: Tensor, values: Tensor) -> Tensor:
    """The sums [N, K] of rows, from `totals` to which leaves were added."""
    if values.dim() == 3:
        return total.reshape(total.size(1) // values.size(2), values.size(2))
    return total.t()


def trees_at_once(values: Tensor, trees: int, rows: int) -> int:
    """Of how many trees `add_leaves` looks up the values together: of all, or of rows of values so many that the cache keeps them."""
    if values.dim() == 2 or values.size(2) == 2 or values.is_cuda:
        return trees
    return min(max(65536 // max(rows * values.size(2), 1), 1), trees)


def pack_values(op: TreeEnsemble, leaves: Array) -> tuple[Array, ...]:
    """(values of the leaves in the order `leaves`, target i64[T], base [K, 1]) for output = "sum", (ids i64[1, L],) for "leaf". values:
    [V, L], or [1, L, V] if `as_rows`."""
    if op.output == "leaf":
        return (op.leaf_ids[leaves][None].copy(),)
    values = op.values[leaves]
    values = values[None] if as_rows(values.shape[1]) else values.T
    return values.copy(), op.target.astype("i8"), op.base[:, None].copy()
