"""The TVM backend: `compiler` has the compiler, `run` calls compiled code. Importing this imports tvm_ffi, TVM's calls of functions."""

from hbc.compiler.tvm.lean_imports import lean_imports

with lean_imports():
    import tvm_ffi as tvm_ffi
