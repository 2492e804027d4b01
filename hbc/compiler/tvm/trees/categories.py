"""Category sets of trees. A set is a string of bits. The category of every (row, column) becomes the number of a bit, once.

    number[row]  = bits[category of x[row, column]]                     # one table a column
    place, bit   = number >> 3, 1 << (number & 7)                       # kept as two bytes
    goes right   = permute(bytes of the set, place) & bit               # for 64 rows at once; not 0: the row goes right

AVX2 and NEON permute 16 bytes for 32 rows at once. Processors that cannot permute bytes look the byte up for one row after the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.nest.function import Block, Row
from hbc.compiler.tvm.tir.dialect import DTYPES, Expr
from hbc.compiler.tvm.tir.expressions import is_nan, number
from hbc.compiler.tvm.tir.vectors import permute, permute_halves, vector
from hbc.compiler.tvm.trees.ranks.planes import HALF, PART, ROWS_IN_VECTOR
from hbc.ir.graph import Constant, Graph, Node, operator
from hbc.ir.rewrite import rewrite
from hbc.ir.types import Array, TensorType
from hbc.lazy import record
from hbc.ops import tensor
from hbc.ops.columns import SelectColumns
from hbc.ops.tree import CategoryPlanes, TreeEnsemble

MOST_BITS = 1024  # the most bits of a set that is scanned: its bytes fill two registers at most
MOST_BITS_WALKED = 1 << 15
"""The most bits of a set that is walked."""
STEPS_OF_COLUMN = 5
"""The steps of a walk in the time of a set that becomes a column of 0 and 1 and is scanned: 2.5 ns, and more where the table of such
columns leaves the second cache. Where all steps take longer, sets of more than MOST_BITS become columns, and their trees are scanned."""
MOST_BYTES_WALKED = 32 << 20
"""The most bytes of the sets then. They are packed in some eight times the memory."""
LARGEST_CATEGORY = 1 << 20  # the largest category number, since a table has an entry for every number up to it


@operator
class CategoricalTrees(TreeEnsemble):
    """TreeEnsemble([x, sets(x)]). The features from x's width on are the columns of sets(x): 0 if a row goes left, 1 if right."""

    width: int = 0
    sets: CategoryPlanes | None = None

    @property
    def first_set(self) -> int:
        return self.width

    @property
    def count(self) -> int:
        """The number of sets."""
        return len(sets_of(self).columns)

    def infer(self, x: TensorType) -> TensorType:
        return super().infer(TensorType(x.dtype, (x.shape[0], x.columns + len(sets_of(self).columns))))

    def evaluate(self, x: Array) -> Array:
        return super().evaluate(np.concatenate([x, sets_of(self).evaluate(x)], axis=1))


def sets_of(op: TreeEnsemble) -> CategoryPlanes:
    """The category sets of an ensemble, which must be a `CategoricalTrees`."""
    assert isinstance(op, CategoricalTrees)
    assert op.sets is not None
    return op.sets


def n_features(op: TreeEnsemble) -> int | None:
    """The number of features that are numbers (the later ones are category sets). None if all features are numbers."""
    return op.first_set


def join_sets(graph: Graph, fewest: Mapping[str, int]) -> Graph:
    """`TreeEnsemble(Concat(x, CategoryPlanes(x)))` → `CategoricalTrees(x)`, if the trees run by one of these strategies and have at least
    so many sets. Other `CategoryPlanes` are lowered.

    It also matches if only some columns of x stand before the planes.
    """

    def joined(node: Node) -> Node | None:
        if not isinstance(node.op, TreeEnsemble) or node.op.strategy not in fewest:
            return None
        found = with_sets(node, "walk" in fewest)
        return None if found is None or found.count < fewest[found.strategy] else found(node.inputs[0].inputs[1].inputs[0])

    graph = rewrite(graph, joined)
    return rewrite(graph, lambda node: node.op.lower(*node.inputs) if isinstance(node.op, CategoryPlanes) else None)


