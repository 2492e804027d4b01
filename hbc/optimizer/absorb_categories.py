"""What stands before a tree ensemble, moved into its trees."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hbc.compiler.base import Compiler
from hbc.ir.graph import Graph, Node
from hbc.ir.rewrite import rewrite
from hbc.ops.features import OneHot
from hbc.ops.tensor import Cast, Concat
from hbc.ops.tree import CategoryPlanes, TreeEnsemble

LARGEST_CODE = 1 << 20
"""Exact in float32, and a table of the codes up to it is small enough to be looked into."""


@dataclass(frozen=True)
class CategoriesIntoTrees:
    """`TreeEnsemble(Concat(x, OneHot(codes)))` → `TreeEnsemble(Concat(y, CategoryPlanes(y)))` with y = `Concat(x, Cast(codes))`, where
    the compiler tests sets itself: of 10 columns of 1,000 categories a row holds 10 codes instead of 10,000 numbers."""

    compiler: Compiler
    notes: list[str]

    def __call__(self, graph: Graph) -> Graph:
        return rewrite(graph, self._absorb)

    def _absorb(self, node: Node) -> Node | None:
        op = node.op
        if type(op) is not TreeEnsemble or op.strategy != "scan":
            return None
        x = node.inputs[0]
        parts = x.inputs if isinstance(x.op, Concat) and x.op.axis == 1 else (x,)
        hot = [part for part in parts if _is_code_test(part)]
        if not hot:
            return None
        # New numbers: first the columns of y, in their order, then a plane for every column of a OneHot.
        numbers, columns, sources, values = [], 0, [], []
        blocks: list[Node] = []
        for part in parts:
            codes = part.inputs[0] if part in hot else part
            block = codes if codes.type.dtype == x.type.dtype else Cast(x.type.dtype)(codes)
            if part in hot:
                assert isinstance(part.op, OneHot)
                numbers.append(np.full(part.type.columns, -1))
                sources.append(part.op.source + columns)
                values.append(part.op.value)
            else:
                numbers.append(np.arange(columns, columns + part.type.columns))
            blocks.append(block)
            columns += block.type.columns
        number = np.concatenate(numbers)
        number[number < 0] = columns + np.arange((number < 0).sum())
        tested = op.threshold[(op.feature >= 0) & (number[op.feature] >= columns)]
        y = blocks[0] if len(blocks) == 1 else Concat(1)(*blocks)
        source, value = np.concatenate(sources), np.concatenate(values)
        planes = len(source)
        sets = CategoryPlanes(
            columns=source,
            categories=value.astype(np.int64),
            offsets=np.arange(planes + 1),
            inside=np.ones(planes, bool),
            missing=np.zeros(planes, bool),
            invalid=np.zeros(planes, bool),
            limit=float(LARGEST_CODE),
        )
        if not self.compiler.supports(sets) or not len(tested) or tested.min() < 0 or tested.max() >= 1:
            return None
        self.notes.append(
            f"{planes} columns of one-hot codes became set tests on {sum(p.inputs[0].type.columns for p in hot)} codes"
        )
        feature = np.where(op.feature < 0, -1, number[op.feature]).astype(op.feature.dtype)
        return replace(op, feature=feature)(Concat(1)(y, sets(y)))


def _is_code_test(node: Node) -> bool:
    """Whether a value is the one-hot codes of integers that a float of any width holds."""
    op = node.op
    if type(op) is not OneHot or not len(op.value) or node.inputs[0].type.dtype not in ("i32", "i64"):
        return False
    return bool(op.value.min() >= 0 and op.value.max() < LARGEST_CODE)
