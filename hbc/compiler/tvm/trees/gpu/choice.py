"""Which schedule a method gets on a GPU, and which form its trees get.

A cost model decides. It has the clocks of an SM for a warp of rows. Each form says how much work its kernel is, from counts of the machine
code of whole kernels (work.py). Lines of L1 and sectors of L2 are estimated from the shapes of the trees (memory.py). "walk" was not
counted as a whole: it needs so much more that this decides only on ensembles of few splits and many features. No card has measured any of
it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hbc.compiler.tvm.nest.schedule import (
    MOST_SHARED,
    ROWS_OF_WORD,
    GpuFewRows,
    GpuLaneTrees,
    GpuTiles,
    Schedule,
    staged_stride,
)
from hbc.compiler.tvm.trees.gpu.constants import CONSTANT_BYTES
from hbc.compiler.tvm.trees.gpu.far_links import FarLinks
from hbc.compiler.tvm.trees.gpu.int8_gemm import Int8Gemm
from hbc.compiler.tvm.trees.gpu.lanes import fits_lanes, rows_of_lanes, rows_of_planes, shared_bytes_of_lanes
from hbc.compiler.tvm.trees.gpu.levels import Levels
from hbc.compiler.tvm.trees.gpu.links import Links
from hbc.compiler.tvm.trees.gpu.memory import SMS, memory_cycles
from hbc.compiler.tvm.trees.gpu.tile_sizes import STAGED_BYTES
from hbc.compiler.tvm.trees.gpu.tiles import WORD, TiledTrees, rank_work, shared_bytes, shared_bytes_of_few
from hbc.compiler.tvm.trees.gpu.wide_levels import WideLevels
from hbc.compiler.tvm.trees.gpu.wide_links import WideLinks
from hbc.compiler.tvm.trees.gpu.work import clocks, work
from hbc.ir.graph import Input, Node, topological
from hbc.ir.types import NUMPY_DTYPES
from hbc.ops.tree import TreeEnsemble

FORMS: dict[str, type[TiledTrees]] = {form.name: form for form in (Levels, WideLevels, Int8Gemm, Links, FarLinks, WideLinks)}
"""The forms of trees that pass through shared memory, by strategy."""
FEW_ROWS = 1 << 14
"""Rows of a call that blocks of 32 rows compute: about as many as an H200 holds at once, if an SM has room for four blocks."""
LANE_ROWS = 1 << 11
"""The most rows of a call that get a block each (`GpuLaneTrees`). lanes.py says for how many of them that is faster."""
STAGED_ALIGNMENT = 16
WORK_OF_WALK = work(27.5, 14.0, 5.0, 6.8)
"""The work of a step of "walk" for a warp, without lines for nodes: about 110 instructions in four steps, and lines of keys in local
memory. Those were counted in forests of unlimited depth; in trees of depth 8 they are 4 to 5."""
WORK_OF_KEY = work(10.0, 6.0, 2.0, 33.0)
"""The work for a column of keys, estimated: a line of each row, and one of local memory."""
NODE_OF_WALK = 8
"""The bytes of a node of "walk"."""
LOADS_OF_WALK = 2.25
"""Loads of a node in a step of "walk": its two words, and one of them again in every fourth step."""
H200 = SMS * 1.75e9 * 32
"""Clocks times rows of a warp, of all SMs in a second."""


def schedule_for(outputs: Sequence[Node], usual: Schedule, others: Sequence[Node] = ()) -> Schedule:
    """The schedule of a method for a GPU: `GpuTiles` if the strategy of some trees asks for it and they fit, else `usual`. others: the
    outputs of other methods, whose code may lie in the same module."""
    nodes = _tiled(outputs)
    tiled = [(op, FORMS[op.strategy]) for op in (node.op for node in nodes) if isinstance(op, TreeEnsemble)]
    if not tiled:
        return usual
    threads = min(form.threads(op) for op, form in tiled)
    rows = min(form.rows_of_thread(op) for op, form in tiled)
    if any(not isinstance(node.inputs[0].op, Input) for node in nodes):
        rows = ROWS_OF_WORD  # columns that the code computes for the trees may lie in a thread's own memory, for each row
    shared = max(shared_bytes(op, form, threads) for op, form in tiled)
    shared_of_few = max(shared_bytes_of_few(op, form) for op, form in tiled)
    few = None
    if FEW_ROWS and shared_of_few <= MOST_SHARED:
        lanes, lane_rows, plane_rows = None, 0, threads * WORD
        if LANE_ROWS and all(fits_lanes(op, form) for op, form in tiled):
            shared_of_lanes = max(shared_bytes_of_lanes(op, form) for op, form in tiled)
            of_lanes = min(plane_rows, *(rows_of_planes(op, form) for op, form in tiled))
            lanes = GpuLaneTrees(of_lanes, *_with_staged(outputs, shared_of_lanes, GpuLaneTrees.together))
            lane_rows = min(LANE_ROWS, *(rows_of_lanes(op, form) for op, form in tiled))
        few = GpuFewRows(plane_rows, *_with_staged(outputs, shared_of_few, GpuFewRows.together), lanes, lane_rows)
    constant_bytes = CONSTANT_BYTES // len(_tiled([*outputs, *others]))
    return GpuTiles(threads * WORD // rows, shared, few, FEW_ROWS, rows, constant_bytes)


def _tiled(outputs: Sequence[Node]) -> list[Node]:
    """The ensembles of which some outputs are made that run in a form of `FORMS`."""
    return [
        node
        for node in topological(outputs)
        if isinstance(op := node.op, TreeEnsemble) and op.strategy in FORMS and FORMS[op.strategy].fits(op)
    ]


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
    lines, from_l2 = memory_cycles(op, NODE_OF_WALK, 1, loads=LOADS_OF_WALK)
    compared = len(np.unique(op.feature[op.feature >= 0]))
    walk = WORK_OF_WALK * float(op.depths.sum()) + WORK_OF_KEY * compared + work(0.0, 0.0, 0.0, lines)
    found = {"walk": max(clocks(walk), from_l2)}
    fits = ((name, form) for name, form in FORMS.items() if form.fits(op))
    return found | {name: max(clocks(rank_work(op, form) + form.work(op)), form.from_l2(op)) for name, form in fits}


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
