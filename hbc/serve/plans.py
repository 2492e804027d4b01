"""Small requests in the Open Inference Protocol v2: how tensors of one row become a record, and plans for requests that come again.

A client sends the same JSON over and over, but for the values and the id. So what such a request says besides its values is read once, the
usual way, and kept as a `Plan`. 30 columns take 6 µs by a plan as bytes, and 11 as JSON; without one they take 25 and 17. A matrix has
plans too.

JSON is cut: what stands around the values is the key of the plan, and the values are read alone. Where bytes follow the JSON, it says
their sizes, and those of strings differ from request to request. The bytes say them too. So a plan reads the bytes first, writes the JSON
of a request with these sizes, and compares it with the JSON that has come."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Sequence
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
length_of = Struct("<I").unpack_from
"""(bytes, place) → (the length that stands before an element of BYTES,)."""
NOTHING = Struct("")
MOST_EXACT = 1 << 53

MARK, END = b'"data":', b"]"
"""What stands before the values of a tensor in JSON, and behind them."""
SIZE, SIZE_END = b'"binary_data_size":', b"}"
"""The same for the size of a tensor whose values are bytes behind the JSON."""
ID = re.compile(rb'\{\s*"id"\s*:\s*"([ !#-\[\]-~]*)"\s*,')
"""The start of a request whose id comes first, as tritonclient writes it; without escapes in the id."""

LONGEST = 32 << 10
"""The most bytes of a request for which there are plans."""
MOST_PLANS, MOST_BYTES = 64, 512 << 10
"""The most plans of a model, and the most bytes of what stays the same in their requests."""
MOST_ALIKE = 4
"""The most plans for requests with bytes whose JSON begins alike, up to the first size. Each of them is tried."""
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
            value = value_in(raw[place : place + size], datatype, size)
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


def value_in(raw: bytes | memoryview, datatype: str, size: int) -> Any:
    """The value of a column of this datatype, from its bytes. None for bytes that are no value of it."""
    if len(raw) != size:
        return None
    form = FORMATS.get(datatype)
    if form is not None:
        if form.size != size:
            return None
        (value,) = form.unpack(raw)
        return np.float32(value) if datatype == "FP32" else value
    if datatype != "BYTES" or size < 4 or length_of(raw) != (size - 4,):
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
    narrow: tuple[str, ...]
    """The columns of FP32."""
    text: bytes = b""
    """The JSON before bytes, without the id that it begins with, and with %d for the size of each string."""
    strings: tuple[tuple[Any, int], ...] = ()
    """For each string, in order: what reads the numbers before it and its length, and of how many bytes."""
    rest: Struct = NOTHING
    """The numbers behind the last string."""
    pick: tuple[Any, Any] = (None, None)
    """(what picks the values, what picks the lengths of strings) of all that stands there, with each string behind its length."""
    shape: tuple[int, int] | None = None
    """That of the matrix. None for a row of columns, which becomes a record."""
    dtype: np.dtype[Any] | None = None

    def wants(self, request_id: str | None) -> Wanted:
        """How a request with this id wants its answer."""
        usual = self.wanted
        if self.names_itself or request_id == usual.request_id:
            return usual
        return Wanted(request_id, usual.names, usual.binary, usual.usual_binary)

    def of_bytes(self, text: bytes, body: bytes, start: int) -> Any:
        """The record or matrix that stands in a body from `start` on, behind this JSON without its id. None for a request that is not like
        the one of the plan, and where the usual way must say what is wrong."""
        if self.shape is not None:
            if text != self.text or len(body) - start != self.size:
                return None
            return np.frombuffer(body, self.dtype, offset=start).reshape(self.shape).copy()  # aligned, and writable
        fields: list[Any] = []
        try:
            for unpack, size in self.strings:
                found = unpack(body, start)
                fields += found
                start += size
                end = start + found[-1]
                fields.append(body[start:end].decode())
                start = end
            fields += self.rest.unpack_from(body, start)
        except (struct.error, UnicodeDecodeError):
            return None
        values, lengths = self.pick
        if start + self.rest.size != len(body) or text != self.text % tuple([length + 4 for length in lengths(fields)]):
            return None
        row = dict(zip(self.names, values(fields), strict=True))
        for name in self.narrow:
            row[name] = np.float32(row[name])
        return row

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


Columns = tuple[tuple[str, ...], tuple[str, ...]]
"""The names of columns, and their datatypes."""


class Plans:
    """The plans of one model, for requests as bytes and as JSON. The event loop alone uses them."""

    def __init__(self) -> None:
        self._bytes: dict[bytes, list[Plan]] = {}
        """How the JSON begins → the plans, the newest first."""
        self._json: dict[bytes, Plan] = {}
        """The JSON without values → the plan."""
        self._columns: dict[bytes, Columns] = {}
        """A message of gRPC without values → what it says of them."""
        self._seen: set[int] = set()

    def __len__(self) -> int:
        return sum(map(len, self._bytes.values())) + len(self._json) + len(self._columns)

    @property
    def held(self) -> int:
        """The bytes of what stays the same in their requests."""
        texts = (plan.text for alike in self._bytes.values() for plan in alike)
        return sum(map(len, (*self._json, *self._columns, *texts)))

    def of_bytes(self, text: bytes, body: bytes) -> tuple[Plan, str | None, Any] | None:
        """(the plan for a request, the id that it begins with, its record or matrix). text: the JSON that the body begins with; bytes
        follow. None if no plan is for it."""
        start = len(text)
        text, request_id = _without_id(text)
        for plan in self._bytes.get(text[: text.find(SIZE)], ()):
            value = plan.of_bytes(text, body, start)
            if value is not None:
                return plan, request_id, value
        return None

    def of_json(self, text: bytes) -> tuple[Plan, str | None, Any] | None:
        """The same for a request that is nothing but JSON."""
        key, texts = _cut(text, MARK, END)
        key, request_id = _without_id(key)
        plan = self._json.get(key)
        value = None if plan is None else plan.of_texts(texts)
        return None if plan is None or value is None else (plan, request_id, value)

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
        key, gaps = _cut(text, SIZE, SIZE_END) if raw else _cut(text, MARK, END)
        key = _without_id(key)[0]
        if not raw and key in self._json:
            return  # its values were such that the usual way had to read them
        if self._is_new(hash((raw, key))):
            return
        inputs = document["inputs"]
        if raw and any("data" in each for each in inputs):
            return  # only some of its tensors have bytes
        skeleton = _with_sizes(key, document) if raw else _with_values(key, document)
        template = b"" if not raw or skeleton is None else _template(key, gaps, inputs)
        if skeleton is None or template is None:
            return
        plan = _plan(inputs, skeleton, methods, wanted, template, shape)
        if plan is None:
            return
        self._make_room(template or key)
        if raw:
            head = key[: key.find(SIZE)]
            alike = [other for other in self._bytes.get(head, ()) if other.text != plan.text]
            self._bytes[head] = [plan, *alike[: MOST_ALIKE - 1]]
        else:
            self._json[key] = plan

    def columns(self, key: bytes) -> Columns | None:
        """What a message of gRPC says of its raw columns of one row. key: all of it but for its values and its id."""
        return self._columns.get(key)

    def learn_columns(self, key: bytes, columns: Columns) -> None:
        """Keep this, if such a message has come before."""
        if not self._is_new(hash(key)):
            self._make_room(key)
            self._columns[key] = columns

    def _is_new(self, request: int) -> bool:
        """Whether no request with this hash has come before."""
        new = request not in self._seen
        if new and len(self._seen) >= MOST_SEEN:
            self._seen.clear()
        self._seen.add(request)
        return new

    def _make_room(self, text: bytes) -> None:
        """Throw all plans away, if there is no room for one more with this text."""
        if len(self) >= MOST_PLANS or self.held + len(text) > MOST_BYTES:
            self._bytes.clear()
            self._json.clear()
            self._columns.clear()


def _without_id(text: bytes) -> tuple[bytes, str | None]:
    """(a request without the id that it begins with, the id). Both are JSON, or none is, if anything follows the id."""
    found = ID.match(text)
    return (text, None) if found is None else (b"{" + text[found.end() :], found[1].decode())


def _cut(text: bytes, mark: bytes, end: bytes) -> tuple[bytes, Sequence[bytes]]:
    """(a request without what stands between a mark and an end, all that stands there)."""
    first, *parts = text.split(mark)
    if not parts:
        return text, ()
    gaps, _, rest = zip(*[part.partition(end) for part in parts], strict=True)
    return mark.join((first, *rest)), gaps


def _with_values(key: bytes, document: dict[str, Any]) -> dict[str, Any] | None:
    """What a request says whose values were cut out, and stand-ins for them. None if those were not the values of its tensors."""
    return _skeleton(key, document, MARK, b"[%d]", lambda number: {"data": [number]})


def _with_sizes(key: bytes, document: dict[str, Any]) -> dict[str, Any] | None:
    """The same for the sizes of its tensors."""
    return _skeleton(key, document, SIZE, b"%d}", lambda number: {"parameters": {"binary_data_size": number}})


def _skeleton(
    key: bytes, document: dict[str, Any], mark: bytes, written: bytes, part_of: Callable[[int], dict[str, Any]]
) -> dict[str, Any] | None:
    """What a request says if numbers are written where it was cut. None if what was cut out was not this part of its tensors, in order, and
    nothing else: the mark ends other keys too (`"x\\"data":`), and a tensor may have its own in another spelling.

    The numbers are tried twice, and none comes twice. So where one is found, it is not what the request says there anyway."""
    first, *rest = key.split(mark)
    inputs = document["inputs"]
    if len(rest) != len(inputs):
        return None
    found = None
    for least in (0, len(rest)):
        parts = [mark + written % (least + place) + part for place, part in enumerate(rest)]
        try:
            found = value_of(b"".join((first, *parts)))
        except ValueError:
            return None
        expected = {**document, "inputs": [{**each, **part_of(least + place)} for place, each in enumerate(inputs)]}
        if _but_id(found) != _but_id(expected):
            return None
    return found


def _but_id(document: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name != "id"}


def _template(key: bytes, sizes: Sequence[bytes], inputs: list[dict[str, Any]]) -> bytes | None:
    """The JSON whose sizes were cut out, with %d for those of strings; whatever else has a % has two. None if one of them is not written
    as %d would write it."""
    first, *rest = (part.replace(b"%", b"%%") for part in key.split(SIZE))
    parts = [first]
    for size, part, each in zip(sizes, rest, inputs, strict=True):
        if each["datatype"] == "BYTES":
            number = size.lstrip(b" ")
            if number != b"%d" % each["parameters"]["binary_data_size"]:
                return None
            size = size[: len(size) - len(number)] + b"%d"
        else:
            size = size.replace(b"%", b"%%")
        parts += SIZE, size, SIZE_END, part
    return b"".join(parts)


def _plan(
    inputs: list[dict[str, Any]],
    skeleton: dict[str, Any],
    methods: tuple[str, ...],
    wanted: Wanted,
    template: bytes,
    shape: tuple[int, int] | None,
) -> Plan | None:
    """The plan for requests like this one. None for a matrix of other dtypes, or without rows."""
    names, datatypes = (tuple(each[name] for each in inputs) for name in ("name", "datatype"))
    narrow = tuple(name for name, datatype in zip(names, datatypes, strict=True) if datatype == "FP32")
    # INT64 has a range, which `_of_json` tests: no value of it is taken as it is.
    types = tuple(PYTHONS.get(datatype, object) if datatype != "INT64" else object for datatype in datatypes)
    timeout = (skeleton.get("parameters") or {}).get("timeout", 0) / 1e6
    about = methods, wanted, "id" in skeleton, timeout, names, datatypes, types, narrow
    if shape is not None:
        dtype = MATRICES.get(datatypes[0])
        return Plan(*about, template % (), shape=shape, dtype=dtype) if dtype is not None and 0 not in shape else None
    if not template:
        return Plan(*about)
    strings, values, lengths = [""], [], []
    place = 0
    for datatype in datatypes:
        strings[-1] += "I" if datatype == "BYTES" else FORMATS[datatype].format[1:]
        if datatype == "BYTES":
            strings.append("")
            lengths.append(place)
            place += 1
        values.append(place)
        place += 1
    *before, rest = (Struct("<" + form) for form in strings)
    readers = tuple((form.unpack_from, form.size) for form in before)
    return Plan(*about, template, readers, rest, (picker(values), picker(lengths)))
