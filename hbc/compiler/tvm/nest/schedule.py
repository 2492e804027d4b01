"""How a kind of processor divides the rows of a call: blocks, vectors of rows, memory, and the tree kernels that there are.

CpuBlocks                                     GpuRows                                 GpuTiles
for block in rows / 256:                      thread of row in rows:                  block of 512 threads, 4 rows each (or 256, 8):
    trees of the whole block                      all statements, for this row            trees of the whole block, tile by tile
    for chunk in block / 16:                                                              for row in the thread's rows:
        all statements, for 16 rows at once                                                   all statements, for this row

row_blocks.py has the schedule of few rows of models without trees.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from types import MappingProxyType
from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.plan.plan import ROWS_IN_STATEMENT, Plan
from hbc.compiler.tvm.tir.dialect import Dialect, Expr

THREADS_PER_BLOCK = 128  # of a CUDA launch
BLOCKS_OF_SM = 4
"""The blocks of `GpuRows` that an SM shall have room for at least: a thread may have 128 registers. Most take 40 or 48 then."""
TILED_BLOCKS_OF_SM = 2
"""The same for blocks that share memory, which has room for two. In blocks of 512 a thread may have 64 registers."""
MOST_UNROLLED = 8
"""The elements of a row whose code nvcc may repeat. If it does so for more, it loads many elements at once, and runs out of registers: a
softmax of 21 classes spilled 1,400 bytes."""
MANY_SETS = 65
"""From so many category sets on, ensembles by patches and ranges are walked. These kernels test no sets, so that each must be a column of 0
or 1 before the trees, which takes 1.1 to 1.3 ns a row. A walk takes 0.024 ns for a set (Zen 4)."""
SHARED = "shared.dyn"  # TVM's scope for memory of a block whose size the launch says; more than 48 KB are given in no other way


class Schedule(ABC):
    """The loops of a function on one kind of processor.

    lanes: the rows that one statement computes.
    scope: TVM's scope for memory that belongs to one thread.
    value_scope: TVM's scope for the memory of a plan's values; None: `scope`.
    numbers_before_loops: whether the code reads the numbers of a model once, before its loops.
    flattens: whether each element may count as a row, if every element is computed by itself (`Plan.row`).
    columns_in_trees: whether tree ensembles compute the columns that they compare, where they can (plan/tree_columns.py).
    own_code_for_full_vectors: whether a method of few values gets a second copy of its code, without tests for the end of the rows.
    tree_kernels: the strategies that it has kernels for. The first one runs every ensemble.
    joins_sets: the strategies of which category sets become a part of the ensemble (trees/categories.py), with the fewest sets.
    few: the schedule for calls of `few_rows` rows or fewer, whose code stands beside; None: there is none.
    """

    lanes: int
    scope: str
    value_scope: str | None = None
    numbers_before_loops: bool
    flattens: bool
    columns_in_trees: bool
    own_code_for_full_vectors: bool
    tree_kernels: tuple[str, ...]
    joins_sets: Mapping[str, int] = MappingProxyType({"scan": 0})
    few: Schedule | None = None
    few_rows: int = 0

    @property
    def fewest(self) -> Schedule:
        """The schedule for calls of one row."""
        return self if self.few is None else self.few.fewest

    @abstractmethod
    def rows_of_block(self, plan: Plan) -> int:
        """The rows of a block, which share the reading of a model."""

    @abstractmethod
    def register_bits(self, dialect: Dialect) -> int:
        """The bits of a vector register; 0 if rows are computed one by one."""

    @abstractmethod
    def blocks(self, first: Expr, end: Expr, block: int) -> AbstractContextManager[tuple[Expr, Expr]]:
        """Loop over the blocks of the rows `first` … `end`. Yields the first row of a block and its number of rows."""

    @abstractmethod
    def chunks(self, rows: Expr, part: str) -> AbstractContextManager[tuple[Expr, Expr]]:
        """Loop over the vectors of rows of a block. Yields the first row of a vector and its number of rows. part: "all" vectors, the
        "full" ones, or the "rest"."""

    @abstractmethod
    def vector(self) -> AbstractContextManager[Expr]:
        """Loop over the rows of a vector, all at once."""

    @abstractmethod
    def each_row(self, count: Expr, partial: bool) -> AbstractContextManager[Expr]:
        """Loop over the `count` rows of a vector, one after the other. partial: only if the vector is not full."""

    def each(self, size: int) -> AbstractContextManager[Expr]:
        """Loop over `size` elements of a row."""
        return T.serial(tirx.const(0, "int64"), tirx.const(size, "int64"))  # type: ignore[no-any-return]

    @contextmanager
    def grid(self, shape: Sequence[int]) -> Iterator[list[Expr]]:
        """Loop over the axes of a row's value. Yields the index of each axis; 0 for an axis of size 1."""
        with ExitStack() as stack:
            yield [stack.enter_context(self.each(size)) if size != 1 else 0 for size in shape]

    def computes(self, spreads: bool) -> AbstractContextManager[Any]:
        """A context for code that fills the memory of a value. spreads: the rounds of its `grid` may run in several threads."""
        return nullcontext()

    def writes(self) -> AbstractContextManager[Any]:
        """A context for code that writes results: in it, each result is written by one of the threads that compute a row."""
        return nullcontext()

    def arguments(self, given: Mapping[str, Any], first: Expr, end: Expr) -> Mapping[str, Any]:
        """The caller's arrays, by the names of the inputs, as the code of a block reads them. first: the first row of the block (or of the
        thread). end: that after the last one of the call."""
        return given

    def stages(self, names: Iterable[str]) -> bool:
        """Whether the code copies the rows of all these inputs to memory that threads share, before anything else."""
        return False


