"""The TVM backend: `compiler` has the compiler, `run` calls compiled code. Importing this imports tvm_ffi, TVM's calls of functions."""

from hbc.compiler.tvm.without_torch import without_torch

with without_torch():
    import tvm_ffi as tvm_ffi
