"""Which schedule a method gets on a GPU, and which form its trees get.

A cost model decides. It has the clocks of an SM for a warp of rows, counted in the kernels' machine code and in simulated reads of shared
memory (docs/gpu.md). No card has measured them.
"""

from __future__ import annotations

from collections.abc import Sequence

from hbc.compiler.tvm.nest.schedule import MOST_SHARED, GpuFewRows, GpuLaneTrees, GpuTiles, Schedule, staged_stride
from hbc.compiler.tvm.trees.gpu.far_links import FarLinks
from hbc.compiler.tvm.trees.gpu.lanes import fits_lanes, shared_bytes_of_lanes
from hbc.compiler.tvm.trees.gpu.levels import Levels
from hbc.compiler.tvm.trees.gpu.links import Links
from hbc.compiler.tvm.trees.gpu.memory import memory_cycles
from hbc.compiler.tvm.trees.gpu.tile_sizes import STAGED_BYTES
from hbc.compiler.tvm.trees.gpu.tiles import WORD, TiledTrees, planes_cycles, shared_bytes, shared_bytes_of_few
from hbc.compiler.tvm.trees.gpu.wide_links import WideLinks
from hbc.ir.graph import Input, Node, topological
from hbc.ir.types import NUMPY_DTYPES
from hbc.ops.tree import TreeEnsemble

FORMS: dict[str, type[TiledTrees]] = {form.name: form for form in (Levels, Links, FarLinks, WideLinks)}
"""The forms of trees that pass through shared memory, by strategy."""
FEW_ROWS = 1 << 14
"""Rows of a call that blocks of 32 rows compute: about as many as an H200 holds at once, if an SM has room for four blocks."""
LANE_ROWS = 1 << 10
"""Rows of a call that get a block each (`GpuLaneTrees`). An SM of an H200 then has eight of them. L2 takes as long for 10 to 17 rows, each
on its own ways through the trees, as a block of 32 rows for all of them (docs/gpu.md)."""
STAGED_ALIGNMENT = 16
WALK_KEYS = 6.8
"""Clocks of a step of "walk" for a warp, without those for nodes: lines of keys in local memory. They were counted in forests of unlimited
depth; in trees of depth 8 they are 4 to 5."""
NODE_OF_WALK = 8
"""The bytes of a node of "walk"."""
LOADS_OF_WALK = 2.25
"""Loads of a node in a step of "walk": its two words, and one of them again in every fourth step."""
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
    few = None
    if FEW_ROWS and shared_of_few <= MOST_SHARED:
        lanes, plane_rows = None, threads * WORD
        if LANE_ROWS and all(fits_lanes(op, form) for op, form in tiled):
            shared_of_lanes = max(shared_bytes_of_lanes(op, form) for op, form in tiled)
            lanes = GpuLaneTrees(plane_rows, *_with_staged(outputs, shared_of_lanes, GpuLaneTrees.together))
        few = GpuFewRows(plane_rows, *_with_staged(outputs, shared_of_few, GpuFewRows.together), lanes, LANE_ROWS)
    return GpuTiles(threads, shared, few, FEW_ROWS)


def _with_staged(outputs: Sequence[Node], shared: int, rows: int) -> tuple[int, dict[str, int]]:
    """(the bytes of shared memory, where the rows of inputs lie in it), with as many inputs as there is room for behind the first bytes.
    rows: of a block."""
    staged: dict[str, int] = {}
    for node in topological(outputs):
        if not isinstance(node.op, Input) or len(node.type.shape) != 2 or node.type.dtype == "bool":
            continue
        size, start = NUMPY_DTYPES[node.type.dtype].itemsize, -(-shared // STAGED_ALIGNMENT) * STAGED_ALIGNMENT
        end = start + rows * staged_stride(node.type.columns) * size
        if end - start <= STAGED_BYTES and end <= MOST_SHARED:
            staged[node.op.name], shared = start // size, end
    return shared, staged


def cycles(op: TreeEnsemble) -> dict[str, float]:
    """The clocks of an SM for a warp of rows, for "walk" and all forms that an ensemble fits."""
    keys = WALK_KEYS * float(op.depths.sum())
    lines, from_l2 = memory_cycles(op, NODE_OF_WALK, 1, loads=LOADS_OF_WALK)
    found = {"walk": max(keys + lines, from_l2)}
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
