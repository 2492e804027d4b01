"""Model operators that the compiler does not run become tensor operators."""

from __future__ import annotations

from hbc.compiler.base import Compiler
from hbc.errors import Culprit, UnsupportedOperatorError
from hbc.ir.graph import Graph, Node
from hbc.ir.rewrite import rewrite
from hbc.lazy import record
from hbc.ops.nearest import Ascending, PresentEntries
from hbc.optimizer.host import in_numpy, on_host


@record
class Lower:
    """`Standardize(x)` → `Div(Sub(x, offset), scale)`, unless the compiler supports Standardize. Operators that the host computes
    stay: those of strings, and in front of numpy's own functions all, which numpy computes faster whole: `Interpolate` of 10,000 rows of 4
    columns took 4 ms as 20 operators, and takes 2.

    `PresentEntries(x)` → `PresentEntries(x, Ascending(x))` where the compiler can sort, so that the host need not. Not on a
    GPU: each thread would need memory for a whole row.

    Raises UnsupportedOperatorError for an operator that is neither supported nor lowered.
    """

    compiler: Compiler
    device: str = "cpu"

    def __call__(self, graph: Graph) -> Graph:
        hosted = in_numpy(graph)
        return rewrite(graph, lambda node: None if node in hosted else self.step(node))

    def step(self, node: Node) -> Node | None:
        """What the node becomes, whose parts may be lowered further; None for one that stays."""
        if isinstance(node.op, PresentEntries) and len(node.inputs) == 1 and self._sorts:
            return node.op(*node.inputs, Ascending()(*node.inputs))
        if self.compiler.supports(node.op) or on_host(node):
            return None
        if node.op.level == "tensor":
            raise self._refused(node, "the backend does not implement this tensor operator.")
        try:
            return node.op.lower(*node.inputs)
        except NotImplementedError as error:
            raise self._refused(node, f"{error}.") from error

    @property
    def _sorts(self) -> bool:
        return self.device == "cpu" and self.compiler.supports(Ascending())

    def _refused(self, node: Node, reason: str) -> UnsupportedOperatorError:
        culprit = Culprit(
            repr(node), f"the graph for backend {self.compiler.name!r}", reason, "Choose another backend or strategy."
        )
        return UnsupportedOperatorError(culprits=[culprit])
