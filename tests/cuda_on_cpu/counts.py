"""What the tree kernels of a GPU cost without a card: instructions of their inner loops, and on real rows the wavefronts of shared memory
and what they read of the card's memory.

cd tests && python -m cuda_on_cpu.counts    # the table of docs/gpu.md. Needs nvcc, and nvdisasm (the package nvidia-cuda-nvdisasm)
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from lightgbm import LGBMRegressor
from sklearn.ensemble import RandomForestRegressor
from xgboost import XGBRegressor

import hbc
from hbc.compiler.tvm.trees.gpu.choice import FORMS, H200, cycles
from hbc.compiler.tvm.trees.gpu.far_links import CLOCKS_OF_SECTOR, L1, LINE, SECTOR, FarLinks
from hbc.compiler.tvm.trees.gpu.levels import READS_OF_TOP, top_levels
from hbc.compiler.tvm.trees.gpu.links import nodes_of
from hbc.compiler.tvm.trees.gpu.tiles import TiledTrees
from hbc.ir.types import Array
from hbc.ops.tree import TreeEnsemble

from . import kernels_of
from .resources import sources_of

FMA, CONTROL = ("IMAD", "FFMA", "FMUL", "FADD", "DADD"), ("BRA", "BAR", "BSYNC", "BSSY", "EXIT", "NOP", "WARPSYNC")
MEMORY = ("LDS", "STS", "LDG", "STG", "LDL", "STL", "LD", "LDC")
ROWS, FEATURES, TREES = 1024, 28, 500


def pipe(instruction: str) -> str:
    """The part of an SM that an instruction keeps busy: memory, fma, control or alu."""
    name = re.sub(r"^@!?U?P\w+\s+", "", instruction).split()[0].split(".")[0]
    return "memory" if name in MEMORY else "fma" if name in FMA else "control" if name in CONTROL or name[0] == "U" else "alu"


def inner_loop(source: str, bits: int) -> list[str]:
    """The instructions of the loop in which rows walk trees, for sm_90: in the kernel for many rows (the last one), the innermost loop that
    reads ranks most often. bits: of a rank. Nodes may lie in shared memory or not, and are of other sizes than ranks."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cu"
        file.write_text(source)
        subprocess.run(
            ["nvcc", "-arch=sm_90", "-cubin", "-O3", "--fmad=false", "-w", "-o", f"{file}bin", str(file)], check=True
        )
        text = subprocess.run([nvdisasm(), "-c", f"{file}bin"], check=True, capture_output=True, text=True).stdout
    return walking_loop(text, max(kernels_of(source)).name, bits)


def walking_loop(text: str, kernel: str, bits: int) -> list[str]:
    """The same in nvdisasm's text of a file, for a kernel of a name."""
    instructions: list[str] = []
    places, loops, section = {}, [], ""
    for line in text.splitlines():
        if begins := re.match(r"\s*\.section\s+(\S+?),", line):
            section = begins[1]
        if section != f".text.{kernel}":
            continue
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            places[label[1]] = len(instructions)
        if found := re.search(r"/\*[0-9a-f]{4,}\*/\s+(.*?);", line):
            back = re.search(r"BRA(?:\.\w+)*\s.*`\((\.L_x_\d+)\)", found[1])
            if back and back[1] in places:
                loops.append(range(places[back[1]], len(instructions) + 1))
            instructions.append(found[1].strip())
    reads = {loop: rank_reads([instructions[i] for i in loop], bits) for loop in loops}
    inner = [
        loop
        for loop in loops
        if reads[loop]
        and not any(other != loop and other[0] >= loop[0] and other[-1] <= loop[-1] and reads[other] for other in loops)
    ]
    return [instructions[i] for i in max(inner, key=reads.__getitem__)]


def rank_reads(instructions: list[str], bits: int) -> int:
    """How many instructions read ranks of so many bits."""
    return sum(f"LDS.U{bits} " in instruction for instruction in instructions)


def nvdisasm() -> str:
    """NVIDIA's disassembler, from its package."""
    found = importlib.util.find_spec("nvidia")
    return next(str(path) for place in found.submodule_search_locations for path in Path(place).glob("*/bin/nvdisasm"))  # type: ignore


