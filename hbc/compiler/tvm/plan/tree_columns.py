"""Which values a tree ensemble computes itself, a column at a time, where it turns rows into ranks or keys. On a GPU they are never stored.

    TreeEnsemble(Concat(Where(x < 0, NaN, x), Cast(Take(c) == [3, 5, …])))

    for column in the columns that trees compare:                 # ranks of trees/gpu/planes.py, keys of trees/keys.py
        value = column < 8 ? where(x[column] < 0, NaN, x[column]) : c[places[column - 8]] == categories[column - 8]
        its rank …

Ranks and keys read each column of a row once. So nothing is computed twice, and columns that no tree compares are not computed at all. All
threads of a warp have the same column, so they take the same branch. A forest behind a scaler and 24 one-hot columns took 816 bytes of
local memory a thread, which lie in L1, L2 and the card's memory, and takes 176. Lone walks (trees/walk/lone.py) read a column at each step:
they take fewer steps than there are columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hbc.compiler.tvm.plan.operators import emission, is_elementwise
from hbc.compiler.tvm.plan.sizes import elements
from hbc.ir.graph import Input, Node
from hbc.ir.types import Array
from hbc.ops import tensor
from hbc.ops.tree import TreeEnsemble

MOST_PARTS = 8
"""The most parts of a `Concat` that is computed so: the code looks through them for each column."""
MOST_READERS = 3
"""The most readers of a value in the columns of an ensemble. The code computes it once for each, and nvcc once for all of them."""


def computed_by_trees(
    nodes: Sequence[Node], readers: dict[Node, list[Node]], outputs: Sequence[Node], constants: dict[Node, Array]
) -> set[Node]:
    """The values of a method, in their order, that only one ensemble reads and that it can compute by columns; and inputs that ensembles
    alone read, which are read in place."""
    found: dict[Node, Node | None] = {}  # value → the ensemble that computes it

    def ensemble(node: Node, reader: Node) -> Node | None:
        """The ensemble that computes a value when it is read by a reader; None if it would have to be stored for that."""
        if isinstance(reader.op, TreeEnsemble):
            return reader
        if reader not in found:
            return None
        once = isinstance(reader.op, tensor.Concat) or elements(reader.type) == elements(node.type)
        if isinstance(reader.op, tensor.Take):
            places = constants[reader.inputs[1]]
            once = len(np.unique(places)) == places.size
        return found[reader] if once else None

    for node in reversed(nodes):
        users = readers.get(node, [])
        if node in outputs or not 0 < len(users) <= MOST_READERS or not _by_columns(node):
            continue
        trees = {ensemble(node, reader) for reader in users}
        if None not in trees and (len(trees) == 1 or isinstance(node.op, Input)):
            found[node] = next(iter(trees))
    return set(found)


def _by_columns(node: Node) -> bool:
    """Whether any column of a value can be computed by itself, in a few instructions."""
    op = node.op
    if len(node.type.shape) != 2:
        return False
    if isinstance(op, tensor.Concat):
        return op.axis == 1 and len(node.inputs) <= MOST_PARTS
    if isinstance(op, tensor.Take):
        return op.axis == 1 and node.inputs[0].type.batched
    return isinstance(op, Input) or (is_elementwise(op) and not emission(op).costly)
