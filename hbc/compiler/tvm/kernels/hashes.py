"""Values looked up by the hashes of combined categories (`HashedValues`).

    for a vector of rows:  hash = Horner(elements);  slot = hash table's place of the hash
    for each row:          slot = slot if words[slot] == hash else unknown;  values = words[slot + 1 …]

A slot holds the hash and all values of a combination, so a look-up misses the caches once. If the hash in the slot is not the row's, the
table's last slot is chosen, which has the values for unknown combinations. No branch depends on it. 244 combinations of 100,000 rows take
100 ms with tables of 17 MB. Linear probing in tables filled to a quarter took 270 ms: the processor mispredicted about one branch a search.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.memory import aligned
from hbc.compiler.tvm.nest.function import Chunk
from hbc.compiler.tvm.plan.operators import emits
from hbc.compiler.tvm.tir.dialect import Expr
from hbc.ir.graph import Node
from hbc.ir.types import Array
from hbc.lazy import record
from hbc.ops.hash_tables import MIXER, SPREADER, mixed
from hbc.ops.hashed_categories import MULTIPLIER, HashedValues

TOGETHER = 8
"""Combinations that take each step together: the look-ups of one go on while others wait for memory (one by one: 240 ms). `hashes` and
`places` take 1 KB of the stack each."""
FACTOR = int(MULTIPLIER) ** 2 * int(MIXER) % (1 << 64)
"""hash · MIXER is this times Σ x_i MULTIPLIER^(L - 1 - i) over the L elements. Horner's rule takes one product an element."""


@record
class PackedTables:
    """The tables of P combinations. All arrays are i64.

    steps[P]: the number of elements that a hash is made of. elements[P, L]: which columns of x they are.
    words: the slots of all tables. Those of combination p begin at starts[p] and have widths[p] words each. Behind them, at unknown[p], is
    one more slot, for unknown combinations. A slot is a hash, as `mixed` gives it, and then the bits of its float32 values, two in a word.
    outputs: the output columns of these values. Those of combination p are outputs[first[p] : first[p] + counts[p]].
    """

    steps: Array
    elements: Array
    starts: Array
    widths: Array
    unknown: Array
    words: Array
    counts: Array
    first: Array
    outputs: Array


