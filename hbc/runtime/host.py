"""A compiled graph with the host's parts around it: strings are encoded before the device, and class labels looked up after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hbc.cache.shelf import Shelf
from hbc.compiler.base import Direct, Executable, OnCard, Quick, ReadPart, no_quick_way, quick_of
from hbc.ir.coded_strings import dense
from hbc.ir.graph import Graph, gives_rows, topological
from hbc.ir.rows import Rows
from hbc.ir.types import NUMPY_DTYPES, Array
from hbc.lazy import cached_property, record

ROWS_AT_ONCE = 4096
"""If the host makes Rows from text: the number of rows with their terms in memory at a time."""
ROWS_OF_PART = 1 << 16
"""The most rows that are encoded at once while a GPU computes those before them. Five columns of strings take 6 ms as `str` of pandas, and
16 as Python objects (a core of an EPYC). When all parts are encoded, a call waits for the last one only. A quarter of them fills a GPU."""
FEW_LABELS = 32
"""The most labels for which `table[…]` is faster than `take`: 0.11 and 0.19 µs for one, 0.54 and 0.46 for 100, 39 and 20 for 10,000 of
three letters."""
DENSE_BYTES = 1 << 25
"""The size of the widest array that is made of Rows for the device: 32 MiB."""


@record
class Labels:
    """A Direct that returns class labels. The device computes the index of each label in `table`, and this looks it up."""

    place: Direct
    table: Array

    def __call__(self, X: Array, n: int, out: Array | None = None) -> Array | None:
        found = self.place(X, n)
        return None if found is None else self.of(found, out)

    def of(self, found: Array, out: Array | None) -> Array:
        """The labels of these indices, in `out` if it is given.

        All indices are right. With mode="raise", numpy writes to memory of its own first: 0.35 µs for one row in place of 0.17, and 28 in
        place of 22 for 10,000 rows of three letters."""
        return self.table.take(found) if out is None else self.table.take(found, None, out, "clip")

    def make_quick(self, least: int, otherwise: Callable[..., Any] | None = None) -> QuickLabels | None:
        """See hbc.compiler.base.quick_of."""
        quick = quick_of(self.place, least)
        return None if quick is None else QuickLabels(quick, self, otherwise or no_quick_way)

    def astype(self, dtype: np.dtype[Any]) -> Labels:
        """The same with the table in the dtype that the source returns: cheaper than a cast of every result."""
        return replace(self, table=self.table.astype(dtype))


class QuickLabels:
    """The Quick of class labels: it looks up what that of their indices finds."""

    def __init__(self, place: Quick, labels: Labels, otherwise: Callable[..., Any]) -> None:
        self._place = place
        find, table, dtype, of = place.function, labels.table, labels.table.dtype, labels.of

        def function(X: Any, out: Any = None) -> Any:
            found = find(X)
            if found is None:
                return otherwise(X, out)
            if out is None:
                return table[found] if len(found) <= FEW_LABELS else of(found, None)
            fits = type(out) is np.ndarray and out.dtype == dtype and out.shape == found.shape and out.flags.carray
            return of(found, out) if fits else otherwise(X, out)

        self.function = function

    def and_then(self, other: Quick) -> None:
        """Let the function take what another one of the same method takes too."""
        assert isinstance(other, QuickLabels)
        self._place.and_then(other._place)


@record
class HostedExecutable(Executable):
    """Runs the graph `before` on the host, then `device`, then the graph of the method in `after` on the host (optimizer/partition.py makes
    the parts). A method that computes with strings alone, such as an encoder's, has no part on the device. A value that `before` holds as
    Rows goes to the device a few rows at a time: as one array it could be larger than any memory."""

    before: Graph | None
    device: Executable | None
    methods: frozenset[str]
    """The methods in which the device has a part."""
    after: Mapping[str, Graph]
    labels: Mapping[str, Array]
    in_blocks: bool = False
    """Whether the rows of a call are computed `ROWS_AT_ONCE` at a time, since the host makes Rows of text or of large arrays."""

    takes_coded_strings = True

    @property
    def has_own_code(self) -> bool:
        """Whether an operator of the host's is computed by code that the backend has compiled for it."""
        graphs = [*self.after.values(), *([] if self.before is None else [self.before])]
        return any(type(node.op).__module__.startswith("hbc.compiler.") for graph in graphs for node in graph.nodes)

    @property
    def keeps_code(self) -> bool:  # type: ignore[override]
        return self.device is not None and self.device.keeps_code

    @property
    def steps(self) -> Sequence[str]:  # type: ignore[override]
        return () if self.device is None else self.device.steps

    def keep_in(self, shelf: Shelf) -> None:
        """See hbc.compiler.base.Executable."""
        if self.device is not None:
            self.device.keep_in(shelf)

    def named(self, variant: str) -> None:
        """See hbc.compiler.base.Executable."""
        if self.device is not None:
            self.device.named(variant)

    def run(self, method: str, arrays: Sequence[Array]) -> list[Array]:
        return self.run_together([method], arrays)[0]

    def run_together(self, methods: Sequence[str], arrays: Sequence[Array]) -> list[list[Array]]:
        """See hbc.compiler.base.Executable. The part before the device is computed once."""
        found = self._rows(methods, arrays)
        return [[value.dense() if isinstance(value, Rows) else value for value in values] for values in found]

    def rows_of_part(self, methods: Sequence[str]) -> int:
        """See hbc.compiler.base.Executable. 0 if there is nothing to encode, if a method is computed by the host alone, or if the host
        needs the input again for its result."""
        before = self.before
        if before is None or self.device is None or not self.device.takes_parts or before.mixes_rows:
            return 0
        return self._most_of_part if all(method in self.methods and method not in self._need_input for method in methods) else 0

    @cached_property
    def _need_input(self) -> frozenset[str]:
        """The methods whose part after the device reads the input."""
        found = set()
        for method, graph in self.after.items():
            own = graph.inputs[len(graph.inputs) - len(self.before.inputs if self.before else ()) :]
            if not set(own).isdisjoint(topological(graph.outputs[method])):
                found.add(method)
        return frozenset(found)

    @cached_property
    def _most_of_part(self) -> int:
        values = [] if self.before is None else [node for group in self.before.outputs.values() for node in group]
        widest = max([1, *(node.type.width * NUMPY_DTYPES[node.type.dtype].itemsize for node in values if gives_rows(node))])
        return max(min(ROWS_AT_ONCE if self.in_blocks else ROWS_OF_PART, DENSE_BYTES // widest), 1)

    def run_in_parts(self, methods: Sequence[str], rows: int, part: ReadPart, most: int) -> list[list[Array]]:
        """See hbc.compiler.base.Executable. The host encodes a part, and hands it to the device."""
        before, device = self.before, self.device
        assert before is not None  # otherwise `rows_of_part` is 0
        assert device is not None

        def encoded(start: int, end: int) -> list[Array]:
            (values,) = before.evaluate_rows(*part(start, end)).values()
            (found,) = _dense_blocks(values)
            return found

        found = []
        for method, values in zip(methods, device.run_in_parts(methods, rows, encoded, most), strict=True):
            after = self.after.get(method)
            if after is not None:
                unread = [np.empty(0)] * len(before.inputs)
                values = after.evaluate(*values, *unread)[method]
            found.append(values)
        return found

    def run_rows(self, method: str, arrays: Sequence[Array]) -> list[Array | Rows]:
        """The values of one method, as `run` gives them, but values that are mostly zeros stay Rows."""
        return self._rows([method], arrays)[0]

    def row_of(self, method: str) -> Callable[[Any], Rows | None] | None:
        """See hbc.compiler.base.Executable."""
        graph = self.after.get(method)
        if graph is None or method in self.methods:
            return None
        (node,) = graph.outputs[method]
        return node.op.row_of if node.op.rows == "makes" and node.inputs == graph.inputs else None

    def _rows(self, methods: Sequence[str], arrays: Sequence[Array]) -> list[list[Array | Rows]]:
        """For each method what `run_rows` gives."""
        if not self.in_blocks or len(arrays[0]) <= ROWS_AT_ONCE:
            return self._run(methods, arrays)
        starts = range(0, len(arrays[0]), ROWS_AT_ONCE)
        blocks = [self._run(methods, [array[i : i + ROWS_AT_ONCE] for array in arrays]) for i in starts]
        return [joined(parts) for parts in zip(*blocks, strict=True)]

    def _run(self, methods: Sequence[str], arrays: Sequence[Array]) -> list[list[Array | Rows]]:
        results: dict[str, list[Array | Rows]] = {method: [] for method in methods}
        there = [method for method in methods if method in self.methods]
        if self.device is not None and there:
            (entering,) = [list(arrays)] if self.before is None else self.before.evaluate_rows(*arrays).values()
            device = self.device
            blocks = [device.run_together(there, block) for block in _dense_blocks(entering)]
            results |= {method: joined(parts) for method, parts in zip(there, zip(*blocks, strict=True), strict=True)}
        found = []
        for method, values in results.items():
            after = self.after.get(method)
            found.append(values if after is None else [dense(value) for value in after.evaluate_rows(*values, *arrays)[method]])  # type: ignore[arg-type]
        return found

    def direct(self, method: str, bound: float | None, missing: bool = False, accepted: Sequence[Graph] = ()) -> Direct | None:
        """See hbc.compiler.base.Executable. There is a direct function if the host only looks up class labels, or does nothing. By `run`, a
        row took 18 µs where the device takes 2.8, and its label 39."""
        if self.before is not None or method not in self.methods or self.device is None:
            return None
        if method in self.after and method not in self.labels:
            return None
        short = self.device.direct(method, bound, missing, accepted)
        return short if short is None or method not in self.labels else Labels(short, self.labels[method])

    def on_card(self, method: str) -> OnCard | None:
        """See hbc.compiler.base.Executable. None where the host has a part in the method."""
        if self.before is not None or self.device is None or method not in self.methods or method in self.after:
            return None
        return self.device.on_card(method)

    def warm_up(self, method: str) -> None:
        """See hbc.compiler.base.Executable."""
        if self.device is not None and method in self.methods:
            self.device.warm_up(method)

    def prepared(self, array: Array) -> Any:
        """See hbc.compiler.base.Executable."""
        return array if self.device is None else self.device.prepared(array)


def _dense_blocks(values: Sequence[Array | Rows]) -> Iterator[list[Array]]:
    """Yields the values as C-contiguous arrays: all rows at once, or in blocks of rows of at most `DENSE_BYTES` if some values are Rows.

    Compiled code takes only such arrays, and an operator of the host may return another: NMF gives the transpose of its matrix."""
    sizes = [max(value.width * value.dtype.itemsize, 1) for value in values if isinstance(value, Rows)]
    rows = len(values[0])
    step = max(rows, 1) if not sizes else max(DENSE_BYTES // max(sizes), 1)
    for start in range(0, max(rows, 1), step):
        stop = min(start + step, rows)
        parts = (value.dense(start, stop) if isinstance(value, Rows) else value[start:stop] for value in values)
        yield [np.ascontiguousarray(part) for part in parts]


def joined(blocks: Sequence[Sequence[Array | Rows]]) -> list[Array | Rows]:
    """The results for all rows, given the results for each block of rows in order."""
    if len(blocks) == 1:
        return list(blocks[0])
    return [Rows.stack(parts) if isinstance(parts[0], Rows) else np.concatenate(parts) for parts in zip(*blocks, strict=True)]  # type: ignore[arg-type]
