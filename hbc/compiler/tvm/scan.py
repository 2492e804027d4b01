"""Tree ensembles by scanning: every split of every tree is tested for 64 rows at once, without branches, gathers or stores.

A vector register holds the candidate leaf of each of 64 rows, at first leaf 0. The splits of a tree come parents before children; at a
split of the leaves [lo, …) into [lo, mid) and [mid, …), rows whose candidate is lo are exactly those that reach it (all splits above it
are done), and those whose rank is greater than the split's go on to mid:

    leaf = where(leaf == lo, where(rank > split, mid, lo), leaf)

(shared docs tree-kernels.md §2). Redundant work, but regular: for trees of up to about 1,000 leaves much faster than walking.
Leaf values are fixed-point integers, so their sum does not depend on the order of trees, rows or threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.codegen import Function, Row
from hbc.compiler.tvm.expressions import DTYPES, Expr, is_nan
from hbc.compiler.tvm.lanes import ROWS, Lanes, PackedLanes, fits_lanes, pack_lanes
from hbc.compiler.tvm.ranks import RankedTrees, lockstep, rank_encode
from hbc.compiler.tvm.trees import RowWalk, Sums
from hbc.compiler.tvm.vectors import broadcast, many, permute, store, vector
from hbc.ir.graph import Node
from hbc.ir.types import Array
from hbc.ops.tree import TreeEnsemble

CHUNK = 64  # rows of a vector of candidate leaves
CHUNKS, TREES = 2, 4  # chunks of rows and trees in lockstep: eight independent chains hide the latency of each other's compares
FEW_ROWS = 16  # below, walks are faster than 64 rows
FEW_ROWS_IN_LANES = (32, 56)  # below, 64 trees in the lanes of a vector are; where trees have 128 leaves or more on average
MOST_THRESHOLDS = 8191  # of a feature: three levels of the search tree
MOST_LEAVES = 1024  # of a tree: beyond, walking is faster


def scannable(op: TreeEnsemble) -> bool:
    """Whether `tree_scan` can run an ensemble within the numerical contract."""
    if op.output != "sum" or op.exact or not np.isfinite(op.values).all() or not np.isfinite(op.base).all():
        return False
    if int(op.leaf_counts.max(initial=1)) > MOST_LEAVES or _most_thresholds(op) > MOST_THRESHOLDS:
        return False
    return fixed_point(op) is not None


def _most_thresholds(op: TreeEnsemble) -> int:
    inner = op.feature >= 0
    order = np.lexsort((op.threshold[inner], op.feature[inner]))
    feature, threshold = op.feature[inner][order], op.threshold[inner][order]
    new = np.append(True, (feature[1:] != feature[:-1]) | (threshold[1:] != threshold[:-1])) if len(feature) else feature > 0
    return int(np.bincount(feature[new], minlength=1).max())


# --- leaf values -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FixedPoint:
    """Leaf values as integers: value ≈ integer / 2^exponent, of 4 bytes, or of 6 where 4 are not exact enough."""

    exponent: int
    bytes: int
    bound: float  # no sum of leaves is larger

    def integers(self, values: Array) -> Array:
        """i64 of values' shape."""
        return np.rint(np.ldexp(values.astype(np.float64), self.exponent)).astype(np.int64)


def fixed_point(op: TreeEnsemble) -> FixedPoint | None:
    """The finest fixed point in which no sum overflows, or None where none is exact enough.

    Four bytes are enough where they are better than the float32 sums of the source; six bytes err by less than 1e-11 of the sum
    of each tree's largest |leaf|. An ensemble with a few huge leaves among small ones can have sums that this would spoil.
    """
    first = np.minimum(op.leaf_counts.cumsum() - op.leaf_counts, max(len(op.values) - 1, 0))
    largest = np.zeros(op.n_outputs)
    typical = np.zeros(op.n_outputs)
    order = np.argsort(_tree_of_leaf(op), kind="stable")
    sizes = np.abs(op.values.astype(np.float64)[order])
    if len(op.leaf_counts):
        most = np.maximum.reduceat(sizes, first, axis=0)
        mean = np.add.reduceat(sizes, first, axis=0) / op.leaf_counts[:, None]
        width = sizes.shape[1]
        for column in range(width):
            np.add.at(largest, op.target + column, most[:, column])
            np.add.at(typical, op.target + column, mean[:, column])
    bound = max(float(largest.max(initial=0.0)), 2.0**-900)
    exponent = 30 - int(np.ceil(np.log2(bound)))
    # The rounding errors of T leaves are independent: six standard deviations of their sum.
    error = 6.0 * np.sqrt(max(op.n_trees, 1) / 12.0) * 2.0**-exponent
    scale = max(1.0, float(typical.min(initial=np.inf)) if len(typical) else 1.0)
    if op.values.dtype == np.float32 and error <= 1e-6 * scale:
        return FixedPoint(exponent, 4, bound)
    if error * 2.0**-16 <= 1e-9 * scale:
        return FixedPoint(exponent + 16, 6, bound)
    return None