def with_sets(node: Node, walked: bool) -> CategoricalTrees | None:
    """The trees of `TreeEnsemble(Concat(x, CategoryPlanes(x)))` for x. None for other nodes, and where the sets do not fit. walked: those
    that fit only a walk do."""
    op = node.op
    if type(op) is not TreeEnsemble or not isinstance(node.inputs[0].op, tensor.Concat):
        return None
    numbers, *rest = node.inputs[0].inputs
    if len(rest) != 1 or not isinstance(rest[0].op, CategoryPlanes):
        return None
    (x,), sets = rest[0].inputs, rest[0].op
    columns = _columns_of(x, numbers)
    if columns is None:
        return None
    places = np.concatenate([columns, x.type.columns + np.arange(rest[0].type.columns)])
    tested = op.threshold[op.feature >= len(columns)]
    if tested.min(initial=0) < 0 or tested.max(initial=0) >= 1 or not _fits(sets, walked):
        return None
    fields = {name: getattr(op, name) for name in TreeEnsemble.__dataclass_fields__}
    fields["feature"] = np.where(op.feature < 0, -1, places[op.feature]).astype(op.feature.dtype)
    found = CategoricalTrees(**fields, width=x.type.columns, sets=sets)
    return found if scans_sets(found) or op.strategy == "walk" or STEPS_OF_COLUMN * found.count >= op.depths.sum() else None


def in_one_column(node: Node) -> TreeEnsemble:
    """The ensemble of a node, where all splits that test a category set read one column."""
    op, (x,) = node.op, node.inputs
    assert isinstance(op, TreeEnsemble)
    last = x.inputs[-1] if isinstance(x.op, tensor.Concat) else x
    if not isinstance(last.op, CategoryPlanes):
        return op
    first = x.type.columns - last.type.columns
    return replace(op, feature=np.minimum(op.feature, first).astype(op.feature.dtype))


def _columns_of(x: Node, part: Node) -> Array | None:
    """The columns of x that `part` consists of. None if it is not a selection of columns of x."""
    if part is x:
        return np.arange(x.type.columns)
    if isinstance(part.op, SelectColumns) and part.inputs[0] is x:  # before it is lowered to a Take
        return part.op.indices
    if (
        isinstance(part.op, tensor.Take)
        and part.op.axis == 1
        and part.inputs[0] is x
        and isinstance(part.inputs[1].op, Constant)
    ):
        return part.inputs[1].op.value
    return None


def _fits(sets: CategoryPlanes, walked: bool) -> bool:
    """Whether the tables and bit strings of category sets are small enough for a scan. walked: for a walk."""
    if sets.categories.max(initial=0) > LARGEST_CATEGORY:
        return False
    bits = max((len(known) + 3 for known in _known(sets)[1]), default=0)
    return bits <= MOST_BITS or (walked and bits <= MOST_BITS_WALKED and bits * len(sets.columns) <= 8 * MOST_BYTES_WALKED)


def scans_sets(op: TreeEnsemble) -> bool:
    """Whether a scan can test the category sets of an ensemble, if it has any."""
    return not isinstance(op, CategoricalTrees) or _fits(sets_of(op), walked=False)


def _known(sets: CategoryPlanes) -> tuple[Array, list[Array]]:
    """(columns, known): the columns that sets test, and for each column the categories that occur in its sets, ascending."""
    columns, place = np.unique(sets.columns, return_inverse=True)
    of_category = np.repeat(place, np.diff(sets.offsets))
    return columns, [np.unique(sets.categories[of_category == c]) for c in range(len(columns))]


@record
class PackedSets:
    """The category sets of an ensemble as bit strings, and for each column a table from categories to bits.

    columns i64[C]: the features with categories.
    bits u16: the tables, one after the other. That of column c begins at starts[c] and has sizes[c] + 2 entries: the bit of each category
    0…size − 1, where the last entry stands for all larger ones too; then the bit of an invalid category; then that of NaN.
    counts i64[C]: the number of different bits of a column.
    set_column i64[S]: the column (0…C - 1) that a set tests. bytes u8[S, B]: its bits; 1 means that the row goes right.
    """

    columns: Array
    starts: Array
    sizes: Array
    bits: Array
    counts: Array
    set_column: Array
    bytes: Array

    def goes_right(self, sets: Array) -> Array:
        """bool[sets, bits]: whether a row with that bit goes right."""
        return np.unpackbits(self.bytes[sets], axis=1, bitorder="little").astype(bool)


