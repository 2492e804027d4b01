"""Which way every tree ensemble is run."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hbc.compiler.base import CompileOptions, Compiler
from hbc.ir.graph import Graph, Node
from hbc.ir.rewrite import rewrite
from hbc.ops.tree import TreeEnsemble


@dataclass(frozen=True)
class ChooseStrategy:
    """`TreeEnsemble(strategy="auto")` → the caller's strategy, or the one that the compiler recommends; `notes` says which and why."""

    compiler: Compiler
    options: CompileOptions
    strategy: str
    notes: list[str]

    def __call__(self, graph: Graph) -> Graph:
        return rewrite(graph, self._choose)

    def _choose(self, node: Node) -> Node | None:
        op = node.op
        if not isinstance(op, TreeEnsemble) or op.strategy != "auto":
            return None
        chosen, reason = self.strategy, "asked for by the caller"
        if chosen == "auto":
            chosen, reason = self.compiler.choose_strategy(op, self.options)
        self.notes.append(
            f"TreeEnsemble of {op.n_trees} trees, depth ≤ {op.depths.max(initial=0)}, {op.leaf_counts.max(initial=0)} leaves at most: "
            f"{chosen} ({reason})"
        )
        return replace(op, strategy=chosen)(*node.inputs)
