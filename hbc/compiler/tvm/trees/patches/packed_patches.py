"""A tree ensemble as patches: connected parts of a tree of up to 15 or 7 splits, which patches.py compares at once."""

from __future__ import annotations

import numpy as np

from hbc.compiler.memory import aligned
from hbc.compiler.tvm.trees.keys import Compared, compared_columns, ordered
from hbc.compiler.tvm.trees.leaves.reached import padded
from hbc.compiler.tvm.trees.walk.walk import MORE_COLUMNS, distinct
from hbc.ir.types import NUMPY_DTYPES, Array, DType
from hbc.lazy import record
from hbc.ops.tree import TreeEnsemble

LANES = 16
"""The keys in a register."""
MOST_IN_REGISTERS = 256
"""The most keys of a row that registers hold. A byte numbers them. More keys stay in memory."""
MOST_COLUMNS = 1 << 16
"""The most keys in memory. Two bytes number them."""
MOST_CODES = 1 << 16
"""Up to so many different values of leaves, each leaf has the number of its values: two bytes in place of eight for each value. Extra-trees
of two classes take a quarter less time."""
AT_ONCE = 1 << 15  # patches that are cut at once, to bound the memory of the cutting


def passed(splits: int, trees: int) -> float:
    """The patches on the path of a row through a tree, about. Patches have up to 16 exits, but they are not all full."""
    return 1 + float(np.log2(max(splits / max(trees, 1), 1))) / 3.2


@record
class Form:
    """A form of patches. The numbers of columns and the sets of splits have the dtypes `number` and `bits`."""

    lanes: int
    """The most exits of a patch, which has one split less; and the keys in a vector."""
    words: int
    """The words that a patch takes, in one cache line or two."""
    short_paths: int
    """A patch above so many leaves takes its heaviest subtrees first, for short paths. Below, a tree is cut to the fewest patches."""
    number: DType
    bits: DType
    ends: int
    """The word at which this part of a patch begins (see `PackedPatches`); so of the others."""
    columns: int
    first_patch: int
    first_leaf: int
    inner: int


IN_REGISTERS = Form(16, 32, 128, "u8", "u16", ends=16, columns=24, first_patch=28, first_leaf=29, inner=30)
"""For rows whose keys are in registers. With 32 exits the paths are shorter (3.0 patches in place of 3.7), but patches are large, and badly
filled. Heaviest first alone makes 2.6 times the patches (4,033 leaves a tree), fewest alone makes paths of 6.1 patches in place of 3.7."""
IN_MEMORY = Form(8, 16, 32, "u16", "u8", inner=7, ends=8, columns=10, first_patch=14, first_leaf=15)
"""For rows whose keys stay in memory. Each key is read by itself, so a visit with half the splits takes half the time or little more. With
14 splits in two cache lines paths are 4.1 patches in place of 5.0 (4,000 leaves a tree), and take a tenth longer (Zen 5)."""


@record
class Columns:
    """The columns of a row's keys. size: how many there are, a power of two that is a multiple of LANES. both: whether some splits send the
    NaN of a column to the left, and others to the right. There NaN is above all numbers."""

    compared: Compared
    size: int
    both: bool

    def form(self, wide: bool) -> Form:
        """The form of patches that compare them. wide: with AVX-512."""
        return IN_REGISTERS if wide and self.size <= MOST_IN_REGISTERS else IN_MEMORY


def columns_of(op: TreeEnsemble) -> tuple[Columns, Array, Array]:
    """(the columns of keys, i64[M]: the column that each split compares, bool[M]: the splits that send NaN to the left, though it is above
    all numbers). The columns are the features in their order if these are hardly more, and take no more registers."""
    few, all_ = compared_columns(op), compared_columns(op, in_order=True)
    size, size_of_all = (max(LANES, 1 << (len(compared) - 1).bit_length()) for compared, _, _ in (few, all_))
    in_order = len(all_[0]) <= MORE_COLUMNS * len(few[0]) and (size_of_all == size or size > MOST_IN_REGISTERS)
    compared, column, to_left = all_ if in_order else few
    return Columns(compared, size_of_all if in_order else size, bool(to_left.any())), column, to_left


