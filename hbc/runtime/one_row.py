"""OneRow: the short way of one row through a method. Its numbers are written into memory that compiled code knows already, and its strings
become what the host has computed of them before."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from operator import getitem, itemgetter
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import Any, NamedTuple

import numpy as np

from hbc.compiler.base import Direct
from hbc.errors import InvalidInputError
from hbc.ir.coded_strings import dense
from hbc.ir.graph import Graph, Input, Node
from hbc.ir.origins import Origins
from hbc.ir.signature import NA, Guard
from hbc.ir.types import NUMPY_DTYPES, Array
from hbc.lazy import record
from hbc.runtime.host import HostedExecutable, Labels
from hbc.runtime.input.columns import KnownColumns
from hbc.runtime.input.record_frame import MISSING
from hbc.runtime.variant import Variant

FORMATS = {"bool": "?", "i8": "b", "u8": "B", "i16": "h", "u16": "H", "i32": "i", "i64": "q", "f32": "f", "f64": "d"}
"""The dtype of a value → the letter by which `struct` packs it."""
MOST_STRINGS = 1 << 14
"""The most strings of one column of which it is remembered what the host computes."""
INSIDE = 1 - 1e-6
"""Of a bound: numbers up to there are within it, however they and the sum of their squares are rounded."""
NOT_TAKEN = (KeyError, TypeError, ValueError, OverflowError, StructError)
"""What packing and looking up raise for values that are not as usual."""


class Remembered(dict[Any, Any]):
    """A string (or None, or `MISSING`) of one column → a number that the host computes of it. Raises KeyError for what it does not know.

    unknown: the number for every other string; None if it must be computed. takes_nan: any NaN counts as `MISSING`."""

    __slots__ = ("takes_nan", "unknown")

    def __init__(self, takes_nan: bool) -> None:
        super().__init__()
        self.takes_nan = takes_nan
        self.unknown: Any = None

    def __missing__(self, key: Any) -> Any:
        if type(key) is str and self.unknown is not None and key != NA:  # the usual way says whether NA is accepted
            if not key.isascii():
                key.encode()  # a lone surrogate: the usual way says what it is
            return self.unknown
        if self.takes_nan and key is not MISSING and type(key) is float and key != key:
            return self[MISSING]
        raise KeyError(key)


def picker(positions: Sequence[Any]) -> Any:
    """A function that picks the items at these positions of a sequence, or of these keys of a dict, as a sequence."""
    if len(positions) > 1:
        return itemgetter(*positions)
    return (lambda items: (items[positions[0]],)) if positions else (lambda items: ())


@record
class Numbers:
    """One matrix of numbers that compiled code takes: which of a row's numbers it has, and which of these surely pass the tests."""

    dtype: str
    pick: Any
    """Picks its columns from all numbers of a row. None: it has all of them."""
    width: int
    within: float
    """If the root of the sum of their squares is not larger, the numbers pass. Infinity: all numbers do. -1: `most` must say."""
    most: Array | None
    """The largest magnitude of each column that passes. None: the usual way must say."""
    filled: tuple[int, ...]
    """The columns that must not be missing."""


@record
class Texts:
    """Values of one dtype that the host computes of strings."""

    dtype: str
    pick: Any
    """Picks the string of each value from the strings of a row."""
    tables: tuple[Remembered, ...]
    sources: tuple[tuple[int, int], ...]
    """For each value: its number among those that enter the device, and its column there. Empty: none enters, and the strings are only
    looked up, since tests may refuse them."""

    def values(self, entering: Sequence[Array]) -> list[list[Any]]:
        """For each value what it is in all rows, of all that enters the device."""
        if not self.sources:
            return [[False] * len(entering[0])] * len(self.tables)
        return [entering[number][:, column].tolist() for number, column in self.sources]


class Memory(NamedTuple):
    """Memory for one row, and the compiled function for what stands in it. One thread at a time has it."""

    arrays: list[Array]
    """The matrices of numbers."""
    packs: list[tuple[Any, Any, Array, Numbers]]
    """For each of these: what picks its numbers, and what writes them."""
    blocks: list[tuple[Any, Any, Array, tuple[Remembered, ...]]]
    """For each dtype of values of strings: what picks the strings, what writes the values, where, and what they are."""
    call: Callable[[], Any]


