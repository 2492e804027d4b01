"""Text vectorizers (hbc/ops/vectorizers) in compiled code. One function cuts documents into terms, looks the terms up or hashes them, and
counts them. All models share it.

A document comes as UTF-32, already in lower case and without accents if the model wants that. The function makes a normalized copy: the
words with one space between two, the characters, or one word at a time with a space at both ends. Every term is a part of that copy. Its
hash is made from the hashes of its units, which are words or characters. A term with the hash of a known term is compared with it
character by character.

Counts are kept in an array of all columns. A two-level bitmap marks the columns that are not 0, so they come out in ascending order
without a sort.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from functools import cache, partial
from typing import Any, Generic, TypeVar

import numpy as np

from hbc.compiler.memory import writable
from hbc.compiler.tvm.host.text_count import BLANK, WORD, item_sums, term_counts, term_table
from hbc.compiler.tvm.run.cache import compiled
from hbc.compiler.tvm.run.executable import as_tensor
from hbc.compiler.tvm.run.targets import Machine
from hbc.ir.graph import Node
from hbc.ir.rewrite import Rule
from hbc.ir.rows import Rows, narrow
from hbc.ir.types import NUMPY_DTYPES, Array, TensorType
from hbc.lazy import cached_property, record
from hbc.ops.vectorizers.analyze import Analyze
from hbc.ops.vectorizers.counting import CountTerms
from hbc.ops.vectorizers.hashing import HashItems, HashTerms
from hbc.ops.vectorizers.strings import Maker, unpack

T = TypeVar("T")

SHORTEST = {r"\b\w\w+\b": 2, r"\w\w+": 2, r"\b\w+\b": 1, r"\w+": 1}
"""Token patterns that the compiled code knows → the least length of a word. They find all runs of at least so many word characters. A
leading "(?u)" is left out."""
ASCII, ALL = 128, 0x110000
"""The numbers of ASCII and of all Unicode characters."""
MOST_COLUMNS = 1 << 24
"""The most columns. Each has a total, together 128 MiB of float64. 2^31 columns would take memory that a machine may not have, and a long
search through zero bits."""
LONGEST_ALONE = 4096
"""The most characters of a document whose memory is kept for the next one: 300 KB a thread. For longer ones, making it takes little of the
time."""
WORK_DTYPES = (np.uint32, np.int64, np.int64, np.uint64)
"""The dtypes of the arrays `copy`, `first`, `end` and `hashes` of `term_counts`. Each has an element for every character of the longest
document, and for two spaces around each of its words."""
SLOTS = 2
"""The least number of slots in the table for each term."""


def compiled_terms(machine: Machine) -> Rule:
    """The rule `HashItems` → `CompiledItems`, and `CountTerms` or `HashTerms` of `Analyze` → `CompiledTerms`.

    It leaves operators with token patterns other than SHORTEST, with terms of less than one unit, and with more than MOST_COLUMNS columns
    as they are.
    """

    def rule(node: Node) -> Node | None:
        if not isinstance(node.op, (HashItems, CountTerms, HashTerms)) or node.op.width > MOST_COLUMNS:
            return None
        if type(node.op) is HashItems:
            return CompiledItems(node.op.width, node.op.alternate, node.op.dtype, machine=machine)(*node.inputs)
        if type(node.op) not in (CountTerms, HashTerms) or type(analyze := node.inputs[0].op) is not Analyze:
            return None
        if analyze.least < 1 or (analyze.analyzer == "word" and analyze.pattern.removeprefix("(?u)") not in SHORTEST):
            return None
        return CompiledTerms(analyze, node.op, machine)(*node.inputs[0].inputs)  # type: ignore[arg-type]

    return rule


@cache
def classes(count: int) -> Array:
    """u8[count]: the class (WORD, BLANK) of each of the first `count` Unicode characters. 0.4 s for all."""
    every = [chr(code) for code in range(count)]
    word, blank = (np.fromiter(map(test, every), np.uint8, count) for test in (str.isalnum, str.isspace))
    word[ord("_")] = 1
    return WORD * word + BLANK * blank


def _classes_of(text: str | Sequence[str]) -> Any:
    """`classes` of the characters of one document or of several, as an argument of the compiled function."""
    ascii = text.isascii() if isinstance(text, str) else all(map(str.isascii, text))
    return _class_tensor(ASCII if ascii else ALL)


@cache
def _class_tensor(count: int) -> Any:
    return as_tensor(classes(count))


@record(eq=False, repr=False)
class CompiledTerms(Maker):
    """count(analyze(x)) in one compiled function.

    3,000 documents of 160 words take 25 ms instead of 331, with pairs of words 60 instead of 2,861.
    """

    analyze: Analyze
    count: CountTerms | HashTerms
    machine: Machine

    def infer(self, x: TensorType) -> TensorType:
        return self.count.infer(self.analyze.infer(x))

    def row_of(self, item: Any) -> Rows | None:
        if type(item) is not str or len(item) > LONGEST_ALONE:
            return None
        document = self.analyze.normalized(item)
        if len(document) > LONGEST_ALONE:  # "İ" has two characters in lower case
            return None
        try:
            codes = np.frombuffer(document.encode("utf-32-le"), np.uint32)
        except UnicodeEncodeError:  # a lone surrogate
            return None
        memory = self._alone.taken()
        memory.codes[: len(codes)], memory.offsets[1] = codes, len(codes)
        self._call(memory.text, _classes_of(document), memory.work, memory.results, 1)
        size = int(memory.indptr[1])
        found = self._rows(np.array([0, size], np.int32), memory.indices[:size], memory.counts[:size])
        self._alone.unused.append(memory)
        return found

    def all_rows_of(self, x: Array) -> Rows:
        documents = self.analyze.prepared(x)
        try:
            codes = np.frombuffer("".join([*documents, "\0"]).encode("utf-32-le"), np.uint32)  # TVM takes no empty array
        except UnicodeEncodeError:  # a lone surrogate
            return self.count.all_rows_of(self.analyze.evaluate(x))
        offsets = np.zeros(len(documents) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, documents), np.int64, len(documents)), out=offsets[1:])
        longest = 2 * int(np.diff(offsets).max(initial=0)) + 2  # a word of one character gets two spaces
        lengths = self.analyze.most - self.analyze.least + 1
        found = min(lengths * (2 * len(codes) + len(documents)), len(documents) * self.count.width + 1)
        pointers, indices, counts = np.zeros_like(offsets), np.empty(found, np.int32), np.empty(found, np.int32)
        memory = [np.empty(longest, dtype) for dtype in WORK_DTYPES]
        text, work, results = (
            map(as_tensor, arrays) for arrays in ((writable(codes), offsets), memory, (pointers, indices, counts))
        )
        self._call(text, _classes_of(documents), work, results, len(documents))
        size = int(pointers[-1])
        return self._rows(narrow(pointers), indices[:size], counts[:size])

    def _call(self, text: Iterable[Any], kinds: Any, work: Iterable[Any], results: Iterable[Any], documents: int) -> None:
        """Call the compiled function with these arguments, and with those that are the same in every call."""
        least, most, width = self.analyze.least, self.analyze.most, self.count.width
        of_columns = self._columns.taken()
        self._function(
            *(*text, kinds, *self._table, *work, *of_columns, *results),
            documents,
            least,
            most,
            self._shortest,
            width,
            self._alternate,
        )
        self._columns.unused.append(of_columns)

    def _rows(self, indptr: Array, indices: Array, counts: Array) -> Rows:
        """The matrix, in memory of its own."""
        data = np.ones(len(counts)) if self.count.binary else counts
        return Rows(indptr, indices.copy(), data.astype(NUMPY_DTYPES[self.count.dtype]), self.count.width)

    @cached_property
    def _shortest(self) -> int:
        return SHORTEST.get(self.analyze.pattern.removeprefix("(?u)"), 1)

    @cached_property
    def _alternate(self) -> int:
        return int(isinstance(self.count, HashTerms) and self.count.alternate)

    @cached_property
    def _alone(self) -> Pool[DocumentMemory]:
        lengths = self.analyze.most - self.analyze.least + 1
        found = min(lengths * (2 * LONGEST_ALONE + 1), self.count.width + 1)
        return Pool(lambda: DocumentMemory(found))

    @cached_property
    def _columns(self) -> Pool[tuple[Any, ...]]:
        return Pool(partial(column_memory, self.count.width, np.int32))

    @cached_property
    def _function(self) -> Any:
        return compiled(term_counts(self.analyze.analyzer, isinstance(self.count, HashTerms)), self.machine)

    @cached_property
    def _table(self) -> tuple[Any, ...]:
        """The hash table of the terms to look up, stop words among them.

        slots u64[S]; the texts u32 of all terms, one after the other; where each begins; its column i32 (-1: it has none); whether it is a
        stop word u8.
        """
        stop = unpack(self.analyze.stop, self.analyze.stop_ends) if self.analyze.analyzer == "word" else []
        columns = self.count.column_of() if isinstance(self.count, CountTerms) else {}
        terms = [term for term in {**columns, **dict.fromkeys(stop)} if term.isprintable() or _is_text(term)]
        texts = np.frombuffer("".join(terms).encode("utf-32-le"), np.uint32)
        starts = np.cumsum([0, *map(len, terms)], dtype=np.int64)
        slots = np.zeros(1 << (SLOTS * len(terms)).bit_length(), np.uint64)
        left_out = set(stop)
        arrays = (
            *(slots, np.append(texts, np.uint32(0)), starts),
            np.array([columns.get(term, -1) for term in terms] + [-1], np.int32),
            np.array([term in left_out for term in terms] + [False], np.uint8),
        )
        arguments = tuple(map(as_tensor, arrays))
        compiled(term_table(self.analyze.analyzer), self.machine)(*arguments[:3], len(terms))
        return arguments


class Pool(Generic[T]):
    """Memory that is used again: a call takes some that no other thread uses, and appends it to `unused` afterwards."""

    def __init__(self, make: Callable[[], T]) -> None:
        self.make = make
        self.unused = deque[T]()

    def taken(self) -> T:
        try:
            return self.unused.pop()
        except IndexError:
            return self.make()


def column_memory(width: int, dtype: Any) -> tuple[Any, ...]:
    """Memory for the columns of a document: their totals, and a bitmap of two levels.

    It is all zeros before and after a call, so it can be used again. To make it anew for 200,000 columns would take as long as a document.
    """
    blocks = width // 64 + 1
    sizes = (64 * blocks, dtype), (blocks, np.uint64), (blocks // 64 + 1, np.uint64)
    return tuple(as_tensor(np.zeros(size, dtype)) for size, dtype in sizes)


class DocumentMemory:
    """Memory for a call of one document of up to LONGEST_ALONE characters: the arrays, and the same as arguments of the compiled function.
    To make them for a call takes longer than to count the terms of 150 words."""

    def __init__(self, found: int) -> None:
        self.codes, self.offsets = np.empty(LONGEST_ALONE, np.uint32), np.zeros(2, np.int64)
        self.indptr, self.indices, self.counts = np.zeros(2, np.int64), np.empty(found, np.int32), np.empty(found, np.int32)
        self.text = [as_tensor(array) for array in (self.codes, self.offsets)]
        self.work = [as_tensor(np.empty(2 * LONGEST_ALONE + 2, dtype)) for dtype in WORK_DTYPES]
        self.results = [as_tensor(array) for array in (self.indptr, self.indices, self.counts)]


@record(eq=False, repr=False)
class CompiledItems(HashItems):
    """`HashItems` whose names are hashed and whose values are added by the compiled function.

    3,000 dicts of 20 numbers take 5.5 ms instead of 9, one dict 60 µs instead of 150.
    """

    machine: Machine = field(kw_only=True)

    def of_pairs(self, counts: Array, names: list[Any], values: Array) -> Rows:
        try:
            text = "\0".join([*names, ""])
            codes = np.frombuffer((text + "\0").encode("utf-32-le"), np.uint32)  # TVM takes no empty array
        except (TypeError, UnicodeEncodeError):  # a name that is bytes or no string, or has a lone surrogate
            return super().of_pairs(counts, names, values)
        if text.count("\0") != len(names):
            return super().of_pairs(counts, names, values)
        pointers, size = np.zeros(len(counts) + 1, np.int64), len(names) + 1
        indices, sums, of_columns = np.empty(size, np.int32), np.empty(size), self._columns.taken()
        self._function(
            *map(as_tensor, (writable(codes), np.append(counts, 0), np.append(values, 0.0))),
            *of_columns,
            *map(as_tensor, (pointers, indices, sums)),
            *(len(counts), self.width, int(self.alternate)),
        )
        self._columns.unused.append(of_columns)
        found = slice(int(pointers[-1]))
        return Rows(narrow(pointers), indices[found].copy(), sums[found].astype(NUMPY_DTYPES[self.dtype]), self.width)

    @cached_property
    def _columns(self) -> Pool[tuple[Any, ...]]:
        return Pool(partial(column_memory, self.width, np.float64))

    @cached_property
    def _function(self) -> Any:
        return compiled(item_sums(), self.machine)


def _is_text(term: str) -> bool:
    """Whether UTF-32 can encode a term: it has no lone surrogate. Documents that are looked up have none either."""
    return not any("\ud800" <= character <= "\udfff" for character in term)
