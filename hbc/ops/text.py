"""Text and dicts as features. These operators run on the host, and their matrices are mostly zeros: see hbc.ir.rows."""

from __future__ import annotations

import re
import unicodedata
import warnings
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, compress, count, pairwise, repeat
from numbers import Number
from typing import Any

import numpy as np

from hbc.errors import InvalidInputError
from hbc.ir.graph import Node, Operator, operator
from hbc.ir.rows import Rows, sorted_rows, summed_rows
from hbc.ir.types import NUMPY_DTYPES, Array, DType, TensorType
from hbc.ops import tensor as t

_SPACES = re.compile(r"\s\s+")


def pack(strings: Iterable[str]) -> tuple[Array, Array]:
    """Strings as bytes (UTF-8), and where each ends: numpy's own arrays of strings take the longest one's room for each, and lose
    null characters at the end."""
    encoded = [string.encode("utf-8", "surrogatepass") for string in strings]
    return np.frombuffer(b"".join(encoded), np.uint8), np.cumsum([len(item) for item in encoded], dtype=np.int64)


def unpack(data: Array, ends: Array) -> list[str]:
    whole = data.tobytes()
    starts = [0, *ends.tolist()]
    return [whole[a:b].decode("utf-8", "surrogatepass") for a, b in pairwise(starts)]


def _once(op: Operator, make: Callable[[], Any]) -> Any:
    """What an operator derives from its parameters at its first call."""
    if "_made" not in op.__dict__:
        object.__setattr__(op, "_made", make())
    return op.__dict__["_made"]


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise TypeError(message)


def _rejected(item: Any, expected: str) -> InvalidInputError:
    return InvalidInputError(found=f"{item!r:.60} (of type {type(item).__name__})", expected=expected, where="X")


# --- documents to terms ----------------------------------------------------------------------------------------------


@operator
class Analyze(Operator):
    """y[N] = the terms of the document x[N], a list of strings in a value of dtype str: the document in lower case, then without
    accents ("ascii", "unicode" or None), then cut into n-grams of n from `least` to `most`, of the matches of the regular expression
    `pattern` that are no stop words (`analyzer` "word"), or of its characters ("char"; "char_wb" within words).

    (sklearn.feature_extraction.text._VectorizerMixin.build_analyzer.) A document that is no string is an InvalidInputError.
    """

    analyzer: str
    lowercase: bool
    accents: str | None
    pattern: str
    least: int
    most: int
    stop: Array
    stop_ends: Array

    def infer(self, x: TensorType) -> TensorType:
        _require(x.dtype == "str" and (len(x.shape) == 1 or x.columns == 1), "the operand must be one column of documents")
        return TensorType("str", (x.shape[0],))

    def evaluate(self, x: Array) -> Array:
        documents = self.prepared(x)
        cut = _once(self, self._cut)
        y = np.empty(len(documents), object)
        for i, document in enumerate(documents):
            y[i] = cut(document)
        return y

    def prepared(self, x: Array) -> list[str]:
        """The documents x, in lower case and without accents where that is asked for."""
        documents = x.ravel().tolist()
        if set(map(type, documents)) - {str}:  # else there is no need to look at each
            for item in documents:
                if not isinstance(item, str):
                    raise _rejected(item, "a document, which is a string")
        if self.lowercase:
            documents = [document.lower() for document in documents]
        if self.accents is not None:
            documents = list(map(_ascii if self.accents == "ascii" else _without_accents, documents))
        return documents

    def _cut(self) -> Callable[[str], list[str]]:
        cuts = {"char": self._characters, "char_wb": self._characters_within_words}
        return self._words() if self.analyzer == "word" else cuts[self.analyzer]

    def _words(self) -> Callable[[str], list[str]]:
        find = re.compile(self.pattern).findall
        stop = frozenset(unpack(self.stop, self.stop_ends))
        if not stop and self.most == 1:
            return find
        if self.most == 1:
            return lambda document: [word for word in find(document) if word not in stop]
        return lambda document: self._sequences([word for word in find(document) if word not in stop])

    def _sequences(self, words: list[str]) -> list[str]:
        found = list(words) if self.least == 1 else []
        for n in range(max(self.least, 2) if self.least >= 1 else self.least, min(self.most, len(words)) + 1):
            found += [" ".join(words[i : i + n]) for i in range(len(words) - n + 1)]
        return found

    def _characters(self, document: str) -> list[str]:
        text = _SPACES.sub(" ", document)
        found: list[str] = []
        for n in range(self.least, min(self.most, len(text)) + 1):
            found += [text[i : i + n] for i in range(len(text) - n + 1)] if n != 1 else text
        return found

    def _characters_within_words(self, document: str) -> list[str]:
        found = []
        for word in document.split():
            padded = f" {word} "
            for n in range(self.least, self.most + 1):
                if len(padded) <= n:  # a short word counts once
                    found.append(padded)
                    break
                found += [padded[i : i + n] for i in range(len(padded) - n + 1)]
        return found


