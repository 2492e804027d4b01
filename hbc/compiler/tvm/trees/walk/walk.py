"""Tree ensembles by walking from node to node. It works for every ensemble. Other kernels leave to it what they do not fit, and few rows.

The code computes:

    keys[row] = [0, ordered(x[row, feature]) for each compared feature]       # floats as unsigned integers in the same order
    for 4 trees, for 16 rows:
        ask for some cache lines of the next 4 trees
        for each of these trees:
            node[i] = tree                                                    # nodes 0…T - 1 are the roots
            while any column(node[i]) != 0:                                   # some walk hasn't reached a leaf
                four times (three, five), for i in 0…15:
                    node[i] = left(node[i]) + (threshold(node[i]) < keys[row i, column(node[i])])
            sums[row i] += values[place(node[i])]
    for each of the last rows: the same, with 16 trees of one row

A block reads all trees anew, large ones from beyond the second cache. While rows walk some trees, the code asks for the nodes of the next
ones, in the order of memory. 10,000 rows of forests of unlimited depth take 0.56 (regressor), 0.55 (extra-trees) and 0.8 (two classes) of
the time so on Zen 3.

Where some nodes send the NaN of a feature to the left, and others to the right, it has two columns of keys. A block of rows without NaN
needs only the first of them, and half the memory: loops of their own walk such blocks. scikit-learn's forests have both ways everywhere,
also where there was no NaN to learn from. On Zen 3 10,000 rows without NaN take an eighth less time so at depth 10, a twelfth at unlimited
depth; rows with NaN 3 % more.

A node is two words: the key of its threshold, and `left << shift | column`. The right child follows the left one, so a step is a compare
and an addition with carry. Sixteen interleaved walks hide each other's latency. A leaf points to itself: its column 0 has keys of 0 for
all rows. So a walk that has ended waits there for the others.
"""

from __future__ import annotations

from copy import copy
from functools import reduce
from typing import Any

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.memory import LINE, aligned
from hbc.compiler.tvm.nest.function import Block
from hbc.compiler.tvm.plan.tree_kernels import tree_kernel
from hbc.compiler.tvm.tir.dialect import DTYPES, Expr
from hbc.compiler.tvm.tir.expressions import let
from hbc.compiler.tvm.tir.vectors import as_bytes, prefetch, vector
from hbc.compiler.tvm.trees.categories import Codes, n_features, pack_sets
from hbc.compiler.tvm.trees.keys import Compared, Keys, compared_columns, key_columns, ordered
from hbc.compiler.tvm.trees.leaves.reached import Reached, padded
from hbc.compiler.tvm.trees.set_keys import SetKeys, TurnedSets, turn_sets
from hbc.compiler.tvm.trees.walk.lone import LoneNodes, LoneWalk, pack_lone, walks_alone
from hbc.compiler.tvm.trees.walk.passes import LEAST_BYTES, LEAST_TREES, Passes
from hbc.ir.graph import Node
from hbc.ir.types import NUMPY_DTYPES, Array, DType
from hbc.lazy import record
from hbc.ops.tree import TreeEnsemble