class CpuBlocks(Schedule):
    """A core computes one block of rows after the other, so that the memory of a block stays in its caches. Vector instructions compute 16
    rows at once."""

    lanes = ROWS_IN_STATEMENT
    scope = "global"
    numbers_before_loops = True
    flattens = True
    columns_in_trees = False
    own_code_for_full_vectors = True
    tree_kernels = ("walk", "patches", "ranges", "scan")
    joins_sets = MappingProxyType({"scan": 0, "walk": 0, "patches": MANY_SETS, "ranges": MANY_SETS})

    def rows_of_block(self, plan: Plan) -> int:
        return plan.rows

    def register_bits(self, dialect: Dialect) -> int:
        return 512 if dialect.wide else 256

    @contextmanager
    def blocks(self, first: Expr, end: Expr, block: int) -> Iterator[tuple[Expr, Expr]]:
        count = tirx.truncdiv(end - first + (block - 1), tirx.const(block, "int64"))
        with T.serial(tirx.const(0, "int64"), count) as number:
            base = T.Bind(first + number * block)
            yield base, T.Bind(tirx.Min(tirx.const(block, "int64"), end - base))

    @contextmanager
    def chunks(self, rows: Expr, part: str) -> Iterator[tuple[Expr, Expr]]:
        lanes = tirx.const(self.lanes, "int64")
        full = tirx.truncdiv(rows, lanes)
        if part == "rest":  # a loop of one or no round: LLVM takes a quarter less time than for a loop over vectors
            start = T.Bind(full * lanes)
            count = T.Bind(rows - start)
            with T.serial(tirx.const(0, "int64"), tirx.Cast("int64", tirx.LT(tirx.const(0, "int64"), count))):
                yield start, count
            return
        chunks = full if part == "full" else tirx.truncdiv(rows + (self.lanes - 1), lanes)
        with T.serial(tirx.const(0, "int64"), chunks) as chunk:
            start = T.Bind(chunk * self.lanes)
            yield start, lanes if part == "full" else T.Bind(tirx.Min(lanes, rows - start))

    def vector(self) -> AbstractContextManager[Expr]:
        return T.vectorized(tirx.const(self.lanes, "int64"))  # type: ignore[no-any-return]

    def each_row(self, count: Expr, partial: bool) -> AbstractContextManager[Expr]:
        lanes = tirx.const(self.lanes, "int64")
        first = tirx.truncdiv(count, lanes) * lanes if partial else tirx.const(0, "int64")
        return T.serial(first, count)  # type: ignore[no-any-return]


