"""Plans a method: decides which values get memory of their own, which are recomputed inside their only reader, and which values share
memory. Does not use TVM."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import field

import numpy as np

from hbc.compiler.tvm.plan.operators import emission, is_elementwise, rereads
from hbc.compiler.tvm.plan.row_dots import RowDot, along_rows
from hbc.compiler.tvm.plan.row_probabilities import along_columns
from hbc.compiler.tvm.plan.sizes import STORAGE, bytes_of, elements
from hbc.compiler.tvm.plan.tree_columns import computed_by_trees
from hbc.ir.graph import Constant, Graph, Input, Node, Operator, operator, topological
from hbc.ir.rewrite import rewrite
from hbc.ir.types import Array, Dim, TensorType, type_of
from hbc.lazy import cached_property, record
from hbc.ops import tensor
from hbc.ops.tree import TreeEnsemble

ROWS_IN_STATEMENT = 16  # rows that one vector statement computes
MAX_ROWS = 256
"""Rows of a block. More would share the reading of a model's trees, but push intermediates out of the first and second cache."""
WALK_ROWS = 4096  # rows of a block that walks trees: each block reads all trees anew, deep ones from memory (12 to 4 µs a row)
WALK_BYTES = 1 << 20  # the most bytes of a block's keys, which are twice as wide as its rows where NaN goes both ways
FAR_BYTES = 48 << 20
"""Trees of more bytes of nodes (NODE_BYTES each) come from memory. A block of FAR times as many rows walks them, so they are read fewer
times. 10,000 rows of forest regressors of unlimited depth take 0.85 of the time so with 100 trees, 0.75 with 200 (Zen 5, code for Zen 3).
Smaller forests take a twentieth longer: the keys of more rows leave the second cache."""
FAR = 4
CACHE_LINE = 64
SUMS_BYTES = 32 << 10
"""The most bytes of the sums of a block, if a row has more than a cache line of them and the trees are in a cache anyway. A row's sums lie
a block apart: in large blocks all would be in the same set of the first cache, which holds 8 to 12 lines. A tree of 26 classes took 0.66 µs
a row of 10,000 in blocks of 4,096 rows, and takes 0.06 in blocks of 128."""
LEAST_ROWS = 64
NODE_BYTES = 16  # of a node and its leaf in memory, about
FLAT_ROWS = 4096
"""Rows of a block that keeps no value for all of its rows: 400,000 squares take 70 µs, with blocks of 256 rows 74."""
BLOCK_BYTES = 192 * 1024  # the most bytes of a block's shared intermediates
SCAN_BYTES = 256 * 1024
"""The same for a block that scans trees, where 256 rows share the loads of a tree. 64 rows at a time of 100 classes take a sixth longer."""
SCAN_ROWS = 64  # the fewest rows of a block that scans trees: a chunk
FEW_STEPS = 28
"""The most values for which full vectors get code of their own. With 31 values (of nested choices) that code takes 1.1 times as long;
with 63 it takes a second more to compile."""
FEW_BYTES = 4608
"""The most bytes of such values, for one vector of rows. 32 registers hold 2 KiB, but 4.3 KiB gain 1.16 times too; 4.8 gain nothing."""
MAX_INLINED = 24  # the most operators of a statement; larger statements take LLVM long and gain nothing


@operator
class Never(Operator):
    """y = false for every row. It replaces `x < x`, by which graphs make rows of constants, so that the kernel need not read x."""

    shape: tuple[Dim, ...]

    level = "tensor"

    def infer(self) -> TensorType:
        return TensorType("bool", self.shape)


@operator
class Repeated(Operator):
    """y[n] = value[n mod len(value)]: a constant of one number a column, where each element counts as a row (`Plan.row`)."""

    value: Array

    level = "tensor"

    def infer(self) -> TensorType:
        return TensorType(type_of(self.value).dtype, ("N",))


def without_reading(node: Node) -> Node | None:
    """`Never` for `x < x`; None for other nodes."""
    return Never(node.type.shape)() if isinstance(node.op, tensor.Less) and node.inputs[0] is node.inputs[1] else None


@record
class Slot:
    """The place of a value in memory: `elements` consecutive columns, from `offset` on, of a pool. There are two pools for each storage
    dtype: one for the whole block of rows (`shared`) and one for a vector of rows."""

    dtype: str
    offset: int
    elements: int
    shared: bool

    @property
    def pool(self) -> tuple[str, bool]:
        return self.dtype, self.shared