def pack_tables(op: HashedValues) -> PackedTables:
    """Pack the tables of all combinations."""
    table, ends = op.table, np.cumsum(np.append(0, np.diff(op.starts)[op.of]))
    counts = np.bincount(op.of, minlength=len(op.elements))
    outputs, first = np.argsort(op.of, kind="stable"), np.cumsum(counts) - counts
    widths = 1 + -(-counts // 2)
    unknown = np.cumsum((table.sizes + 1) * widths) - widths
    starts = unknown - table.sizes * widths
    words = aligned(int(unknown[-1] + widths[-1]), "i64")
    for p, (start, width) in enumerate(zip(starts, widths, strict=True)):
        places = np.append(op.hash_at[table.first_slot[p] :][: table.sizes[p]], op.starts[p + 1] - 1)
        slots = words[start : start + len(places) * width].reshape(-1, width)
        slots[:, 0] = mixed(op.known[places].view(np.uint64)).view(np.int64)
        halves = np.zeros((len(slots), 2 * (width - 1)), np.uint64)
        for j, q in enumerate(outputs[first[p] :][: counts[p]]):
            halves[:, j] = op.values[ends[q] : ends[q + 1]][places - op.starts[p]].view(np.uint32)
        slots[:, 1:] = (halves[:, ::2] | halves[:, 1::2] << np.uint64(32)).view(np.int64)
    steps = (op.elements >= 0).sum(1)
    return PackedTables(steps, op.elements, starts, widths, unknown, words, counts, first, outputs)


@emits(HashedValues, rereads=True)
def hashed_values(f: Chunk, node: Node) -> None:
    """Emit `HashedValues`, for groups of TOGETHER combinations."""
    op, (x,) = node.op, node.inputs
    assert isinstance(op, HashedValues)
    packed, table = f.once(pack_tables, op), op.table
    numbers = vars(packed) | {name: getattr(table, name) for name in ("sizes", "buckets", "first_bucket")}
    arrays = {name: f.own(array, "i64") for name, array in numbers.items() if name != "words"}
    scope = f.schedule.scope
    hashes, places = (T.alloc_buffer((TOGETHER * f.lanes,), "int64", scope=scope) for _ in range(2))
    count, longest = op.elements.shape

    def of(name: str, at: Expr) -> Expr:
        return T.Bind(f.constant(arrays[name], "i64", at))

    with f.repeat(-(-count // TOGETHER)) as group:
        together = T.Bind(tirx.Min(tirx.const(TOGETHER, "int64"), count - group * TOGETHER))

        @contextmanager
        def each() -> Iterator[tuple[Expr, Expr]]:
            """(p, at): each combination of the group, and where its rows begin in `hashes` and `places`."""
            with f.repeat(together) as i:
                yield T.Bind(group * TOGETHER + i), T.Bind(i * f.lanes)

        with each() as (p, at):
            with f.lane() as lane:
                T.buffer_store(hashes, tirx.const(0, "int64"), [at + lane])
            with f.repeat(of("steps", p)) as step:
                element = of("elements", p * longest + step)
                with f.lane() as lane:
                    total = tirx.Add(_times(hashes[at + lane], MULTIPLIER), _bits(f.read(x, [element], f.row(lane))))
                    T.buffer_store(hashes, tirx.Cast("int64", total), [at + lane])
            with f.lane() as lane:
                total = tirx.Add(_times(hashes[at + lane], FACTOR), _whole(SPREADER))
                T.buffer_store(hashes, tirx.Cast("int64", total), [at + lane])
            buckets, first = of("buckets", p), of("first_bucket", p)
            with f.lane() as lane:
                T.buffer_store(places, first + _share(_bits(hashes[at + lane]), buckets), [at + lane])
        with each() as (p, at):
            start, width, size = of("starts", p), of("widths", p), of("sizes", p)
            with f.lane() as lane:  # any hash leads to a bucket and a slot inside the tables, also where no row is
                factor = _times(f.constant(table.factors, "u16", places[at + lane]), SPREADER)
                spread = tirx.Mul(_bits(hashes[at + lane]), factor)
                T.buffer_store(places, start + _share(spread, size) * width, [at + lane])
        with each() as (p, at):
            unknown, first = of("unknown", p), of("first", p)
            with f.each_row() as row:
                place = T.Bind(places[at + row.lane])
                same = tirx.EQ(f.constant(packed.words, "i64", place), hashes[at + row.lane])
                T.buffer_store(places, tirx.Select(same, place, unknown), [at + row.lane])
            with f.repeat(of("counts", p)) as j:
                column = of("outputs", first + j)
                word = T.Bind(tirx.truncdiv(j, tirx.const(2, "int64")) + 1)
                shift = T.Bind(tirx.Mul(tirx.const(32, "int64"), tirx.bitwise_and(j, tirx.const(1, "int64"))))
                with f.each_row() as row:
                    bits = tirx.shift_right(f.constant(packed.words, "i64", places[at + row.lane] + word), shift)
                    f.store(node, column, row, tirx.reinterpret("float32", tirx.Cast("uint32", bits)))


def _whole(value: int | np.uint64) -> Expr:
    return tirx.const(int(value), "uint64")


def _bits(x: Expr) -> Expr:
    """x as u64.

    TVM tells LLVM that products don't overflow, even of u64, though these do. host/text_hash.py multiplies 32 bits at a time because of
    it. Here LLVM cannot make use of that promise, since it knows only one of the factors. In parts of 32 bits a product would be a dozen
    instructions instead of one.
    """
    return tirx.Cast("uint64", x)


def _times(x: Expr, factor: int | np.uint64) -> Expr:
    return tirx.Mul(_bits(x), _whole(factor))


def _share(x: Expr, count: Expr) -> Expr:
    """⌊⌊x / 2^32⌋ · count / 2^32⌋, i64: a number in 0 … count - 1 from the upper half of x."""
    count = _bits(tirx.Cast("uint32", count))  # so LLVM knows that its upper half is 0
    return tirx.Cast("int64", tirx.shift_right(tirx.Mul(tirx.shift_right(x, _whole(32)), count), _whole(32)))