class GpuSchedule(Schedule):
    """What the schedules of a GPU have in common: a thread computes one row at a time, in registers and memory of its own."""

    lanes = 1
    scope = "local"
    numbers_before_loops = False
    flattens = False
    columns_in_trees = True
    own_code_for_full_vectors = False

    def register_bits(self, dialect: Dialect) -> int:
        return 0

    @contextmanager
    def vector(self) -> Iterator[Expr]:
        yield tirx.const(0, "int64")

    @contextmanager
    def each_row(self, count: Expr, partial: bool) -> Iterator[Expr]:
        yield tirx.const(0, "int64")


class GpuRows(GpuSchedule):
    """Each thread of a CUDA launch computes one row."""

    tree_kernels: tuple[str, ...] = ("walk",)

    def __init__(self, few: GpuSchedule | None = None, few_rows: int = 0) -> None:
        self.few, self.few_rows = few, few_rows

    def rows_of_block(self, plan: Plan) -> int:
        return 1

    @contextmanager
    def blocks(self, first: Expr, end: Expr, block: int) -> Iterator[tuple[Expr, Expr]]:
        size = THREADS_PER_BLOCK
        count = tirx.Cast("int32", tirx.truncdiv(end - first + (size - 1), tirx.const(size, "int64")))
        threads = launch("threadIdx.x", tirx.const(size, "int32"))
        with launch("blockIdx.x", count) as number, threads as thread, blocks_of_sm(BLOCKS_OF_SM):
            base = T.Bind(first + tirx.Cast("int64", number) * size + tirx.Cast("int64", thread))
            with T.If(tirx.LT(base, end)), T.Then():
                yield base, tirx.const(1, "int64")

    @contextmanager
    def chunks(self, rows: Expr, part: str) -> Iterator[tuple[Expr, Expr]]:
        yield tirx.const(0, "int64"), tirx.const(1, "int64")


LANES = 32  # threads of a warp
MOST_SHARED = 96 << 10
"""The bytes of shared memory that a block may have on every GPU from sm_80 on (sm_86 and sm_89 give 99 KB, sm_80 163, sm_90 227). An SM of
sm_90 has room for two such blocks."""
FEW_WARPS = 16
"""Warps of a block of `GpuFewRows`."""
WALKERS = FEW_WARPS - 1
"""Those of them that walk trees. The first one adds the values meanwhile. One after the other, 16 additions of float64 take about 190
clocks, and the walk of a tree of depth 8 about 740."""


ROWS_OF_WORD = 4
"""Rows of a thread whose bytes are one word of shared memory, so that each thread of a warp reads from a bank of its own."""