@record
class Plan:
    """The values that a method computes, their order and their memory.

    constants: the values that depend on no input.
    segments: the values that get a slot, and outputs that need none (`given_straight`), in the order of computation. The values of a
    segment are computed together, for one vector of rows after the other. A tree ensemble is a segment of its own: it goes through the
    whole block, so that its nodes are read once for all rows.
    slots: the place of each of these values. pools: the number of columns of each pool. rows: the rows of a block.
    columns: for each input that is read in part, the columns that are read.
    needed: for each value that is used only where something is missing, the conditions that say where. The value is not computed for a
    vector of rows if none of its rows meets one of them.
    row: the shape of a row, if every element is computed by itself; else None. The nodes are then those of `flat`, and each element of
    each row counts as a row.
    conditions: values that must be true for all rows of a block. The first `before` segments compute them; the other segments run only
    if they are true.
    """

    outputs: tuple[Node, ...]
    constants: dict[Node, Array]
    segments: tuple[tuple[Node, ...], ...]
    slots: dict[Node, Slot]
    pools: dict[tuple[str, bool], int]
    columns: dict[Node, Array]
    rows: int
    needed: dict[Node, frozenset[Node]] = field(default_factory=dict)
    row: tuple[Dim, ...] | None = None
    conditions: tuple[Node, ...] = ()
    before: int = 0

    @cached_property
    def inputs(self) -> tuple[Node, ...]:
        """The graph's inputs that this method reads and that have columns."""
        nodes = topological((*self.conditions, *self.outputs))
        return tuple(node for node in nodes if isinstance(node.op, Input) and elements(node.type))

    @cached_property
    def order(self) -> dict[Node, int]:
        """A number for every node, in the order of computation."""
        return {node: i for i, node in enumerate(topological((*self.conditions, *self.outputs)))}

    @property
    def steps(self) -> tuple[Node, ...]:
        return tuple(node for segment in self.segments for node in segment)

    @property
    def few_values(self) -> bool:
        """Whether full vectors of rows get code of their own. LLVM then keeps their values in registers; for a vector that is not full,
        values must lie in memory. Linear regressions take 0.8 times as long, three of them together 0.4 times. The code takes 1.5 times
        as long to compile. Trees compute whole blocks, so both codes would compute them."""
        if any(isinstance(node.op, TreeEnsemble) for node in self.steps):
            return False
        vector = sum(count * ROWS_IN_STATEMENT * bytes_of(dtype) for (dtype, _), count in self.pools.items())
        return self.row is not None or (len(self.segments) == 1 and len(self.steps) <= FEW_STEPS and vector <= FEW_BYTES)


def make_plan(
    outputs: Sequence[Node],
    block: int | None = None,
    flatten: bool = False,
    register: int = 0,
    conditions: int = 0,
    in_trees: bool = False,
) -> Plan:
    """The plan of a method that returns `outputs`, without its first `conditions` ones, which are the plan's conditions.

    block: the rows of a block; None for the number that suits the caches. flatten: whether the elements of rows may count as rows, see
    Plan.row. register: the bits of a vector register; 0 if rows are computed one by one. in_trees: ensembles compute the columns that they
    compare, where they can (tree_columns.py).
    """
    if any(without_reading(node) for node in topological(outputs)):
        outputs = rewrite(Graph((), {"": tuple(outputs)}), without_reading).outputs[""]
    row = _row(outputs) if flatten else None
    outputs = flat(outputs) if row is not None else outputs
    if register:
        outputs = rewrite(Graph((), {"": tuple(outputs)}), along_rows(register, _cheap)).outputs[""]
        outputs = along_columns(outputs, register)
    nodes = list(topological(outputs))
    constants = fold(nodes)
    readers = _readers(outputs, constants)
    own = computed_by_trees(nodes, readers, outputs, constants) if in_trees else set()
    stored = {node for node in nodes if node in readers and node not in own and _stored(node, readers, outputs, constants)}
    reads = _cut(nodes, readers, stored, constants)
    first = _all_read(outputs[:conditions], reads)
    before = _segments([node for node in nodes if node in first], reads)
    segments = before + _segments([node for node in nodes if node in reads and node not in first], reads)
    columns = {node: read for node in reads if (read := _columns_read(node, readers, outputs, constants)) is not None}
    given = {node for node in outputs if given_straight(node, constants) and not readers[node]}
    slots, pools = _allocate(segments, reads, outputs, {node: len(read) for node, read in columns.items()}, given)
    width = sum(count * bytes_of(dtype) for (dtype, shared), count in pools.items() if shared)
    trees = {node: node.op for node in reads if isinstance(node.op, TreeEnsemble)}
    rows = most_rows(trees, [node.type for node in readers if isinstance(node.op, Input)])
    scanned = any(op.strategy == "scan" for op in trees.values())
    least, most = (SCAN_ROWS, SCAN_BYTES) if scanned else (ROWS_IN_STATEMENT, BLOCK_BYTES)
    while rows > least and rows * width > most:
        rows //= 2
    rows = block or (rows if row is None else FLAT_ROWS)
    needed = {node: why for node, why in _needed(nodes, readers, outputs, constants).items() if node in slots}
    if not any(emission(node.op).skipped for node in needed) or not _known_before(needed, segments, slots):
        needed = {}
    returned = tuple(outputs[conditions:])
    return Plan(
        returned, constants, segments, slots, pools, columns, rows, needed, row, tuple(outputs[:conditions]), len(before)
    )


