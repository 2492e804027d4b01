"""What code is made of: expressions, their dtypes, and what differs between targets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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


@dataclass(frozen=True)
class Dialect:
    """What differs between targets. llvm: by LLVM's intrinsics; otherwise CUDA's C. fused: the target has a fused
    multiply-add, for sums whose order is free."""

    llvm: bool
    fused: bool = False
    wide: bool = False  # vector registers of 512 bits, 32 of them
    byte_permute: bool = False  # AVX-512 VBMI: a table of 64 or 128 bytes in registers, looked up by 64 lanes
    byte_lookup: bool = False  # AVX2: a table of 16 bytes, looked up by 32 lanes
    byte_masks: bool = False  # comparing bytes gives bytes of all or no bits, faster than comparing twice as many into a mask

    def tile(self, dtype: str) -> int:
        """Columns of a matrix product whose sums, for one vector of rows, fit the registers."""
        return 8 if self.wide else 4 if dtype == "f32" else 2
