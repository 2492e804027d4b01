"""The short way of a record: numbers are packed into a row, strings become what the host computes of them, and compiled code is called."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from operator import getitem, itemgetter
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import Any, NamedTuple

import numpy as np

from hbc.compiler.base import Direct
from hbc.ir.graph import Graph, Input, Node
from hbc.ir.origins import Origins
from hbc.ir.types import NUMPY_DTYPES, Array
from hbc.lazy import cached_property, record
from hbc.runtime.calls import ArrayCall
from hbc.runtime.host import HostedExecutable
from hbc.runtime.input.record_frame import MISSING
from hbc.runtime.variant import Variant

FORMATS = {"bool": "?", "i8": "b", "u8": "B", "i16": "h", "u16": "H", "i32": "i", "i64": "q", "f32": "f", "f64": "d"}
"""The dtype of a value → the letter by which `struct` packs it."""
MOST_STRINGS = 1 << 14
"""The most strings of one column whose results are remembered."""
INSIDE = 1 - 1e-6
"""Of a bound: numbers up to there are within it, whatever the rounding to float32 and of their sum."""

Pick = Callable[[Sequence[Any]], Iterable[Any]]
NOT_TAKEN = (KeyError, TypeError, ValueError, OverflowError, StructError)
"""What packing and looking up raise for values that are not as usual."""


class Remembered(dict[Any, Any]):
    """A string of a column (or None, or NaN) → one number that the host has computed of it. Raises KeyError for others."""

    __slots__ = ()

    def __missing__(self, key: Any) -> Any:
        if type(key) is float and key != key and MISSING in self:
            return self[MISSING]
        raise KeyError(key)


def picker(positions: Sequence[Any]) -> Any:
    """A function that picks the items at these positions of a sequence, or keys of a dict, as a sequence."""
    if len(positions) > 1:
        return itemgetter(*positions)
    return (lambda items: (items[positions[0]],)) if positions else (lambda items: ())


@record
class Numbers:
    """One matrix of numbers that compiled code takes: how a record's numbers get into its row, and which of them surely pass the tests."""

    dtype: str
    pick: Pick | None
    """Picks its columns from the record's numbers. None: it has all of them."""
    width: int
    within: float
    """If the root of the sum of their squares is not larger, the numbers pass. Infinity: all numbers do. -1: only `most` can say."""
    most: Array | None
    """The largest magnitude of each column that passes. None: only the usual way can say."""
    filled: tuple[int, ...]
    """The columns that must not be missing."""


class Texts(NamedTuple):
    """The values that the host computes of strings, in one block of one dtype."""

    dtype: str
    pick: Pick
    """For each number of the block, the string that it is computed of."""
    tables: tuple[Remembered, ...]
    sources: tuple[tuple[int, int], ...]
    """For each number of the block: the value among those that enter the device, and its column."""


class Row:
    """Memory for one row of a call, and the compiled function for it. One thread at a time has it."""

    __slots__ = ("arrays", "blocks", "call", "numbers", "packs")

    def __init__(self, plan: Plan) -> None:
        self.arrays = [np.zeros((1, group.width), NUMPY_DTYPES[group.dtype]) for group in plan.numbers]
        self.blocks = [np.zeros(len(block.tables), NUMPY_DTYPES[block.dtype]) for block in plan.texts]
        self.packs: list[Any] = [Struct(f"{group.width}{FORMATS[group.dtype]}").pack_into for group in plan.numbers]
        self.numbers: list[Any] = [Struct(f"{len(block.tables)}{FORMATS[block.dtype]}").pack_into for block in plan.texts]
        self.call = plan.bind(self)


