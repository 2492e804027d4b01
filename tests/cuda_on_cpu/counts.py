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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from lightgbm import LGBMRegressor
from sklearn.ensemble import (
    ExtraTreesRegressor,
    GradientBoostingRegressor,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from xgboost import XGBRegressor

import hbc
from hbc.compiler.tvm.nest.schedule import LANES
from hbc.compiler.tvm.trees.gpu.choice import FORMS, H200, cycles
from hbc.compiler.tvm.trees.gpu.far_links import FarLinks
from hbc.compiler.tvm.trees.gpu.forks import EXITS, LEVELS, WORDS
from hbc.compiler.tvm.trees.gpu.levels import Levels, in_order, values_of
from hbc.compiler.tvm.trees.gpu.memory import CLOCKS_OF_SECTOR, L1, LINE, SECTOR, splits_by_depth
from hbc.compiler.tvm.trees.gpu.tiles import WORD, TiledTrees
from hbc.compiler.tvm.trees.gpu.work import PARTS, RATES
from hbc.ir.types import Array
from hbc.ops.tree import TreeEnsemble

from . import kernels_of
from .beside import ALL, WAVEFRONTS, Instruction, beside
from .resources import sources_of

TENSOR = ("IMMA",)
FMA, CONTROL = ("IMAD", "FFMA", "FMUL", "FADD", "DADD"), ("BRA", "BAR", "BSYNC", "BSSY", "EXIT", "NOP", "WARPSYNC")
MEMORY = ("LDS", "STS", "LDG", "STG", "LDL", "STL", "LD", "LDC")
ROWS, FEATURES, TREES = 1024, 28, 500
WALKS = 9


def pipe(instruction: str) -> str:
    """The part of an SM that an instruction keeps busy: tensor, memory, fma, control or alu."""
    name = re.sub(r"^@!?U?P\w+\s+", "", instruction).split()[0].split(".")[0]
    if name in TENSOR:
        return "tensor"
    return "memory" if name in MEMORY else "fma" if name in FMA else "control" if name in CONTROL or name[0] == "U" else "alu"


def disassembled(source: str) -> str:
    """nvdisasm's text of the kernels for sm_90, with the lines of the source."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cu"
        file.write_text(source)
        options = ["-arch=sm_90", "-cubin", "-O3", "--fmad=false", "-lineinfo", "-w"]
        subprocess.run(["nvcc", *options, "-o", f"{file}bin", str(file)], check=True)
        return subprocess.run([nvdisasm(), "-c", "-g", f"{file}bin"], check=True, capture_output=True, text=True).stdout


def walking_loop(text: str, kernel: str, bits: int) -> tuple[list[Instruction], range]:
    """(the instructions of a kernel, which of them are the loop in which rows walk trees), in nvdisasm's text.

    It is the innermost loop that reads ranks most often. bits: of a rank. Nodes may lie in shared memory or not, and are of other sizes
    than ranks. Where no loop reads them one by one, it is the one that multiplies most often, or that reads most of shared memory.
    """
    instructions: list[Instruction] = []
    places, loops, section, number = {}, [], "", 0
    for line in text.splitlines():
        if begins := re.match(r"\s*\.section\s+(\S+?),", line):
            section = begins[1]
        if section != f".text.{kernel}":
            continue
        if of_source := re.search(r'File "[^"]*kernel\.cu", line (\d+)', line):
            number = int(of_source[1])
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            places[label[1]] = len(instructions)
        if found := re.search(r"/\*[0-9a-f]{4,}\*/\s+(.*?);", line):
            back = re.search(r"BRA(?:\.\w+)*\s.*`\((\.L_x_\d+)\)", found[1])
            if back and back[1] in places:
                loops.append(range(places[back[1]], len(instructions) + 1))
            instructions.append(Instruction(found[1].strip(), number))
    of_loops = [instructions[loop.start : loop.stop] for loop in loops]
    signs = (lambda own: rank_reads(own, bits), products, lambda own: sum("LDS" in instruction.text for instruction in own))
    reads = next(found for sign in signs if any((found := dict(zip(loops, map(sign, of_loops), strict=True))).values()))
    inner = [
        loop
        for loop in loops
        if reads[loop]
        and not any(other != loop and other[0] >= loop[0] and other[-1] <= loop[-1] and reads[other] for other in loops)
    ]
    around: list[set[int]] = [set() for _ in instructions]
    for loop in loops:
        for number in loop:
            around[number].add(instructions[loop[-1]].line)
    found = [each._replace(loops=frozenset(own)) for each, own in zip(instructions, around, strict=True)]
    return found, max(inner, key=reads.__getitem__)


def rank_reads(instructions: Sequence[Instruction], bits: int) -> int:
    """How many instructions read ranks of so many bits."""
    return sum(f"LDS.U{bits} " in instruction.text for instruction in instructions)


def products(instructions: Sequence[Instruction]) -> float:
    """How many instructions of tensor cores there are, in those of 16 × 32 times 32 × 8 bytes."""
    return sum({"16832": 1.0, "16816": 0.5}[size] for each in instructions for size in re.findall(r"IMMA\.(\d+)", each.text))


def nvdisasm() -> str:
    """NVIDIA's disassembler, from its package."""
    found = importlib.util.find_spec("nvidia")
    return next(str(path) for place in found.submodule_search_locations for path in Path(place).glob("*/bin/nvdisasm"))  # type: ignore


def wavefronts(places: Array, size: int) -> float:
    """The mean wavefronts of a warp's read of shared memory.

    places [N]: of each row, in elements of `size` bytes; -1 if it reads nothing. A warp has 32 consecutive rows. It reads 8 bytes
    in two halves, and 16 in four quarters.
    """
    wide = max(size // 4, 1)  # words of an element: so many banks
    lanes = 32 // wide
    words = (places * size // 4).reshape(-1, lanes, *places.shape[1:])
    words = np.sort(np.moveaxis(words, 1, -1).reshape(-1, lanes), axis=1)
    different = np.concatenate([np.ones((len(words), 1), bool), np.diff(words, axis=1) != 0], axis=1) & (words >= 0)
    per_bank = np.zeros((len(words), 32), int)
    np.add.at(per_bank, (np.arange(len(words))[:, None], words // wide % lanes), different)
    return float(per_bank.max(axis=1).mean()) * wide


def units(places: Array, size: int, unit: int) -> float:
    """The mean number of different pieces of `unit` bytes of the card's memory that a warp's read takes. places, size: see `wavefronts`."""
    pieces = np.sort((places * size // unit).reshape(-1, 32), axis=1)
    return float(np.mean((pieces[:, 0] >= 0) + (np.diff(pieces, axis=1) != 0).sum(axis=1)))


class Walked(NamedTuple):
    """What a warp reads for a tree, beside ranks: of nodes, summed over its steps, and of the leaf's values."""

    nodes: float
    leaf: float


def walked(op: TreeEnsemble, x: Array, form: type[TiledTrees], first: int) -> Walked:
    """The wavefronts of a warp's reads in a tree from step `first` on, averaged over some trees."""
    nodes, leaves = [], []
    by_level, size = issubclass(form, Levels), op.values.itemsize
    node = form.layout_of(op).node if issubclass(form, Levels) else WORD
    for tree in some_trees(op):
        places, final = _by_level(op, x, tree, form) if issubclass(form, Levels) else _by_link(op, x, tree)
        nodes.append(sum(wavefronts(place, node) for place in places[first:]))
        values = values_of(op) if by_level else op.values
        leaves.append(values.shape[1] * (size / WORD * wavefronts(final, WORD) if by_level else wavefronts(final, size)))
    return Walked(float(np.mean(nodes)), float(np.mean(leaves)))


def some_trees(op: TreeEnsemble) -> range:
    """25 trees or more, as far as there are so many."""
    return range(0, op.n_trees, max(op.n_trees // 25, 1))


class Forks(NamedTuple):
    """What a warp reads of a tree of forks. turns: of its loop. lines: of L1. sectors: of L2, if nothing stays in L1. first_sectors: the
    same if L1 keeps a tree as long as all rows walk it, which are those of a block."""

    turns: float
    lines: Walked
    sectors: Walked
    first_sectors: float


def walked_forks(op: TreeEnsemble, x: Array) -> Forks:
    """What a warp reads of a tree of forks, averaged over some trees."""
    found = []
    for tree in some_trees(op):
        forks, leaf = _by_fork(op, x, tree)
        turns = (forks >= 0).sum(axis=0).reshape(-1, 4 * 32).max(axis=1).mean()  # a warp has four rows in each lane
        pieces = [
            [sum(units(at, 4 * WORDS, unit) for at in forks), units(leaf, op.values.itemsize, unit)] for unit in (LINE, SECTOR)
        ]
        once = len(np.unique(forks[forks >= 0] * 4 * WORDS // SECTOR)) + len(np.unique(leaf * op.values.itemsize // SECTOR))
        found.append([turns, *pieces[0], *pieces[1], once / (len(x) / 32)])
    turns, *pieces, once = np.mean(found, axis=0)
    return Forks(turns, Walked(*pieces[:2]), Walked(*pieces[2:]), once)


def first_forks(op: TreeEnsemble, x: Array, levels: int) -> list[float]:
    """What a warp reads of the forks of the first levels of a tree, averaged over some trees: lines of L1, sectors of L2, and wavefronts if
    they lay in shared memory; and the sectors for a warp if the warps of a block copied them."""
    read = [_by_fork(op, x, tree)[0][: levels // LEVELS] for tree in some_trees(op)]
    costs: list[Callable[[Array], float]] = [
        lambda at: units(at, 4 * WORDS, LINE),
        lambda at: units(at, 4 * WORDS, SECTOR),
        lambda at: wavefronts(at, 4 * WORDS),
    ]
    copied = splits_by_depth(op)[:, :levels:LEVELS].sum(axis=1).mean() * 4 * WORDS / SECTOR / (len(x) / 32)
    return [*(float(np.mean([sum(map(cost, forks)) for forks in read])) for cost in costs), float(copied)]


def paired_forks(op: TreeEnsemble, x: Array) -> list[float]:
    """What a warp would read of the forks of a tree if each lay in a sector with the child to which most rows of the training data went:
    lines of L1, and sectors of L2 if L1 keeps them from one step to the next; and these sectors as forks lie now."""
    found = []
    for tree in some_trees(op):
        forks, place = _by_fork(op, x, tree)[0], np.append(_beside_likelier_child(op, tree), -1)
        lines = sum(units(at, 4 * WORDS, LINE) for at in place[forks])
        found.append([lines, *(_new_sectors(at * 4 * WORDS // SECTOR) for at in (place[forks], forks))])
    return [float(each) for each in np.mean(found, axis=0)]


def _beside_likelier_child(op: TreeEnsemble, tree: int) -> Array:
    """The place of each fork, numbered level by level, if forks lie in pairs: one and the child to which most rows went."""
    assert op.cover is not None
    tops, below = [int(op.roots[tree])], list[range]()
    for top in tops:  # grows
        inner = [side[top] for side in (op.left, op.right) if op.feature[side[top]] >= 0]
        exits = [int(side[node]) for node in inner for side in (op.left, op.right) if op.feature[side[node]] >= 0]
        below.append(range(len(tops), len(tops) + len(exits)))
        tops += exits
    place, end = np.full(len(tops), -1), 0
    for fork, children in enumerate(below):
        if place[fork] < 0 and children:
            place[[fork, max(children, key=lambda child: op.cover[tops[child]])]] = end, end + 1
            end += 2
    alone = place < 0
    place[alone] = end + np.arange(alone.sum())
    return place


def _new_sectors(sectors: Array) -> float:
    """The sectors that a warp reads in each step and not in the one before, on average. sectors [steps, N]: negative for none."""
    warps = sectors.reshape(len(sectors), -1, LANES).swapaxes(0, 1)
    read = [[set(step[step >= 0].tolist()) for step in warp] for warp in warps]
    return float(
        np.mean([sum(len(now - before) for before, now in zip([set[int](), *steps], steps, strict=False)) for steps in read])
    )


def _step(op: TreeEnsemble, x: Array, at: Array) -> tuple[Array, Array]:
    """(whether each row is at a split, whether it goes right there)."""
    feature = np.maximum(op.feature[at], 0)
    value = x[np.arange(len(x)), feature]
    left = (value <= op.threshold[at]) | (np.isnan(value) & op.missing_left[at])
    return op.feature[at] >= 0, ~left & (op.feature[at] >= 0)


def _by_level(op: TreeEnsemble, x: Array, tree: int, form: type[Levels]) -> tuple[list[Array], Array]:
    """The place of each row's node in every step, and of its leaf at the end: in a perfect tree, whose children are partly swapped."""
    depth, perfect, own = int(op.depths.max()), op.once(form.perfect), int(np.flatnonzero(in_order(op) == tree)[0])
    swapped = perfect.swapped[own]
    at, place, places = np.full(len(x), op.roots[tree]), np.ones(len(x), np.int64), []
    for _ in range(depth):
        places.append(place)
        inner, right = _step(op, x, at)
        at = np.where(inner, np.where(right, op.right[at], op.left[at]), at)
        place = 2 * place + (right ^ swapped[place])
    final = place - (1 << depth)
    return places, final if perfect.pairs is None else 2 * perfect.pairs[own][final // 2] + final % 2


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


def _by_fork(op: TreeEnsemble, x: Array, tree: int) -> tuple[Array, Array]:
    """(the number of each row's fork in every turn, -1 for rows at a leaf, [turns, N]; that of its leaf at the end, [N])."""
    fork_of, leaf_of = np.full(len(op.feature), -1), np.zeros(len(op.feature), np.int64)
    tops, forks, leaves = np.array([op.roots[tree]]), 0, 0
    while len(tops):
        fork_of[tops] = forks + np.arange(len(tops))
        children = np.stack([op.left[tops], op.right[tops]], axis=1).reshape(-1)
        at_leaf = op.feature[children] < 0
        exits = np.stack([np.where(at_leaf, children, side[children]) for side in (op.left, op.right)], axis=1).reshape(-1)
        ends = op.feature[exits] < 0
        # The stand-in of a leaf has two exits to it. Rows take the left one, so that counts.
        numbers = leaves + np.cumsum(ends) - 1
        leaf_of[exits[ends][::-1]] = numbers[ends][::-1]
        forks, leaves, tops = forks + len(tops), leaves + int(ends.sum()), exits[~ends]
    assert leaves == (EXITS - 1) * forks + 1
    at, places = np.full(len(x), op.roots[tree]), []
    for _ in range(0, int(op.depths[tree]), LEVELS):
        places.append(np.where(op.feature[at] >= 0, fork_of[at], -1))
        for _ in range(LEVELS):
            inner, right = _step(op, x, at)
            at = np.where(inner, np.where(right, op.right[at], op.left[at]), at)
    return np.array(places).reshape(-1, len(x)), leaf_of[at]


def models() -> dict[str, Callable[[Any, Any], Any]]:
    """Models of trees of several shapes, to be fitted."""
    return {
        "LightGBM, depth 3": lambda X, y: LGBMRegressor(n_estimators=100, max_depth=3, n_jobs=1, verbose=-1).fit(X, y),
        "LightGBM, depth 4": lambda X, y: LGBMRegressor(n_estimators=100, max_depth=4, n_jobs=1, verbose=-1).fit(X, y),
        "LightGBM, depth 5": lambda X, y: LGBMRegressor(n_estimators=100, max_depth=5, n_jobs=1, verbose=-1).fit(X, y),
        "LightGBM, depth 6": lambda X, y: LGBMRegressor(n_estimators=100, max_depth=6, num_leaves=63, n_jobs=1, verbose=-1).fit(
            X, y
        ),
        "LightGBM, depth 8": lambda X, y: LGBMRegressor(
            n_estimators=100, max_depth=8, num_leaves=255, n_jobs=1, verbose=-1
        ).fit(X, y),
        "XGBoost, depth 6": lambda X, y: XGBRegressor(n_estimators=100, max_depth=6, n_jobs=1).fit(X, y),
        "LightGBM, 31 leaves": lambda X, y: LGBMRegressor(n_estimators=100, n_jobs=1, verbose=-1).fit(X, y),
        "XGBoost, depth 8": lambda X, y: XGBRegressor(n_estimators=100, max_depth=8, n_jobs=1).fit(X, y),
        "forest, depth 8": lambda X, y: RandomForestRegressor(30, max_depth=8, n_jobs=1, random_state=0).fit(X, y),
        "forest, unlimited, 3 trees": lambda X, y: RandomForestRegressor(3, n_jobs=1, random_state=0).fit(X, y),
        "forest, unlimited, 10 trees": lambda X, y: RandomForestRegressor(10, n_jobs=1, random_state=0).fit(X, y),
    }


def kinds() -> dict[str, Callable[[Any, Any], Any]]:
    """Ensembles of 500 trees of every kind, to be fitted. They are not read from fewer trees, since their thresholds are more with each."""
    forest = {"max_features": 0.33, "n_jobs": 1, "random_state": 0}
    small = {"n_estimators": TREES, "n_jobs": 1}
    return {
        "LightGBM": lambda X, y: LGBMRegressor(**small, max_depth=8, num_leaves=255, verbose=-1).fit(X, y),
        "XGBoost": lambda X, y: XGBRegressor(**small, max_depth=8).fit(X, y),
        "XGBoost, exact": lambda X, y: XGBRegressor(**small, max_depth=8, tree_method="exact").fit(X, y),
        "HistGradientBoosting": lambda X, y: HistGradientBoostingRegressor(
            max_iter=TREES, max_depth=8, max_leaf_nodes=None, early_stopping=False
        ).fit(X, y),
        "GradientBoosting": lambda X, y: GradientBoostingRegressor(
            n_estimators=TREES, max_depth=8, max_features=0.33, random_state=0
        ).fit(X, y),
        "forest": lambda X, y: RandomForestRegressor(TREES, max_depth=8, **forest).fit(X, y),
        "extra trees": lambda X, y: ExtraTreesRegressor(TREES, max_depth=8, **forest).fit(X, y),
        "forest, 2 classes": lambda X, y: RandomForestClassifier(TREES, max_depth=8, **forest).fit(X, y > 0),
        "forest, 3 classes": lambda X, y: RandomForestClassifier(TREES, max_depth=8, **forest).fit(
            X, np.digitize(y, np.quantile(y, [1 / 3, 2 / 3]))
        ),
        "XGBoost, depth 4": lambda X, y: XGBRegressor(**small, max_depth=4).fit(X, y),
        "forest, depth 4": lambda X, y: RandomForestRegressor(TREES, max_depth=4, **forest).fit(X, y),
        "forest, depth 6": lambda X, y: RandomForestRegressor(TREES, max_depth=6, **forest).fit(X, y),
    }


def trees_of(model: Any) -> TreeEnsemble:
    """The trees of a fitted model."""
    return next(node.op for node in hbc.convert(model, "numpy").graph.nodes if isinstance(node.op, TreeEnsemble))


def training_data(rng: np.random.Generator) -> tuple[Array, Array]:
    """(X, y) of 8,000 rows."""
    X = rng.normal(size=(8_000, FEATURES)).astype(np.float32)
    return X, X[:, 0] + X[:, 1] * np.sign(X[:, 2]) + np.sin(3 * X[:, 3]) * X[:, 4] + 0.1 * rng.normal(size=len(X))


def data() -> tuple[Array, Array, Array]:
    """(X, y, rows that models are not fitted to)."""
    rng = np.random.default_rng(0)
    return *training_data(rng), rng.normal(size=(ROWS, FEATURES)).astype(np.float32)


def main() -> None:
    X, y, rows = data()
    print(
        "| model | strategy | instructions | ALU | FMA | tensor | wavefronts: top + nodes + ranks + value | lines of L1 | sectors of L2 "
        "| of L2 if L1 keeps a tree | clocks | M rows/s of 500 trees | beside the walks, for a tree: instructions, ALU, FMA, wavefronts "
        "| for the rows | clocks with these | M rows/s of 500 trees |"
    )
    print("|" + 16 * "---|")
    found = {name: (fit, None) for name, fit in models().items()} | {
        f"500 trees: {name}": (fit, 1) for name, fit in kinds().items()
    }
    for name, (fit, strategies) in found.items():
        if len(sys.argv) > 1 and not any(word in name for word in sys.argv[1:]):
            continue
        model = fit(X, y)
        op = trees_of(model)
        ranked = sorted((name for name, form in FORMS.items() if form.fits(op)), key=cycles(op).__getitem__)
        for strategy in ranked[:strategies]:
            line = counted(op, rows, FORMS[strategy], source_of(model, strategy))
            print(f"| {name} | {strategy} | {' | '.join(map(str, line))} |", flush=True)
        if "unlimited" in name:
            costs = ", ".join(f"{cost:.1f}" for cost in paired_forks(op, rows))
            print(f"forks beside their likelier child (lines, sectors, sectors as they lie now): {costs}", file=sys.stderr)
            for levels in (6, 8, 10, 12):
                costs = ", ".join(f"{cost:.1f}" for cost in first_forks(op, rows, levels))
                print(
                    f"{levels} levels in shared memory (lines, sectors, wavefronts, sectors copied): {costs}", file=sys.stderr
                )


def source_of(model: Any, strategy: str) -> str:
    """The kernels of a fitted model's main method."""
    named = sources_of(model, strategy=strategy)
    return next(source.text for method, source in named if method in ("f32 predict", "f32 predict_proba"))


def counted(op: TreeEnsemble, rows: Array, form: type[TiledTrees], source: str) -> list[str]:
    """A line of the table, from the instructions on: WALKS is the place of the rows per second of the walks alone, the last one those of
    the whole kernel."""
    code, walk = walking_loop(disassembled(source), max(kernels_of(source)).name, form.bits)
    loop = code[walk.start : walk.stop]
    pipes = Counter(pipe(instruction.text) for instruction in loop)
    rows_of_thread = form.rows_of_thread(op)
    together, picks, top = 0, False, 0.0
    if issubclass(form, Levels):
        together = form.top_levels(int(op.depths.max()), rows_of_thread)
        picks, top = form.picks(op), form.reads_of_top(op, form.picks(op))
        assert form.in_constants(op, picks) == ("__constant__" in source)
    far = walked_forks(op, rows) if issubclass(form, FarLinks) else None
    steps = LEVELS * far.turns if far else float(op.depths.max() if issubclass(form, Levels) else op.depths.mean())
    # A round of the loop is one tree for the rows of a thread, or as many steps as it has reads of ranks.
    share = 1 / rows_of_thread if issubclass(form, Levels) else steps / rank_reads(loop, form.bits)
    counts = {name: count * share for name, count in (pipes | {ALL: len(loop), "tensor": products(loop)}).items()}
    ranks = steps - together
    from_l2 = 0.0
    if far:
        shared = f"{ranks:.1f} (ranks)"
        beyond_l1 = TREES * 4 * WORDS * float(splits_by_depth(op)[:, ::LEVELS].sum(axis=1).mean()) > L1
        counts[WAVEFRONTS], from_l2 = ranks + sum(far.lines), CLOCKS_OF_SECTOR * sum(far.sectors) * beyond_l1
        memory = [f"{each.nodes:.1f} + {each.leaf:.1f}" for each in (far.lines, far.sectors)] + [f"{far.first_sectors:.1f}"]
    else:
        nodes, leaf = walked(op, rows, form, together + picks)
        shared, memory = f"{top:.1f} + {nodes:.1f} + {ranks:.1f} + {leaf:.1f}", ["", "", ""]
        counts[WAVEFRONTS] = top + nodes + ranks + leaf
    clocks = max(from_l2, clocks_of(counts))
    others = beside(op, rows, form, source, code, walk, pipe)
    if not issubclass(form, Levels):  # their loop does not read the values, which are counted with it all the same
        others.trees[WAVEFRONTS] -= op.values[:1].nbytes / WORD
    whole = {name: TREES * (counts[name] + others.trees[name]) + others.rows[name] for name in counts}
    all_clocks = max(TREES * from_l2, clocks_of(whole))
    shown = [
        ", ".join(f"{each[name]:{digits}}" for name in list(PIPES)[:4])
        for each, digits in ((others.trees, ".1f"), (others.rows, ".0f"))
    ]
    rates = f"{H200 / clocks / TREES / 1e6:.0f}", *shown, f"{all_clocks:.0f}", f"{H200 / all_clocks / 1e6:.0f}"
    return [*(f"{counts[name]:.1f}" for name in (*list(PIPES)[:3], "tensor")), shared, *memory, f"{clocks:.1f}", *rates]


PIPES = dict(zip(PARTS, RATES.tolist(), strict=True))
"""How many of each an SM executes in a clock."""


def clocks_of(counts: Mapping[str, float]) -> float:
    """The clocks of an SM for so many instructions and wavefronts: the most that one of its parts is busy."""
    return max(counts[name] / rate for name, rate in PIPES.items())


if __name__ == "__main__":
    main()
