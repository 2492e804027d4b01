"""The backends of all tables of tests: hbc's own, as far as they are installed."""

from __future__ import annotations

from hbc.compiler.base import is_available

ALL = ("numpy", "torch", "torchscript", "onnx", "tvm")
BACKENDS = [name for name in ALL if is_available(name)]
"""numpy, which is always there and the others' reference, comes first."""
COMPILED = BACKENDS[1:]
"""Those that compile."""


def installed(*names: str) -> list[str]:
    """Those of the named backends that are installed."""
    assert set(names) <= set(ALL), names
    return [name for name in names if name in BACKENDS]