class Plan:
    """How a record of certain Python types gets through one variant. It takes no record that the usual way would refuse."""

    def __init__(self, call: ArrayCall, variant: Variant) -> None:
        self.call, self.variant = call, variant
        self.ready = variant.ready
        self.gate = self.ready.gate_of(call.method)
        self.known = call.shared.intake.columns
        self.numbers = [
            self._numbers(i) for i in range(len(self.gate.inputs)) if variant.kinds[self.gate.inputs[i][1][0]] != "str"
        ]
        self.texts: list[Texts] = []
        self.free: list[Row] = []
        self.direct: Direct | None = None
        self.labels: Array | None = None
        self.dtype = call.dtype
        self.integers = all(group.dtype == "i64" for group in self.numbers)
        """Whether no int becomes a float."""
        self.usable = self.gate.min_rows <= 1 and self._find()

    def _numbers(self, at: int) -> Numbers:
        limits, columns = self.gate.inputs[at]
        kind = self.variant.kinds[columns[0]]
        dtype, bound, all_columns = NUMPY_DTYPES[kind], self.gate.bounds[at], self.known.numbers
        pick = None if list(columns) == all_columns else picker([all_columns.index(i) for i in columns])
        safe = self.gate.safe
        if dtype.kind != "f":
            within = math.inf if bound is None and safe >= 2.0**63 else -1.0
            return Numbers(str(kind), pick, len(columns), within, None, ())
        within = math.inf if bound is None else math.sqrt(float(bound))
        within = min(within, safe if safe == math.inf else min(safe, 1e18))
        most = limits.largest(dtype, safe)
        filled = tuple(np.flatnonzero(~limits.allow_nan).tolist())
        return Numbers(str(kind), pick, len(columns), within if within == math.inf else within * INSIDE, most, filled)

    # --- what can be done ------------------------------------------------------------------------------------------

    def _find(self) -> bool:
        """Whether there is a short way; found once."""
        call, executable = self.call, self.ready.executable
        if len(self.numbers) == len(self.gate.inputs) == 1 and (direct := call.direct(self.variant)) is not None:
            self.direct = direct
            return True
        if call.method in getattr(executable, "after", {}) and call.method not in getattr(executable, "labels", {}):
            return False
        if isinstance(executable, HostedExecutable):
            if executable.device is None or call.method not in executable.methods or executable.in_blocks:
                return False
            table = executable.labels.get(call.method)
            self.labels = table if table is None or self.dtype is None else table.astype(self.dtype)
            return self._guards_fit() and self._host_fits(executable.before)
        return len(self.numbers) == len(self.gate.inputs) and self._guards_fit()

    def _guards_fit(self) -> bool:
        """Whether every guard is about numbers alone, or about strings one by one."""
        for guard in self.gate.guards:
            (value,) = guard.graph.outputs["value"]
            for origin in Origins().all_of(value):
                texts = [node for node, _ in origin if node.type.dtype == "str"]
                if texts and (guard.whole or len(origin) > 1):
                    return False
        return True

    @cached_property
    def _tests(self) -> list[Any]:
        """The guards that look at all numbers."""
        found = []
        for guard in self.gate.tests:
            (value,) = guard.graph.outputs["value"]
            if not any(node.type.dtype == "str" for origin in Origins().all_of(value) for node, _ in origin):
                found.append(guard)
        return found

    def _host_fits(self, before: Graph | None) -> bool:
        """Whether every value that enters the device is one of the numbers, or computed of single strings."""
        if before is None:
            return len(self.numbers) == len(self.gate.inputs)
        (entering,) = before.outputs.values()
        origins, text = Origins(), next((node for node in before.inputs if node.type.dtype == "str"), None)
        by_dtype: dict[str, list[tuple[int, int, int]]] = {}
        for number, node in enumerate(entering):
            if isinstance(node.op, Input):
                if node is text:
                    return False
                continue
            if len(node.type.shape) != 2 or node.type.dtype not in FORMATS:
                return False
            for column, origin in enumerate(origins.all_of(node)):
                if len(origin) != 1 or next(iter(origin))[0] is not text:
                    return False
                by_dtype.setdefault(node.type.dtype, []).append((number, column, next(iter(origin))[1]))
        for dtype, places in by_dtype.items():
            tables = tuple(Remembered() for _ in places)
            self.texts.append(Texts(dtype, picker([i for *_, i in places]), tables, tuple((n, c) for n, c, _ in places)))
        self._origin = {(n, c): i for places in by_dtype.values() for n, c, i in places}
        return True

    def bind(self, row: Row) -> Callable[[], Any]:
        """The compiled function for the memory of a row."""
        executable = self.ready.executable
        if self.direct is not None:
            prepared, direct = executable.prepared(row.arrays[0]), self.direct
            return lambda: direct(prepared, 1)
        if not isinstance(executable, HostedExecutable):
            return executable.repeated(self.call.method, row.arrays)
        assert executable.device is not None
        if executable.before is None:
            return executable.device.repeated(self.call.method, row.arrays)
        return executable.device.repeated(self.call.method, self._entering(executable.before, row))

    def _entering(self, before: Graph, row: Row) -> list[Array]:
        (entering,) = before.outputs.values()
        numbers = iter(row.arrays)
        own: dict[Node, Array] = {node: next(numbers) for node in before.inputs if node.type.dtype != "str"}
        found: list[Array] = []
        for number, node in enumerate(entering):
            if node in own:
                found.append(own[node])
                continue
            at = next(i for i, block in enumerate(self.texts) if (number, 0) in block.sources)
            start = self.texts[at].sources.index((number, 0))
            found.append(row.blocks[at][None, start : start + node.type.width])
        return found

    # --- a record --------------------------------------------------------------------------------------------------

    def answer(self, numbers: Sequence[Any], texts: Sequence[Any]) -> Any:
        """The result for one record. None where the usual way must say: a value is not as usual, or not surely accepted."""
        try:
            row = self.free.pop()
        except IndexError:
            row = Row(self)
        try:
            for group, pack, array in zip(self.numbers, row.packs, row.arrays, strict=True):
                values = numbers if group.pick is None else group.pick(numbers)
                try:
                    pack(array, 0, *values)
                except StructError:
                    values = [MISSING if value is None else value for value in values]
                    pack(array, 0, *values)
                if self.direct is not None or group.within == math.inf or math.hypot(*values) <= group.within:
                    continue
                if not _passes(group, array):
                    return None
            for block, pack, memory in zip(self.texts, row.numbers, row.blocks, strict=True):
                pack(memory, 0, *map(getitem, block.tables, block.pick(texts)))
            if self.direct is not None:
                return row.call()
            for guard in self._tests:
                guard.test(self._given(row))
            results = row.call()
        except NOT_TAKEN:
            return None
        finally:
            self.free.append(row)
        return self._owned(results)

    def _given(self, row: Row) -> list[Array]:
        """The inputs of the graph, without the strings, which no guard reads here."""
        numbers, absent = iter(row.arrays), None
        found = []
        for _, columns in self.gate.inputs:
            if self.variant.kinds[columns[0]] == "str":
                absent = np.full((1, len(columns)), None, object)
                found.append(absent)
            else:
                found.append(next(numbers))
        return found

    def _owned(self, results: Sequence[Array]) -> Any:
        if self.labels is not None:
            return self.labels.take(results[0])
        dtype = self.dtype
        if dtype is not None:
            results = [result if result.dtype == dtype else result.astype(dtype) for result in results]
        return results[0] if len(results) == 1 else list(results)

    def learn(self, texts: Sequence[Any], arrays: Sequence[Array]) -> None:
        """Remember what the host computes of a record's strings. `arrays`: the inputs of the graph for it, which have passed all tests."""
        executable = self.ready.executable
        if not self.texts or not isinstance(executable, HostedExecutable) or executable.before is None:
            return
        (entering,) = executable.before.evaluate(*arrays).values()
        for block in self.texts:
            for table, (number, column), text in zip(block.tables, block.sources, block.pick(texts), strict=True):
                key = MISSING if type(text) is float and text != text else text
                if (key is MISSING or key is None or isinstance(key, str)) and len(table) < MOST_STRINGS:
                    table[key] = entering[number][0, column].item()


def _passes(group: Numbers, array: Array) -> bool:
    """Whether all numbers of a row surely pass, as Gate finds it out: none too large, and none missing where none may be."""
    if group.most is None:
        return False
    size = np.abs(array)
    return not (size > group.most).any() and not any(np.isnan(size[0, i]) for i in group.filled)
