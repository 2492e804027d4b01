"""Chooses the strategy by which each tree ensemble runs."""

from __future__ import annotations

from collections.abc import Sequence

from hbc.compiler.base import CompileOptions, Compiler
from hbc.ir.graph import Graph, Node
from hbc.ir.rewrite import Noted, rewrite_noting
from hbc.lazy import record
from hbc.ops.tree import TreeEnsemble


@record
class ChooseStrategy:
    """`TreeEnsemble(strategy="auto")` → the caller's strategy, or the one that the compiler recommends. The note says which and
    why. tuned: the sentence about the choice of `hbc tune`, if the strategy comes from it."""

    compiler: Compiler
    options: CompileOptions
    strategy: str
    tuned: str = ""

    def __call__(self, graph: Graph) -> Noted:
        return rewrite_noting(graph, self._choose)

    def _choose(self, node: Node) -> tuple[Node, str] | None:
        op = node.op
        if not isinstance(op, TreeEnsemble) or op.strategy != "auto":
            return None
        chosen, reason = self.strategy, self.tuned or "asked for by the caller"
        if chosen == "auto":
            chosen, reason = self.compiler.choose_strategy(self.compiler.seen(node, self.options), self.options)
            reason += f"; {self.tuned}" * bool(self.tuned)
        note = (
            f"TreeEnsemble of {op.n_trees} trees, depth ≤ {op.depths.max(initial=0)}, {op.leaf_counts.max(initial=0)} leaves at most: "
            f"{chosen} ({reason})"
        )
        return op.run_as(chosen)(*node.inputs), note


HOPELESS = 6.0
"""A strategy is not worth a measurement if its estimate is more than this many times the best one, for all numbers of rows."""


def worth_measuring(
    compiler: Compiler, nodes: Sequence[Node], options: CompileOptions, rows: Sequence[int], known: Sequence[str]
) -> tuple[list[str], dict[str, str]]:
    """("auto" and the strategies that `hbc tune` measures for the tree ensembles among the nodes, the left-out strategies with the
    reason for each)."""
    ensembles = [compiler.seen(node, options) for node in nodes if isinstance(node.op, TreeEnsemble)]
    if not ensembles:
        return ["auto"], {}
    if options.device != "cpu":
        worth = [known if (names := compiler.gpu_strategies(op, options)) is None else names for op in ensembles]
        some = [name for name in known if any(name in names for names in worth)]
        return ["auto", *some], {name: "not for trees like these on a GPU" for name in known if name not in some}
    total: dict[str, list[float]] = {}
    for op in ensembles:
        for name, times in compiler.estimates(op, options, rows).items():
            total[name] = [a + b for a, b in zip(total.get(name, [0.0] * len(rows)), times, strict=True)]
    if not total:
        return ["auto", *known], {}
    least = [min(column) for column in zip(*total.values(), strict=True)]
    behind = {name: min(time / best for time, best in zip(times, least, strict=True)) for name, times in total.items()}
    left_out = {name: "not for trees like these on a CPU" for name in known if name not in total}
    left_out |= {name: f"estimated {times:.0f} times as long as others" for name, times in behind.items() if times > HOPELESS}
    return ["auto", *(name for name in total if name not in left_out)], left_out
