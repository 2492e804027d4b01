"""Few rows of models without trees on a GPU: the threads of a block share the columns of one row."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.nest.function import unflatten
from hbc.compiler.tvm.nest.schedule import BLOCKS_OF_SM, GpuRows, GpuSchedule, Schedule, blocks_of_sm, launch
from hbc.compiler.tvm.plan.plan import Plan
from hbc.compiler.tvm.plan.sizes import bytes_of, elements
from hbc.compiler.tvm.tir.dialect import Expr
from hbc.ir.types import TensorType
from hbc.ops.tree import TreeEnsemble

THREADS = 128
MOST_ROWS = 1 << 11
"""The most rows of a call that get a block each: as many as an H200 holds at once, sixteen blocks of 128 threads an SM."""
LEAST_NANOSECONDS = 50.0
"""The least time of a row, by the estimate for a core of a CPU (`build.cost`), for which blocks pay. A thread of a GPU that waits for each
fourth number of a matrix takes some 300 times as long as that core (guessed): 15 µs."""
MOST_BYTES = 40 << 10
"""The most bytes of a row's values. A block may have 48 KB of arrays of fixed size, and the caller's row takes some too."""
STAGED_BYTES = 8 << 10
"""The most bytes of the caller's row that are copied to shared memory."""


class GpuRowBlocks(GpuSchedule):
    """The threads of a block have the same row. They share the elements of each of its values, which lie in shared memory.

    It is good for calls of few rows of models that compute much for each of them, such as a layer of 100 neurons or the distances to 1,000
    points: `GpuRows` would have one thread do all of it. Each element is computed in the same order as there, so results have the same
    bits. Its limit: every block reads the whole model, and an operator whose loops depend on each other (`Emission.spreads`) still has one
    thread.
    """

    value_scope = "shared"
    tree_kernels = ()

    def __init__(self, staged: Iterable[str]) -> None:
        """staged: the names of the inputs whose rows are copied to shared memory, by all threads together."""
        self.staged = frozenset(staged)
        self.thread = tirx.Var("threadIdx_x", "int32")
        self._spreading = False

    def rows_of_block(self, plan: Plan) -> int:
        return 1

    @contextmanager
    def blocks(self, first: Expr, end: Expr, block: int) -> Iterator[tuple[Expr, Expr]]:
        threads = launch("threadIdx.x", tirx.const(THREADS, "int32"), self.thread)
        with launch("blockIdx.x", tirx.Cast("int32", end - first)) as number, threads, blocks_of_sm(BLOCKS_OF_SM):
            yield T.Bind(first + tirx.Cast("int64", number)), tirx.const(1, "int64")

    @contextmanager
    def chunks(self, rows: Expr, part: str) -> Iterator[tuple[Expr, Expr]]:
        yield tirx.const(0, "int64"), tirx.const(1, "int64")

    @contextmanager
    def grid(self, shape: Sequence[int]) -> Iterator[list[Expr]]:
        if not self._spreading:
            with super().grid(shape) as index:
                yield index
            return
        self._spreading = False  # the loops inside are the thread's own
        with self._shared_out(math.prod(shape)) as at:
            yield unflatten(at, shape)
        self._spreading = True

    @contextmanager
    def _shared_out(self, count: int) -> Iterator[Expr]:
        """Loop over those of `count` elements that this thread has."""
        with T.serial(tirx.const(0, "int64"), tirx.const(-(-count // THREADS), "int64")) as turn:
            at = T.Bind(turn * THREADS + tirx.Cast("int64", self.thread))
            with T.If(tirx.LT(at, tirx.const(count, "int64"))), T.Then():
                yield at

    @contextmanager
    def computes(self, spreads: bool) -> Iterator[None]:
        if spreads:
            with self._spread():
                yield
        else:
            with T.If(tirx.EQ(self.thread, tirx.const(0, "int32"))), T.Then():
                yield
        self._barrier()

    def writes(self) -> AbstractContextManager[Any]:
        return self._spread()

    @contextmanager
    def _spread(self) -> Iterator[None]:
        self._spreading = True
        yield
        self._spreading = False

    def _barrier(self) -> None:
        T.evaluate(T.tvm_storage_sync("shared"))

    def stages(self, names: Iterable[str]) -> bool:
        return self.staged >= set(names)

    def arguments(self, given: Mapping[str, Any], first: Expr, end: Expr) -> Mapping[str, Any]:
        found = {name: self._copied(argument, first) for name, argument in given.items() if name in self.staged}
        if found:
            self._barrier()
        return {**given, **found}

    def _copied(self, argument: Any, row: Expr) -> StagedRow:
        """Emit the copy of a row of an input to shared memory."""
        columns = int(argument.shape[1])
        memory = T.alloc_buffer((columns,), str(argument.dtype), scope=self.value_scope)
        with self._shared_out(columns) as column:
            T.buffer_store(memory, argument[row, column], [column])
        return StagedRow(memory)


class StagedRow:
    """A row of an input in shared memory. It is read with the indices of the input."""

    def __init__(self, memory: Any) -> None:
        self.memory = memory

    def __getitem__(self, at: tuple[Expr, ...]) -> Expr:
        _, column = at
        return self.memory[column]


def with_row_blocks(schedule: Schedule, plan: Plan, nanoseconds: float) -> Schedule:
    """The schedule of a method, with `GpuRowBlocks` for few rows where these pay. nanoseconds: what a row of the plan takes."""
    if not isinstance(schedule, GpuRows) or nanoseconds < LEAST_NANOSECONDS:
        return schedule
    if any(isinstance(node.op, TreeEnsemble) for node in plan.steps):
        return schedule
    if sum(count * bytes_of(dtype) for (dtype, _), count in plan.pools.items()) > MOST_BYTES:
        return schedule
    inputs = {node.op.name: node.type for node in plan.inputs}  # type: ignore[attr-defined]
    staged = inputs if sum(_staged_bytes(kind) for kind in inputs.values()) <= STAGED_BYTES else ()
    return GpuRows(GpuRowBlocks(staged), MOST_ROWS)


def _staged_bytes(kind: TensorType) -> float:
    """The bytes of a row of an input in shared memory; infinity if it cannot be there."""
    matrix = len(kind.shape) == 2 and kind.dtype != "bool"
    return elements(kind) * bytes_of(kind.dtype) if matrix else math.inf
