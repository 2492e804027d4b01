"""The optional libraries that are installed. The suite also runs without them: a test file is collected if the libraries that it imports
at its top are there, and the table of estimators has the families whose libraries are there.

`HBC_TEST_WITHOUT=torch,tvm` hides libraries that are installed, as if they were not (`ALL` hides every optional one).
"""

from __future__ import annotations

import ast
import functools
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

OPTIONAL = (
    *("tvm", "tvm_ffi", "torch", "onnx", "onnxruntime", "sklearn", "scipy", "joblib", "lightgbm", "xgboost", "catboost"),
    *("pandas", "polars", "pyarrow", "duckdb", "skl2onnx", "onnxmltools", "category_encoders", "dask"),
    *("starlette", "uvicorn", "httptools", "uvloop", "orjson", "tritonclient", "grpc", "google"),
)
"""The libraries that hbc or its tests import, besides numpy, typer, narwhals and pytest."""

NEEDS = {
    "hbc.compiler.tvm": ("tvm",),
    "hbc.compiler.torch": ("torch",),
    "hbc.compiler.onnx": ("onnx", "onnxruntime"),
    "hbc.parser.onnxml": ("onnx",),
    "avx512_on_cpu": ("tvm", "tvm_ffi"),
    "cuda_on_cpu": ("tvm", "tvm_ffi"),
    "hbc.adapters": ("orjson",),
    "hbc.serve.grpc": ("grpc", "google"),
    "hbc.serve": ("starlette", "uvicorn", "httptools", "uvloop", "orjson"),
    "benchmarks": ("sklearn", "lightgbm", "xgboost", "scipy"),
    "datasets": ("sklearn", "pandas"),
}
"""Modules of ours that import libraries."""

TESTS = Path(__file__).parent
OLD_LIBRARIES = bool(os.environ.get("HBC_OLD_LIBRARIES"))
"""Whether cases are left out of which the installed libraries do not know an option (`make test-least`)."""
PACKAGES = {"sklearn": "scikit-learn", "xgboost": "xgboost-cpu"}
"""Library → the package that has it, if it has another name."""


class _Hiding:
    """Python's finder of installed modules (and of distributions), but for the modules of some libraries."""

    find_distributions = staticmethod(importlib.machinery.PathFinder.find_distributions)
    invalidate_caches = staticmethod(importlib.machinery.PathFinder.invalidate_caches)

    def __init__(self, hidden: set[str]) -> None:
        self.hidden = hidden

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        hidden = name.partition(".")[0] in self.hidden
        return None if hidden else importlib.machinery.PathFinder.find_spec(name, path, target)


def hide(text: str) -> None:
    """Hide the libraries of HBC_TEST_WITHOUT from this process. Called before anything of them is imported."""
    hidden = {name.strip() for name in text.split(",") if name.strip()}
    hidden = set(OPTIONAL) if hidden == {"ALL"} else hidden
    if unknown := hidden - set(OPTIONAL):
        raise ValueError(f"HBC_TEST_WITHOUT names {', '.join(sorted(unknown))}; what can be hidden is {', '.join(OPTIONAL)}")
    if hidden:
        finders: list[Any] = [
            _Hiding(hidden) if finder is importlib.machinery.PathFinder else finder for finder in sys.meta_path
        ]
        sys.meta_path[:] = finders


hide(os.environ.get("HBC_TEST_WITHOUT", ""))
ABSENT = frozenset(name for name in OPTIONAL if importlib.util.find_spec(name) is None)


def older(library: str, *release: int) -> bool:
    """Whether the installed release of a library is before that one: for tests of what the library has since then."""
    installed = importlib.metadata.version(PACKAGES.get(library, library))
    return tuple(map(int, re.findall(r"\d+", installed)[: len(release)])) < release


def reads(library: str, form: str) -> bool:
    """Whether the installed release of a library takes frames of the kind that the first word of `form` names. hbc takes what newer ones
    take."""
    since = {("lightgbm", "polars"): (4, 7), ("lightgbm", "arrow"): (4, 7), ("catboost", "polars"): (1, 2, 9)}
    release = since.get((library, re.split(r"\W", form, maxsplit=1)[0]))
    return release is None or not older(library, *release)


@functools.cache
def missing(path: Path) -> frozenset[str]:
    """The libraries that a file of the tests needs and that are not installed: it imports them at its top, or a module of the tests that it
    imports does. The families of the table of estimators import theirs when they fit a model."""
    if not ABSENT:
        return frozenset()
    found: set[str] = set()
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree) if path.parent.name == "estimators" else tree.body:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            found.update({name.partition(".")[0]} & ABSENT)
            for module, libraries in NEEDS.items():
                if name == module or name.startswith(f"{module}."):
                    found.update(ABSENT & set(libraries))
            for local in (folder.joinpath(*name.split(".")) for folder in (TESTS, path.parent)):
                for other in (local.with_suffix(".py"), local / "__init__.py"):
                    if other.exists() and other != path:
                        found |= missing(other)
    return frozenset(found)