def _cheap(op: Operator) -> bool:
    return is_elementwise(op) and not emission(op).costly


def _all_read(nodes: Sequence[Node], reads: dict[Node, set[Node]]) -> set[Node]:
    """The nodes, and all stored values that they are computed from."""
    found, waiting = set[Node](), list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += reads[node]
    return found


def _row(outputs: Sequence[Node]) -> tuple[Dim, ...] | None:
    """The shape that a row of every value has, if each element follows from the same element of the inputs and from constants of one
    number, or of one for each column (`Repeated`). None otherwise. Such a method does not need columns to lie together."""
    shapes = {node.type.shape for node in topological(outputs) if node.type.batched}
    width = elements(outputs[0].type)
    for node in topological(outputs):
        if isinstance(node.op, Constant):
            if elements(node.type) not in (1, width):
                return None
        elif not (isinstance(node.op, Input) or is_elementwise(node.op)):
            return None
    return next(iter(shapes))[1:] if len(shapes) == 1 and elements(outputs[0].type) else None


def flat(outputs: Sequence[Node]) -> tuple[Node, ...]:
    """The outputs computed by the same operators from inputs with one number a row."""
    made: dict[Node, Node] = {}
    for node in topological(outputs):
        if isinstance(node.op, Input):
            made[node] = Input(node.op.name, node.op.dtype, ("N",))()
        elif isinstance(node.op, Constant):
            value = node.op.value
            made[node] = Constant(value.reshape(()))() if value.size == 1 else Repeated(value.reshape(-1))()
        else:
            made[node] = node.op(*(made[source] for source in node.inputs))
    return tuple(made[node] for node in outputs)


def most_rows(trees: dict[Node, TreeEnsemble], inputs: Sequence[TensorType]) -> int:
    """The most rows that a block gets for these trees, before its intermediates are looked at. Where a block reads the trees from a cache,
    its inputs have to stay in one too, from their test to the walk: a tree of 20 among 617 float64 columns took 2.4 µs a row."""
    if not trees or any(op.strategy == "scan" for op in trees.values()):
        return MAX_ROWS
    width = max(2 * bytes_of(node.inputs[0].type.dtype) * node.inputs[0].type.columns for node in trees)
    # Category sets are features behind the columns, and have a byte each.
    sets = max(int(op.feature.max(initial=-1)) + 1 - node.inputs[0].type.columns for node, op in trees.items())
    width, least = (width + sets, ROWS_IN_STATEMENT) if sets > 0 else (width, MAX_ROWS)
    nodes = sum(NODE_BYTES * len(op.feature) for op in trees.values())
    if nodes <= WALK_BYTES:
        sums = max((op.n_outputs * bytes_of(node.type.dtype) for node, op in trees.items() if op.output == "sum"), default=0)
        if sums > CACHE_LINE:
            rows = MAX_ROWS
            while rows > LEAST_ROWS and rows * sums > SUMS_BYTES:
                rows //= 2
            return rows
        width = max(width, sum(bytes_of(each.dtype) * elements(each) for each in inputs))
    far = FAR if nodes > FAR_BYTES and all(op.strategy == "walk" for op in trees.values()) else 1
    rows = far * WALK_ROWS
    while rows > least and rows * width > far * WALK_BYTES:
        rows //= 2
    return rows


def fold(nodes: Iterable[Node]) -> dict[Node, Array]:
    """node → its value, for all nodes that depend on no input."""
    constants: dict[Node, Array] = {}
    with np.errstate(all="ignore"):
        for node in nodes:
            if isinstance(node.op, Constant) or (node.inputs and all(source in constants for source in node.inputs)):
                constants[node] = np.asarray(node.op.evaluate(*(constants[source] for source in node.inputs)))
    return constants


