"""The operators. Graphs are read back by their names, for which `import_all` imports every file of them."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache


@cache
def import_all() -> None:
    """Import every module of this package, so that hbc.ir.graph.OPERATORS holds all operators."""
    for module in pkgutil.walk_packages(__path__, f"{__name__}."):
        importlib.import_module(module.name)
