"""Deep tree ensembles by patches: rows go from patch to patch, and a patch compares up to 15 connected splits at once.

The code computes (docs/tree-kernels.md §5):

    keys[row] = [ordered(x[row, feature]) for each compared feature]          # as in walk.py
    for each tree:
        for each row that has not reached a leaf, level after level of patches:
            right = bits of (thresholds < keys[row][columns])                 # up to 15 splits
            exit  = the first e with right & ends[e] == 0                     # ends[e]: the splits that have e below their left child
            row goes on to the patch behind this exit, or ends at a leaf
        sums[row] += values[leaf[row]]
    for a few rows, or of many columns, one after the other: the same with all trees of the row in place of all rows of a tree

A row leaves by the first exit from which no split turns it away to the right. So one table says for every shape of patch where it goes.
Many rows are scanned through the first two levels of patches (scanned_tops.py). On Zen 5 many rows of some ensembles are walked
(walked_rows.py).

A walk of 16 steps waits 16 times for a node. A row passes about four patches, and the rows of a level do not wait for each other. So
patches win where the nodes come from beyond the first cache: in trees of thousands of leaves. It needs AVX-512 or AVX2, and float32.

With AVX-512 up to 256 keys of a row stay in registers, and a permutation of these finds all keys of a patch. Others stay in memory. Then
they are read one by one, and a patch has up to 7 splits. Extra-trees of 784 columns take half the time of a walk so, and a third more than
those of 256 columns (Zen 5).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.costs import Shape
from hbc.compiler.tvm.nest.function import Block
from hbc.compiler.tvm.nest.model_data import few_sizes
from hbc.compiler.tvm.plan.tree_kernels import tree_kernel
from hbc.compiler.tvm.tir.dialect import Expr
from hbc.compiler.tvm.tir.vectors import look_up, prefetch, side_by_side, vector
from hbc.compiler.tvm.trees.categories import n_features
from hbc.compiler.tvm.trees.keys import Keys
from hbc.compiler.tvm.trees.leaves.reached import Reached
from hbc.compiler.tvm.trees.patches.packed_patches import (
    IN_MEMORY,
    LANES,
    MOST_COLUMNS,
    PackedPatches,
    columns_of,
    pack_patches,
)
from hbc.compiler.tvm.trees.patches.scanned_tops import LEAST_ROWS, ScannedTops, pack_tops
from hbc.compiler.tvm.trees.patches.walked_rows import many_rows_walk
from hbc.compiler.tvm.trees.walk.walk import WALKS, tree_walk, walk_together
from hbc.ir.graph import Node
from hbc.ops.tree import TreeEnsemble

WORDS_IN_LINE = 16  # of a cache line
TOGETHER = 16
"""So many visits find their exits, and then what is behind these. Both at once would keep integer instructions waiting for exits, until no
more instructions fit into the processor. 100 LightGBM trees of 4,095 leaves take 0.75 µs a row of many so, and 0.82 otherwise; of a
forest, 8 rows 1.03 and 1.13. Extra-trees whose patches come from memory take a twentieth longer for few rows (Zen 5)."""
FEW_ROWS = 64
"""For fewer rows, the trees of a row go together instead of the rows of a tree."""
REGISTERS_OF_ROWS = 4
"""If the keys of a row are in more registers, the trees of a row always go together, so that these stay where they are. 4,000
rows of 100 extra-trees over 200 columns take 1.7 µs a row so, and 3.5 if each row brings its 13 registers to each patch (Zen 5)."""


def patchable(op: TreeEnsemble) -> bool:
    """Whether `tree_patches` can run an ensemble: its thresholds are float32, two bytes number the columns that are compared, and it has
    no category sets."""
    return op.threshold.dtype == np.float32 and n_features(op) is None and op.once(columns_of)[0].size <= MOST_COLUMNS


def few_in_patches(rows: int, columns: int) -> bool:
    """Whether the trees of a row go together in blocks of up to so many rows, for trees that compare so many columns."""
    return rows < FEW_ROWS or columns > REGISTERS_OF_ROWS * LANES


@tree_kernel("patches", nanoseconds=lambda op: 0.3 * float(op.depths.sum()), fits=patchable)
def tree_patches(f: Block, node: Node) -> None:
    """Emit the sums of the leaf values, or the leaf numbers, of a `TreeEnsemble` for a block of rows. Without AVX2, trees are walked."""
    if not (f.dialect.wide or f.dialect.avx2):
        tree_walk(f, node)
        return
    op = node.op
    assert isinstance(op, TreeEnsemble)
    one_by_one = not f.dialect.wide or few_in_patches(f.block, len(op.once(columns_of)[0].compared))
    if f.dialect.quick_walks and not one_by_one and f.block >= LEAST_ROWS and many_rows_walk(op.once(Shape.of)):
        few_in_patches_many_walk(f, node)
        return
    patches = patches_of(f, node, alone=one_by_one)
    if one_by_one:
        with T.serial(tirx.const(0, "int64"), f.rows) as row:
            patches.one_row(row)
        return
    few = T.Bind(tirx.Cast("int64", tirx.LT(f.rows, tirx.const(FEW_ROWS, "int64"))) * f.rows)
    with T.serial(tirx.const(0, "int64"), few) as row:
        patches.one_row(row)
    patches.rows(T.Bind(f.rows - few))


def few_in_patches_many_walk(f: Block, node: Node) -> None:
    """Emit the same where many rows are walked: fewer than LEAST_ROWS, and those behind groups of WALKS, go through patches. The ensemble
    is there twice, in patches and in nodes. The code takes as long to compile as that of patches alone."""
    patches = patches_of(f, node, alone=True)
    least, group = tirx.const(LEAST_ROWS, "int64"), tirx.const(WALKS, "int64")
    many = T.Bind(tirx.Select(tirx.LT(f.rows, least), tirx.const(0, "int64"), f.rows // group * group))
    with T.serial(many, f.rows) as row:
        patches.one_row(row)
    sums, _ = walk_together(f, node, many)
    sums.end_all(many)


def patches_of(f: Block, node: Node, alone: bool) -> Patches:
    """The patches of an ensemble. alone: rows come one by one, so memory for one row is enough."""
    packed = f.once(pack_patches, node.op, f.dialect.wide)
    kind = PatchesInMemory if packed.form is IN_MEMORY else Patches
    return kind(f, node, packed, 1 if alone else f.block)


class Patches:
    """Emits the way of rows through the patches of one ensemble. The keys of a row are in registers."""

    def __init__(self, f: Block, node: Node, packed: PackedPatches, rows: int) -> None:
        """rows: how many are in progress at once."""
        op = node.op
        assert isinstance(op, TreeEnsemble)
        self.f, self.node, self.op, self.packed = f, node, op, packed
        self.words, columns = packed.words, packed.columns
        self.form, self.both, self.columns = packed.form, columns.both, columns.size
        self.keys = Keys(f, node.inputs[0], columns.compared, len(columns.compared), self.columns * rows)
        size = max(rows, few_sizes(op.n_trees))
        self.going = T.alloc_buffer((size,), "int64")  # who has not reached a leaf: its number, and from bit 32 on its patch
        self.leaf = T.alloc_buffer((size,), "int32")
        self.count, self.last = f.scratch(1, "i64"), f.scratch(1, "i64")
        self.exits = T.alloc_buffer((TOGETHER,), "int32")
        self.trees = f.size(op.n_trees)
        self.codes = packed.codes
        self.reached = Reached(f, node, packed.values, rows)

    def one_row(self, row: Expr) -> None:
        """Send one row through all trees."""
        first = tirx.const(0, "int64")
        seen = self._seen()
        self._fill(row, first, seen)
        keys = self._keys(first)
        missing = T.Bind(tirx.Cast("int64", seen[0]))
        self._run(keys, T.Bind(self.trees * (1 - missing)), missing=False)
        if self.both:
            self._run(keys, T.Bind(self.trees * missing), missing=True)
        self.reached.add_all(first, self.trees, row, first, self._leaf)
        self.reached.end(row, first)

    def rows(self, rows: Expr) -> None:
        """Send the first `rows` rows of the block through all trees."""
        tops = ScannedTops(self.f, self.node, self.f.once(pack_tops, self.op, self.packed, self.f.dialect), rows)
        seen = self._seen()
        with T.serial(tirx.const(0, "int64"), rows) as row:
            self._fill(row, row, seen)
        missing = T.Bind(tirx.NE(seen[0], tirx.const(0, "int32")))
        with T.serial(tirx.const(0, "int64"), tirx.Min(self.trees, rows * self.trees)) as tree:  # no tree if there is no row
            T.buffer_store(self.count, tirx.const(0, "int64"), [0])
            tops.run(tree, self._enter)
            root = T.Bind(tree * self.form.words)
            with T.serial(tops.scanned, rows) as row:
                self._visit(row, root, self._keys(row), missing=self.both)
            if self.both:
                with T.If(missing):
                    with T.Then():
                        self._go_on(self._keys, missing=True)
                    with T.Else():
                        self._go_on(self._keys, missing=False)
            else:
                self._go_on(self._keys, missing=False)
            with T.serial(tirx.const(0, "int64"), rows) as row:
                self.reached.add(tree, row, row, T.Bind(self._leaf(row)))
        if self.reached.lanes:
            with T.serial(tirx.const(0, "int64"), rows) as row:
                self.reached.end(row, row)

    def _enter(self, row: Expr, way: Expr) -> None:
        """Keep where a row goes from the top of a tree. way: see `PackedTops`."""
        at_leaf = T.Bind(tirx.shift_right(tirx.reinterpret("uint32", way), tirx.const(31, "uint32")))
        patch = tirx.Max(way, tirx.const(0, "int32"))
        self._note(row, tirx.const(1, "uint32") - at_leaf, T.Bind(patch), tirx.bitwise_not(way))

    def _seen(self) -> Any:
        """Memory for one i32, which becomes 1 if `_fill` sees a NaN for which patches must be asked."""
        seen = self.f.scratch(1, "i32")
        T.buffer_store(seen, tirx.const(0, "int32"), [0])
        return seen

    def _fill(self, row: Expr, place: Expr, seen: Any) -> None:
        """Compute the keys of a row, and set its sums to `base`. seen: see `_seen`."""
        self.keys.fill(row, T.Bind(place * self.columns), seen if self.both else None)
        self.reached.begin(row, place)

    def _run(self, keys: Any, count: Expr, missing: bool) -> None:
        """Find the leaves of the first `count` trees for a row of these keys. missing: whether some may be of NaN."""
        T.buffer_store(self.count, tirx.const(0, "int64"), [0])
        with T.serial(tirx.const(0, "int64"), count) as tree:
            self._visit(tree, T.Bind(tree * self.form.words), keys, missing)
        self._go_on(lambda _: keys, missing)

    def _go_on(self, keys: Callable[[Expr], Any], missing: bool) -> None:
        """Find the leaves of the numbers that are going, which are rows or trees. keys: those of a number. missing: see `_run`."""
        with T.While(tirx.NE(self.count[0], tirx.const(0, "int64"))):
            # In memory of its own: TVM would read `count` again where a variable of it is used.
            T.buffer_store(self.last, self.count[0], [0])
            T.buffer_store(self.count, tirx.const(0, "int64"), [0])
            self._round(self.last[0], keys, missing)

    def _round(self, count: Expr, keys: Callable[[Expr], Any], missing: bool) -> None:
        """Send the first `count` numbers that are going through a patch each. keys, missing: see `_go_on`."""
        with T.serial(tirx.const(0, "int64"), (count + (TOGETHER - 1)) // TOGETHER) as part:
            begin = T.Bind(part * TOGETHER)
            end = T.Bind(tirx.Min(begin + TOGETHER, count))
            with T.serial(begin, end) as i:
                number, at = self._entry(i)
                T.buffer_store(self.exits, self._exit_of(at, keys(number), missing), [i - begin])
            with T.serial(begin, end) as i:
                number, at = self._entry(i)
                self._note(number, *self._onward(at, T.Bind(self.exits[i - begin])))

    def _visit(self, number: Expr, at: Expr, keys: Any, missing: bool) -> None:
        """Send a row of these keys through a patch, whose first word is `at`."""
        self._note(number, *self._onward(at, T.Bind(self._exit_of(at, keys, missing))))

    def _entry(self, i: Expr) -> tuple[Expr, Expr]:
        """(the number, the first word of its patch) of an entry of `going`."""
        entry = T.Bind(self.going[i])
        number = T.Bind(tirx.bitwise_and(entry, tirx.const((1 << 32) - 1, "int64")))
        return number, T.Bind(tirx.shift_right(entry, tirx.const(32, "int64")) * self.form.words)

    def _note(self, number: Expr, onward: Expr, patch: Expr, leaf: Expr) -> None:
        """Keep where a number goes. Without a branch: a number that has reached its leaf is written, but not counted."""
        T.buffer_store(self.leaf, leaf, [number])
        for line in range(0, self.form.words, WORDS_IN_LINE):
            prefetch(self.f.constant(self.words, "i32", tirx.Cast("int64", patch) * self.form.words + line))
        entry = tirx.bitwise_or(number, tirx.shift_left(tirx.Cast("int64", patch), tirx.const(32, "int64")))
        T.buffer_store(self.going, entry, [self.count[0]])
        T.buffer_store(self.count, self.count[0] + tirx.Cast("int64", onward), [0])

    def _part(self, at: Expr, place: int, words: int) -> Expr:
        """Words of a patch, whose first word is `at`."""
        return self.f.constants(self.words, "i32", at + place, words)

    def _exit_of(self, at: Expr, keys: Any, missing: bool) -> Expr:
        """The exit by which a row of these keys leaves a patch, whose first word is `at`. missing: whether some may be of NaN."""
        form = self.form
        thresholds = tirx.reinterpret(f"uint32x{form.lanes}", self._part(at, 0, form.lanes))
        key = T.Bind(self._compared(keys, self._columns(at)))
        right = self._bits(tirx.LT(thresholds, key))
        if missing:
            nan = self._bits(tirx.EQ(key, tirx.Broadcast(tirx.const(2**32 - 1, "uint32"), form.lanes)))
            to_left = tirx.shift_right(self._part(at, form.inner, 1), tirx.const(form.lanes, "int32"))
            right = tirx.bitwise_and(right, tirx.bitwise_not(tirx.bitwise_and(nan, to_left)))
        return self._exit(right, self._ends(at))

    def _onward(self, at: Expr, exit_: Expr) -> tuple[Expr, Expr, Expr]:
        """(1 if the exit leads to another patch, that patch, else its leaf). at: the first word of the patch."""
        first_patch, first_leaf, inner = (
            T.Bind(self._part(at, place, 1)) for place in (self.form.first_patch, self.form.first_leaf, self.form.inner)
        )
        one = tirx.const(1, "int32")
        before = tirx.bitwise_and(inner, tirx.shift_left(one, exit_) - 1)
        patches = T.Bind(tirx.call_llvm_pure_intrin("int32", "llvm.ctpop.i32", before))
        onward = T.Bind(tirx.bitwise_and(tirx.shift_right(inner, exit_), one))
        return onward, T.Bind(first_patch + patches), T.Bind(first_leaf + exit_ - patches)

    def _leaf(self, number: Expr) -> Expr:
        """The row of the table of values for the leaf that a number has reached."""
        leaf = tirx.Cast("int64", self.leaf[number])
        return leaf if self.codes is None else tirx.Cast("int64", self.f.constant(self.codes, "u16", leaf))

    # --- what depends on the form

    def _keys(self, place: Expr) -> Any:
        """The keys of a row, as `_compared` takes them."""
        first = T.Bind(place * self.columns)
        parts = range(0, self.columns, LANES)
        return [T.Bind(tirx.reinterpret("int32x16", vector(self.keys.buffer, first + i, LANES))) for i in parts]

    def _columns(self, at: Expr) -> Any:
        """The columns of a patch, as `_compared` takes them."""
        return T.Bind(tirx.Cast("int32x16", tirx.reinterpret("uint8x16", self._part(at, self.form.columns, 4))))

    def _compared(self, keys: Any, columns: Any) -> Expr:
        """The keys that the splits of a patch compare."""
        return tirx.reinterpret("uint32x16", look_up(keys, columns, "i32", LANES))

    def _bits(self, conditions: Expr) -> Expr:
        """16 conditions as the bits of a number, i32. LLVM makes one instruction of it, which brings a mask to a register."""
        ones, zero = (tirx.Broadcast(tirx.const(value, "int8"), LANES) for value in (-1, 0))
        return T.Bind(tirx.call_llvm_pure_intrin("int32", "llvm.x86.sse2.pmovmskb.128", tirx.Select(conditions, ones, zero)))

    def _ends(self, at: Expr) -> Expr:
        """The sets `ends` of a patch, as `_exit` takes them."""
        return T.Bind(tirx.Cast("int32x16", tirx.reinterpret("uint16x16", self._part(at, self.form.ends, 8))))

    def _exit(self, right: Expr, ends: Expr) -> Expr:
        """The first exit from which none of the splits `right` turns the row away."""
        turned = tirx.bitwise_and(tirx.Broadcast(right, LANES), ends)
        free = self._bits(tirx.EQ(turned, tirx.Broadcast(tirx.const(0, "int32"), LANES)))
        return tirx.call_llvm_pure_intrin("int32", "llvm.cttz.i32", free, tirx.const(True, "bool"))


class PatchesInMemory(Patches):
    """The same where the keys of a row stay in memory. To find exits takes so long that finding several first takes a twentieth longer."""

    def _round(self, count: Expr, keys: Callable[[Expr], Any], missing: bool) -> None:
        with T.serial(tirx.const(0, "int64"), count) as i:
            number, at = self._entry(i)
            self._visit(number, at, keys(number), missing)

    def _keys(self, place: Expr) -> Any:
        return T.Bind(place * self.columns)  # where they begin

    def _columns(self, at: Expr) -> Any:
        first = T.Bind((at + self.form.columns) * 2)
        return [T.Bind(self.f.constant(self.words, "u16", first + i)) for i in range(self.form.lanes - 1)]

    def _compared(self, keys: Any, columns: Any) -> Expr:
        found = [self.keys.buffer[keys + tirx.Cast("int64", column)] for column in columns]
        return side_by_side([*found, tirx.const(0, "uint32")])  # never to the right

    def _bits(self, conditions: Expr) -> Expr:
        ones, zero = (tirx.Broadcast(tirx.const(value, "int32"), self.form.lanes) for value in (-1, 0))
        lanes = tirx.reinterpret("float32x8", tirx.Select(conditions, ones, zero))
        return T.Bind(tirx.call_llvm_pure_intrin("int32", "llvm.x86.avx.movmsk.ps.256", lanes))

    def _ends(self, at: Expr) -> Expr:
        return T.Bind(tirx.reinterpret("uint64", self._part(at, self.form.ends, 2)))

    def _exit(self, right: Expr, ends: Expr) -> Expr:
        # Sets are bytes without their highest bit. An addition sets it where a byte is not 0.
        every, most, highest = (tirx.const(byte * 0x0101010101010101, "uint64") for byte in (1, 0x7F, 0x80))
        turned = tirx.bitwise_and(tirx.Cast("uint64", right) * every, ends)
        free = tirx.bitwise_and(tirx.bitwise_not(turned + most), highest)
        bit = tirx.call_llvm_pure_intrin("uint64", "llvm.cttz.i64", free, tirx.const(True, "bool"))
        return tirx.Cast("int32", tirx.shift_right(bit, tirx.const(3, "uint64")))
