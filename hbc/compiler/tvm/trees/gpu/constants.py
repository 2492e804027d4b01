"""Constant memory of a GPU: numbers that all threads of a warp read at once. They come through a cache of their own (`LDC`), so such a read
takes no wavefront of shared memory."""

from __future__ import annotations

import hashlib

from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.tir.dialect import Expr
from hbc.ir.types import Array

CONSTANT_BYTES = 48 << 10
"""The most bytes that the trees of a model have there, of the 64 KB that a module may have."""
ELEMENT = 8
"""The bytes of a read."""


def read_constants(table: Array, at: Expr) -> list[Expr]:
    """Emit the read of a row of a table u32[N, W], W even, which becomes a part of the code. at: the byte where the row begins, as int32.
    Returns its words."""
    width = table.shape[1]
    assert table.dtype == "u4"
    assert width * table.itemsize % ELEMENT == 0
    name = f"hbc_constants_{hashlib.sha256(table.tobytes()).hexdigest()[:16]}"
    numbers = ", ".join(f"{low}u, {high}u" for low, high in table.reshape(-1, 2).tolist())
    reads = "".join(
        f"  uint2 v{i} = from[{i}];\n  words[{2 * i}] = v{i}.x;\n  words[{2 * i + 1}] = v{i}.y;\n" for i in range(width // 2)
    )
    code = (
        f"__constant__ __align__({ELEMENT}) unsigned int {name}[{table.size}] = {{{numbers}}};\n"
        f"__forceinline__ __device__ void {name}_read(unsigned int* words, int at) {{\n"
        f"  const uint2* from = (const uint2*)((const char*){name} + at);\n{reads}}}\n"
    )
    words = T.alloc_buffer((width,), "uint32", scope="local")
    T.evaluate(T.cuda.func_call(f"{name}_read", T.address_of(words[0]), at, source_code=code))
    return [T.Bind(words[tirx.const(i, "int32")]) for i in range(width)]