WALKS = 16  # walks in flight fill the time in which a step waits for its two loads (12 and 20 measure the same, 24 is slower)
WALKS_ALONE = 14
"""Walks in flight where a scan walks single rows, in nodes of 8 bytes. LLVM runs out of registers: with 16 walks, and keys that are not on
the stack, it loads the address of the nodes again for each step of some models, and not of others. A step takes 8.2 to 8.3 instructions in
all models; with 16 walks 8.6 to 11.0 (keys on the stack: 8.4 to 10.7), with 12 or 13 on the stack 8.1 to 10.5. Nodes of 16 bytes take 16
walks (300 trees of 31 leaves: 5.7 µs a row; 14 walks, 6.7)."""
STEPS_BETWEEN_TESTS = 4
"""Steps between two tests whether all walks have ended. For trees of many depths, 2 and 5 measure the same."""
STEPS_OF_DEPTHS = (4, 3, 5)
"""The same for trees of limited depth, whichever wastes fewest steps. Walks of depth 10 take 10 steps then, not 12, and 0.86 of the time
(Zen 3)."""
LIMITED_DEPTH = 12  # the walks of deeper trees end at many depths
TEST = 0.3  # the instructions of a test over those of a step
TREES_IN_TILE = 4  # trees that 16 rows walk before the next 16 do: the rows' keys stay in L1 (depth-8 forests 3.5 to 3.3 µs)
TILE = 1 << 18
"""The most bytes of these trees, but one tree there is at least: half of the second-level cache of Zen 3. 100 trees of 12,600 leaves
(200 KB) take a twelfth less time one by one."""
MOST_LINES = 128
"""The most cache lines of the next tile for which a group of 16 rows asks. Where there were more, most lines would be of no use. 100 trees
of 12,600 leaves take 0.8 of the time so for 500 rows (101 lines) and 0.65 for 1,000; 100 rows stay as they were (Zen 3)."""
FROM_MEMORY = 24 << 20  # the nodes of larger ensembles come from memory for each call
MOST_LINES_FROM_MEMORY = 1024
"""The most cache lines for these. In order they come so much faster than one by one that most may be of no use. Forest regressors of 100
trees of 19,000 leaves take 0.4 of the time so for 208 rows (363 lines), of 30,000 leaves 0.35 for 400 rows (280 lines), extra-trees of two
classes with 200 trees 0.55 for 112 rows (Zen 5, code for Zen 3). Trees in the second or third cache take up to a quarter more."""
MORE_COLUMNS = 1.5
"""Up to so many columns of keys for each that is compared are still computed sooner, if a register of them is (keys.py)."""
FEW_VALUES = 8  # up to so many different leaf values, parents of two leaves share their children


@record
class PackedNodes:
    """An ensemble as a walk reads it.

    compared: the columns of keys that nodes compare. Entry k is column k + 1 of a row's keys. Column 0 is zeros, for the leaves.
    firsts: how many columns these are, with those that have the bytes of category sets (`TurnedSets`), behind the others. Where there are
    such, nodes have no numbers of columns, but of bytes: of the first byte that they compare. The last one of these is that of the set.
    seconds: how many of these, the first ones, have a second column, with NaN below all numbers. Of entry k it is column second + k + 1.
    apart: whether `second` is a power of two. Then the column of a node, modulo `second`, has the key of a row without NaN.
    words [M, 2]: for each node the key of its threshold (for a leaf, its row in `values`), and `left << shift | column`. The roots come
    first, then leaves in place of the trees that the last round of walks lacks.
    begins [T + 1]: the node at which the nodes of each tree's own begin, and how many nodes there are.
    values [D, V]: the different leaf values (`padded`). If the output is leaf numbers, those: [D, 1].
    """

    compared: Compared
    firsts: int
    second: int
    seconds: int
    apart: bool
    words: Array
    begins: Array
    shift: int
    values: Array


def pack_nodes(op: TreeEnsemble, turned: TurnedSets | None = None) -> PackedNodes:
    """Pack an ensemble. turned: its category sets, if each has a byte. Vectorized over all nodes."""
    values, place = _values(op)
    number, begins = _numbers(op, place, len(values))
    count = int(begins[-1])
    reached = np.flatnonzero(number >= 0)
    inner, leaf = reached[op.feature[reached] >= 0], reached[op.feature[reached] < 0]
    compared, column, in_second, firsts, second, seconds = _columns(op, turned)
    key = op.threshold.itemsize
    columns = second + seconds if turned is None else (second + seconds) * key
    shift = _shift(columns)
    small = op.threshold.dtype == np.float32 and columns < 65536 and count < 2 ** (32 - shift)
    if not small:
        shift = 32
    words = np.zeros((count, 2), np.uint32 if small else np.uint64)
    thresholds, at = ordered(op.threshold[inner]), column[inner] + 1 + second * in_second[inner]
    if turned is not None:
        of_set = op.feature[inner] - turned.width
        in_set = turned.place[np.maximum(of_set, 0)] + (len(compared) + 1) * key - (key - 1)
        at = np.where(of_set < 0, at * key, in_set)
        thresholds[of_set >= 0] = (1 << 8 * (key - 1)) - 1
    words[number[inner], 0] = thresholds
    words[number[inner], 1] = number[op.left[inner]] << shift | at
    words[number[leaf], 0] = place[op.left[leaf]]
    words[number[leaf], 1] = number[leaf] << shift
    waiting = np.arange(op.n_trees, whole_rounds(op.n_trees))
    words[waiting, 1] = waiting << shift
    kept = aligned(words.size, "i32" if small else "i64").reshape(words.shape)
    kept[...] = words.view(kept.dtype)
    return PackedNodes(compared, firsts, second, seconds, second > firsts, kept, begins, shift, padded(values))


