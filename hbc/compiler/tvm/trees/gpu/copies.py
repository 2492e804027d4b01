"""Copies from the card's memory to the shared memory of a block. The threads begin them, go on, and wait for them later."""

from __future__ import annotations

from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.nest.function import Block
from hbc.compiler.tvm.nest.schedule import GpuTiles
from hbc.compiler.tvm.tir.dialect import Expr
from hbc.compiler.tvm.trees.gpu.tile_sizes import PIECE
from hbc.ir.types import NUMPY_DTYPES, Array


def begin_copy(f: Block, schedule: GpuTiles, array: Array, dtype: str, first: Expr, count: Expr, place: Expr) -> None:
    """Emit what begins to copy pieces of a constant array to a byte of shared memory, each by another thread."""
    memory, threads, thread, size = schedule.view("int32"), schedule.threads, schedule.thread, NUMPY_DTYPES[dtype].itemsize
    # If nvcc unrolls this loop, it keeps the address of shared memory in another kind of register, and a step of a row takes an
    # instruction more.
    rounds = T.Bind(tirx.truncdiv(count - thread + (threads - 1), tirx.const(threads, "int32")))
    with T.serial(tirx.const(0, "int32"), rounds, annotations={"disable_unroll": True}) as number:
        at = T.Bind(number * threads + thread)
        source = f.constant(array, dtype, tirx.Cast("int64", first + at) * (PIECE // size))
        target = memory[tirx.shift_right(place, tirx.const(2, "int32")) + at * (PIECE // 4)]
        T.evaluate(T.ptx["cp.async.cg.shared.global"](T.address_of(target), T.address_of(source), PIECE))


def wait_for_copies(schedule: GpuTiles) -> None:
    """Emit what waits until all threads have copied what they began to copy."""
    T.evaluate(T.ptx["cp.async.wait_all"]())
    schedule.barrier()