def _ascii(text: str) -> str:
    return unicodedata.normalize("NFKD", text).encode("ASCII", "ignore").decode("ASCII")


def _without_accents(text: str) -> str:
    if text.isascii():
        return text
    return "".join([c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c)])


class Maker(Operator):
    """An operator on objects that makes a matrix which is mostly zeros."""

    rows = "makes"
    removes_missing = True

    def rows_of(self, x: Array) -> Rows:
        raise NotImplementedError

    def evaluate(self, x: Array) -> Array:
        return self.rows_of(x).dense()


def _require_objects(x: TensorType) -> None:
    _require(x.dtype == "str" and len(x.shape) == 1, "the operand must be lists or dicts, str[N]")


def _lengths(lists: list[Any]) -> Array:
    return np.repeat(np.arange(len(lists)), np.fromiter(map(len, lists), np.int64, len(lists)))


@dataclass(frozen=True, eq=False, repr=False)
class _Lookup(Maker):
    """An operator whose columns are named: term i of `terms` (packed, see `pack`) belongs to column columns[i] of `width`."""

    terms: Array
    ends: Array
    columns: Array
    width: int
    dtype: DType

    def infer(self, x: TensorType) -> TensorType:
        _require_objects(x)
        _require(len(self.ends) == len(self.columns), "there must be a column for every term")
        return TensorType(self.dtype, (x.shape[0], self.width))

    def column_of(self) -> dict[Any, int]:
        """The column of each term."""
        return _once(self, lambda: dict(zip(unpack(self.terms, self.ends), self.columns.tolist(), strict=True)))


@operator
class CountTerms(_Lookup):
    """y[N, width] = how often the list x[N] holds each term (whether it does, if `binary`); term i of `terms` (packed, see `pack`)
    belongs to column columns[i]; terms that are not there are left out (CountVectorizer._count_vocab)."""

    binary: bool

    non_negative = True

    def reads(self, kept: Array, inputs: Sequence[Node], finite: bool = False) -> tuple[Array, ...]:
        return (np.zeros(1, np.int64),)

    def narrowed(self, kept: Array, columns: Sequence[Array], inputs: Sequence[Node]) -> tuple[Operator, Array]:
        place = dict(zip(kept.tolist(), range(len(kept)), strict=True))
        found = {term: place[column] for term, column in self.column_of().items() if column in place}
        terms, ends = pack(found)
        return CountTerms(terms, ends, np.array(list(found.values()), np.int64), len(kept), self.dtype, self.binary), kept

    def rows_of(self, x: Array) -> Rows:
        table = self.column_of()
        lists = x.tolist()
        column = np.fromiter(map(table.get, chain.from_iterable(lists), repeat(-1)), np.int64)
        known = column >= 0
        counts = summed_rows(_lengths(lists)[known], column[known], None, len(lists), self.width, NUMPY_DTYPES[self.dtype])
        return counts.with_data(np.ones_like(counts.data)) if self.binary else counts