def _columns(op: TreeEnsemble, turned: TurnedSets | None) -> tuple[Compared, Array, Array, int, int, int]:
    """`compared_columns`, `firsts`, `second` and `seconds` (see `PackedNodes`). The columns are the features in their order if these are
    hardly more, and nodes take no more memory."""

    def found(in_order: bool) -> tuple[Compared, Array, Array, int, int, int]:
        compared, column, in_second = compared_columns(op, in_order)
        firsts, seconds = len(compared), int(column[in_second].max(initial=-1)) + 1
        if turned is not None:
            compared = tuple((feature, low) for feature, low in compared if feature < turned.width)
            firsts = len(compared) + turned.size // op.threshold.itemsize
        return compared, column, in_second, firsts, _second(firsts, seconds), seconds

    (*_, few, few_second, few_seconds), (*_, all_, second, seconds) = found(False), found(True)
    larger = all_ + seconds > MORE_COLUMNS * (few + few_seconds)
    return found(not larger and _shift(second + seconds) == _shift(few_second + few_seconds))


def _shift(columns: int) -> int:
    """The bits of a link below its node: a byte or half of a word is cheap to extract."""
    return 8 if columns < 256 else 16


def _second(columns: int, seconds: int) -> int:
    """Where `seconds` second columns begin: right behind the first ones; or at the next power of two if rows without NaN then take less
    memory, and nodes no more."""
    apart = 1 << columns.bit_length()
    less = key_columns(1 + columns) < key_columns(1 + columns + seconds)
    return apart if less and (apart + seconds < 256 or columns + seconds >= 256) else columns


def _pack_lone(op: TreeEnsemble) -> LoneNodes:
    values, place = _values(op)
    number, begins = _numbers(op, place, len(values))
    return pack_lone(op, number, int(begins[-1]), place, values)


def _values(op: TreeEnsemble) -> tuple[Array, Array]:
    """(the different values of leaves, or numbers of leaves; for each leaf its row there)."""
    return distinct(op.values if op.output == "sum" else op.leaf_ids[:, None])