class OneRow:
    """How one row gets through a method of one variant. It takes no row that the usual way would refuse."""

    def __init__(
        self, method: str, variant: Variant, known: KnownColumns, dtype: np.dtype[Any] | None, direct: Direct | None
    ) -> None:
        """dtype: that of the source's result, if the graph's has another. direct: the direct function for one matrix of numbers."""
        self.method, self.variant, self.known, self.dtype = method, variant, known, dtype
        self.ready = variant.ready
        self.gate = self.ready.gate_of(method)
        self.texts: list[Texts] = []
        self.free: list[Memory] = []
        """Memory that no thread has."""
        self.is_text = [variant.kinds[columns[0]] == "str" for _, columns in self.gate.inputs]
        self.numbers = [self._numbers(at) for at, text in enumerate(self.is_text) if not text]
        self.integers = all(group.dtype == "i64" for group in self.numbers)
        """Whether no number of a row becomes a float."""
        self.direct = direct if len(self.numbers) == len(self.is_text) == 1 else None
        executable = self.ready.executable
        self.before = executable.before if isinstance(executable, HostedExecutable) else None
        self.device = executable.device if isinstance(executable, HostedExecutable) else executable
        self.text_guards: list[Guard] = []
        self.number_guards: list[Guard] = []
        """Those that look at numbers in every call. Some look at strings too, as those of `text_guards`."""
        self.strings: Array | None = None
        """Strings of one row that have passed all tests."""
        self.table = self._labels()
        self.usable = self.gate.min_rows <= 1 and (self.direct is not None or self._fits())

    def _numbers(self, at: int) -> Numbers:
        limits, columns = self.gate.inputs[at]
        kind, every = str(self.variant.kinds[columns[0]]), self.known.numbers
        dtype, bound, safe = NUMPY_DTYPES[kind], self.gate.bounds[at], self.gate.safe
        pick = None if list(columns) == every else picker([every.index(i) for i in columns])
        if dtype.kind != "f":
            within = math.inf if bound is None and safe >= 2.0**63 else -1.0
            return Numbers(kind, pick, len(columns), within, None, ())
        within = math.inf if bound is None else math.sqrt(float(bound)) * INSIDE
        if safe != math.inf:
            within = min(within, safe * INSIDE, 1e18)
        return Numbers(
            kind, pick, len(columns), within, limits.largest(dtype, safe), tuple(np.flatnonzero(~limits.allow_nan).tolist())
        )

    def _labels(self) -> Array | None:
        """The table in which the results of the device are looked up."""
        executable = self.ready.executable
        table = executable.labels.get(self.method) if isinstance(executable, HostedExecutable) else None
        return table if table is None or self.dtype is None else table.astype(self.dtype)

    # --- whether there is a short way --------------------------------------------------------------------------------

    def _fits(self) -> bool:
        executable, method = self.ready.executable, self.method
        if isinstance(executable, HostedExecutable):
            if executable.device is None or method not in executable.methods or executable.in_blocks:
                return False
            if method in executable.after and method not in executable.labels:
                return False
        if not self._sort_guards():
            return False
        if self.before is None:
            return not any(self.is_text)
        return self._remember(self.before)

    def _sort_guards(self) -> bool:
        """Whether every guard is about numbers alone, or about strings one by one: then a row passes whose strings have passed before."""
        for guard in self.gate.guards:
            (value,) = guard.graph.outputs["value"]
            origins = Origins().all_of(value)
            texts = [_is_text(node) for origin in origins for node, _ in origin]
            if not all(texts) and guard in self.gate.tests:
                self.number_guards.append(guard)
            if not any(texts):
                continue
            if guard.whole or any(len(origin) > 1 for origin in origins):
                return False
            self.text_guards.append(guard)
        return True

    def _remember(self, before: Graph) -> bool:
        """Whether every value that enters the device is one of the caller's numbers, or computed of single strings."""
        (entering,) = before.outputs.values()
        origins, own = Origins(), self._number_inputs()
        by_dtype: dict[str, list[tuple[int, int, int]]] = {}
        for number, node in enumerate(entering):
            if isinstance(node.op, Input):
                if node not in own:
                    return False
                continue
            if len(node.type.shape) != 2 or node.type.dtype not in FORMATS:
                return False
            for column, origin in enumerate(origins.all_of(node)):
                if len(origin) != 1 or not _is_text(next(iter(origin))[0]):
                    return False
                by_dtype.setdefault(node.type.dtype, []).append((number, column, next(iter(origin))[1]))
        for dtype, places in by_dtype.items():
            tables = tuple(Remembered(self.known.texts[text] not in self.known.texts_only) for *_, text in places)
            pick = picker([text for *_, text in places])
            self.texts.append(Texts(dtype, pick, tables, tuple((number, column) for number, column, _ in places)))
        used = {text for places in by_dtype.values() for *_, text in places}
        self._look_up(sorted(set(range(len(self.known.texts))) - used))
        self._learn_categories(before, used)
        return True

    def _look_up(self, texts: list[int]) -> None:
        """Look up the strings of these columns, of which nothing enters the device: a number is refused there all the same, and so is a
        string that a test refuses."""
        if not texts:
            return
        tested: set[int] = set()
        for guard in self.text_guards:
            origins = Origins().all_of(guard.graph.outputs["value"][0])
            tested |= {column for origin in origins for node, column in origin if _is_text(node)}
        tables = tuple(Remembered(self.known.texts[text] not in self.known.texts_only) for text in texts)
        for table, text in zip(tables, texts, strict=True):
            table.unknown = None if text in tested else False
        self.texts.append(Texts("bool", picker(texts), tables, ()))

    def _number_inputs(self) -> list[Node]:
        return [] if self.before is None else [node for node in self.before.inputs if not _is_text(node)]

    # --- what is remembered of strings -------------------------------------------------------------------------------

    def _learn_categories(self, before: Graph, columns: set[int]) -> None:
        """Remember what the host computes of all categories that the graph knows, unless a test refuses one of them."""
        known, alike = _categories(before)
        rows = max((len(known.get(text, ())) for text in columns), default=0) + 1
        if rows > MOST_STRINGS or not all(known.get(text) for text in columns):
            return
        strings = np.empty((rows, len(self.known.texts)), object)
        for text in range(strings.shape[1]):
            items = list(known.get(text, ("",)))
            strings[:, text] = [items[min(row, len(items) - 1)] for row in range(rows)]
        arrays = [
            strings if text else np.zeros((rows, len(group)), NUMPY_DTYPES[self.variant.kinds[group[0]]])
            for text, (_, group) in zip(self.is_text, self.gate.inputs, strict=True)
        ]
        try:
            for guard in self.text_guards:
                guard.test([array[:-1] for array in arrays])
        except InvalidInputError:
            return
        strings[-1] = _unknown_to(known)
        self._learn(arrays, rows - 1)
        if not self.text_guards:
            (entering,) = before.evaluate(*[array[-1:] for array in arrays]).values()
            for block in self.texts:
                if not block.sources:
                    continue
                texts = block.pick(range(strings.shape[1]))
                for table, (number, column), text in zip(block.tables, block.sources, texts, strict=True):
                    if text in alike:
                        table.unknown = entering[number][0, column].item()

    def learn(self, arrays: Sequence[Array]) -> None:
        """Remember what the host computes of the strings of some rows. `arrays`: the graph's inputs for them, all tests passed."""
        if self.texts:
            self._learn(arrays, len(arrays[0]))

    def _learn(self, arrays: Sequence[Array], rows: int) -> None:
        assert self.before is not None
        arrays = [dense(array) for array in arrays]
        (entering,) = self.before.evaluate(*arrays).values()
        strings = next(array for array, text in zip(arrays, self.is_text, strict=True) if text)
        self.strings = strings[:1].copy()
        for block in self.texts:
            columns = block.pick(strings.T)
            for table, values, texts in zip(block.tables, block.values(entering), columns, strict=True):
                for text, value in zip(texts[:rows].tolist(), values[:rows], strict=True):
                    key = MISSING if type(text) is float and text != text else text
                    if (key is MISSING or key is None or type(key) is str) and len(table) < MOST_STRINGS:
                        table[key] = value

    # --- a row -------------------------------------------------------------------------------------------------------

    def answer(self, numbers: Sequence[Any], texts: Sequence[Any]) -> Any:
        """The result for the numbers and strings of a record, Python values. None where the usual way must say: some value is not as
        usual, or not surely accepted."""
        try:
            memory = self.free.pop()
        except IndexError:
            memory = self._memory()
        try:
            for pick, pack, array, group in memory.packs:
                values = numbers if pick is None else pick(numbers)
                try:
                    pack(array, 0, *values)
                except StructError:
                    values = [MISSING if value is None else value for value in values]
                    pack(array, 0, *values)
                if not (group.within == math.inf or math.hypot(*values) <= group.within or _passes(group, array)):
                    return None
            for pick, pack, array, tables in memory.blocks:
                pack(array, 0, *map(getitem, tables, pick(texts)))
            return self._finish(memory)
        except NOT_TAKEN:
            return None
        finally:
            self.free.append(memory)

    def of_arrays(self, arrays: Sequence[Array]) -> Any:
        """The same for the inputs of the graph, of one row."""
        try:
            memory = self.free.pop()
        except IndexError:
            memory = self._memory()
        try:
            packs, texts = iter(memory.packs), None
            for array, text in zip(arrays, self.is_text, strict=True):
                if text:
                    texts = dense(array)[0].tolist()
                    continue
                *_, own, group = next(packs)
                own[...] = array
                if not (group.within == math.inf or math.hypot(*array[0].tolist()) <= group.within or _passes(group, own)):
                    return None
            for pick, pack, block, tables in memory.blocks:
                pack(block, 0, *map(getitem, tables, [MISSING if item != item else item for item in pick(texts)]))
            return self._finish(memory)
        except NOT_TAKEN:
            return None
        finally:
            self.free.append(memory)

    def many(self, numbers: Sequence[Sequence[Any]], texts: Sequence[Sequence[Any]]) -> Any:
        """The same as `answer` for many records at once: the numbers of each, and the strings of each."""
        rows = len(numbers)
        arrays = [np.empty((rows, group.width), NUMPY_DTYPES[group.dtype]) for group in self.numbers]
        blocks = [np.empty((rows, len(block.tables)), NUMPY_DTYPES[block.dtype]) for block in self.texts]
        try:
            for group, array in zip(self.numbers, arrays, strict=True):
                _pack(group, array, numbers)
                if self.direct is None and not _pass(group, array):
                    return None
            for block, array in zip(self.texts, blocks, strict=True):
                pack, size, pick, tables = _packer(block.dtype, array), array.strides[0], block.pick, block.tables
                for row, items in enumerate(texts):
                    pack(array, row * size, *map(getitem, tables, pick(items)))
            if self.direct is not None:
                return self.direct(arrays[0], rows)
            self._guard(arrays)
        except NOT_TAKEN:
            return None
        entering = arrays if self.before is None else self._entering(self.before, arrays, blocks)
        assert self.device is not None
        return self._owned(self.device.run(self.method, [np.ascontiguousarray(array) for array in entering]))

    def _finish(self, memory: Memory) -> Any:
        if self.direct is not None:
            return memory.call()
        self._guard(memory.arrays)
        return self._owned(memory.call())

    def _guard(self, numbers: Sequence[Array]) -> None:
        """Raise InvalidInputError for numbers that a guard rejects which looks at all."""
        if self.number_guards:
            arrays = iter(numbers)
            # The strings of the rows have passed by themselves.
            strings = self.strings
            if strings is None:
                if any(self.is_text):
                    raise KeyError("no strings have passed yet")
                strings = np.empty((1, 0), object)
            given = [np.repeat(strings, len(numbers[0]), axis=0) if text else next(arrays) for text in self.is_text]
            for guard in self.number_guards:
                guard.test(given)

    def _owned(self, results: Sequence[Array]) -> Any:
        """The results of the device as the method returns them."""
        if self.table is not None:
            return self.table.take(results[0])
        if self.dtype is not None:
            results = [result.astype(self.dtype, copy=False) for result in results]
        return results[0] if len(results) == 1 else list(results)

    def _memory(self) -> Memory:
        arrays = [np.zeros((1, group.width), NUMPY_DTYPES[group.dtype]) for group in self.numbers]
        blocks = [np.zeros((1, len(block.tables)), NUMPY_DTYPES[block.dtype]) for block in self.texts]
        if self.direct is not None:
            # The direct function tests the numbers itself.
            packs: Any = [(None, _packer(self.numbers[0].dtype, arrays[0]), arrays[0], UNTESTED)]
            return Memory(arrays, packs, [], self._bound(arrays[0]))
        packs = [
            (group.pick, _packer(group.dtype, array), array, group) for group, array in zip(self.numbers, arrays, strict=True)
        ]
        lookups: Any = [
            (block.pick, _packer(block.dtype, array), array, block.tables)
            for block, array in zip(self.texts, blocks, strict=True)
        ]
        assert self.device is not None
        entering = arrays if self.before is None else self._entering(self.before, arrays, blocks)
        return Memory(arrays, packs, lookups, self.device.repeated(self.method, entering))

    def _bound(self, array: Array) -> Callable[[], Any]:
        """The direct function for what stands in an array: it tests the numbers too, and then may return None."""
        direct, executable = self.direct, self.ready.executable
        assert direct is not None
        x = executable.prepared(array)
        first = direct(array, 1)
        if isinstance(direct, Labels) or first is None:
            return lambda: direct(x, 1)
        y = executable.prepared(first)
        return lambda: None if direct(x, 1, y) is None else first.copy()

    def _entering(self, before: Graph, arrays: Sequence[Array], blocks: Sequence[Array]) -> list[Array]:
        """The memory of every value that enters the device."""
        own = dict(zip(self._number_inputs(), arrays, strict=True))
        place = {
            source: (array, at)
            for block, array in zip(self.texts, blocks, strict=True)
            for at, source in enumerate(block.sources)
        }
        (entering,) = before.outputs.values()
        found = []
        for number, node in enumerate(entering):
            if node in own:
                found.append(own[node])
                continue
            array, at = place[number, 0]
            found.append(array[:, at : at + node.type.width])
        return found