@operator
class CountItems(_Lookup):
    """y[N, width] from the dicts x[N]: a number (None is NaN) goes to the column of its key, a string to that of "key", separator,
    string, as 1, and so does each string of a list; keys without a column are left out (DictVectorizer.transform)."""

    separator: str

    creates_missing = True

    def rows_of(self, x: Array) -> Rows:
        items = x.tolist()
        numbers_only = _numbers(items)
        names: Iterable[Any]
        if numbers_only is not None:
            names, values = chain.from_iterable(items), numbers_only
        else:
            items = [list(self._named(item)) for item in items]
            names, values = ([pair[i] for pairs in items for pair in pairs] for i in (0, 1))
        column = np.fromiter(map(self.column_of().get, names, repeat(-1)), np.int64)
        known = column >= 0
        row, column = _lengths(items)[known], column[known]
        try:
            numbers = np.array(list(compress(values, known.tolist())), NUMPY_DTYPES[self.dtype])
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidInputError(
                found=f"a value that is no {self.dtype} ({error})", expected="numbers", where="X"
            ) from error
        key = row * np.int64(max(self.width, 1)) + column
        y = sorted_rows(
            row, column, numbers, len(x), self.width, unique=numbers_only is not None or len(np.unique(key)) == len(key)
        )
        return replace(y, indptr=y.indptr.astype(np.int64), indices=y.indices.astype(np.int64))  # as the source has them

    def _named(self, item: Any) -> Iterator[tuple[Any, Any]]:
        if not isinstance(item, Mapping):
            raise _rejected(item, "a dict for every row")
        for name, value in item.items():
            if isinstance(value, str):
                yield f"{name}{self.separator}{value}", 1
            elif isinstance(value, Number) or value is None:
                yield name, value
            elif isinstance(value, Iterable) and not isinstance(value, Mapping):
                for one in value:
                    if not isinstance(one, str):
                        raise _rejected(one, f"strings in the list of {name!r}")
                    yield f"{name}{self.separator}{one}", 1
            else:
                raise _rejected(value, f"a number, a string or a list of strings for {name!r}")


# --- hashing -----------------------------------------------------------------------------------------------------------


@operator
class HashTerms(Maker):
    """y[N, width] = Σ ±1 over the terms of the list x[N] whose MurmurHash3 (32 bit, seed 0) h has |h| mod width for the column, and
    the sign of h if `alternate` (else +1); `binary`: 1 wherever there is a term, whatever they add up to (HashingVectorizer)."""

    width: int
    alternate: bool
    binary: bool
    dtype: DType

    @property
    def non_negative(self) -> bool:
        return not self.alternate

    def infer(self, x: TensorType) -> TensorType:
        _require_objects(x)
        return TensorType(self.dtype, (x.shape[0], self.width))

    def rows_of(self, x: Array) -> Rows:
        lists = [list(_iterable(item)) for item in x.tolist()]
        signed = _hashes(list(chain.from_iterable(lists)))
        column, sign = _places(signed, self.width, self.alternate)
        y = summed_rows(_lengths(lists), column, sign, len(lists), self.width, NUMPY_DTYPES[self.dtype])
        return y.with_data(np.ones_like(y.data)) if self.binary else y


