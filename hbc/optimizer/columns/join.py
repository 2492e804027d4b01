"""Chains of operators that compute different columns in the same way become one chain that computes all these columns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hbc.ir.graph import Constant, Graph, Node, gives_rows, takes_rows
from hbc.ir.rewrite import Noted, substitute
from hbc.ir.types import Array
from hbc.lazy import record
from hbc.ops.columns import SelectColumns
from hbc.ops.tensor import Concat
from hbc.ops.tree import TreeEnsemble
from hbc.optimizer.host import on_host
from hbc.optimizer.partition import MANY_COLUMNS

FEWEST = 4
"""The fewest chains that are joined. Two columns take as long alone as together."""
WIDEST = 64
"""The most columns of a joined chain that looks numbers up: its intermediates are stored, and those of more columns leave the first cache.
200 quantile transforms to normal numbers take 15 µs a row by 64 columns, and 22 by 200 (Zen 4)."""


@record
class JoinColumns:
    """Parts of a matrix that the same operators compute from different columns are computed together:

    `Concat(Standardize(SelectColumns(x, 2), a), Standardize(SelectColumns(x, 0), b), …)` → `Standardize(SelectColumns(x, [2, 0, …]), [a, b,
    …])`. Other parts may stand between them; a selection then puts the columns in order. (Before trees, which would read each column
    through it, only neighbours are joined.)

    Chains are alike if their operators are (`Operator.alike`), down to columns of one value. Each operator says what computes its columns
    together (`Operator.joined`), with the same steps for every number. A chain of which something else reads a value stays as it is: that
    value would be computed twice. Codes of strings, which the host computes a column at a time, are joined as in `_side_by_side` of
    partition.py. 60 columns with a spline each compiled in 36 s, and in 0.6 s so; a row of them takes a third less time.
    """

    def __call__(self, graph: Graph) -> Noted:
        wide = [node for node in graph.nodes if _is_wide(node)]
        if not wide:
            return Noted(graph)
        chains = _Chains(graph)
        replaced: dict[Node, Node] = {}
        notes: list[str] = []
        for node in wide:
            found = chains.rewritten(node)
            if found is not None:
                (replaced[node],) = substitute([found[0]], replaced)
                notes += found[1]
        if not replaced:
            return Noted(graph)
        outputs = {method: tuple(substitute(group, replaced)) for method, group in graph.outputs.items()}
        return Noted(Graph(graph.inputs, outputs), tuple(notes))


def _is_wide(node: Node) -> bool:
    return isinstance(node.op, Concat) and len(node.type.shape) == 2 and len(node.inputs) >= FEWEST and not gives_rows(node)


@dataclass
class _Chains:
    """What is known of each value of a graph, found for all at once.

    kinds: a number, the same for values whose columns `stacked` computes together. leaves: for values at which chains begin, the value and
    the columns of it. columns: how many of these a chain begins with. texts: what is computed from codes of strings. searches: what is
    looked up on the way. made: what was stacked.
    """

    graph: Graph
    kinds: dict[Node, int] = field(default_factory=dict)
    leaves: dict[Node, tuple[Node, Array]] = field(default_factory=dict)
    columns: dict[Node, int] = field(default_factory=dict)
    texts: set[Node] = field(default_factory=set)
    searches: set[Node] = field(default_factory=set)
    readers: dict[Node, list[Node | None]] = field(default_factory=lambda: defaultdict(list))
    made: dict[tuple[Node, ...], Node] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node in self.graph.nodes:
            for source in node.inputs:
                self.readers[source].append(node)
        for group in self.graph.outputs.values():
            for node in group:
                self.readers[node].append(None)
        numbers: dict[Any, int] = {}
        for node in self.graph.nodes:
            if not isinstance(node.op, Constant):
                self.kinds[node] = numbers.setdefault(self._kind(node), len(numbers))

    def _kind(self, node: Node) -> Any:
        op, shape = node.op, node.type.shape
        if isinstance(op, SelectColumns):
            (x,) = node.inputs
            if x in self.leaves or len(self.readers[x]) > 1:
                return self._begins(node, x, op.indices)
        common = None if self._is_opaque(node) else op.alike(node)
        operands = [] if common is None else [self._operand(node, x) for x in node.inputs]
        if operands and None not in operands:
            sources = [x for x in node.inputs if x in self.columns]
            self.columns[node] = max(self.columns[x] for x in sources)
            self.texts.update([node] if self.texts.intersection(sources) else [])
            table = op.jumps or not (op.level == "tensor" or op.columnwise or op.elementwise)
            self.searches.update([node] if table or self.searches.intersection(sources) else [])
            return type(op), common, node.type.dtype, len(shape), shape[2:], *operands
        if len(shape) == 2 and on_host(node) and node.type.dtype != "str" and not gives_rows(node):
            self.texts.add(node)
            return self._begins(node, node, np.arange(node.type.columns), "of the host", node.type.dtype)
        return self._begins(node, node, np.arange(node.type.width))

    def _begins(self, node: Node, x: Node, columns: Array, *kind: Any) -> Any:
        if len(node.type.shape) == 2:
            self.leaves[node], self.columns[node] = (x, columns), len(columns)
        return kind or ("columns", id(x))

    @staticmethod
    def _is_opaque(node: Node) -> bool:
        """Whether chains begin behind it: a value without rows or columns, strings, and what the host holds in another form."""
        plain = node.type.batched and len(node.type.shape) >= 2 and "str" not in (x.type.dtype for x in (node, *node.inputs))
        return not plain or not node.inputs or gives_rows(node) or takes_rows(node)

    def _operand(self, node: Node, x: Node) -> Any:
        """What the operand must have in common with those of other chains; None: the columns are not computed from its columns."""
        shape, own = node.type.shape, x.type.shape
        if isinstance(x.op, Constant):
            return "constant", x.type.dtype, own[_column_axis(node, x) + 1 :] if node.op.elementwise else None
        if x not in self.columns or (node.op.elementwise and (len(own) != len(shape) or own[1] != shape[1])):
            return None
        return self.kinds[x]

    def rewritten(self, node: Node) -> tuple[Node, list[str]] | None:
        """(a matrix of the same columns, sentences about it), or None if nothing is joined."""
        before_trees = any(reader is not None and isinstance(reader.op, TreeEnsemble) for reader in self.readers[node])
        notes: list[str] = []
        parts: list[Node] = []
        order: list[Node] = []
        for group in self._groups(node, neighbours=before_trees):
            order += group
            if len(group) < (MANY_COLUMNS if group[0] in self.texts else FEWEST):
                parts += group
                continue
            parts += map(self._stacked, self._cut(group))
            notes.append(f"{', '.join(self._names(group[0]))} of {len(group)} parts are computed together")
        if not notes:
            return None
        whole = parts[0] if len(parts) == 1 else Concat(1)(*parts)
        place, start = {}, 0
        for part in order:
            place[part] = np.arange(start, start + part.type.columns)
            start += part.type.columns
        places = np.concatenate([place[part] for part in node.inputs])
        return (whole if np.array_equal(places, np.arange(start)) else SelectColumns(places)(whole)), notes

    def _groups(self, node: Node, neighbours: bool) -> Iterator[tuple[Node, ...]]:
        """The different parts of a Concat, those that are alike together, in the order of the first of each. `neighbours`: only where they
        follow one another."""
        groups: dict[Any, list[Node]] = {}
        last, run = None, 0
        for part in dict.fromkeys(node.inputs):
            kind = self.kinds[part] if part not in self.leaves and self._is_own(part, node) else part
            run += neighbours and kind != last
            last = kind
            groups.setdefault((kind, run), []).append(part)
        return map(tuple, groups.values())

    def _is_own(self, part: Node, reader: Node) -> bool:
        """Whether nothing but the chain itself reads its values, from its beginning to the part, which the reader reads."""
        chain = {part}
        waiting = [part]
        while waiting:
            for source in waiting.pop().inputs:
                if source not in chain and source not in self.leaves and not isinstance(source.op, Constant):
                    chain.add(source)
                    waiting.append(source)
        return all(each in chain or (node is part and each is reader) for node in chain for each in self.readers[node])

    def _names(self, part: Node) -> list[str]:
        """The operators of a chain in their order, each once."""
        names: list[str] = []
        waiting = [part]
        while waiting:
            node = waiting.pop()
            if node not in self.leaves and not isinstance(node.op, Constant):
                names.append(type(node.op).__name__)
                waiting += node.inputs
        return list(dict.fromkeys(names[::-1]))

    def _cut(self, group: tuple[Node, ...]) -> Iterator[tuple[Node, ...]]:
        width = sum(self.columns[part] for part in group)
        pieces = -(-width // WIDEST) if group[0] in self.searches else 1
        size = -(-len(group) // pieces)
        return (group[first : first + size] for first in range(0, len(group), size))

    def _stacked(self, nodes: tuple[Node, ...]) -> Node:
        """The columns of nodes of one kind, side by side."""
        if len(nodes) == 1:
            return nodes[0]
        made = self.made.get(nodes)
        if made is None:
            made = self.made[nodes] = self._beginnings(nodes) if nodes[0] in self.leaves else self._computed(nodes)
        return made

    def _beginnings(self, nodes: tuple[Node, ...]) -> Node:
        sources, places = zip(*(self.leaves[node] for node in nodes), strict=True)
        if len(set(sources)) > 1:
            return Concat(1)(*nodes)
        indices = np.concatenate(places)
        return sources[0] if np.array_equal(indices, np.arange(sources[0].type.columns)) else SelectColumns(indices)(sources[0])

    def _computed(self, nodes: tuple[Node, ...]) -> Node:
        def operand(number: int) -> Node:
            operands = tuple(node.inputs[number] for node in nodes)
            return _constants(nodes, operands) if isinstance(operands[0].op, Constant) else self._stacked(operands)

        return nodes[0].op.joined(nodes, operand)


def _column_axis(node: Node, constant: Node) -> int:
    """The axis of a constant operand that numbers the columns of an elementwise node; below 0: it has none."""
    return len(constant.type.shape) - len(node.type.shape) + 1


def _constants(nodes: Sequence[Node], constants: Sequence[Node]) -> Node:
    """The constant operand of all nodes, which are elementwise: with the numbers of each for its own columns, or the same for all."""
    axis = _column_axis(nodes[0], constants[0])
    values = [constant.op.evaluate() for constant in constants]
    if all(constant.op == constants[0].op for constant in constants) and (axis < 0 or values[0].shape[axis] == 1):
        return constants[0]
    rank = len(nodes[0].type.shape) - 1
    wide = []
    for node, value in zip(nodes, values, strict=True):
        own = value.reshape(value.shape[-rank:] if value.ndim > rank else (1,) * (rank - value.ndim) + value.shape)
        wide.append(np.broadcast_to(own, (int(node.type.shape[1]), *own.shape[1:])))
    return Constant(np.concatenate(wide))()