def _readers(outputs: Sequence[Node], constants: dict[Node, Array]) -> dict[Node, list[Node]]:
    """node → its readers, for every value that has rows. A reader that reads a value twice is there twice."""
    readers: dict[Node, list[Node]] = {}
    for node in topological(outputs):
        if node not in constants:
            readers.setdefault(node, [])
            for source in node.inputs:
                if source not in constants:
                    readers[source].append(node)
    return readers


def is_view(node: Node) -> bool:
    """Whether a value only indexes its operand in another way."""
    return isinstance(node.op, tensor.Reshape) or (isinstance(node.op, tensor.Take) and node.inputs[0].type.batched)


def _stored(node: Node, readers: dict[Node, list[Node]], outputs: Sequence[Node], constants: dict[Node, Array]) -> bool:
    op = node.op
    if node in outputs:
        return True
    if is_view(node):
        return False
    if not (isinstance(op, (Input, Never, Repeated)) or is_elementwise(op)) or emission(op).costly:
        return True
    users = [reader for reader in readers[node] if not isinstance(reader.op, RowDot)]  # it reads the caller's rows itself
    if len(users) != 1:
        return bool(users)
    reader = users[0]
    while is_view(reader) and reader not in outputs:
        # The reader of a view reads the view's operand, perhaps repeatedly.
        repeats = isinstance(reader.op, tensor.Take) and _repeats(constants[reader.inputs[1]])
        if repeats or len(readers[reader]) != 1:
            return True
        reader = readers[reader][0]
    if isinstance(op, Input):
        while isinstance(reader.op, tensor.Cast) and reader not in outputs and len(readers[reader]) == 1:
            (reader,) = readers[reader]
        return not isinstance(reader.op, TreeEnsemble)  # it reads the caller's rows itself
    if rereads(reader) or emission(reader.op).costly:
        return True  # costly functions bind their operand, and TVM binds no vector that is made of bits
    return is_elementwise(reader.op) and elements(reader.type) > elements(node.type)


def given_straight(node: Node, constants: dict[Node, Array]) -> bool:
    """Whether an output needs no memory of its own: its rows are rows of several elements of a table, or its kernel can write to the
    caller's array."""
    if emission(node.op).gives is not None:
        return True
    by_row = isinstance(node.op, tensor.Take) and node.inputs[0] in constants and len(node.inputs[1].type.shape) == 1
    return by_row and elements(node.type) > 1


def _repeats(indices: Array) -> bool:
    return len(np.unique(indices)) < indices.size


def _cut(
    nodes: list[Node], readers: dict[Node, list[Node]], stored: set[Node], constants: dict[Node, Array]
) -> dict[Node, set[Node]]:
    """stored value → the stored values that it is computed from. Adds values to `stored` where statements would grow too large."""
    size: Counter[Node] = Counter()
    reads: dict[Node, set[Node]] = {}
    for node in nodes:
        if node not in readers:
            continue
        sources = [source for source in node.inputs if source not in constants]
        sizes = [size[source] for source in sources if source not in stored]
        # Of a Concat one part is computed.
        size[node] = 1 + (max(sizes, default=0) if isinstance(node.op, tensor.Concat) else sum(sizes))
        if size[node] > MAX_INLINED and not is_view(node) and not isinstance(node.op, Input):
            stored.add(node)
        reads[node] = set()
        for source in sources:
            reads[node] |= {source} if source in stored else reads[source]
    return {node: reads[node] for node in nodes if node in stored}


def _segments(order: list[Node], reads: dict[Node, set[Node]]) -> tuple[tuple[Node, ...], ...]:
    """The nodes in as few segments as the ensembles allow: first the values that follow no ensemble, then ensembles, then the
    values that follow these ensembles, and so on."""
    stage: dict[Node, int] = {}
    for node in order:
        trees = isinstance(node.op, TreeEnsemble)
        known = reads[node] & stage.keys()  # others are computed in segments before these
        stage[node] = max((stage[r] + (isinstance(r.op, TreeEnsemble) and not trees) for r in known), default=0)
    segments: list[tuple[Node, ...]] = []
    for at in range(max(stage.values(), default=-1) + 1):
        together = tuple(node for node in order if stage[node] == at and not isinstance(node.op, TreeEnsemble))
        segments += [together] if together else []
        segments += [(node,) for node in order if stage[node] == at and isinstance(node.op, TreeEnsemble)]
    return tuple(segments)


