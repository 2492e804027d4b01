"""Small requests in the Open Inference Protocol v2: how tensors of one row become a record, and plans for requests that come again.

A client sends the same JSON over and over, but for the values and the id. So what such a request says besides its values is read once, the
usual way, and kept as a `Plan` under the bytes that stay the same. 30 columns take 4 µs by a plan as bytes, and 11 as JSON; without one
they take 25 and 17. A matrix has plans too."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from struct import Struct
from typing import Any

import numpy as np

from hbc.lazy import cached_property, record
from hbc.runtime.one_row import picker
from hbc.serve.documents import value_of

PYTHONS: dict[str, type] = {"FP64": float, "FP32": float, "INT64": int, "BYTES": str, "BOOL": bool}
"""Datatype → the type of JSON's values for it. A row of other datatypes is read as tensors."""
FORMATS = {"FP64": Struct("<d"), "FP32": Struct("<f"), "INT64": Struct("<q")}
"""Datatype → how its bytes are read. BOOL is left out: not every byte is one."""
MATRICES: dict[str, np.dtype[Any]] = {"FP64": np.dtype("<f8"), "FP32": np.dtype("<f4")}
"""Datatype → the dtype of a matrix that has a plan."""
ONE_ROW = ([1], [1, 1])
"""The shapes of a column of one row."""
LENGTH = Struct("<I")
"""The length before an element of BYTES."""
MOST_EXACT = 1 << 53

MARK, END = b'"data":', b"]"
"""What stands before the values of a tensor in JSON, and behind them."""
ID = re.compile(rb'\{\s*"id"\s*:\s*"([ !#-\[\]-~]*)"\s*,')
"""The start of a request whose id comes first, as tritonclient writes it; without escapes in the id."""

LONGEST = 32 << 10
"""The most bytes of a request for which there are plans."""
MOST_PLANS, MOST_BYTES = 64, 512 << 10
"""The most plans of a model, and the most bytes under which they are kept."""
MOST_SEEN = 1024
"""Of how many requests without a plan it is known that they have come before. The second one makes the plan."""


class Wanted:
    """How a request wants its answer."""

    __slots__ = ("binary", "names", "request_id", "usual_binary")

    def __init__(self, request_id: str | None, names: list[str], binary: dict[str, bool], usual_binary: bool) -> None:
        self.request_id = request_id
        self.names = names
        """The outputs asked for; empty for all."""
        self.binary = binary
        """Output → whether it is asked for as bytes."""
        self.usual_binary = usual_binary


# --- one row, the usual way ----------------------------------------------------------------------------------------------


def one_row(names: frozenset[str], count: int, inputs: list[Any], raw: bytes | memoryview | None) -> dict[str, Any] | None:
    """The record that inputs of one row are, one for each column, of Python's own types. None for all others: they are read as tensors.
    Thirty tensors of one row would cost five times what the rest of the request does. names: of the model's columns, if they have some,
    and `count` their number. raw: the bytes behind the JSON, if there may be any."""
    if not names or len(inputs) != count:
        return None
    row: dict[str, Any] = {}
    place = 0
    for each in inputs:
        if type(each) is not dict or each.get("shape") not in ONE_ROW:
            return None
        name, datatype = each.get("name"), each.get("datatype")
        if type(name) is not str or type(datatype) is not str:
            return None
        if "parameters" in each:
            size = _size(each)
            if size is None or raw is None:
                return None
            value = _of_bytes(datatype, raw[place : place + size], size)
            place += size
        else:
            data = each.get("data")
            if type(data) is not list or len(data) != 1:
                return None
            value = _of_json(datatype, data[0])
        if value is None:
            return None
        row[name] = value
    if place != (0 if raw is None else len(raw)):
        return None
    return row if len(row) == count and row.keys() <= names else None


def _size(tensor: dict[str, Any]) -> int | None:
    """The bytes of a tensor that has nothing but bytes. None for others."""
    parameters = tensor["parameters"]
    size = parameters.get("binary_data_size") if type(parameters) is dict and len(parameters) == 1 else None
    return size if type(size) is int and size >= 0 and "data" not in tensor else None


def _of_json(datatype: str, value: Any) -> Any:
    """The value of a column of this datatype. None for what the datatype does not hold exactly."""
    wanted = PYTHONS.get(datatype)
    if type(value) is not wanted:
        if wanted is not float or type(value) is not int or abs(value) > MOST_EXACT:
            return None
        value = float(value)
    if datatype == "FP32":
        return np.float32(value)
    return value if wanted is not int or -(1 << 63) <= value < 1 << 63 else None