UNTESTED = Numbers("f64", None, 0, math.inf, None, ())


def _packer(dtype: str, array: Array) -> Any:
    """The function that writes the values of a row into such an array."""
    return Struct(f"{array.shape[1]}{FORMATS[dtype]}").pack_into


def _pack(group: Numbers, array: Array, rows: Sequence[Sequence[Any]]) -> None:
    """Write the numbers of all rows into an array."""
    pack, size, pick = _packer(group.dtype, array), array.strides[0], group.pick
    for row, numbers in enumerate(rows):
        values = numbers if pick is None else pick(numbers)
        try:
            pack(array, row * size, *values)
        except StructError:
            pack(array, row * size, *[MISSING if value is None else value for value in values])


def _pass(group: Numbers, array: Array) -> bool:
    """Whether all numbers of some rows surely pass."""
    if group.within == math.inf or (group.within > 0 and float(np.vdot(array, array)) <= group.within**2):
        return True
    return _passes(group, array)


def _passes(group: Numbers, array: Array) -> bool:
    """The same for numbers of which some may be missing, as Gate finds it out: none too large, and none missing where none may be."""
    if group.most is None:
        return False
    size = np.abs(array)
    return not (size > group.most).any() and not any(np.isnan(size[:, i]).any() for i in group.filled)


def _is_text(node: Node) -> bool:
    return node.type.dtype == "str"


def _categories(before: Graph) -> tuple[Mapping[int, tuple[str, ...]], set[int]]:
    """(column of strings → the categories that operators know of it; the columns in which all other strings are alike to them)."""
    origins = Origins()
    known: dict[int, dict[str, None]] = {}
    told: set[int] = set()
    for node in before.nodes:
        for source in node.inputs:
            if not _is_text(source):
                continue
            values = node.op.told_apart()
            if values is None and _is_text(node) and node.op.keeps_values and len(node.inputs) == 1:
                continue  # before the origins of all columns are looked at, for each of as many selections
            places = [{column for each, column in origin if _is_text(each)} for origin in origins.all_of(source)]
            if values is None:
                told |= set().union(*places)
                continue
            for columns, strings in zip(places, values, strict=True):
                for column in columns:
                    known.setdefault(column, {}).update(dict.fromkeys(map(str, strings)))
    return {column: tuple(strings) for column, strings in known.items()}, set(known) - told


def _unknown_to(known: Mapping[int, tuple[str, ...]]) -> str:
    """A string that is no category."""
    return "?" * (1 + max((len(string) for strings in known.values() for string in strings), default=0))