def whole_rounds(trees: int) -> int:
    """The number of trees, rounded up to whole rounds of WALKS and of WALKS_ALONE. It is even."""
    return max(-(-trees // walks) * walks for walks in (WALKS, WALKS_ALONE))


def walks_alone_of(trees: int, depth: int) -> int:
    """The walks in flight where single rows go through so many trees, in nodes of 8 bytes. Deep trees take what leaves fewer walks without
    a tree: a row takes 0.8 of the time with 16 where there are 60 trees of 1,000 leaves, and 0.9 with 14 where there are 40 of depth 14
    (Zen 5, code for Zen 3). Others take WALKS_ALONE."""
    if depth <= LIMITED_DEPTH:
        return WALKS_ALONE
    return min((WALKS, WALKS_ALONE), key=lambda walks: -(-trees // walks) * walks)


def distinct(values: Array) -> tuple[Array, Array]:
    """(rows, which): the different rows of a matrix, in the order of their first places; for each row of the matrix, its number there.

    Rows are compared bit by bit.
    """
    which = np.zeros(len(values), np.int64)
    for column in values.view(f"i{values.itemsize}").T:
        different, code = np.unique(column, return_inverse=True)
        _, which = np.unique(which * len(different) + code, return_inverse=True)
    _, first = np.unique(which, return_index=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return values[first[order]], rank[which]


def _numbers(op: TreeEnsemble, place: Array, values: int) -> tuple[Array, Array]:
    """(number, begins): the number of every node (-1 if it is in no tree); the number at which those of each tree begin, and at the end how
    many numbers there are.

    The roots come first, then pairs of siblings, tree by tree. A pair is followed by the children of the sibling with more nodes below
    it: a cache line holds four pairs, so the likelier next step often hits the same line.

    Leaves of pure forests have few different values. Parents of two leaves then share one pair of nodes for each pair of values. Such
    forests take a third of the memory, and the steps to these pairs hit the cache.
    """
    levels, nodes = [], op.roots.astype(np.int64)
    while len(nodes):
        inner = nodes[op.feature[nodes] >= 0]
        levels.append(inner)
        nodes = np.concatenate([op.left[inner], op.right[inner]]).astype(np.int64)
    shared = np.zeros(len(op.feature), bool)
    left, right = op.left, op.right
    if values <= FEW_VALUES:
        inner = np.concatenate(levels)
        shared[inner] = (op.feature[left[inner]] < 0) & (op.feature[right[inner]] < 0)
    size = np.zeros(len(op.feature), np.int64)  # the number of pairs below a node
    for inner in reversed(levels):
        size[inner] = np.where(shared[inner], 0, 1 + size[left[inner]] + size[right[inner]])
    first = leaf_pairs = whole_rounds(op.n_trees) // 2
    if shared.any():
        pairs = place[left[left[shared]]] * values + place[left[right[shared]]]
        first += values * values
    pair = np.zeros(len(op.feature), np.int64)  # the number of the pair of a node's children
    begins = first + np.append(0, size[op.roots].cumsum())
    pair[op.roots] = begins[:-1]
    number = np.full(len(op.feature), -1, np.int64)
    number[op.roots] = np.arange(op.n_trees)
    if shared.any():
        pair[shared] = leaf_pairs + pairs
    for inner in levels:
        number[left[inner]], number[right[inner]] = 2 * pair[inner], 2 * pair[inner] + 1
        on = inner[~shared[inner]]
        larger = np.where(size[left[on]] < size[right[on]], right[on], left[on])
        other = left[on] + right[on] - larger
        for child, skipped in ((larger, 0), (other, size[larger])):
            own = ~shared[child]
            pair[child[own]] = (pair[on] + 1 + skipped)[own]
    return number, 2 * begins


def lines_of_tiles(packed: PackedNodes, in_tile: int) -> Array:
    """The cache lines of `words` in which the nodes of each tile of trees begin; behind them, twice, where the last nodes end."""
    begins = np.append(packed.begins[:-1:in_tile], [packed.begins[-1]] * 2)
    return begins * packed.words[0].nbytes // LINE


def steps_between_tests(depths: Array) -> int:
    """The steps between two tests whether all walks have ended, for trees of these depths."""
    if int(depths.max(initial=0)) > LIMITED_DEPTH:
        return STEPS_BETWEEN_TESTS
    return min(STEPS_OF_DEPTHS, key=lambda steps: float((-(-depths // steps)).sum()) * (steps + TEST))


class Walk:
    """Emits walks over one packed ensemble."""

    def __init__(self, f: Block, op: TreeEnsemble, packed: PackedNodes, x: Node, alone: bool) -> None:
        """alone: all walks are of one row, so memory for the keys of one row is enough. It lies on the stack (up to 1 KB) and needs no
        register for its address (see WALKS_ALONE)."""
        self.f, self.op, self.x, self.alone = f, op, x, alone
        self.words, self.shift = packed.words, packed.shift
        self.word: DType = "i32" if packed.words.dtype == np.int32 else "i64"
        self.link = "uint32" if self.word == "i32" else "uint64"
        self.bits = 32 if x.type.dtype == "f32" else 64  # bits of a key
        width = n_features(op)  # sorted by feature: first numbers, then category sets
        numbers = [feature for feature, _ in packed.compared if width is None or feature < width]
        self.numbers = f.size(len(numbers))
        self.codes = self.set_keys = None
        if width is not None and f.lanes > 1:
            self.set_keys = SetKeys(f, op, x)
        elif width is not None:
            self.codes = Codes(f, op, x)
            self.sets = f.size(len(packed.compared) - len(numbers))
            self.set_numbers = f.own(
                np.array([feature - width for feature, _ in packed.compared[len(numbers) :]], np.int64), "i64"
            )
        self.firsts = packed.firsts
        self.second, self.seconds, self.apart = packed.second, f.size(packed.seconds) if packed.seconds else None, packed.apart
        # `Keys.fill_low` may fill whole registers, where there are any.
        seconds = key_columns(packed.seconds) if f.lanes > 1 else packed.seconds
        self.columns, self.mask = key_columns(1 + packed.second + seconds), (1 << self.shift) - 1
        self.keys = Keys(f, x, packed.compared, len(numbers), self.columns * (1 if alone else f.block), first=1)
        if self.set_keys is not None:
            self.bytes = as_bytes(self.keys.buffer)
        self.walks = walks_alone_of(op.n_trees, int(op.depths.max(initial=0))) if alone and self.word == "i32" else WALKS
        self.steps = steps_between_tests(op.depths) if f.lanes > 1 else STEPS_BETWEEN_TESTS
        self.places = f.scratch(self.walks, "i64")  # the rows of `values` for the leaves in which the last walks ended

    def without_nan(self) -> Walk | None:
        """The walks of rows without NaN, which need no second columns of keys. None: they would gain nothing."""
        if not self.apart:
            return None
        walk = copy(self)
        walk.seconds, walk.columns = None, key_columns(1 + self.firsts)
        walk.mask = self.second * (1 if self.set_keys is None else self.bits // 8) - 1
        return walk

    def fill(self, row: Expr, seen: Any = None) -> None:
        """Compute the keys of a row. NaN gets a key below or above all others, as its column says. seen: see `Keys.fill`."""
        start = T.Bind(self._start(row))
        T.buffer_store(self.keys.buffer, tirx.const(0, f"uint{self.bits}"), [start])
        self.keys.fill(row, start, seen)
        if self.seconds is not None:
            self.keys.fill_low(row, start + self.second, self.seconds)
        if self.set_keys is not None:
            self.set_keys.fill(row, self.bytes, T.Bind((start + self.numbers + 1) * (self.bits // 8)))
        elif self.codes is not None:
            self._fill_sets(self.codes, row, start + self.numbers + 1)

    def _fill_sets(self, codes: Codes, row: Expr, start: Expr) -> None:
        """Compute the keys of a row's category sets, on a GPU: of 1 if the row goes right, of 0 if it goes left."""
        f, kind = self.f, NUMPY_DTYPES[self.x.type.dtype].type
        packed = f.once(pack_sets, self.op)
        bytes_, columns = f.own(packed.bytes, "u8"), f.own(packed.set_column, "i64")
        size = f.size(packed.bytes.shape[1])
        zero, one = (tirx.const(int(ordered(np.array([value], kind))[0]), f"uint{self.bits}") for value in (0, 1))
        codes.fill(row)
        with f.repeat(self.sets) as i:
            tested = T.Bind(f.constant(self.set_numbers, "i64", i))
            test = codes.test(bytes_, tested * size, f.constant(columns, "i64", tested), row)
            T.buffer_store(self.keys.buffer, tirx.Select(tirx.LT(tirx.const(0, "uint8"), test), one, zero), [start + i])

    def run(self, walks: list[tuple[Expr, Expr]]) -> None:
        """Walk all (tree, row) at once, and store in `places` where they end."""
        f, dtype = self.f, DTYPES[self.word]
        at, going = f.scratch(len(walks), "i64"), f.scratch(1, self.word)
        for i, (tree, _) in enumerate(walks):
            T.buffer_store(at, tree, [i])
        T.buffer_store(going, tirx.const(1, dtype), [0])
        with T.While(tirx.NE(going[0], tirx.const(0, dtype))):
            for _ in range(self.steps):
                for i, (_, row) in enumerate(walks):
                    T.buffer_store(at, self.step(at[i], row), [i])
            columns = [self._column(self._link(at[i])) for i in range(len(walks))]
            T.buffer_store(going, tirx.Cast(dtype, reduce(tirx.bitwise_or, columns)), [0])
        for i in range(len(walks)):
            T.buffer_store(self.places, self.place(at[i]), [i])

    def place(self, node: Expr) -> Expr:
        """The row of `values` for a leaf."""
        return tirx.Cast("int64", self.f.constant(self.words, self.word, node * 2))

    def inner(self, node: Expr) -> Expr:
        """Whether a node is no leaf."""
        return tirx.NE(self._column(self._link(node)), tirx.const(0, self.link))

    def ask_for(self, node: Expr) -> None:
        """Bring a node near, without waiting for it."""
        prefetch(self.f.constant(self.words, self.word, node * 2))

    def _start(self, row: Expr) -> Expr:
        """Where the keys of a row begin."""
        return tirx.const(0, "int64") if self.alone else row * self.columns

    def _link(self, node: Expr) -> Expr:
        """The second word of a node: `left << shift | column`."""
        return tirx.Cast(self.link, self.f.constant(self.words, self.word, node * 2 + 1))

    def _column(self, link: Expr) -> Expr:
        """The column of keys that a node compares."""
        return tirx.bitwise_and(link, tirx.const(self.mask, self.link))

    def step(self, node: Expr, row: Expr) -> Expr:
        """The child to which a row goes from a node."""
        threshold = tirx.Cast(f"uint{self.bits}", self.f.constant(self.words, self.word, node * 2))

        def onward(link: Expr) -> Expr:
            left = tirx.shift_right(link, tirx.const(self.shift, self.link))
            column = tirx.Cast("int64", self._column(link))
            if self.set_keys is None:
                key = self.keys.buffer[self._start(row) + column]
            else:
                size = self.bits // 8
                key = tirx.reinterpret(f"uint{self.bits}", vector(self.bytes, self._start(row) * size + column, size))
            return tirx.Add(tirx.Cast("int64", left), tirx.Cast("int64", tirx.LT(threshold, key)))

        return let(self._link(node), onward)


class Sums:
    """Emits the use of the leaves in which walks end: their values are added in the order of the trees, or their numbers are stored."""

    def __init__(self, f: Block, node: Node, alone: bool = False) -> None:
        """alone: see `Walk`."""
        op = node.op
        assert isinstance(op, TreeEnsemble)
        self.f, self.node, self.op = f, node, op
        self.alone = alone
        self.walk: Walk | LoneWalk
        if lone := walks_alone(op):
            few = f.once(_pack_lone, op)
            self.walk, values, size = LoneWalk(f, few, node.inputs[0], WALKS), few.values, few.links.nbytes
        else:
            turned = f.once(turn_sets, op) if f.lanes > 1 and n_features(op) is not None else None
            packed = f.once(pack_nodes, op, turned)
            self.walk, values, size = Walk(f, op, packed, node.inputs[0], alone), packed.values, packed.words.nbytes
        self.trees = f.size(op.n_trees)
        self.trees_in_tile = max(1, min(TREES_IN_TILE, TILE * op.n_trees // size))
        self.lines = None if lone or f.lanes == 1 else f.own(lines_of_tiles(packed, self.trees_in_tile), "i64")
        self.far = size >= LEAST_BYTES and op.n_trees >= LEAST_TREES and not lone and f.dialect.avx2 and not f.dialect.wide
        """Whether rows alone go by `Passes`."""
        self.most_lines = MOST_LINES_FROM_MEMORY if size > FROM_MEMORY else MOST_LINES
        self.reached = Reached(f, node, values, 1 if alone else f.block, vectors=not lone)

    def without_nan(self) -> Sums | None:
        """The same for rows without NaN, if these can be walked faster: see `Walk`."""
        walk = self.walk.without_nan()
        if walk is None:
            return None
        sums = copy(self)
        sums.walk = walk
        return sums

    def next_tile(self, tile: Expr, groups: Expr) -> tuple[Expr, Expr] | None:
        """(the first cache line of the next tile's nodes, how many of them each of some groups of rows asks for). None: nobody asks."""
        if self.lines is None:
            return None
        f, one = self.f, tirx.const(1, "int64")
        first = T.Bind(f.constant(self.lines, "i64", tile + 1))
        groups = T.Bind(tirx.Max(groups, one))
        lines = T.Bind(tirx.truncdiv(f.constant(self.lines, "i64", tile + 2) - first + groups - 1, groups))
        return first, T.Bind(tirx.Select(tirx.LE(lines, tirx.const(self.most_lines, "int64")), lines, tirx.const(0, "int64")))

    def ask_for(self, first: Expr, lines: Expr) -> None:
        """Bring some cache lines of nodes near, without waiting for them."""
        assert isinstance(self.walk, Walk)
        words = self.walk.words
        with self.f.repeat(lines) as line:
            prefetch(self.f.constant(words, self.walk.word, (first + line) * (LINE // words.itemsize)))

    def start(self, row: Expr, seen: Any = None) -> None:
        """Compute the keys of a row, and set its sums to `base`. seen: see `Keys.fill`."""
        self.walk.fill(row, seen)
        self.reached.begin(row, self._slot(row))

    def add_rows(self, tree: Expr, first: Expr, count: int) -> None:
        """Use the leaves of one tree that `count` rows from `first` on have reached."""
        with self.f.repeat(count) as i:
            self.reached.add(tree, first + i, self._slot(first + i), T.Bind(self.walk.places[i]))

    def add_all(self, row: Expr, passes: Passes) -> None:
        """Use the leaves that one row has reached in all trees."""
        self.reached.add_all(tirx.const(0, "int64"), self.trees, row, self._slot(row), lambda i: passes.leaf[i])

    def add_trees(self, first: Expr, walks: int, row: Expr) -> None:
        """Use the leaves that one row has reached in so many trees from `first` on, or in as many as there are."""
        count = T.Bind(tirx.Min(tirx.const(walks, "int64"), self.trees - first))
        self.reached.add_all(first, count, row, self._slot(row), lambda i: self.walk.places[i])

    def end(self, row: Expr) -> None:
        """Finish the sums of a row."""
        self.reached.end(row, self._slot(row))

    def end_all(self, rows: Expr) -> None:
        """Finish the sums of the first `rows` rows, if there is something to do."""
        if self.reached.lanes:
            with T.serial(tirx.const(0, "int64"), rows) as row:
                self.end(row)

    def _slot(self, row: Expr) -> Expr:
        """Which of the rows in progress it is."""
        return tirx.const(0, "int64") if self.alone else row


class RowWalk:
    """Emits walks of one row at a time: of several trees at once, but of no more than there are. 16 walks at once, 15 of them of no tree,
    take a row of one tree three times as long as one walk."""

    def __init__(self, sums: Sums) -> None:
        self.sums = sums
        self.walks = min(sums.walk.walks, 1 << max(sums.op.n_trees - 1, 0).bit_length())
        """The trees in flight. Ensembles of few different numbers share code."""
        self.rounds = sums.f.size(-(-sums.op.n_trees // self.walks))
        self.passes = Passes(sums.walk, sums.reached, sums.op.n_trees) if sums.far else None

    def run(self, row: Expr) -> None:
        """Walk all trees for one row, after `Sums.start`."""
        if self.passes is not None:
            self.passes.run(row)
            self.sums.add_all(row, self.passes)
            return
        with self.sums.f.repeat(self.rounds) as step:
            first = T.Bind(step * self.walks)
            self.sums.walk.run([(first + i, row) for i in range(self.walks)])
            self.sums.add_trees(first, self.walks, row)

    def run_alone(self, row: Expr) -> None:
        """Compute keys, walks and sums for one row."""
        self.sums.start(row)
        self.run(row)
        self.sums.end(row)


@tree_kernel("walk", nanoseconds=lambda op: 0.7 * float(op.depths.sum()))
def tree_walk(f: Block, node: Node) -> None:
    """Emit the sums of the leaf values, or the leaf numbers, of a `TreeEnsemble` for a block of rows."""
    sums, groups = walk_together(f, node, f.rows)
    if f.lanes > 1:
        single = RowWalk(sums)
        with T.serial(groups * WALKS, f.rows) as row:
            single.run(row)
    sums.end_all(f.rows)


def walk_together(f: Block, node: Node, rows: Expr) -> tuple[Sums, Expr]:
    """Start the first `rows` rows of a block, and emit the walks of those that fill groups of WALKS (one by one on a GPU). Returns the
    sums, and the number of these groups."""
    sums = Sums(f, node)
    without_nan = sums.without_nan() if f.lanes > 1 else None
    count, zero = WALKS if f.lanes > 1 else 1, tirx.const(0, "int64")
    groups = T.Bind(rows // count)
    done: Expr = zero  # groups of rows
    if without_nan is not None:
        seen = f.scratch(1, "i32")
        T.buffer_store(seen, tirx.const(0, "int32"), [0])
        with T.serial(zero, groups * count) as row, T.If(tirx.EQ(seen[0], tirx.const(0, "int32"))), T.Then():
            without_nan.start(row, seen)  # up to the first row with NaN
        done = T.Bind(groups * (1 - tirx.Cast("int64", seen[0])))
        _walk_groups(without_nan, zero, done, count)
    with T.serial(done * count, rows) as row:
        sums.start(row)
    _walk_groups(sums, done, groups, count)
    return sums, groups


def _walk_groups(sums: Sums, begin: Expr, end: Expr, count: int) -> None:
    """Emit the walks of some groups of `count` rows."""
    f = sums.f
    of_tile, tiles = f.size(sums.trees_in_tile), f.size(-(-sums.op.n_trees // sums.trees_in_tile))
    with f.repeat(tiles) as tile:
        next_tile = sums.next_tile(tile, end - begin)
        with T.serial(begin, end) as group:
            first, start = T.Bind(group * count), T.Bind(tile * of_tile)
            with T.serial(start, tirx.Min(start + of_tile, sums.trees)) as tree:
                sums.walk.run([(tree, first + i) for i in range(count)])
                sums.add_rows(tree, first, count)
            if next_tile is not None:
                line, lines = next_tile
                sums.ask_for(line + (group - begin) * lines, lines)