def _of_bytes(datatype: str, raw: bytes | memoryview, size: int) -> Any:
    """The value of a column of this datatype, from its bytes. None for bytes that are no value of it."""
    if len(raw) != size:
        return None
    form = FORMATS.get(datatype)
    if form is not None:
        if form.size != size:
            return None
        (value,) = form.unpack(raw)
        return np.float32(value) if datatype == "FP32" else value
    if datatype != "BYTES" or size < 4 or LENGTH.unpack_from(raw)[0] != size - 4:
        return None
    try:
        return str(raw[4:], "utf-8")
    except UnicodeDecodeError:
        return None


# --- the same again, by a plan -------------------------------------------------------------------------------------------


@record(eq=False)
class Plan:
    """What a request of one row, or of one matrix, says besides its values."""

    methods: tuple[str, ...]
    wanted: Wanted
    names_itself: bool
    """Whether its id is in what stays the same."""
    timeout: float
    """Seconds; 0 for none."""
    names: tuple[str, ...]
    datatypes: tuple[str, ...]
    types: tuple[type, ...]
    """The types of JSON's values that are taken as they are."""
    narrow: tuple[int, ...]
    """The columns of FP32."""
    form: Struct | None = None
    """All bytes behind the JSON: numbers, and the lengths and bytes of strings. None for a request without such bytes."""
    pick: tuple[Any, Any] = (None, None)
    """(what picks the values, what picks the lengths of strings) of what `form` finds."""
    lengths: tuple[int, ...] = ()
    texts: tuple[int, ...] = ()
    """The columns of strings."""
    shape: tuple[int, int] | None = None
    """That of the matrix. None for a row of columns, which becomes a record."""
    dtype: np.dtype[Any] | None = None

    def wants(self, request_id: str | None) -> Wanted:
        """How a request with this id wants its answer."""
        usual = self.wanted
        if self.names_itself or request_id == usual.request_id:
            return usual
        return Wanted(request_id, usual.names, usual.binary, usual.usual_binary)

    def of_bytes(self, body: bytes, start: int) -> Any:
        """The record or matrix that stands in a body from `start` on. None where the usual way must say."""
        if self.shape is not None:
            if len(body) - start != self.size:
                return None
            return np.frombuffer(body, self.dtype, offset=start).reshape(self.shape).copy()  # aligned, and writable
        form = self.form
        if form is None or len(body) - start != form.size:
            return None
        fields = form.unpack_from(body, start)
        if self.pick[1](fields) != self.lengths:
            return None
        values = list(self.pick[0](fields))
        try:
            for column in self.texts:
                values[column] = values[column].decode()
        except UnicodeDecodeError:
            return None
        for column in self.narrow:
            values[column] = np.float32(values[column])
        return dict(zip(self.names, values, strict=True))

    @cached_property
    def size(self) -> int:
        """The bytes of the matrix."""
        assert self.shape is not None
        assert self.dtype is not None
        return math.prod(self.shape) * self.dtype.itemsize

    def of_texts(self, texts: Sequence[bytes]) -> Any:
        """The record or matrix whose values stand in pieces of JSON, each a list without its end. None where the usual way must say."""
        # No text has a "]". So there are as many as tensors, and one more at the end: if the whole is that many lists and nothing else,
        # each text is one list, and no list is made of two texts.
        try:
            lists = value_of(b"[%b]]" % b"],".join(texts))
        except ValueError:
            return None
        if len(lists) != len(self.names) or set(map(type, lists)) != {list}:
            return None
        if self.shape is not None:
            (numbers,) = lists
            fits = len(numbers) == math.prod(self.shape) and set(map(type, numbers)) == {float}
            with np.errstate(over="ignore"):
                return np.array(numbers).astype(self.dtype, copy=False).reshape(self.shape) if fits else None
        if set(map(len, lists)) != {1}:
            return None
        values = [value for (value,) in lists]
        if self.narrow or tuple(map(type, values)) != self.types:
            values = list(map(_of_json, self.datatypes, values))
            if None in values:
                return None
        return dict(zip(self.names, values, strict=True))


