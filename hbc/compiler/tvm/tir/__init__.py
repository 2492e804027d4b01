"""Expressions and vector statements of TIR, and the elementary functions made of them. Knows no graph and no operator."""

from hbc.compiler.tvm.lean_imports import lean_imports

with lean_imports():
    import tvm as tvm

    tvm.script.register_dialect("relax", "tvm.relax.script")  # as tvm.relax does, which is imported at its first use