@record
class PackedPatches:
    """An ensemble in patches. The roots' patches come first, in the order of the trees; then those of the first tree, level by level, and
    so on.

    words i32[P, form.words]: for each patch, of S splits at most

    * u32[S]: the keys of the thresholds; for places without a split, the largest key, to whose right no row goes
    * `ends`, S + 1 sets: for each exit the splits (bits) that have it below their left child. Exits are numbered from left to right
    * `columns`, S numbers: the columns of keys that the splits compare
    * `first_patch` and `first_leaf`: the patch behind the first exit that leads to one, and the first of the leaves. Those of further exits
      follow
    * `inner`: the exits (bits) that lead to patches; behind S + 1 bits the splits that send NaN to the left, though it is above all numbers

    values [D, V], codes u16[L]: leaf l, in the order of the patches, has the values[codes[l]]. None: it has values[l]. They are `padded`.
    If the output is leaf numbers, those: i64[L, 1].
    exits i32[P, S + 1]: the nodes behind each patch, see `Level`.
    """

    form: Form
    columns: Columns
    words: Array
    values: Array
    codes: Array | None
    exits: Array


def pack_patches(op: TreeEnsemble, wide: bool) -> PackedPatches:
    """Pack an ensemble. wide: with AVX-512. Vectorized over all patches of a level: 100 trees of 20,000 leaves take 2 s."""
    columns, column, to_left = columns_of(op)
    form = columns.form(wide)
    splits = form.lanes - 1
    levels = cut(op, form)
    tree = [level.tree for level in levels]
    counts = np.stack([np.bincount(each, minlength=op.n_trees) for each in tree])
    later = np.concatenate([counts[:1] * 0, counts[1:]])  # without the roots' patches
    before = np.cumsum(later.T.reshape(-1)).reshape(later.T.shape).T - later
    words = aligned(int(counts.sum()) * form.words, "i32").reshape(-1, form.words)
    ends = words[:, form.ends :].view(NUMPY_DTYPES[form.bits])
    compared = words[:, form.columns :].view(NUMPY_DTYPES[form.number])
    exits = np.full((len(words), form.lanes), -1, np.int32)
    numbers = []
    for depth, each in enumerate(tree):
        place = np.arange(len(each)) - np.searchsorted(each, each)  # within the tree's patches of this level
        numbers.append(each if depth == 0 else op.n_trees + before[depth, each] + place)
    for depth, level in enumerate(levels):
        number = numbers[depth]
        exits[number] = level.exits
        used = level.splits >= 0
        split = level.splits[used]
        rows, places = np.nonzero(used)
        words[number, :splits] = -1
        words[number[rows], places] = ordered(op.threshold[split]).view(np.int32)
        ends[number, : form.lanes] = level.ends
        compared[number[rows], places] = column[split]
        children = level.inner.sum(axis=1)
        missing = (used & to_left[level.splits]) @ (1 << np.arange(form.lanes, form.lanes + splits))
        words[number, form.inner] = level.inner @ (1 << np.arange(form.lanes)) | missing
        parents = np.flatnonzero(children)
        if len(parents):
            words[number[parents], form.first_patch] = numbers[depth + 1][(np.cumsum(children) - children)[parents]]
    nodes = exits[exits >= 0]
    leaves = ((exits >= 0) & (op.feature[exits] < 0)).sum(axis=1)
    words[:, form.first_leaf] = np.cumsum(leaves) - leaves
    values, codes = _values(op, op.left[nodes[op.feature[nodes] < 0]])
    return PackedPatches(form, columns, words, values, codes, exits)


def _values(op: TreeEnsemble, leaves: Array) -> tuple[Array, Array | None]:
    """`PackedPatches.values` and `codes`. leaves: the ensemble's own number of each leaf, in the order of the patches."""
    if op.output == "leaf":
        return op.leaf_ids[leaves][:, None], None
    values, which = distinct(op.values)
    if len(values) > MOST_CODES:
        return padded(op.values[leaves]), None
    return padded(values), which[leaves].astype(np.uint16)


@record
class Level:
    """Patches of one level of all trees, tree by tree. Those of the next level are behind their exits, in this order.

    tree i64[P]: the tree of each patch. splits i32[P, S]: its splits, from the top; -1 for none.
    exits i32[P, S + 1]: the nodes behind it, from left to right; -1 for none. inner bool[P, S + 1]: whether such a node is a split.
    ends u16[P, S + 1]: for each exit the splits that have it below their left child.
    """

    tree: Array
    splits: Array
    exits: Array
    inner: Array
    ends: Array


