"""Chooses the operators that the host computes in numpy: functions before
branches, since their last bit decides, and values that no device can hold."""

from __future__ import annotations

from dataclasses import replace

from hbc.compiler.base import CompileOptions, Compiler
from hbc.ir.graph import Graph, Node, Operator, gives_rows, takes_rows
from hbc.ir.rewrite import Noted, substitute
from hbc.lazy import record
from hbc.ops.curves import NormalQuantile
from hbc.ops.functions import Function
from hbc.ops.hashed_categories import HashedValues
from hbc.ops.linear import Logistic


@record
class PlaceFunctions:
    """`TreeEnsemble(Function("log", x))` → `TreeEnsemble(Function("log", x, on_host=True))`, so that decisions are the source's.

    An ulp before an operator that `jumps` can lead to another leaf, bin or category. The source computes with numpy too, so nothing moves
    on the numpy backend itself. Where compiled code calls the C library, a normal quantile stays on the device and becomes `exact`, and
    so does a logistic function: of 6,000 rows, 21 were in another place of a QuantileTransformer behind GradientBoosting.
    `HashedValues` moves to the host too if the backend cannot run it.
    """

    compiler: Compiler
    options: CompileOptions = CompileOptions()

    def __call__(self, graph: Graph) -> Noted:
        deciding = ancestors(graph, [node for node in graph.nodes if node.op.jumps])
        moved: dict[Node, Node] = {}
        notes: list[str] = []
        for node in graph.nodes:
            op = node.op
            if isinstance(op, HashedValues) and not self.compiler.supports(op):
                moved[node] = replace(op, on_host=True)(*substitute(node.inputs, moved))
                notes.append(f"hashes of categories are looked up on the host: {self.compiler.name} has no such tables")
            if node in deciding and isinstance(op, (NormalQuantile, Logistic)) and self.compiler.calls_c_library(self.options):
                moved[node] = replace(op, exact=True)(*substitute(node.inputs, moved))
                name = "normal quantile" if isinstance(op, NormalQuantile) else "logistic function"
                notes.append(f"the {name} calls the C library: a decision follows, and others differ by an ulp")
            elif node in deciding and belongs_on_host(op, self.compiler):
                assert isinstance(op, (Function, NormalQuantile))
                moved[node] = replace(op, on_host=True)(*substitute(node.inputs, moved))
                name = op.function if isinstance(op, Function) else "the normal quantile"
                notes.append(f"{name} is computed on the host: a decision follows, and backends differ by an ulp")
        if not moved:
            return Noted(graph)
        outputs = {method: tuple(substitute(group, moved)) for method, group in graph.outputs.items()}
        return Noted(Graph(graph.inputs, outputs), tuple(notes))


def belongs_on_host(op: Operator, compiler: Compiler) -> bool:
    """Whether numpy has to compute a function in front of a decision, because the backend's differs by an ulp from the source's."""
    if not isinstance(op, (Function, NormalQuantile)) or (isinstance(op, Function) and op.rounds_exactly):
        return False
    return op.by_c_library or not compiler.handles_strings


def ancestors(graph: Graph, nodes: list[Node]) -> set[Node]:
    """The nodes, and all nodes that they are computed from."""
    found = set(nodes)
    for node in reversed(graph.nodes):
        if node in found:
            found.update(node.inputs)
    return found


def in_numpy(graph: Graph) -> set[Node]:
    """The nodes that numpy has to compute whatever the backend, with all that they are computed from: operators that say so, and Rows from
    which the device computes on. A cast of integers before `Entries` would be the device's otherwise, and the device comes only once."""
    goes_on: set[Node] = set()
    for node in reversed(graph.nodes):
        if node in goes_on or not on_host(node):
            goes_on.update(node.inputs)
    rows = (node for node in graph.nodes if node in goes_on and (gives_rows(node) or takes_rows(node)))
    return ancestors(graph, [*rows, *(node for node in graph.nodes if node.op.in_numpy)])


def on_host(node: Node) -> bool:
    """Whether the host has to compute this value: strings and their results, functions with numpy's own bits, iterations, and
    matrices that are mostly zeros."""
    if node.op.in_numpy or "str" in (node.type.dtype, *(source.type.dtype for source in node.inputs)):
        return True
    return gives_rows(node) or takes_rows(node)
