"""The memory of a compiled function, other than its caller's: arrays that are too large for the stack lie one behind the other. Where
they lie: `with_own_workspace` of llvm_ir.py."""

from __future__ import annotations

import math
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from hbc.compiler.tvm.nest.model_data import ALIGNED

ON_STACK = 1024
"""The bytes from which on an array does not stay on the stack, as TVM itself decides it."""


def with_workspace(function: Any, workspace: Any) -> tuple[Any, int]:
    """The body of a TIR function whose large arrays lie in `workspace`, a pointer to bytes; and how many bytes they take."""
    used = 0

    def place(statement: Any) -> Any:
        nonlocal used
        buffer = statement.buffer
        kind = tvm.DataType(str(buffer.dtype))
        size = math.prod(int(extent) for extent in buffer.shape) * kind.bits * kind.lanes // 8
        if size < ON_STACK and buffer.scope() != "local":  # of "local" TVM puts nothing on the stack
            return statement
        start, used = used, used + -(-size // ALIGNED) * ALIGNED
        data = tirx.call_intrin(buffer.data.ty, "tirx.handle_add_byte_offset", workspace, tirx.const(start, "int64"))
        return tirx.DeclBuffer(buffer, data=data)

    body = tvm_ffi.structural_map(function.body, (tirx.AllocBuffer, place))
    return body, used


def with_one_workspace(function: Any) -> Any:
    """A TIR function that allocates its large arrays at once, as TVM takes 30 ns to allocate and to free each of them."""
    used = with_workspace(function, tirx.decl_buffer((1,), "uint8").data)[1]
    if not used:
        return function
    workspace = tirx.decl_buffer((used,), "uint8", name="workspace")
    body, _ = with_workspace(function, workspace.data)
    statements = list(body) if isinstance(body, tirx.SeqStmt) else [body]
    result = [statements.pop()] if isinstance(statements[-1], tirx.Return) else []
    # TVM frees the memory behind the statements beside the allocation, and after a return nothing runs: the loops get a place of their own.
    loops = tirx.SeqStmt([tirx.AllocBuffer(workspace), statements.pop()])
    once = tirx.For(tirx.Var("once", "int64"), 0, 1, tirx.ForKind.SERIAL, loops)
    statements = [*statements, once, *result]
    body = tirx.SeqStmt(statements) if len(statements) > 1 else once
    made = tirx.PrimFunc(function.params, body, ret_type=function.ret_type)
    return made.with_attrs(function.attrs) if function.attrs else made