def pack_sets(op: TreeEnsemble) -> PackedSets:
    """Pack the category sets of a `CategoricalTrees`."""
    sets = sets_of(op)
    columns, known = _known(sets)
    sizes = np.array([int(categories.max(initial=-1)) + 2 for categories in known], np.int64)
    starts = np.cumsum(sizes + 2) - (sizes + 2)
    bit = np.zeros(int((sizes + 2).sum()), np.int64)
    for start, size, categories in zip(starts, sizes, known, strict=True):
        bit[start : start + size] = len(categories)
        bit[start + categories] = np.arange(len(categories))
        bit[start + size], bit[start + size + 1] = len(categories) + 1, len(categories) + 2
    place = np.searchsorted(columns, sets.columns)
    right = np.zeros((len(place), 8 * -(-max(len(categories) + 3 for categories in known) // 8)), bool)
    counts = np.array([len(categories) for categories in known])[place]
    inside = np.arange(right.shape[1]) <= counts[:, None]
    right[inside] = np.broadcast_to(~sets.inside[:, None], right.shape)[inside]
    of_category = np.repeat(np.arange(len(place)), np.diff(sets.offsets))
    members = bit[starts[place[of_category]] + sets.categories]
    right[of_category, members] = sets.inside[of_category]
    every = np.arange(len(place))
    right[every, counts + 1], right[every, counts + 2] = sets.invalid, sets.missing
    packed = np.packbits(right, axis=1, bitorder="little")
    bits_of = np.array([len(categories) + 3 for categories in known])
    return PackedSets(columns, starts, sizes, bit.astype(np.uint16), bits_of, place, packed)


class Codes:
    """Emits tests of category sets. `fill(row)` computes the bits of a row of x; `test` and `test_many` look them up in a set.

    at_once: the rows for which a processor looks a byte up at once: 64, 32, or one."""

    def __init__(self, f: Block, op: TreeEnsemble, x: Node) -> None:
        self.f, self.x, self.sets = f, x, sets_of(op)
        packed = f.once(pack_sets, op)
        self.columns, self.starts, self.sizes = (f.own(a, "i64") for a in (packed.columns, packed.starts, packed.sizes))
        self.bits = f.own(packed.bits, "u16")
        self.at_once = ROWS_IN_VECTOR if f.dialect.byte_permute else HALF if f.dialect.byte_lookup else 1
        self.count = f.size(len(packed.columns))
        count = 1 << (len(packed.columns) - 1).bit_length()
        self.number = T.alloc_buffer((count * f.block,), "uint16")
        self.place = T.alloc_buffer((count * f.block,), "uint8")
        self.bit = T.alloc_buffer((count * f.block,), "uint8")

    def fill(self, row: Expr) -> None:
        """Compute the bits of all categories of a row of x."""
        f, sets, dtype = self.f, self.sets, self.x.type.dtype
        with f.repeat(self.count) as column:
            value = T.Bind(f.read(self.x, [T.Bind(f.constant(self.columns, "i64", column))], Row(row)))
            lower = tirx.LT(number(-1, dtype), value) if sets.truncate_negative else tirx.LE(number(0, dtype), value)
            valid = tirx.And(lower, tirx.LT(value, number(sets.limit, dtype)))
            whole = T.Bind(tirx.Cast("int64", tirx.Select(valid, value, number(0, dtype))))
            valid = tirx.And(valid, tirx.EQ(tirx.Cast(DTYPES[dtype], whole), value)) if sets.whole else valid
            size = T.Bind(f.constant(self.sizes, "i64", column))
            entry = tirx.Select(valid, tirx.Min(whole, size - 1), tirx.Select(is_nan(value), size + 1, size))
            bit = T.Bind(f.constant(self.bits, "u16", f.constant(self.starts, "i64", column) + entry))
            at = T.Bind(column * f.block + row)
            T.buffer_store(self.number, bit, [at])
            T.buffer_store(self.place, tirx.Cast("uint8", tirx.shift_right(bit, tirx.const(3, "uint16"))), [at])
            bit_in_byte = tirx.bitwise_and(bit, tirx.const(7, "uint16"))
            T.buffer_store(self.bit, tirx.Cast("uint8", tirx.shift_left(tirx.const(1, "uint16"), bit_in_byte)), [at])

    def test(self, bytes_: Array, start: Expr, column: Expr, row: Expr) -> Expr:
        """u8, not 0 if the row goes right. The set's bytes begin at bytes_[start]."""
        at = column * self.f.block + row
        byte = self.f.constant(bytes_, "u8", start + tirx.Cast("int64", self.place[at]))
        return tirx.bitwise_and(byte, self.bit[at])

    def test_many(self, bytes_: Array, start: Expr, size: int, column: Expr, first: Expr) -> Expr:
        """The same for the `at_once` rows from `first` on. size: the bytes of a set."""
        f = self.f
        at = T.Bind(column * f.block + first)
        place, bit = vector(self.place, at, self.at_once), vector(self.bit, at, self.at_once)
        part = ROWS_IN_VECTOR if f.dialect.byte_permute else PART
        table = [f.constants(bytes_, "u8", start + offset, part) for offset in range(0, size, part)]
        byte = permute(table, place) if f.dialect.byte_permute else permute_halves(table, place, f.dialect)
        return tirx.bitwise_and(byte, bit)