class Plans:
    """The plans of one model, for requests as bytes and as JSON. The event loop alone uses them."""

    def __init__(self) -> None:
        self._bytes: dict[bytes, Plan] = {}
        self._json: dict[bytes, Plan] = {}
        self.held = 0
        """The bytes of all keys."""
        self._seen: set[int] = set()

    def __len__(self) -> int:
        return len(self._bytes) + len(self._json)

    def of_bytes(self, text: bytes) -> tuple[Plan | None, str | None]:
        """(the plan for a request whose JSON this is, with bytes behind it; the id that it begins with)."""
        key, request_id = _without_id(text)
        return self._bytes.get(key), request_id

    def of_json(self, text: bytes) -> tuple[Plan | None, str | None, Sequence[bytes]]:
        """(the plan for a request that this JSON is; the id that it begins with; its values, as `Plan.of_texts` takes them)."""
        key, texts = _cut(text)
        key, request_id = _without_id(key)
        return self._json.get(key), request_id, texts

    def learn(
        self,
        text: bytes,
        raw: bool,
        document: dict[str, Any],
        methods: tuple[str, ...],
        wanted: Wanted,
        shape: tuple[int, int] | None = None,
    ) -> None:
        """Make a plan of a request that was read the usual way, as a record or as one matrix, if such a one has come before. raw: whether
        there are bytes behind its JSON. shape: that of the matrix."""
        key = _without_id(text if raw else _cut(text)[0])[0]
        if key in (self._bytes if raw else self._json):
            return  # its values were such that the usual way had to read them
        seen = hash((raw, key))
        if seen not in self._seen:
            if len(self._seen) >= MOST_SEEN:
                self._seen.clear()
            self._seen.add(seen)
            return
        skeleton = value_of(key) if raw else _skeleton(key, document)
        plan = None if skeleton is None else _plan(document["inputs"], skeleton, methods, wanted, raw, shape)
        if plan is None:
            return
        if len(self) >= MOST_PLANS or self.held + len(key) > MOST_BYTES:
            self._bytes.clear()
            self._json.clear()
            self.held = 0
        (self._bytes if raw else self._json)[key] = plan
        self.held += len(key)


def _without_id(text: bytes) -> tuple[bytes, str | None]:
    """(a request without the id that it begins with, the id). Both are JSON, or none is, if anything follows the id."""
    found = ID.match(text)
    return (text, None) if found is None else (b"{" + text[found.end() :], found[1].decode())


def _cut(text: bytes) -> tuple[bytes, Sequence[bytes]]:
    """(a request without what stands between MARK and END, all that stands there)."""
    first, *parts = text.split(MARK)
    if not parts:
        return text, ()
    values, _, rest = zip(*[part.partition(END) for part in parts], strict=True)
    return MARK.join((first, *rest)), values


def _skeleton(key: bytes, document: dict[str, Any]) -> dict[str, Any] | None:
    """What a request says whose values were cut out. None if those were not the values of its tensors, in order, and nothing else: strings
    may hold MARK and END."""
    first, *rest = key.split(MARK)
    numbered = [b"%b[%d]%b" % (MARK, number, part) for number, part in enumerate(rest)]
    try:
        found: dict[str, Any] = value_of(b"".join((first, *numbered)))
    except ValueError:
        return None
    expected = {**document, "inputs": [{**each, "data": [number]} for number, each in enumerate(document["inputs"])]}
    return found if len(rest) == len(expected["inputs"]) and _but_id(found) == _but_id(expected) else None


def _but_id(document: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name != "id"}


def _plan(
    inputs: list[dict[str, Any]],
    skeleton: dict[str, Any],
    methods: tuple[str, ...],
    wanted: Wanted,
    raw: bool,
    shape: tuple[int, int] | None,
) -> Plan | None:
    """The plan for requests like this one. None if only some of its tensors have bytes, or if bytes of another number would be no value."""
    names, datatypes = (tuple(each[name] for each in inputs) for name in ("name", "datatype"))
    if raw and any("data" in each for each in inputs):
        return None
    narrow = tuple(i for i, datatype in enumerate(datatypes) if datatype == "FP32")
    # INT64 has a range, which `_of_json` tests: no value of it is taken as it is.
    types = tuple(PYTHONS.get(datatype, object) if datatype != "INT64" else object for datatype in datatypes)
    timeout = (skeleton.get("parameters") or {}).get("timeout", 0) / 1e6
    about = methods, wanted, "id" in skeleton, timeout, names, datatypes, types, narrow
    if shape is not None:
        dtype = MATRICES.get(datatypes[0])
        return Plan(*about, shape=shape, dtype=dtype) if dtype is not None and 0 not in shape else None
    if not raw:
        return Plan(*about)
    formats, values, lengths, sizes = ["<"], [], [], []
    place = 0
    for each, datatype in zip(inputs, datatypes, strict=True):
        if datatype == "BYTES":
            sizes.append(each["parameters"]["binary_data_size"] - 4)
            formats.append(f"I{sizes[-1]}s")
            lengths.append(place)
            place += 1
        else:
            formats.append(FORMATS[datatype].format[1:])
        values.append(place)
        place += 1
    texts = tuple(i for i, datatype in enumerate(datatypes) if datatype == "BYTES")
    return Plan(*about, Struct("".join(formats)), (picker(values), picker(lengths)), tuple(sizes), texts)
