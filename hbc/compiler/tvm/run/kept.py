"""Methods of the cache on disk: their interface, their code and their tables."""

from __future__ import annotations

from weakref import WeakValueDictionary

import numpy as np

from hbc.cache.shelf import Shelf
from hbc.compiler.memory import as_aligned
from hbc.compiler.tvm.plan.interface import Interface
from hbc.compiler.tvm.run.code import Code, load_library
from hbc.ir.types import Array, TensorType

Test = tuple[bool, bool, int]
"""What the function tests of its input: the sum of squares, without NaN, and a number of conditions."""
UNTESTED: Test = (False, False, 0)
Found = tuple[Interface, Code, tuple[Array, ...]]

_tables: WeakValueDictionary[tuple[str, str], Array] = WeakValueDictionary()
"""(dtype, digest) → the table, while some method has it: a classifier's methods read the same trees."""


def keep_method(shelf: Shelf, method: str, test: Test, interface: Interface, code: Code, tables: tuple[Array, ...]) -> None:
    """Put a compiled method on the shelf, if its code is a library."""
    if code.library is None:
        return
    document = {
        "inputs": interface.inputs,
        "outputs": [[kind.dtype, kind.shape] for kind in interface.outputs],
        "rows": interface.rows,
        "block": interface.block,
        "cost": interface.cost,
        "bounded": interface.bounded,
        "conditions": interface.conditions,
        "code": shelf.store.put(code.library),
        "tables": [[str(table.dtype), shelf.store.put(table.data.cast("B"))] for table in tables],
    }
    shelf.refer(_name(method, test), document)
    shelf.store.shrink()


def find_method(shelf: Shelf, method: str, test: Test) -> Found | None:
    """A method that `keep_method` put on the shelf, or None."""
    document = shelf.find(_name(method, test))
    if document is None:
        return None
    library = shelf.store.get(document["code"])
    tables = [_table(shelf, *entry) for entry in document["tables"]]
    if library is None or any(table is None for table in tables):
        return None
    interface = Interface(
        inputs=tuple(document["inputs"]),
        outputs=tuple(TensorType(dtype, tuple(shape)) for dtype, shape in document["outputs"]),
        rows=document["rows"],
        block=document["block"],
        cost=document["cost"],
        bounded=document["bounded"],
        conditions=document["conditions"],
        over_bus=False,  # code for a GPU is not kept
    )
    return interface, load_library(library, found=True), tuple(tables)  # type: ignore[arg-type]


def _table(shelf: Shelf, dtype: str, digest: str) -> Array | None:
    """The table, in memory that begins where compiled code expects it, or None."""
    found = _tables.get((dtype, digest))
    if found is None:
        data = shelf.store.view(digest)
        if data is None:
            return None
        table: Array = np.frombuffer(data, dtype)
        _tables[dtype, digest] = found = as_aligned(table)
    return found


def _name(method: str, test: Test) -> str:
    return f"{method} {test}"
