"""Makes a C function of the TIR function of a method. It needs nothing of TVM's runtime, and memory only from its caller.

    run(inputs…, tables…, outputs…, first row, end row[, bound, passed], sizes…, workspace)

Pointers stand for the buffers, and `sizes` for what their shapes leave open (the rows, the length of a table). `passed` is where a function
that tests its input writes 1 if all of it passed, else 0. `workspace` is memory for all values that would not fit on the stack. So a
function is reentrant, and may run in any number of threads, with a workspace each.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import tvm
from tvm import ir, tirx
from tvm.tirx.build import codegen_build

from hbc.compiler.tvm.run.llvm_ir import with_aligned_arrays
from hbc.compiler.tvm.run.targets import Machine, first_passes
from hbc.compiler.tvm.run.workspace import with_workspace
from hbc.lazy import record
from hbc.process import shielded


@record
class Plain:
    """Functions as LLVM's IR. `sizes`: by function, the (parameter, axis) that each size stands for, in the order of the arguments; the
    parameter of the TIR function is given by its number. `workspace`: by function, the bytes that it needs, beginning at a multiple of
    ALIGNED."""

    text: str
    sizes: Mapping[str, tuple[tuple[int, int], ...]]
    workspace: Mapping[str, int]

    @property
    def size_t(self) -> str:
        """The type of sizes of memory in IR: as wide as pointers. IR says where these have other than 64 bits."""
        return "i32" if re.search(r'(?m)^target datalayout = "[^"]*-p:32:', self.text) else "i64"


def compile_plain(functions: Mapping[str, Any], where: Machine) -> Plain:
    """TIR functions by name as C functions, optimized for a processor. All return an int32 of 0, the only result that TVM knows here."""
    made, sizes, workspace = {}, {}, {}
    passes = tirx.transform
    first = tvm.ir.transform.Sequential(first_passes())
    for name, function in functions.items():
        with_pointers, sizes[name] = _with_pointers(function, name)
        bound = passes.BindTarget(where.target.with_host(where.target))(tvm.IRModule({name: with_pointers}))
        made[name], workspace[name] = _with_workspace(first(bound)[name])
    last = tvm.ir.transform.Sequential([passes.LowerTVMBuiltin(), passes.LowerIntrin()])
    module = last(tvm.IRModule(made))
    text = shielded(lambda: str(codegen_build(module, where.target).inspect_source("ll")))
    return Plain(with_aligned_arrays(text), sizes, workspace)


def _with_pointers(function: Any, name: str) -> tuple[Any, tuple[tuple[int, int], ...]]:
    """The function with pointers in place of buffers, followed by its open sizes; and the (parameter, axis) of these."""
    parameters: list[Any] = []
    buffers: list[Any] = []
    sizes: dict[Any, tuple[int, int]] = {}
    for number, parameter in enumerate(function.params):
        if not isinstance(parameter.ty, tirx.BufferType):
            parameters.append(parameter)
            continue
        pointer = tirx.Var(parameter.name, ir.PointerType(ir.PrimType(str(parameter.dtype))))
        parameters.append(pointer)
        buffers.append(tirx.DeclBuffer(parameter, data=pointer))
        for axis, size in enumerate(parameter.shape):
            if isinstance(size, tirx.Var):
                sizes.setdefault(size, (number, axis))
    statements = list(function.body) if isinstance(function.body, tirx.SeqStmt) else [function.body]
    if isinstance(statements[-1], tirx.Return):  # of `passed`, which the function allocates first: see hbc.compiler.tvm.build
        passed = statements[0].buffer
        parameters.append(tirx.Var("passed", ir.PointerType(ir.PrimType("int64"))))
        statements = [tirx.DeclBuffer(passed, data=parameters[-1]), *statements[1:-1]]
    body = tirx.SeqStmt([*buffers, *statements, tirx.Return(tirx.const(0, "int32"))])
    made = tirx.PrimFunc([*parameters, *sizes], body, ret_type=ir.PrimType("int32"))
    return made.with_attr("tirx.noalias", True).with_attr("global_symbol", name), tuple(sizes.values())


def _with_workspace(function: Any) -> tuple[Any, int]:
    """The function with one more argument, in which the arrays lie that TVM would allocate at run time; and its size in bytes."""
    workspace = tirx.Var("workspace", ir.PointerType(ir.PrimType("uint8")))
    body, used = with_workspace(function, workspace)
    made = tirx.PrimFunc([*function.params, workspace], body, ret_type=function.ret_type, attrs=function.attrs)
    return made, used