def cut(op: TreeEnsemble, form: Form) -> list[Level]:
    """Cut all trees into patches, level by level."""
    most = form.lanes - 1
    size, closed = _sizes(op, most)
    left, right = op.left.astype(np.int32), op.right.astype(np.int32)
    top, tree, levels = op.roots.astype(np.int32), np.arange(op.n_trees), []
    while len(top):
        parts = [
            _open(top[i : i + AT_ONCE], left, right, size, closed, most, form.short_paths) for i in range(0, len(top), AT_ONCE)
        ]
        splits, exits, ends = (np.concatenate(each) for each in zip(*parts, strict=True))
        inner = (exits >= 0) & (op.feature[exits] >= 0)
        levels.append(Level(tree, splits, exits, inner, ends))
        top, tree = exits[inner], np.repeat(tree, inner.sum(axis=1))
    return levels


def _open(
    top: Array, left: Array, right: Array, size: Array, closed: Array, most: int, short_paths: int
) -> tuple[Array, Array, Array]:
    """(splits, exits, ends) of the patches at these nodes: see `Level`. It opens the exit with the most splits below it, of several the
    leftmost one, and puts its two children in its place, until there are `most` splits. The right one has a new column, and exits are
    put in their order at the end: to move them at each step would take twice as long."""
    patches, few = np.arange(len(top)), size[top] < short_paths
    splits = np.full((len(top), most), -1, np.int32)
    exits = np.full((len(top), most + 1), -1, np.int32)
    ends = np.zeros((len(top), most + 1), np.uint16)
    # An exit has the places from `place` to `place + span`. Its `weight` is the splits below it, and then the places behind it.
    places = 1 << most
    place, span = np.full((len(top), most + 1), places), np.full((len(top), most + 1), places)
    weight = np.full((len(top), most + 1), -1)
    exits[:, 0], place[:, 0], weight[:, 0] = top, 0, size[top].astype(np.int64) * places + places
    for step in range(most):
        chosen = weight[patches].argmax(axis=1)
        going = weight[patches, chosen] > places
        patches, chosen = patches[going], chosen[going]
        if not len(patches):
            break
        node, half, seen = exits[patches, chosen], span[patches, chosen] // 2, ends[patches, chosen]
        first = place[patches, chosen]
        splits[patches, step] = node
        for column, child, begin, passed_by in (
            (chosen, left[node], first, seen | np.uint16(1 << step)),
            (step + 1, right[node], first + half, seen),
        ):
            below = np.where(closed[child] & few[patches], 0, size[child]).astype(np.int64)
            exits[patches, column], ends[patches, column] = child, passed_by
            place[patches, column], span[patches, column] = begin, half
            weight[patches, column] = below * places + places - begin
    order = np.argsort(place, axis=1, kind="stable")
    return splits, np.take_along_axis(exits, order, axis=1), np.take_along_axis(ends, order, axis=1)


def _sizes(op: TreeEnsemble, most: int) -> tuple[Array, Array]:
    """(size, closed) for every node: the number of splits from it down; and whether a new patch begins there, if a tree is cut to the
    fewest patches. From the leaves up, where a split and the open parts of its children are too many for a patch, the larger part is
    closed (Kundu and Misra)."""
    levels, nodes = [], op.roots.astype(np.int64)
    while len(nodes):
        inner = nodes[op.feature[nodes] >= 0]
        levels.append(inner)
        nodes = np.concatenate([op.left[inner], op.right[inner]]).astype(np.int64)
    size, part = np.zeros(len(op.feature), np.int32), np.zeros(len(op.feature), np.int32)
    closed = np.zeros(len(op.feature), bool)
    for inner in reversed(levels):
        left, right = op.left[inner], op.right[inner]
        size[inner] = 1 + size[left] + size[right]
        larger = np.where(part[left] < part[right], right, left)
        smaller = left + right - larger
        closed[larger] = part[larger] + part[smaller] + 1 > most
        closed[smaller] = part[smaller] + 1 > most
        part[inner] = 1 + np.where(closed[larger], 0, part[larger]) + np.where(closed[smaller], 0, part[smaller])
    return size, closed
