"""What the tree kernels of a GPU cost without a card: instructions of their inner loops, and wavefronts of shared memory on real rows.

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
from pathlib import Path
from typing import Any

import numpy as np
from lightgbm import LGBMRegressor
from sklearn.ensemble import RandomForestRegressor
from xgboost import XGBRegressor

import hbc
from hbc.compiler.tvm.trees.gpu.choice import FORMS, H200, cycles
from hbc.compiler.tvm.trees.gpu.levels import READS_OF_TOP, top_levels
from hbc.ir.types import Array
from hbc.ops.tree import TreeEnsemble

from .resources import sources_of

FMA, CONTROL = ("IMAD", "FFMA", "FMUL", "FADD", "DADD"), ("BRA", "BAR", "BSYNC", "BSSY", "EXIT", "NOP", "WARPSYNC")
MEMORY = ("LDS", "STS", "LDG", "STG", "LDL", "STL", "LD", "LDC")
ROWS, FEATURES = 1024, 28


def pipe(instruction: str) -> str:
    """The part of an SM that an instruction keeps busy: memory, fma, control or alu."""
    name = re.sub(r"^@!?U?P\w+\s+", "", instruction).split()[0].split(".")[0]
    return "memory" if name in MEMORY else "fma" if name in FMA else "control" if name in CONTROL or name[0] == "U" else "alu"


def inner_loop(source: str) -> list[str]:
    """The instructions of the innermost loop that reads shared memory most often, for sm_90."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cu"
        file.write_text(source)
        subprocess.run(
            ["nvcc", "-arch=sm_90", "-cubin", "-O3", "--fmad=false", "-w", "-o", f"{file}bin", str(file)], check=True
        )
        text = subprocess.run([nvdisasm(), "-c", f"{file}bin"], check=True, capture_output=True, text=True).stdout
    instructions: list[str] = []
    places, loops = {}, []
    for line in text.splitlines():
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            places[label[1]] = len(instructions)
        if found := re.search(r"/\*[0-9a-f]{4,}\*/\s+(.*?);", line):
            back = re.search(r"BRA(?:\.\w+)*\s.*`\((\.L_x_\d+)\)", found[1])
            if back and back[1] in places:
                loops.append(range(places[back[1]], len(instructions) + 1))
            instructions.append(found[1].strip())
    reads = {loop: sum("LDS" in instructions[i] for i in loop) for loop in loops}
    inner = [
        loop
        for loop in loops
        if reads[loop]
        and not any("BAR" in instructions[i] for i in loop)
        and not any(other != loop and other[0] >= loop[0] and other[-1] <= loop[-1] and reads[other] for other in loops)
    ]
    return [instructions[i] for i in max(inner, key=reads.__getitem__)]


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


def walked(op: TreeEnsemble, x: Array, form: str, first: int) -> tuple[float, float]:
    """(wavefronts of nodes, wavefronts of the leaf's value), for a warp and tree, summed over its steps from `first` on and averaged over
    some trees."""
    nodes, leaves = [], []
    for tree in range(0, op.n_trees, max(op.n_trees // 25, 1)):
        places, final = (_by_level if form == "levels" else _by_link)(op, x, tree)
        size = 2 if form == "levels" else 4
        nodes.append(sum(wavefronts(place, size) for place in places[first:]))
        leaves.append(wavefronts(final, op.values.itemsize))
    return float(np.mean(nodes)), float(np.mean(leaves))


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
        "forest, unlimited": lambda X, y: RandomForestRegressor(10, n_jobs=1, random_state=0).fit(X, y),
    }


def main() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(8_000, FEATURES)).astype(np.float32)
    y = X[:, 0] + X[:, 1] * np.sign(X[:, 2]) + np.sin(3 * X[:, 3]) * X[:, 4] + 0.1 * rng.normal(size=len(X))
    rows = rng.normal(size=(ROWS, FEATURES)).astype(np.float32)
    print(
        "| model | strategy | instructions | ALU | FMA | wavefronts: top + nodes + ranks + value | clocks | M rows/s of 500 trees |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name, fit in models().items():
        if len(sys.argv) > 1 and not any(word in name for word in sys.argv[1:]):
            continue
        model = fit(X, y)
        op = next(node.op for node in hbc.convert(model, "numpy").graph.nodes if isinstance(node.op, TreeEnsemble))
        assert isinstance(op, TreeEnsemble)
        steps = float(op.depths.max()) if op.depths.max() <= 8 else float(op.depths.mean())
        for strategy in sorted((name for name, form in FORMS.items() if form.fits(op)), key=cycles(op).__getitem__)[:2]:
            source = next(source for method, source in sources_of(model, strategy=strategy) if method == "f32 predict")
            loop = inner_loop(source.text)
            pipes = Counter(map(pipe, loop))
            together = top_levels(int(op.depths.max()), 4) if strategy == "levels" else 0
            top, each = READS_OF_TOP[together], steps - together
            nodes, leaf = walked(op, rows, strategy, together)
            # A round of the loop is one tree, or as many steps as it has pairs of reads, for four rows.
            share = 0.25 if strategy == "levels" else 0.25 * steps / (pipes["memory"] / 8)
            counts = [round(count * share, 1) for count in (len(loop), pipes["alu"], pipes["fma"])]
            clocks = max(top + nodes + each + leaf, counts[0] / 4, counts[1] / 2, counts[2] / 2)
            if strategy == "far_links":
                clocks = cycles(op)[strategy] / op.n_trees
            line = (name, strategy, *counts, f"{top:.1f} + {nodes:.1f} + {each:.1f} + {leaf:.1f}", f"{clocks:.1f}")
            print(f"| {' | '.join(map(str, line))} | {H200 / clocks / 500 / 1e6:.0f} |", flush=True)


if __name__ == "__main__":
    main()
