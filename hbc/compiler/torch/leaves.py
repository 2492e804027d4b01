"""What the strategies "scan" and "walk" do with the leaves that rows reach: they add up their values, in the order of the trees."""

from __future__ import annotations

import torch
from torch import Tensor

from hbc.ir.types import Array
from hbc.ops.tree import TreeEnsemble


def add_leaves(total: Tensor, leaf: Tensor, values: Tensor, target: Tensor, memory: Tensor) -> None:
    """Adds the values of the leaves reached to `total` [K, N], tree by tree. leaf: i32[T, N]; values [V, L]; target: i64[T]; memory: for at
    least T · N values.

    Each row of `values` is looked up apart, since index_select takes 0.35 ns for a number of a vector, and 1.8 ns for a row of a matrix
    with up to 4 columns. On a CPU index_add adds rows in their order, on a GPU in any, so there each tree is added apart. The number of its
    sum stays a tensor: to read it, the host would wait for the GPU at every tree."""
    trees, rows = leaf.size(0), leaf.size(1)
    reached = leaf.reshape(-1)
    if values.requires_grad:
        reached = reached.clone()  # autograd keeps it, and the next trees are written to the memory of `leaf`
    for column in range(values.size(0)):
        if values.requires_grad:
            terms = values[column].index_select(0, reached)
        else:
            terms = torch.index_select(values[column], 0, reached, out=memory[: trees * rows])
        if total.is_cuda:
            for tree in range(trees):
                total.index_add_(0, target.narrow(0, tree, 1) + column, terms.reshape(trees, rows).narrow(0, tree, 1))
        else:
            total.index_add_(0, target + column, terms.reshape(trees, rows))


def pack_values(op: TreeEnsemble, leaves: Array) -> tuple[Array, ...]:
    """(values [V, L] of the leaves in the order `leaves`, target i64[T], base [K, 1]) for output = "sum", (ids i64[1, L],) for "leaf"."""
    if op.output == "leaf":
        return (op.leaf_ids[leaves][None].copy(),)
    return op.values[leaves].T.copy(), op.target.astype("i8"), op.base[:, None].copy()
