"""Which schedule a method gets on a GPU, and which form its trees get.

A cost model decides. It has the clocks of an SM for a warp of rows, counted in the kernels' machine code and in simulated reads of shared
memory (docs/gpu.md). No card has measured them.
"""

from __future__ import annotations

from collections.abc import Sequence

from hbc.compiler.tvm.nest.schedule import MOST_SHARED, GpuFewRows, GpuTiles, Schedule
from hbc.compiler.tvm.trees.gpu.far_links import FarLinks, node_cycles
from hbc.compiler.tvm.trees.gpu.levels import Levels
from hbc.compiler.tvm.trees.gpu.links import Links
from hbc.compiler.tvm.trees.gpu.tiles import WORD, TiledTrees, planes_cycles, shared_bytes, shared_bytes_of_few
from hbc.compiler.tvm.trees.gpu.wide_links import WideLinks
from hbc.ir.graph import Node, topological
from hbc.ops.tree import TreeEnsemble

FORMS: dict[str, type[TiledTrees]] = {form.name: form for form in (Levels, Links, FarLinks, WideLinks)}
"""The forms of trees that pass through shared memory, by strategy."""
FEW_ROWS = 1 << 14
"""Rows of a call that blocks of 32 rows compute: about as many as an H200 holds at once, four blocks an SM."""
WALK_KEYS = 6.8
"""Clocks of a step of "walk" for a warp, without those for nodes: 54 lines of keys in local memory for the 8 levels of a tree."""
NODE_OF_WALK = 8
"""The bytes of a node of "walk"."""
LEAF_OF_WALK = 20.0
"""Clocks of a value of a leaf for a warp of "walk": its values lie in as many lines as rows reach leaves."""
H200 = 132 * 1.75e9 * 32
"""Clocks times rows of a warp, of all SMs in a second."""


def schedule_for(outputs: Sequence[Node], usual: Schedule) -> Schedule:
    """The schedule of a method for a GPU: `GpuTiles` if the strategy of some trees asks for it and they fit, else `usual`."""
    tiled = [
        (op, FORMS[op.strategy])
        for op in (node.op for node in topological(outputs))
        if isinstance(op, TreeEnsemble) and op.strategy in FORMS and FORMS[op.strategy].fits(op)
    ]
    if not tiled:
        return usual
    threads = min(form.threads(op) for op, form in tiled)
    shared = max(shared_bytes(op, form, threads) for op, form in tiled)
    shared_of_few = max(shared_bytes_of_few(op, form) for op, form in tiled)
    few = GpuFewRows(threads * WORD, shared_of_few) if FEW_ROWS and shared_of_few <= MOST_SHARED else None
    return GpuTiles(threads, shared, few, FEW_ROWS)


def cycles(op: TreeEnsemble) -> dict[str, float]:
    """The clocks of an SM for a warp of rows, for "walk" and all forms that an ensemble fits."""
    found = {
        "walk": (WALK_KEYS + node_cycles(op, NODE_OF_WALK)) * float(op.depths.sum())
        + LEAF_OF_WALK * op.n_trees * op.values.shape[1]
    }
    return found | {name: planes_cycles(op) + form.cycles(op) for name, form in FORMS.items() if form.fits(op)}


def choose_for_gpu(op: TreeEnsemble, shares: bool) -> tuple[str, str]:
    """(the strategy that takes the fewest clocks on a GPU, the reason). shares: whether its blocks may have enough shared memory."""
    found = cycles(op) if shares else {"walk": 1.0}
    ranked = sorted(found, key=found.__getitem__)
    if len(ranked) == 1:
        return ranked[0], "the only one on a GPU for trees like these"
    rates = ", ".join(f"{name} {_rows(H200 / max(found[name], 1.0))}" for name in ranked)
    return ranked[0], f"rows a second of an H200, counted and not measured: {rates}"


def _rows(rate: float) -> str:
    """A number of rows with two digits: "780 M"."""
    value = float(f"{rate:.2g}")
    return f"{value / 1e9:g} G" if value >= 1e9 else f"{value / 1e6:g} M"
