"""hbc compiles fitted models and pipelines of traditional machine learning into tensor programs: `hbc.convert(pipeline, backend="tvm")`.

`import hbc` imports numpy only. Parsers, compilers and their libraries are imported by the first call that needs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hbc.errors import (
    ArtifactError,
    BackendUnavailableError,
    DeviceMemoryError,
    FrozenModelError,
    HbcError,
    InvalidInputError,
    NotFittedError,
    UnsupportedOperatorError,
)
from hbc.version import VERSION

if TYPE_CHECKING:
    from hbc.api import backends, convert, strategies, supported_operators, tune
    from hbc.loading import load
    from hbc.parser.registry import converts
    from hbc.runtime.model import CompiledModel
    from hbc.scoring.run import score

_LAZY = {
    "convert": "hbc.api",
    "load": "hbc.loading",
    "backends": "hbc.api",
    "strategies": "hbc.api",
    "supported_operators": "hbc.api",
    "tune": "hbc.api",
    "converts": "hbc.parser.registry",
    "CompiledModel": "hbc.runtime.model",
    "score": "hbc.scoring.run",
}

__all__ = [
    "ArtifactError",
    "BackendUnavailableError",
    "CompiledModel",
    "DeviceMemoryError",
    "FrozenModelError",
    "HbcError",
    "InvalidInputError",
    "NotFittedError",
    "UnsupportedOperatorError",
    "backends",
    "convert",
    "converts",
    "load",
    "score",
    "strategies",
    "supported_operators",
    "tune",
]
__version__ = VERSION


if not TYPE_CHECKING:  # with this function in sight, a type checker would accept any name after `hbc.`

    def __getattr__(name: str) -> Any:
        if name not in _LAZY:
            from hbc.hummingbird import NAMES

            raise AttributeError(f"module 'hbc' has no attribute {name!r}" + (f". {NAMES[name]}" if name in NAMES else ""))
        import importlib

        value = getattr(importlib.import_module(_LAZY[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