@operator
class HashItems(Maker):
    """y[N, width] = Σ ±value over the (name, value) pairs of the dict or list x[N]; a string as value makes the name "name=value" and
    the value 1; columns and signs as in HashTerms, of the names. Values of 0 are left out (FeatureHasher.transform)."""

    width: int
    alternate: bool
    dtype: DType

    creates_missing = True

    def infer(self, x: TensorType) -> TensorType:
        _require_objects(x)
        return TensorType(self.dtype, (x.shape[0], self.width))

    def pairs(self, x: Array) -> tuple[Array, list[Any], Array]:
        """How many pairs each of x has, their names, and their values, some of which may be 0."""
        items = x.tolist()
        if (values := _floats(items)) is not None:
            names: list[Any] = list(chain.from_iterable(items))
        else:
            items = [[(name, value) for name, value in map(_named, _pairs(item)) if value != 0] for item in items]
            names = [name for pairs in items for name, _ in pairs]
            values = np.array([value for pairs in items for _, value in pairs], np.float64)
        return np.fromiter(map(len, items), np.int64, len(items)), names, values

    def rows_of(self, x: Array) -> Rows:
        return self.of_pairs(*self.pairs(x))

    def of_pairs(self, counts: Array, names: list[Any], values: Array) -> Rows:
        kept = values != 0
        row, names, values = np.repeat(np.arange(len(counts)), counts)[kept], list(compress(names, kept.tolist())), values[kept]
        column, sign = _places(_hashes(names), self.width, self.alternate)
        return summed_rows(row, column, values * sign, len(counts), self.width, NUMPY_DTYPES[self.dtype])


def _floats(items: list[Any]) -> Array | None:
    """The values of all dicts, if there is nothing else than dicts of what float() takes and is no string: then there is no need to look at
    each (3,000 of 20 numbers: 46 → 4 ms)."""
    if set(map(type, items)) - {dict}:
        return None
    try:
        return np.array(array("d", list(chain.from_iterable(map(dict.values, items)))))
    except TypeError:
        return None
    except OverflowError as error:
        raise InvalidInputError(found=f"a number ({error})", expected="numbers of float64", where="X") from error


def _named(pair: tuple[Any, Any]) -> tuple[Any, float]:
    name, value = pair
    return (f"{name}={value}", 1.0) if isinstance(value, str) else (name, _number(value))


def _numbers(items: list[Any]) -> list[Any] | None:
    """The values of all dicts, if there is nothing else than dicts of numbers: then there is no need to look at each (3,000 of 20 numbers:
    87 → 7 ms)."""
    if set(map(type, items)) - {dict}:
        return None
    values = list(chain.from_iterable(map(dict.values, items)))
    return None if set(map(type, values)) - {int, float, bool} else values


def _iterable(item: Any) -> Iterable[Any]:
    if isinstance(item, (str, bytes)) or not isinstance(item, Iterable):
        raise _rejected(item, "a list of strings for every row")
    return item