def wavefronts(places: Array, size: int) -> float:
    """The mean wavefronts of a warp's read of shared memory.

    places [N]: of each row, in elements of `size` bytes. A warp has 32 rows that follow each other. It reads 8 bytes in two halves.
    """
    lanes = 32 if size < 8 else 16
    words = (places * size // 4).reshape(-1, lanes, *places.shape[1:])
    words = np.sort(np.moveaxis(words, 1, -1).reshape(-1, lanes), axis=1)
    different = np.concatenate([np.ones((len(words), 1), bool), np.diff(words, axis=1) != 0], axis=1)
    bank = words // (size // 4 or 1) % (32 // (size // 4 or 1)) if size == 8 else words % 32
    per_bank = np.zeros((len(words), 32), int)
    np.add.at(per_bank, (np.arange(len(words))[:, None], bank), different)
    return float(per_bank.max(axis=1).mean()) * (32 // lanes)


def units(places: Array, size: int, unit: int) -> float:
    """The mean number of different pieces of `unit` bytes of the card's memory that a warp's read takes. places, size: see `wavefronts`."""
    pieces = np.sort((places * size // unit).reshape(-1, 32), axis=1)
    return float(np.mean(1 + (np.diff(pieces, axis=1) != 0).sum(axis=1)))


class Walked(NamedTuple):
    """What a warp reads for a tree, beside ranks: of nodes, summed over its steps, and of the leaf's value."""

    nodes: float
    leaf: float


def walked(
    op: TreeEnsemble, x: Array, form: type[TiledTrees], first: int, cost: Callable[[Array, int], float] = wavefronts
) -> Walked:
    """The cost of a warp's reads in a tree from step `first` on, averaged over some trees."""
    nodes, leaves = [], []
    by_level = form.name == "levels"
    for tree in range(0, op.n_trees, max(op.n_trees // 25, 1)):
        places, final = (_by_level if by_level else _by_link)(op, x, tree)
        size = 2 if by_level else form.bits // 2
        nodes.append(sum(cost(place, size) for place in places[first:]))
        leaves.append(cost(final, op.values.itemsize))
    return Walked(float(np.mean(nodes)), float(np.mean(leaves)))


def _step(op: TreeEnsemble, x: Array, at: Array) -> tuple[Array, Array]:
    """(whether each row is at a split, whether it goes right there)."""
    feature = np.maximum(op.feature[at], 0)
    value = x[np.arange(len(x)), feature]
    left = (value <= op.threshold[at]) | (np.isnan(value) & op.missing_left[at])
    return op.feature[at] >= 0, ~left & (op.feature[at] >= 0)


def _by_level(op: TreeEnsemble, x: Array, tree: int) -> tuple[list[Array], Array]:
    """The place of each row's node in every step, and of its leaf at the end: in a perfect tree."""
    depth = int(op.depths.max())
    at, place, places = np.full(len(x), op.roots[tree]), np.ones(len(x), np.int64), []
    for _ in range(depth):
        places.append(place)
        inner, right = _step(op, x, at)
        at = np.where(inner, np.where(right, op.right[at], op.left[at]), at)
        place = 2 * place + right
    return places, place - (1 << depth)


def _by_link(op: TreeEnsemble, x: Array, tree: int) -> tuple[list[Array], Array]:
    """The same for nodes in level order, a pair of children after the other."""
    number, level, count = {int(op.roots[tree]): 0}, [int(op.roots[tree])], 1
    while level:
        below = []
        for node in level:
            if op.feature[node] >= 0:
                for child in (int(op.left[node]), int(op.right[node])):
                    number[child] = count
                    count += 1
                    below.append(child)
        level = below
    places_of = np.zeros(len(op.feature), np.int64)
    places_of[list(number)] = list(number.values())
    at, places = np.full(len(x), op.roots[tree]), []
    for _ in range(int(op.depths[tree])):
        places.append(places_of[at])
        inner, right = _step(op, x, at)
        at = np.where(inner, np.where(right, op.right[at], op.left[at]), at)
    return places, places_of[at]


def models() -> dict[str, Callable[[Any, Any], Any]]:
    """Models of trees of several shapes, to be fitted."""
    return {
        "LightGBM, depth 4": lambda X, y: LGBMRegressor(n_estimators=100, max_depth=4, n_jobs=1, verbose=-1).fit(X, y),
        "LightGBM, depth 6": lambda X, y: LGBMRegressor(n_estimators=100, max_depth=6, num_leaves=63, n_jobs=1, verbose=-1).fit(
            X, y
        ),
        "LightGBM, depth 8": lambda X, y: LGBMRegressor(
            n_estimators=100, max_depth=8, num_leaves=255, n_jobs=1, verbose=-1
        ).fit(X, y),
        "LightGBM, 31 leaves": lambda X, y: LGBMRegressor(n_estimators=100, n_jobs=1, verbose=-1).fit(X, y),
        "XGBoost, depth 8": lambda X, y: XGBRegressor(n_estimators=100, max_depth=8, n_jobs=1).fit(X, y),
        "forest, depth 8": lambda X, y: RandomForestRegressor(30, max_depth=8, n_jobs=1, random_state=0).fit(X, y),
        "forest, unlimited, 3 trees": lambda X, y: RandomForestRegressor(3, n_jobs=1, random_state=0).fit(X, y),
        "forest, unlimited, 10 trees": lambda X, y: RandomForestRegressor(10, n_jobs=1, random_state=0).fit(X, y),
    }


def main() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(8_000, FEATURES)).astype(np.float32)
    y = X[:, 0] + X[:, 1] * np.sign(X[:, 2]) + np.sin(3 * X[:, 3]) * X[:, 4] + 0.1 * rng.normal(size=len(X))
    rows = rng.normal(size=(ROWS, FEATURES)).astype(np.float32)
    print(
        "| model | strategy | instructions | ALU | FMA | wavefronts: top + nodes + ranks + value | lines of L1 | sectors of L2 "
        "| clocks | M rows/s of 500 trees |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name, fit in models().items():
        if len(sys.argv) > 1 and not any(word in name for word in sys.argv[1:]):
            continue
        model = fit(X, y)
        op = next(node.op for node in hbc.convert(model, "numpy").graph.nodes if isinstance(node.op, TreeEnsemble))
        assert isinstance(op, TreeEnsemble)
        ranked = sorted((name for name, form in FORMS.items() if form.fits(op)), key=cycles(op).__getitem__)
        for strategy in ranked if "unlimited" in name else ranked[:2]:
            source = next(source for method, source in sources_of(model, strategy=strategy) if method == "f32 predict")
            line = counted(op, rows, FORMS[strategy], source.text)
            print(f"| {name} | {strategy} | {' | '.join(map(str, line))} |", flush=True)


def counted(op: TreeEnsemble, rows: Array, form: type[TiledTrees], source: str) -> list[Any]:
    """A line of the table, from the instructions on."""
    loop = inner_loop(source, form.bits)
    pipes = Counter(map(pipe, loop))
    together = top_levels(int(op.depths.max()), 4) if form.name == "levels" else 0
    steps = float(op.depths.max() if form.name == "levels" else op.depths.mean())
    # A round of the loop is one tree, or as many steps as it has reads of ranks, for four rows.
    share = 0.25 if form.name == "levels" else steps / rank_reads(loop, form.bits)
    counts = [count * share for count in (len(loop), pipes["alu"], pipes["fma"])]
    busy = [counts[0] / 4, counts[1] / 2, counts[2] / 2]
    top, ranks = READS_OF_TOP[together], steps - together
    if issubclass(form, FarLinks):
        lines, sectors = (walked(op, rows, form, 0, partial(units, unit=unit)) for unit in (LINE, SECTOR))
        shared = f"{ranks:.1f} (ranks)"
        beyond_l1 = TREES * float(nodes_of(op).mean()) * form.bits // 2 > L1
        busy += [ranks + sum(lines), CLOCKS_OF_SECTOR * sum(sectors) * beyond_l1]
        memory = [f"{each.nodes:.1f} + {each.leaf:.1f}" for each in (lines, sectors)]
    else:
        nodes, leaf = walked(op, rows, form, together)
        shared, memory = f"{top:.1f} + {nodes:.1f} + {ranks:.1f} + {leaf:.1f}", ["", ""]
        busy.append(top + nodes + ranks + leaf)
    clocks = max(busy)
    return [*(f"{count:.1f}" for count in counts), shared, *memory, f"{clocks:.1f}", f"{H200 / clocks / TREES / 1e6:.0f}"]


if __name__ == "__main__":
    main()
