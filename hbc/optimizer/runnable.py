"""Whether a compiler can run a graph, told from its operators alone: most variants of a model are optimized only when they are needed."""

from __future__ import annotations

from hbc.compiler.base import CompileOptions, Compiler
from hbc.ir.graph import Graph, Node
from hbc.ir.rewrite import without_facts
from hbc.ops.checks import Check
from hbc.ops.tree import TreeEnsemble
from hbc.optimizer.host import PlaceFunctions
from hbc.optimizer.lower import Lower
from hbc.optimizer.partition import sides


def require_runnable(graph: Graph, compiler: Compiler, options: CompileOptions, strategy: str = "auto") -> None:
    """Raise UnsupportedOperatorError for an operator that the compiler neither runs nor gets lowered, as `optimize` would.

    No pass is run but the one that moves operators to the host. A tree ensemble is taken for runnable under the strategy "auto", since the
    compiler itself then chooses one that it can run. 0.3 to 1 ms, where `optimize` takes 12 (500 trees) to 28 (20 columns before them).

    What this accepts, `optimize` accepts: no pass makes an operator that a compiler cannot run. What this refuses, `optimize` may accept: a
    pass can make trees small enough for the strategy "gemm".
    """
    graph = PlaceFunctions(compiler, options)(without_facts(graph)).graph
    if not compiler.handles_strings:
        sides(graph)
    lower = Lower(compiler, options.device)
    waiting = [node for group in graph.outputs.values() for node in group]
    seen: set[Node] = set()
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            waiting += node.inputs
            lowered = _lowered(node, lower, strategy)
            if lowered is not None:
                waiting.append(lowered)


def _lowered(node: Node, lower: Lower, strategy: str) -> Node | None:
    """What a node becomes, or None if it stays as it is. Raises UnsupportedOperatorError."""
    op = node.op
    if isinstance(op, Check):
        return None  # it is removed
    if isinstance(op, TreeEnsemble) and op.strategy == "auto":
        return None if strategy == "auto" else op.run_as(strategy)(*node.inputs)
    return lower.step(node)