class GpuTiles(GpuSchedule):
    """Each thread of a CUDA launch computes four or eight consecutive rows. The threads of a block share memory, through which trees pass
    in tiles.

    It is good for ensembles, which all rows of a block walk at about the same time. Its limit is shared memory: see trees/gpu. Code of this
    schedule may have barriers: threads beyond the last row run it too, with no rows.
    """

    tree_kernels: tuple[str, ...] = ("walk", "levels", "wide_levels", "int8_gemm", "links", "far_links", "wide_links")

    def __init__(
        self,
        threads: int,
        shared: int,
        few: GpuFewRows | None = None,
        few_rows: int = 0,
        rows_of_thread: int = ROWS_OF_WORD,
        constant_bytes: int = 0,
    ) -> None:
        """threads: of a block. shared: the bytes of its shared memory. constant_bytes: of constant memory, for an ensemble."""
        self.threads, self.shared, self.few, self.few_rows = threads, shared, few, few_rows
        self.constant_bytes = constant_bytes
        self.rows_of_thread = rows_of_thread
        self.plane_rows = threads * self.rows_of_thread
        """The rows of a block, which nodes of trees count in (trees/gpu/levels.py)."""
        self.words = threads
        """The threads that have rows of their own: so many words of a plane lie side by side, for four rows of each thread."""
        self.thread = tirx.Var("threadIdx_x", "int32")
        self._memory: Any = None

    @property
    def word(self) -> Expr:
        """Which word of a plane is this thread's."""
        return self.thread

    def columns(self, count: int) -> AbstractContextManager[Expr]:
        """Loop over the ranked columns whose bytes this thread computes, out of `count`."""
        return T.serial(tirx.const(0, "int64"), tirx.const(count, "int64"))  # type: ignore[no-any-return]

    def rows_of_block(self, plan: Plan) -> int:
        return self.rows_of_thread

    @contextmanager
    def blocks(self, first: Expr, end: Expr, block: int) -> Iterator[tuple[Expr, Expr]]:
        size = self.words * block
        count = tirx.Cast("int32", tirx.truncdiv(end - first + (size - 1), tirx.const(size, "int64")))
        threads = launch("threadIdx.x", tirx.const(self.threads, "int32"), self.thread)
        with launch("blockIdx.x", count) as number, threads, blocks_of_sm(TILED_BLOCKS_OF_SM):
            self._memory = T.alloc_buffer((self.shared,), "uint8", scope=SHARED, layout=None)
            base = T.Bind(first + tirx.Cast("int64", number) * size + tirx.Cast("int64", self.word) * block)
            rows = T.Bind(tirx.Max(tirx.Min(end - base, tirx.const(block, "int64")), tirx.const(0, "int64")))
            yield base, rows

    @contextmanager
    def chunks(self, rows: Expr, part: str) -> Iterator[tuple[Expr, Expr]]:
        # nvcc unrolls a loop of constant bounds, and may then keep the rows' values in registers.
        all_rows = T.serial(tirx.const(0, "int64"), tirx.const(self.rows_of_thread, "int64"))
        with all_rows as row, T.If(tirx.LT(row, rows)), T.Then():
            yield row, tirx.const(1, "int64")

    def each(self, size: int) -> AbstractContextManager[Expr]:
        whole = {} if size <= MOST_UNROLLED else {"annotations": {"disable_unroll": True}}
        return T.serial(tirx.const(0, "int64"), tirx.const(size, "int64"), **whole)  # type: ignore[no-any-return]

    def view(self, dtype: str, start: Expr = None) -> Any:
        """The shared memory of the block as elements of a dtype, inside of `blocks`. start: the byte where they begin; None: the first one.

        With the same start, several reads take an instruction less each: nvcc then finds that they share an address.
        """
        data = self._memory.data
        if start is not None:
            data = T.Bind(T.address_of(self._memory[start]))
        return T.decl_buffer((1 << 30,), dtype, data=data, scope=SHARED, layout=None)

    def barrier(self) -> None:
        """Emit a barrier: what threads of the block have written to shared memory before it, others may read after it."""
        T.evaluate(T.tvm_storage_sync("shared"))