def _needed(
    nodes: list[Node], readers: dict[Node, list[Node]], outputs: Sequence[Node], constants: dict[Node, Array]
) -> dict[Node, frozenset[Node]]:
    """value → conditions, for each value that is used only where one of the conditions is true: as the first choice of a `Where`, or to
    compute such values. The conditions test the caller's rows themselves."""
    missing: set[Node] = set()  # conditions that say where something is missing
    plain: set[Node] = set()  # values that are the caller's numbers
    for node in nodes:
        source = node.inputs[0] if node.inputs else node
        if isinstance(node.op, Input) or ((is_view(node) or isinstance(node.op, tensor.Cast)) and source in plain):
            plain.add(node)
        compared = isinstance(node.op, tensor.Equal) and node.inputs[1] in constants
        if ((isinstance(node.op, tensor.IsNan) or compared) and source in plain) or (is_view(node) and source in missing):
            missing.add(node)
    needed: dict[Node, frozenset[Node]] = {}
    for node in reversed(nodes):
        if node not in readers or node in outputs or isinstance(node.op, Input) or node in missing:
            continue
        why: set[Node] = set()
        for reader in readers[node]:
            if reader in needed:
                why |= needed[reader]
                continue
            condition = reader.inputs[0]
            if not (isinstance(reader.op, tensor.Where) and condition in missing and node is not reader.inputs[2]):
                break
            why.add(condition)
        else:
            needed[node] = frozenset(why)
    return needed


def _known_before(needed: dict[Node, frozenset[Node]], segments: tuple[tuple[Node, ...], ...], slots: dict[Node, Slot]) -> bool:
    """Whether each condition is computed before the values that need it."""
    time = {node: i for i, node in enumerate(node for group in segments for node in group)}

    def known(node: Node) -> int:
        if node in slots:
            return time[node]
        return max((known(source) for source in node.inputs), default=-1)

    return all(known(condition) < time[node] for node, why in needed.items() for condition in why)


def _columns_read(
    node: Node, readers: dict[Node, list[Node]], outputs: Sequence[Node], constants: dict[Node, Array]
) -> Array | None:
    """The columns of an input matrix that are read, ascending; None if all columns may be read, or if the node is no input matrix."""
    if not isinstance(node.op, Input) or node in outputs or len(node.type.shape) != 2:
        return None
    takes = [reader for reader in readers[node] if not isinstance(reader.op, RowDot)]
    if not takes or not all(is_view(reader) and isinstance(reader.op, tensor.Take) for reader in takes):
        return None
    return np.unique(np.concatenate([constants[reader.inputs[1]].reshape(-1) for reader in takes]))


def _allocate(
    segments: tuple[tuple[Node, ...], ...],
    reads: dict[Node, set[Node]],
    outputs: Sequence[Node],
    widths: dict[Node, int],
    given: set[Node],
) -> tuple[dict[Node, Slot], dict[tuple[str, bool], int]]:
    """(node → slot, pool → columns): first fit, in memory of values whose last reader has run. `given` get no slot."""
    segment = {node: i for i, group in enumerate(segments) for node in group}
    shared = {node for node in segment if isinstance(node.op, TreeEnsemble)}
    last: dict[Node, int] = {}
    order = [node for group in segments for node in group]
    for time, node in enumerate(order):
        last[node] = time
        for source in reads[node]:
            last[source] = time
            if segment[source] != segment[node]:
                shared.add(source)
    for node in outputs:
        last[node] = len(order)
    for node in given:  # at the end of a segment, by indices that must still be there
        for source in reads[node]:
            last[source] = len(order)
    slots: dict[Node, Slot] = {}
    pools: dict[tuple[str, bool], int] = {}
    busy: dict[tuple[str, bool], list[tuple[int, int, int]]] = {}  # (offset, end, time of the last reader), by offset
    for time, node in enumerate(order):
        if node in given:
            continue
        dtype = STORAGE.get(node.type.dtype, node.type.dtype)
        pool = dtype, node in shared
        size = max(widths.get(node, elements(node.type)), 1)
        taken = [entry for entry in busy.get(pool, []) if entry[2] >= time]
        offset = 0
        for start, end, _ in taken:
            if start - offset >= size:
                break
            offset = max(offset, end)
        busy[pool] = sorted([*taken, (offset, offset + size, last[node])])
        slots[node] = Slot(dtype, offset, size, node in shared)
        pools[pool] = max(pools.get(pool, 0), offset + size)
    return slots, pools