def _tree_of_leaf(op: TreeEnsemble) -> Array:
    tree = np.zeros(len(op.values), np.int64)
    nodes, trees = op.roots, np.arange(op.n_trees)
    while len(nodes):
        leaf = op.feature[nodes] < 0
        tree[op.left[nodes[leaf]]] = trees[leaf]
        nodes, trees = nodes[~leaf], trees[~leaf]
        nodes, trees = np.concatenate([op.left[nodes], op.right[nodes]]), np.concatenate([trees, trees])
    return tree


# --- the model as data -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Packed:
    """Trees in groups of TREES, largest first; the splits of a group step by step, padded with splits that change nothing.

    group_starts i64[G + 1]: the steps of a group. plane, rank, lo, mid [steps, TREES]. integers i64[G · TREES, V, width]: the leaf values,
    padded to `width` leaves; bytes u8[G · TREES, V, 4 or 6, width]: the same byte by byte; target i64[G · TREES].
    """

    group_starts: Array
    plane: Array
    rank: Array
    lo: Array
    mid: Array
    integers: Array
    target: Array
    bytes: Array | None = None


def pack_permuted(op: TreeEnsemble) -> Packed:
    """For processors that permute bytes: leaf values byte by byte, where a tree has at most 256 leaves."""
    ranked, fixed = rank_encode(op), fixed_point(op)
    assert fixed is not None
    leaves = int(ranked.leaf_counts.max(initial=1))
    width = next((width for width in (64, 128, 256) if leaves <= width), leaves)
    packed = _pack(op, ranked, fixed, width)
    if width > 256:
        return packed
    little = packed.integers.astype("<i8").view(np.uint8).reshape(*packed.integers.shape, 8)[..., : fixed.bytes]
    return replace(packed, bytes=np.ascontiguousarray(np.moveaxis(little, 3, 2)))


def pack(op: TreeEnsemble) -> Packed:
    """For all processors."""
    ranked, fixed = rank_encode(op), fixed_point(op)
    assert fixed is not None
    return _pack(op, ranked, fixed, int(ranked.leaf_counts.max(initial=1)))


def _pack(op: TreeEnsemble, ranked: RankedTrees, fixed: FixedPoint, width: int) -> Packed:
    """Vectorized over all splits and leaves."""
    steps = lockstep(ranked, TREES)
    ranks = np.uint8 if ranked.most_thresholds <= 255 else np.uint16
    leaf = np.uint8 if width <= 256 else np.uint16
    tree = np.repeat(np.arange(op.n_trees), ranked.leaf_counts)
    leaf_place = np.arange(len(tree)) - np.repeat(ranked.leaf_starts[:-1], ranked.leaf_counts)
    integers = np.zeros((steps.groups * TREES, op.values.shape[1], width), np.int64)
    integers[steps.place[tree], :, leaf_place] = fixed.integers(op.values)[ranked.leaves]
    target = np.zeros(steps.groups * TREES, np.int64)
    target[steps.place] = op.target
    return Packed(
        group_starts=steps.group_starts,
        plane=steps.table(ranked.split_plane, np.int32),
        rank=steps.table(ranked.split_rank, ranks),
        lo=steps.table(ranked.split_lo, leaf),
        mid=steps.table(ranked.split_mid, leaf),
        integers=integers,
        target=target,
    )


# --- the code --------------------------------------------------------------------------------------------------------


