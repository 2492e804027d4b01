"""The basic types of generated code: expressions, their dtypes, and the differences between targets."""

from __future__ import annotations

from typing import Any

from hbc.lazy import record

Expr = Any  # a TIR expression; TVM has no type annotations

DTYPES = {
    "bool": "bool",
    "i8": "int8",
    "u8": "uint8",
    "i16": "int16",
    "u16": "uint16",
    "i32": "int32",
    "i64": "int64",
    "f32": "float32",
    "f64": "float64",
}
FLOATS = ("f32", "f64")


@record
class Dialect:
    """The differences between targets that generated code depends on.

    llvm: the target is compiled by LLVM, so its intrinsics may be used. Otherwise the code becomes CUDA C.
    fused: the target has a fused multiply-add. It is used in sums whose rounding is free.
    """

    llvm: bool
    fused: bool = False
    wide: bool = False  # vector registers of 512 bits, 32 of them
    byte_permute: bool = False  # AVX-512 VBMI: 64 lanes look up bytes in a table of 64 or 128 bytes, held in registers
    byte_lookup: bool = False  # AVX2 and NEON: lanes look up bytes in a table of 16 bytes
    neon: bool = False  # such a look-up is one of NEON, and the table has up to 64 bytes
    byte_masks: bool = False  # compare 32 bytes into bytes 0 or 255: faster here than comparing 64 bytes into a mask of bits
    quick_walks: bool = False  # many rows walk some deep trees sooner than they go through patches

    @property
    def avx2(self) -> bool:
        """Whether there are registers of 32 bytes, with AVX2's instructions for them."""
        return self.byte_lookup and not self.neon

    @property
    def only_avx2(self) -> bool:
        """Whether AVX2 compares and looks up bytes, and no larger registers do."""
        return self.avx2 and self.byte_masks and not self.byte_permute

    def tile(self, dtype: str, columns: int) -> int:
        """How many columns of a matrix product are summed together: their sums for one vector of rows fit in the registers.

        Eight sums of float32 wait for each other: a layer of 600 to 512 ran at 0.95 times scikit-learn's speed, with 16 sums at 1.18 times
        (Zen 5). With few columns more of the sums would be padding."""
        if self.wide:
            return 16 if dtype == "f32" and columns >= 64 else 8
        return 4 if dtype == "f32" else 2