class GpuFewRows(GpuTiles):
    """The 16 warps of a block have the same 32 rows, a lane for each row, and share the work: columns to rank, and trees to walk.

    It is good for calls of few rows, in which `GpuTiles` would leave most of the card idle: a row waits for every 15th tree instead of all,
    one after the other. Its limit: each block of 32 rows reads all trees, so many blocks wait for L2. All warps run the code before and
    after trees, and one of them writes the results.

    Rows that are not long (`STAGED_BYTES` of trees/gpu/choice.py) are copied to shared memory first, by all threads together. So a row
    waits for memory once, and not once for each column that a warp has, and rows may lie in the host's memory.
    """

    together = LANES
    """The rows of a block. So many threads, one after the other, have different ones."""

    def __init__(
        self, plane_rows: int, shared: int, staged: Mapping[str, int], few: GpuLaneTrees | None = None, few_rows: int = 0
    ) -> None:
        """plane_rows: those of the `GpuTiles` beside it, whose trees it walks. staged: the name of each input that is copied, and
        where its rows begin: the number of the element, as if all of shared memory had its dtype."""
        super().__init__(LANES * FEW_WARPS, shared, few, few_rows, rows_of_thread=1)
        self.plane_rows, self.words, self.staged = plane_rows, self.together, staged

    @property
    def word(self) -> Expr:
        return tirx.truncmod(self.thread, tirx.const(self.together, "int32"))

    def stages(self, names: Iterable[str]) -> bool:
        return self.staged.keys() >= set(names)

    def arguments(self, given: Mapping[str, Any], first: Expr, end: Expr) -> Mapping[str, Any]:
        found = {name: self._copied(self.staged[name], given[name], first, end) for name in self.staged if name in given}
        if found:
            self.barrier()
        return {**given, **found}

    def _copied(self, start: int, argument: Any, first: Expr, end: Expr) -> StagedRows:
        """Emit the copy of the block's rows of an input to shared memory, from its element `start` on: neighbours copy neighbours."""
        columns = int(argument.shape[1])
        memory, stride = self.view(str(argument.dtype)), staged_stride(columns)
        before = T.Bind(first - tirx.Cast("int64", self.word))
        turns = -(-self.together * columns // self.threads)
        with T.serial(tirx.const(0, "int32"), tirx.const(turns, "int32")) as turn:
            at = T.Bind(turn * self.threads + self.thread)
            row = T.Bind(tirx.truncdiv(at, tirx.const(columns, "int32")))
            from_row = T.Bind(before + tirx.Cast("int64", row))
            inside = tirx.And(tirx.LT(row, tirx.const(self.together, "int32")), tirx.LT(from_row, end))
            with T.If(inside), T.Then():
                column = tirx.truncmod(at, tirx.const(columns, "int32"))
                T.buffer_store(memory, argument[from_row, tirx.Cast("int64", column)], [row * stride + column + start])
        return StagedRows(memory, self.word * stride + start)

    @property
    def group(self) -> Expr:
        """The number of the thread's group in the block: threads that have all of its rows. It is a warp here."""
        return tirx.truncdiv(self.thread, tirx.const(self.together, "int32"))

    @contextmanager
    def columns(self, count: int) -> Iterator[Expr]:
        group, groups = tirx.Cast("int64", self.group), self.threads // self.together
        with T.serial(tirx.const(0, "int64"), tirx.const(-(-count // groups), "int64")) as turn:
            column = T.Bind(turn * groups + group)
            with T.If(tirx.LT(column, tirx.const(count, "int64"))), T.Then():
                yield column

    @contextmanager
    def writes(self) -> Iterator[None]:
        with T.If(tirx.LT(self.thread, tirx.const(self.together, "int32"))), T.Then():
            yield


class GpuLaneTrees(GpuFewRows):
    """The threads of a block have the same row. Each ranks another column, and each but those of the last warp walks another tree.

    It is good for calls of so few rows that SMs have room for a block of each: a row waits for every 480th tree. The trees stay in the
    card's memory. Its limit is L2, from which each row reads its own way through all trees (trees/gpu/lanes.py).
    """

    together = 1

    @contextmanager
    def last_warp(self) -> Iterator[Expr]:
        """A context for code of the last 32 threads. Yields a thread's number among them."""
        first = tirx.const(WALKERS * LANES, "int32")
        with T.If(tirx.LE(first, self.thread)), T.Then():
            yield T.Bind(self.thread - first)


class StagedRows:
    """Rows of an input in shared memory. A thread reads its own, with the indices of the input."""

    def __init__(self, memory: Any, start: Expr) -> None:
        self.memory, self.start = memory, start

    def __getitem__(self, at: tuple[Expr, ...]) -> Expr:
        _, column = at
        return self.memory[tirx.Cast("int64", self.start) + column]


def staged_stride(columns: int) -> int:
    """The distance of rows of so many columns in shared memory. It is odd: threads that read the same column use different banks."""
    return columns | 1


def schedule_of(gpu: bool) -> Schedule:
    """The schedule of a GPU or of a CPU."""
    return GpuRows() if gpu else CpuBlocks()


def blocks_of_sm(count: int) -> AbstractContextManager[Any]:
    """A context for code of which an SM shall hold `count` blocks.

    nvcc gives threads as many registers as this allows. Where it is not told, it gives them fewer, and spills: 320 bytes in a softmax of
    five classes in levels, 48 in the leaf numbers of 45 walked trees (32 and 96 registers, which then take 64 and 107).
    """
    least = "tirx.launch_bounds_min_blocks_per_sm"
    return T.attr(tirx.const(0, "int32"), least, tirx.const(count, "int64"))  # type: ignore[no-any-return]


@contextmanager
def launch(tag: str, extent: Expr, index: Expr = None) -> Iterator[Expr]:
    """The threads along one axis of a CUDA launch. index: the variable of their numbers; None: a new one."""
    index = tirx.Var(tag.replace(".", "_"), "int32") if index is None else index
    axis = tirx.IterVar((tirx.const(0, "int32"), extent), index, tirx.IterVar.ThreadIndex, tag)
    with T.attr(axis, "thread_extent", extent):
        yield index