def _pairs(item: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(item, Mapping):
        return item.items()
    pairs = list(_iterable(item))
    for pair in pairs:
        if isinstance(pair, (str, bytes)) or not hasattr(pair, "__len__") or len(pair) != 2:
            raise _rejected(pair, "pairs of a name and a value")
    return pairs


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise _rejected(value, "a number or a string for every name") from error


def _hashes(terms: list[Any]) -> Array:
    """The hash of every term: each different term is hashed once, terms of one length together."""
    number = dict(zip(dict.fromkeys(terms), count(), strict=False))
    places = np.fromiter(map(number.__getitem__, terms), np.int64, len(terms))
    try:
        encoded = [term if isinstance(term, bytes) else str.encode(term) for term in number]
    except TypeError as error:
        strange = next(term for term in number if not isinstance(term, (str, bytes)))
        raise _rejected(strange, "names that are strings") from error
    except UnicodeEncodeError as error:
        raise InvalidInputError(
            found="a string with a lone surrogate", expected="text that UTF-8 can hold", where="X"
        ) from error
    hashes = np.zeros(len(encoded), np.int32)
    by_length: dict[int, list[int]] = {}
    for i, item in enumerate(encoded):
        by_length.setdefault(len(item), []).append(i)
    for length, items in by_length.items():
        data = np.frombuffer(b"".join([encoded[i] for i in items]), np.uint8).reshape(len(items), length)
        hashes[items] = murmur(data)
    return hashes[places]


def murmur(data: Array) -> Array:
    """MurmurHash3_x86_32 with seed 0 of every row of data u8[M, length], as i32[M]."""
    length = data.shape[1]
    whole = length // 4 * 4
    blocks = np.ascontiguousarray(data[:, :whole]).view("<u4").astype(np.uint32)
    h = np.zeros(len(data), np.uint32)
    for block in blocks.T:
        h = _rotated(h ^ _mixed(block), 13) * np.uint32(5) + np.uint32(0xE6546B64)
    if length > whole:
        tail = np.zeros(len(data), np.uint32)
        for i in range(whole, length):
            tail |= data[:, i].astype(np.uint32) << np.uint32(8 * (i - whole))
        h ^= _mixed(tail)
    h ^= np.uint32(length)
    h = (h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    h = (h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return (h ^ (h >> np.uint32(16))).view(np.int32)


def _mixed(block: Array) -> Array:
    return _rotated(block * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)


def _rotated(x: Array, bits: int) -> Array:
    return (x << np.uint32(bits)) | (x >> np.uint32(32 - bits))


def _places(signed: Array, width: int, alternate: bool) -> tuple[Array, Array]:
    wide = signed.astype(np.int64)
    # The source's own rule for -2**31, whose absolute value no int32 is.
    column = np.where(wide == -(2**31), (2147483647 - (width - 1)) % width, np.abs(wide) % width)
    return column, np.where(wide >= 0, 1.0, -1.0) if alternate else np.ones(len(wide))


# --- sets of labels --------------------------------------------------------------------------------------------------


@operator
class HoldsLabels(Maker):
    """y[N, K] = 1 where x[N], a sequence or a set of labels, holds label k, else 0; i64. The labels are those of `terms` (strings, packed:
    see `pack`), then integers i64, then floats f64; columns[K] are their columns. Labels that are none of these are left
    out, with one warning for all of a call (MultiLabelBinarizer.transform)."""

    terms: Array
    ends: Array
    integers: Array
    floats: Array
    columns: Array

    mixes_rows = True  # in that warning

    def infer(self, x: TensorType) -> TensorType:
        _require_objects(x)
        return TensorType("i64", (x.shape[0], len(self.columns)))

    def column_of(self) -> dict[Any, int]:
        """The column of each label."""

        def made() -> dict[Any, int]:
            labels = [*unpack(self.terms, self.ends), *self.integers.tolist(), *self.floats.tolist()]
            return dict(zip(labels, self.columns.tolist(), strict=True))

        return _once(self, made)

    def rows_of(self, x: Array) -> Rows:
        sets = [_labels(item) for item in x.tolist()]
        labels = list(chain.from_iterable(sets))
        try:
            column = np.fromiter(map(self.column_of().get, labels, repeat(-1)), np.int64, len(labels))
        except TypeError as error:  # a list, for one, has no hash
            raise InvalidInputError(found=f"labels that cannot be in a set ({error})", expected="labels", where="X") from error
        known = column >= 0
        if not known.all():
            unknown = {labels[i] for i in np.flatnonzero(~known)}
            warnings.warn(f"unknown class(es) {sorted(unknown, key=str)} will be ignored", UserWarning, stacklevel=2)
        y = summed_rows(_lengths(sets)[known], column[known], None, len(sets), len(self.columns), np.dtype(np.int64))
        return y.with_data(np.ones_like(y.data))


def _labels(item: Any) -> Any:
    if isinstance(item, (list, tuple, set, frozenset)):
        return item
    try:
        return list(item)
    except TypeError as error:
        found = f"{item!r:.60} (of type {type(item).__name__})"
        raise InvalidInputError(found=found, expected="a set of labels for every row", where="X") from error


# --- weights -----------------------------------------------------------------------------------------------------------


@operator
class Entries(Operator):
    """y = x, held as Rows: only what is not 0 is computed with, even if it becomes 0."""

    rows = "makes"
    columnwise = True
    keeps_values = True

    def infer(self, x: TensorType) -> TensorType:
        _require(x.dtype != "str" and len(x.shape) == 2, "the operand must be a matrix of numbers")
        return x

    def rows_of(self, x: Array) -> Rows:
        return Rows.from_dense(x)

    def evaluate(self, x: Array) -> Array:
        return x

    def lower(self, x: Node) -> Node:
        return x


@operator
class Weigh(Operator):
    """y[N, F] = tf(x[N, F]) · idf[F], where tf(x) = x, or, if `sublinear`, ln x + 1 where x is not 0; without idf that factor is
    left out. The product is made in the common dtype and rounded to x's (TfidfTransformer.transform)."""

    idf: Array | None
    sublinear: bool

    rows = "keeps"
    columnwise = True
    of_negative_only = True  # what `creates_missing` says

    @property
    def creates_missing(self) -> bool:
        return self.sublinear

    @property
    def keeps_sign(self) -> bool:
        """ln x + 1 of a count is no less than 1."""
        return self.idf is None or bool((self.idf >= 0).all())

    def infer(self, x: TensorType) -> TensorType:
        _require(x.is_float, "the operand must be a float matrix")
        _require(self.idf is None or self.idf.shape == (x.columns,), "there must be a weight for every column")
        return x

    def of_rows(self, x: Rows) -> Rows:
        data = x.data
        if self.sublinear:
            data = np.log(data) + x.dtype.type(1)
        if self.idf is not None:
            data = (data * self.idf[x.indices]).astype(x.dtype)
        return x.with_data(data)

    def evaluate(self, x: Array) -> Array:
        y = np.where(x == 0, x, np.log(x) + x.dtype.type(1)) if self.sublinear else x
        return y if self.idf is None else (y * self.idf).astype(x.dtype)

    def lower(self, x: Node) -> Node:
        y = t.where(t.equal(x, 0.0), x, t.add(t.log(x), 1.0)) if self.sublinear else x
        if self.idf is None:
            return y
        common: DType = "f32" if x.type.dtype == "f32" and self.idf.dtype == np.float32 else "f64"
        return t.cast(t.mul(t.cast(y, common), self.idf.astype(NUMPY_DTYPES[common])), x.type.dtype)


@operator
class DivideByNorm(Operator):
    """y[N, F] = x[N, F] / norm(x)[N], where norm is "l1" Σ|x| or "l2" √Σx², summed in float64; a row of norm 0 is kept. float
    dtype kept (sklearn.utils.sparsefuncs_fast.inplace_csr_row_normalize_l2; dense matrices are normalized otherwise: Normalize)."""

    norm: str

    rows = "keeps"
    keeps_sign = True

    def infer(self, x: TensorType) -> TensorType:
        _require(x.is_float and len(x.shape) == 2, "the operand must be a float matrix")
        return x

    def of_rows(self, x: Rows) -> Rows:
        sizes = np.abs(x.data) if self.norm == "l1" else x.data * x.data
        norms = np.bincount(x.row, sizes, len(x))
        norms = norms if self.norm == "l1" else np.sqrt(norms)
        norms = np.where(norms == 0, 1.0, norms)
        return x.with_data((x.data / norms[x.row]).astype(x.dtype))

    def evaluate(self, x: Array) -> Array:
        norms = np.abs(x).sum(1, np.float64) if self.norm == "l1" else np.sqrt((x * x).sum(1, np.float64))
        return (x / np.where(norms == 0, 1.0, norms)[:, None]).astype(x.dtype)

    def lower(self, x: Node) -> Node:
        sizes = t.absolute(x) if self.norm == "l1" else t.mul(x, x)
        total = t.sum_(t.cast(sizes, "f64"), 1, keepdims=True)
        norms = total if self.norm == "l1" else t.sqrt(total)
        return t.cast(t.div(t.cast(x, "f64"), t.where(t.equal(norms, 0.0), 1.0, norms)), x.type.dtype)
