"""How a kind of processor divides the rows of a call: blocks, vectors of rows, memory, and the tree kernels that there are.

CpuBlocks                                     GpuRows
for block in rows / 256:                      thread of row in rows:
    trees of the whole block                      all statements, for this row
    for chunk in block / 16:
        all statements, for 16 rows at once
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.plan.plan import ROWS_IN_STATEMENT, Plan
from hbc.compiler.tvm.tir.dialect import Dialect, Expr

THREADS_PER_BLOCK = 128  # of a CUDA launch


class Schedule(ABC):
    """The loops of a function on one kind of processor.

    lanes: the rows that one statement computes.
    scope: TVM's scope for memory that belongs to one thread.
    numbers_before_loops: whether the code reads the numbers of a model once, before its loops.
    flattens: whether each element may count as a row, if every element is computed by itself (`Plan.row`).
    own_code_for_full_vectors: whether a method of few values gets a second copy of its code, without tests for the end of the rows.
    tree_kernels: the strategies that it has kernels for. The first one runs every ensemble.
    usual_strategy: the strategy under "auto" and the reason; None if the costs decide.
    """

    lanes: int
    scope: str
    numbers_before_loops: bool
    flattens: bool
    own_code_for_full_vectors: bool
    tree_kernels: tuple[str, ...]
    usual_strategy: tuple[str, str] | None = None

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


class CpuBlocks(Schedule):
    """A core computes one block of rows after the other, so that the memory of a block stays in its caches. Vector instructions compute 16
    rows at once."""

    lanes = ROWS_IN_STATEMENT
    scope = "global"
    numbers_before_loops = True
    flattens = True
    own_code_for_full_vectors = True
    tree_kernels = ("walk", "patches", "scan")

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
        full, chunks = tirx.truncdiv(rows, lanes), tirx.truncdiv(rows + (self.lanes - 1), lanes)
        with T.serial(full if part == "rest" else tirx.const(0, "int64"), full if part == "full" else chunks) as chunk:
            start = T.Bind(chunk * self.lanes)
            yield start, lanes if part == "full" else T.Bind(tirx.Min(lanes, rows - start))

    def vector(self) -> AbstractContextManager[Expr]:
        return T.vectorized(tirx.const(self.lanes, "int64"))  # type: ignore[no-any-return]

    def each_row(self, count: Expr, partial: bool) -> AbstractContextManager[Expr]:
        lanes = tirx.const(self.lanes, "int64")
        first = tirx.truncdiv(count, lanes) * lanes if partial else tirx.const(0, "int64")
        return T.serial(first, count)  # type: ignore[no-any-return]


class GpuRows(Schedule):
    """Each thread of a CUDA launch computes one row, in registers and memory of its own."""

    lanes = 1
    scope = "local"
    numbers_before_loops = False
    flattens = False
    own_code_for_full_vectors = False
    tree_kernels: tuple[str, ...] = ("walk",)
    usual_strategy = ("walk", "each thread of a GPU walks one row from node to node")

    def rows_of_block(self, plan: Plan) -> int:
        return 1

    def register_bits(self, dialect: Dialect) -> int:
        return 0

    @contextmanager
    def blocks(self, first: Expr, end: Expr, block: int) -> Iterator[tuple[Expr, Expr]]:
        size = THREADS_PER_BLOCK
        count = tirx.Cast("int32", tirx.truncdiv(end - first + (size - 1), tirx.const(size, "int64")))
        with _launch("blockIdx.x", count) as number, _launch("threadIdx.x", tirx.const(size, "int32")) as thread:
            base = T.Bind(first + tirx.Cast("int64", number) * size + tirx.Cast("int64", thread))
            with T.If(tirx.LT(base, end)), T.Then():
                yield base, tirx.const(1, "int64")

    @contextmanager
    def chunks(self, rows: Expr, part: str) -> Iterator[tuple[Expr, Expr]]:
        yield tirx.const(0, "int64"), tirx.const(1, "int64")

    @contextmanager
    def vector(self) -> Iterator[Expr]:
        yield tirx.const(0, "int64")

    @contextmanager
    def each_row(self, count: Expr, partial: bool) -> Iterator[Expr]:
        yield tirx.const(0, "int64")


def schedule_of(gpu: bool) -> Schedule:
    """The schedule of a GPU or of a CPU."""
    return GpuRows() if gpu else CpuBlocks()


@contextmanager
def _launch(tag: str, extent: Expr) -> Iterator[Expr]:
    """The threads along one axis of a CUDA launch."""
    index = tirx.Var(tag.replace(".", "_"), "int32")
    axis = tirx.IterVar((tirx.const(0, "int32"), extent), index, tirx.IterVar.ThreadIndex, tag)
    with T.attr(axis, "thread_extent", extent):
        yield index