def tree_scan(f: Function, node: Node) -> None:
    """The sums of a `TreeEnsemble`."""
    op, (x,) = node.op, node.inputs
    assert isinstance(op, TreeEnsemble)
    ranked, fixed = f.once(rank_encode, op), f.once(fixed_point, op)
    assert fixed is not None
    ranks = rank_planes(f, x, ranked)
    packed = f.once(pack_permuted if f.dialect.byte_permute else pack, op)
    leaves: LeafTables | LeafGather = LeafGather(f, packed, op) if packed.bytes is None else LeafTables(f, packed, op)
    leaves.start()
    scan = Scan(f, packed, ranks, leaves)
    few = None
    if f.dialect.byte_permute and fits_lanes(ranked):
        few = Lanes(f, f.once(pack_lanes_of, op), len(ranked.plane_feature), ranks, op.n_outputs)
    pairs = T.Bind(f.rows // (CHUNK * CHUNKS))
    with T.serial(tirx.const(0, "int64"), pairs) as pair:
        scan.run(T.Bind(pair * (CHUNK * CHUNKS)), CHUNKS)
    # The rest: chunks of 64 rows, the last of them partly filled unless only a few rows are left.
    few_rows = FEW_ROWS if few is None else FEW_ROWS_IN_LANES[len(ranked.leaves) > 128 * len(ranked.leaf_counts)]
    end = T.Bind((f.rows + (CHUNK - few_rows)) // CHUNK)
    with T.serial(pairs * CHUNKS, end) as chunk:
        scan.run(T.Bind(chunk * CHUNK), 1)

    ties = may_tie(op, fixed)
    again = T.alloc_buffer((f.block,), "uint8") if ties or few is None else None
    result = Result(f, node, op, fixed, again if ties else None)
    scanned = T.Bind(tirx.Min(f.rows, end * CHUNK))
    with T.serial(tirx.const(0, "int64"), (scanned + 3) // 4) as four:
        result.write(T.Bind(four * 4), 4, leaves.totals)
    if few is not None:
        # One row alone takes less time than four, two do not. Of the last four, some may not be there.
        fours = T.Bind((f.rows - scanned + 2) // ROWS)
        with T.serial(tirx.const(0, "int64"), fours) as four:
            few.run(T.Bind(scanned + four * ROWS), ROWS)
            result.write(T.Bind(scanned + four * ROWS), ROWS, few.totals(ROWS))
        with T.serial(scanned + fours * ROWS, f.rows) as row:
            few.run(row, 1)
            result.write(row, 1, few.totals(1))
    else:
        with T.serial(scanned, f.rows) as row:
            T.buffer_store(again, tirx.const(1, "uint8"), [row])
    if again is not None:
        # One copy of this long code serves near ties and, without lanes, the last few rows.
        single = RowWalk(Sums(f, node))
        first = tirx.const(0, "int64") if ties else scanned
        with T.serial(first, f.rows) as row, T.If(tirx.NE(again[row], tirx.const(0, "uint8"))), T.Then():
            single.run_alone(row)


def pack_lanes_of(op: TreeEnsemble) -> PackedLanes:
    """The same trees for lanes.py."""
    fixed = fixed_point(op)
    assert fixed is not None
    return pack_lanes(rank_encode(op), fixed.integers(op.values), fixed.bytes, op.target)


def may_tie(op: TreeEnsemble, fixed: FixedPoint) -> bool:
    """Whether rounding could decide which of the outputs is the largest, where the source's own rounding must: unless all sums
    are exact, there and here (forests of pure leaves)."""
    integers = fixed.integers(op.values)
    exact = np.array_equal(np.ldexp(integers.astype(np.float64), -fixed.exponent), op.values)
    common = np.bitwise_or.reduce(integers, axis=None, initial=0)
    zeros = int(common & -common).bit_length() - 1 if common else 0  # trailing zero bits that all leaves share
    digits = np.finfo(op.values.dtype).nmant
    return not (exact and not op.base.any() and fixed.bound * 2.0 ** (fixed.exponent - zeros) < 2.0**digits)


class Result:
    """From the integers of a row to its sums."""

    def __init__(self, f: Function, node: Node, op: TreeEnsemble, fixed: FixedPoint, again: Any) -> None:
        self.f, self.node, self.again = f, node, again
        self.scale = 2.0**-fixed.exponent
        self.outputs = op.n_outputs
        self.base = f.own(op.base.astype(np.float64), "f64")
        # Here each leaf is rounded by half a unit at most, in the source each partial sum by half of its last digit.
        magnitude = fixed.bound + float(np.abs(op.base).max(initial=0.0))
        error = 2.0**-fixed.exponent + magnitude * float(np.finfo(op.values.dtype).eps)
        self.close = error * (op.n_trees + 1)
        self.top = {lanes: T.alloc_buffer((2 * lanes,), "float64") for lanes in (1, 4)}  # the two largest sums

    def write(self, row: Expr, lanes: int, integers: Callable[[Expr, Expr], Expr]) -> None:
        """Store the sums of `lanes` rows from `row` on, given integers(column, row). Where the two largest nearly tie, mark
        the row in `again`: its leaves have to be added as the source does."""
        f, node = self.f, self.node

        def everywhere(value: float) -> Expr:
            return broadcast(tirx.const(value, "float64"), lanes)

        # The sign of a single output decides a label, as if there were a second one of 0.
        top = self.top[lanes]
        for i, start in enumerate((0.0 if self.outputs == 1 else -np.inf, -np.inf)):
            store(top, everywhere(start), i * lanes, lanes)
        with f.grid([self.outputs]) as (column,):
            integer = tirx.Cast(many("float64", lanes), integers(column, row))
            base = broadcast(f.constant(self.base, "f64", column), lanes)
            total = T.Bind(tirx.Add(tirx.Mul(integer, everywhere(self.scale)), base))
            f.store_many(node, column, row, tirx.Cast(many(DTYPES[node.type.dtype], lanes), total), lanes)
            first, second = vector(top, 0, lanes), vector(top, lanes, lanes)
            store(top, tirx.Max(second, tirx.Min(first, total)), lanes, lanes)
            store(top, tirx.Max(vector(top, 0, lanes), total), 0, lanes)
        if self.again is not None:
            gap = tirx.Sub(vector(top, 0, lanes), vector(top, lanes, lanes))
            near = tirx.LE(gap, everywhere(self.close))
            store(self.again, tirx.Cast(many("uint8", lanes), near), row, lanes)


def rank_planes(f: Function, x: Node, ranked: RankedTrees) -> Any:
    """The ranks of all values that splits compare, plane after plane: a buffer [planes · block].

    A search tree of 16 branches: the number of pivots below x says in which line of 16 thresholds to count. Two compares of 16 lanes
    and two population counts a value, three for more than 255 thresholds.
    """
    dtype = x.type.dtype
    planes = len(ranked.plane_feature)
    wide = ranked.most_thresholds > 255
    result = T.alloc_buffer((max(planes, 1) * f.block,), "uint16" if wide else "uint8")
    if not planes:
        return result
    capacity = 8192 if wide else 256
    thresholds = np.full((planes, capacity), np.inf, ranked.thresholds[0].dtype)
    for plane, values in enumerate(ranked.thresholds):
        thresholds[plane, : len(values)] = values
    lines = f.own(thresholds, dtype)
    levels = []
    # A pivot is the last threshold of its line; the last line needs none, and +inf is never below x.
    for size, count in ((256, 32), (16, 16)) if wide else ((16, 16),):
        pivots = thresholds[:, size - 1 :: size].reshape(planes, -1, count).copy()
        pivots[:, :, -1] = np.inf
        levels.append((f.own(pivots, dtype), count, pivots.shape[1]))
    identity = np.array_equal(ranked.plane_feature, np.arange(planes))
    features = f.own(ranked.plane_feature, "i64")
    missing = f.own(ranked.missing_rank, "i64") if ranked.missing_rank.any() else None
    with T.serial(tirx.const(0, "int64"), f.rows) as row, f.repeat(planes) as plane:
        value = T.Bind(f.read(x, [plane if identity else T.Bind(f.constant(features, "i64", plane))], Row(row)))
        at: Expr = tirx.const(0, "int64")
        for pivots, count, blocks in levels:
            at = T.Bind(at * count + below(f, pivots, dtype, (plane * blocks + at) * count, count, value))
        rank = at * 16 + below(f, lines, dtype, (plane * (capacity // 16) + at) * 16, 16, value)
        if missing is not None:
            rank = tirx.Select(is_nan(value), f.constant(missing, "i64", plane), rank)
        T.buffer_store(result, tirx.Cast(result.dtype, rank), [plane * f.block + row])
    return result


def below(f: Function, table: Array, dtype: str, start: Expr, count: int, value: Expr) -> Expr:
    """How many of `count` consecutive elements are < value."""
    less = tirx.LT(f.constants(table, dtype, start, count), tirx.Broadcast(value, count))
    counted = tirx.call_llvm_pure_intrin("int32", f"llvm.vector.reduce.add.v{count}i32", tirx.Cast(f"int32x{count}", less))
    return tirx.Cast("int64", counted)


class Scan:
    """The loops over the splits, for some chunks of rows."""

    def __init__(self, f: Function, packed: Packed, ranks: Any, leaves: LeafTables | LeafGather) -> None:
        self.f, self.ranks, self.leaves = f, ranks, leaves
        self.groups = len(packed.group_starts) - 1
        self.starts = f.own(packed.group_starts, "i64")
        self.plane = f.own(packed.plane, "i32")
        self.rank_dtype = "u8" if packed.rank.dtype == np.uint8 else "u16"
        self.leaf_dtype = "u8" if packed.lo.dtype == np.uint8 else "u16"
        self.rank = f.own(packed.rank, self.rank_dtype)
        self.lo, self.mid = f.own(packed.lo, self.leaf_dtype), f.own(packed.mid, self.leaf_dtype)

    def run(self, first: Expr, chunks: int) -> None:
        """Add the leaves' values of rows first … first + 64 · chunks of the block."""
        f = self.f
        candidates = f.scratch(TREES * chunks * CHUNK, self.leaf_dtype)  # in registers
        reached = T.alloc_buffer((TREES * chunks * CHUNK,), DTYPES[self.leaf_dtype])
        zero = tirx.Broadcast(tirx.const(0, DTYPES[self.leaf_dtype]), CHUNK)
        with f.repeat(self.groups) as group:
            for slot in range(TREES * chunks):
                store(candidates, zero, slot * CHUNK, CHUNK)
            start = T.Bind(f.constant(self.starts, "i64", group))
            end = T.Bind(f.constant(self.starts, "i64", group + 1))
            with T.serial(start, end) as step:
                for tree in range(TREES):
                    self._split(candidates, step * TREES + tree, first, tree, chunks)
            for slot in range(TREES * chunks):
                store(reached, vector(candidates, slot * CHUNK, CHUNK), slot * CHUNK, CHUNK)
            # A loop rather than TREES · chunks copies of its long body, which LLVM takes seconds for.
            with f.repeat(TREES) as tree, f.repeat(chunks) as chunk:
                slot = T.Bind((tree * chunks + chunk) * CHUNK)
                self.leaves.add(T.Bind(group * TREES + tree), T.Bind(first + chunk * CHUNK), reached, slot)

    def _split(self, candidates: Any, at: Expr, first: Expr, tree: int, chunks: int) -> None:
        f = self.f

        def everywhere(array: Array, dtype: str) -> Expr:
            return T.Bind(tirx.Broadcast(f.constant(array, dtype, at), CHUNK))

        plane = T.Bind(tirx.Cast("int64", f.constant(self.plane, "i32", at)) * f.block)
        rank = everywhere(self.rank, self.rank_dtype)
        lo, mid = everywhere(self.lo, self.leaf_dtype), everywhere(self.mid, self.leaf_dtype)
        for chunk in range(chunks):
            slot = (tree * chunks + chunk) * CHUNK
            value = vector(self.ranks, plane + first + chunk * CHUNK, CHUNK)
            leaf = vector(candidates, slot, CHUNK)
            onward = tirx.Select(tirx.LT(rank, value), mid, lo)
            store(candidates, tirx.Select(tirx.EQ(leaf, lo), onward, leaf), slot, CHUNK)


def _interleave(lanes: int, width: int, high: int) -> list[int]:
    """The indices of x86's unpack instructions: in every 128 bits (width lanes), the lower or upper halves of two vectors alternate."""
    half = width // 2
    return [
        source
        for start in range(0, lanes, width)
        for i in range(half)
        for source in (start + high * half + i, lanes + start + high * half + i)
    ]


def _shuffle(vectors: list[Expr], indices: list[int]) -> Expr:
    return tirx.Shuffle(vectors, [tirx.IntImm("int32", i) for i in indices])


class LeafTables:
    """Leaf values byte by byte: a register permutation looks up one byte of the value for 64 rows, the bytes are interleaved
    to integers of 32 bits. (A gather of 64 values costs as much as the whole scan of a tree.)"""

    def __init__(self, f: Function, packed: Packed, op: TreeEnsemble) -> None:
        assert packed.bytes is not None
        self.f, self.outputs = f, op.n_outputs
        _, self.vector_length, self.bytes, self.width = packed.bytes.shape
        self.table = f.own(packed.bytes, "u8")
        self.target = f.own(packed.target * f.block, "i64") if op.target.any() else None

    def start(self) -> None:
        """Sums of the upper 32 bits, and of the lower 16 where there are six bytes, each 0."""
        f = self.f
        size = self.outputs * f.block
        self.high = T.alloc_buffer((size,), "int32")
        self.low = T.alloc_buffer((size,), "int32") if self.bytes == 6 else None
        zero = tirx.Broadcast(tirx.const(0, "int32"), 16)
        with f.repeat(size // 16) as i:
            for buffer in (self.high, self.low):
                if buffer is not None:
                    store(buffer, zero, i * 16, 16)

    def add(self, tree: Expr, first: Expr, reached: Any, slot: Expr) -> None:
        """Add the values of one tree's leaves for the rows first … first + 64; the leaves are reached[slot …]."""
        f = self.f
        target: Expr = 0 if self.target is None else T.Bind(f.constant(self.target, "i64", tree))
        with f.repeat(self.vector_length) as column:
            leaf = T.Bind(vector(reached, slot, CHUNK))
            start = T.Bind((tree * self.vector_length + column) * (self.bytes * self.width))
            byte_vectors = []  # bound to variables: from memory, LLVM would load them again piece by piece
            for byte in range(self.bytes):
                first_byte = start + byte * self.width
                table = [f.constants(self.table, "u8", first_byte + offset, CHUNK) for offset in range(0, self.width, CHUNK)]
                byte_vectors.append(T.Bind(permute(table, leaf)))
            place = T.Bind(target + column * f.block + first)
            for quarter in range(4):
                if self.low is not None:
                    self._accumulate(self.low, place + quarter * 16, byte_vectors[:2], quarter)
                self._accumulate(self.high, place + quarter * 16, byte_vectors[-4:], quarter)

    def _accumulate(self, sums: Any, place: Expr, bytes_: list[Expr], quarter: int) -> None:
        """Add the integers of 16 rows; which rows a quarter has follows from the interleaving (see `totals`)."""
        pairs = [
            tirx.reinterpret("uint16x32", _shuffle(bytes_[i : i + 2], _interleave(64, 16, quarter // 2)))
            for i in range(0, len(bytes_), 2)
        ]
        if len(pairs) == 1:
            pairs.append(tirx.Broadcast(tirx.const(0, "uint16"), 32))
        value = tirx.reinterpret("int32x16", _shuffle(pairs, _interleave(32, 8, quarter % 2)))
        store(sums, tirx.Add(vector(sums, place, 16), value), place, 16)

    def totals(self, column: Expr, row: Expr) -> Expr:
        """The sums of four rows, i64. Rows 16·a + 4·b … of a chunk stand at 16·b + 4·a …"""
        a, b = (row >> 4) & 3, (row >> 2) & 3
        place = column * self.f.block + ((row >> 6) << 6) + b * 16 + a * 4
        high = tirx.Cast("int64x4", vector(self.high, place, 4))
        if self.low is None:
            return high
        low = tirx.Cast("int64x4", vector(self.low, place, 4))
        return tirx.Add(tirx.Mul(high, broadcast(tirx.const(1 << 16, "int64"), 4)), low)


class LeafGather:
    """Leaf values one by one, for processors without byte permutations and for large trees."""

    def __init__(self, f: Function, packed: Packed, op: TreeEnsemble) -> None:
        self.f, self.outputs, self.vector_length = f, op.n_outputs, op.values.shape[1]
        self.width = packed.integers.shape[2]
        self.table = f.own(packed.integers, "i64")
        self.target = f.own(packed.target * f.block, "i64") if op.target.any() else None

    def start(self) -> None:
        f = self.f
        self.sums = T.alloc_buffer((self.outputs * f.block,), "int64")
        with f.repeat(self.outputs * f.block) as i:
            T.buffer_store(self.sums, tirx.const(0, "int64"), [i])

    def add(self, tree: Expr, first: Expr, reached: Any, slot: Expr) -> None:
        """Add the values of one tree's leaves for the rows first … first + 64; the leaves are reached[slot …]."""
        f = self.f
        target: Expr = 0 if self.target is None else T.Bind(f.constant(self.target, "i64", tree))
        with f.repeat(self.vector_length) as column, f.repeat(CHUNK) as row:
            leaf = (tree * self.vector_length + column) * self.width + tirx.Cast("int64", reached[slot + row])
            place = T.Bind(target + column * f.block + first + row)
            T.buffer_store(self.sums, tirx.Add(self.sums[place], f.constant(self.table, "i64", leaf)), [place])

    def totals(self, column: Expr, row: Expr) -> Expr:
        """The sums of four rows, i64."""
        return vector(self.sums, column * self.f.block + row, 4)
