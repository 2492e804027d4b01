"""The functions that a library exports, and its constants, in LLVM's IR. They call the plain functions of the methods.

IR rather than TIR, since TIR has no constants of other memory than its own, no null pointers, and no instructions such as CPUID. `ptr`
has no element type, so that a few templates do for all methods.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from hashlib import blake2b

from hbc.compiler.tvm.library.interface import RESULTS, Interface, Method
from hbc.compiler.tvm.library.plain import Plain
from hbc.compiler.tvm.library.processors import ATTRIBUTES
from hbc.compiler.tvm.nest.model_data import ALIGNED, Part
from hbc.ir.types import Array
from hbc.lazy import record

NAN = "0x7FF8000000000000"


@record
class Call:
    """A call of a plain function: its name, its arguments as IR writes them, and the sizes of its buffers, which follow."""

    function: str
    arguments: Sequence[str]
    sizes: Sequence[str]
    tests: bool
    """Whether the function writes into `passed`."""


@record
class Entry:
    """What an exported method does: the tests of its inputs number by number, and the call that computes.

    bound: see hbc.compiler.tvm.library.input_test. None: the tests come first, and decide."""

    method: Method
    min_rows: int
    tests: Sequence[Call]
    call: Call
    bound: float | None


ENSEMBLES = "@hbc.ensembles"
"""The constant with the data of all tree ensembles."""


class Constants:
    """Constant memory. What is equal is kept once, also single arrays of tree ensembles, which several methods read."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._known: dict[bytes, str] = {}
        self._ensembles = bytearray()
        self._places: dict[bytes, int] = {}

    @property
    def lines(self) -> list[str]:
        """The constants in LLVM's IR."""
        return [*self._lines, *([_constant(ENSEMBLES, bytes(self._ensembles))] if self._ensembles else [])]

    def memory(self, data: bytes) -> str:
        """The name of a constant with these bytes, which begins at a cache line."""
        key = _key(data)
        if key not in self._known:
            name = self._known[key] = f"@hbc.constant{len(self._known)}"
            self._lines.append(_constant(name, data))
        return self._known[key]

    def array(self, values: Array) -> str:
        return self.memory(values.tobytes())

    def table(self, table: Array, parts: Sequence[Part]) -> str:
        """The address of a table. parts: its arrays, if it is the data of a tree ensemble.

        Such data begin with numbers, some of which say where the arrays begin: that may be anywhere in the same constant. So each array
        stands there once, whatever other arrays the methods read.
        """
        if not parts:
            return self.array(table)
        data, numbers = table.tobytes(), table[: parts[0].start // table.itemsize].copy()
        key = _key(data)
        if key not in self._places:
            starts = [self._place(data[part.start : part.start + part.size]) for part in parts]
            here = self._places[key] = len(self._ensembles)
            for part, start in zip(parts, starts, strict=True):
                numbers[part.number] = (start - here) // part.itemsize
            self._append(numbers.tobytes())
        return f"getelementptr (i8, ptr {ENSEMBLES}, i64 {self._places[key]})"

    def _place(self, data: bytes) -> int:
        """Where these bytes begin in the data of all ensembles."""
        key = _key(data)
        if key not in self._places:
            self._places[key] = len(self._ensembles)
            self._append(data)
        return self._places[key]

    def _append(self, data: bytes) -> None:
        self._ensembles += data + bytes(-len(data) % ALIGNED)


def _key(data: bytes) -> bytes:
    return blake2b(data).digest() + len(data).to_bytes(8, "little")


def _constant(name: str, data: bytes) -> str:
    return f"{name} = internal constant [{len(data)} x i8] {_bytes(data)}, align {ALIGNED}\n"


def _bytes(data: bytes) -> str:
    if not data.strip(b"\0"):
        return "zeroinitializer"
    digits = data.hex().upper()
    return 'c"\\' + "\\".join(map("".join, zip(digits[::2], digits[1::2], strict=True))) + '"'


def whole_module(plain: Plain, constants: Constants, functions: Sequence[str]) -> str:
    """The IR of a library: that of its plain functions, now internal, its constants and its exported functions."""
    text = re.sub(r", !dbg !\d+", "", re.sub(r" !dbg !\d+ \{", " {", plain.text))
    text = re.sub(r"(?m)^    #dbg_.*\n", "", text)
    text = re.sub(r"(?m)^define dllexport ", "define internal ", text)
    # TVM adds these to every module, for numbers of 16 bits. They are weak, and would get in the way of others of that name.
    text = re.sub(
        r"(?ms)^(; Function Attrs:[^\n]*\n)?define weak dso_local [^\n]*@__(truncsfhf2|extendhfsf2)\(.*?^}\n", "", text
    )
    first = re.search(r"(?m)^(; Function Attrs|define )", text)
    assert first is not None
    return "".join([text[: first.start()], *constants.lines, *functions, text[first.start() :]])


# --- methods -------------------------------------------------------------------------------------------------------------


def entry_functions(entry: Entry, interface: Interface, workspace: int, size_t: str) -> str:
    """The three exported functions of a method. `workspace`: the bytes that its functions need. `size_t`: the type of sizes of memory."""
    name = f"{interface.prefix}_{entry.method.name}"
    pointers = [matrix.name for matrix in interface.inputs]
    results = [result.name for result in entry.method.results]
    before, after = ([f"ptr %{pointer}" for pointer in names] for names in (pointers, results))
    parameters = ", ".join([*before, "i64 %rows", *after])
    size = workspace + ALIGNED  # the caller's memory, or malloc's, may begin anywhere
    return f"""
define i64 @{name}_workspace() {ATTRIBUTES} {{
  ret i64 {size}
}}
define i32 @{name}_with({parameters}, ptr %workspace) {ATTRIBUTES} {{
  %passed = alloca i64, align 8
  %runs = call i1 @hbc.runs()
  br i1 %runs, label %begin, label %processor
begin:
  %few = icmp slt i64 %rows, {entry.min_rows}
  br i1 %few, label %wrong_rows, label %enough
enough:
  %none = icmp eq i64 %rows, 0
  br i1 %none, label %done, label %some
some:
{_no_nulls([*pointers, *results, "workspace"])}  %address = ptrtoint ptr %workspace to i64
  %beyond = add i64 %address, {ALIGNED - 1}
  %aligned = and i64 %beyond, {-ALIGNED}
  %memory = inttoptr i64 %aligned to ptr
{_body(entry)}done:
  ret i32 {RESULTS["OK"][0]}
rejected:
  ret i32 {RESULTS["REJECTED"][0]}
wrong_rows:
  ret i32 {RESULTS["ROWS"][0]}
null:
  ret i32 {RESULTS["POINTER"][0]}
processor:
  ret i32 {RESULTS["PROCESSOR"][0]}
}}
define i32 @{name}({parameters}) {ATTRIBUTES} {{
  %workspace = call ptr @malloc({size_t} {size})
  %none = icmp eq ptr %workspace, null
  br i1 %none, label %no_memory, label %go
go:
  %result = call i32 @{name}_with({parameters}, ptr %workspace)
  call void @free(ptr %workspace)
  ret i32 %result
no_memory:
  ret i32 {RESULTS["MEMORY"][0]}
}}
"""


def _no_nulls(pointers: Sequence[str]) -> str:
    """Code that goes to `null` if a pointer is null."""
    lines = []
    for number, pointer in enumerate(pointers):
        lines.append(f"  %null{number} = icmp eq ptr %{pointer}, null\n")
        lines.append(f"  br i1 %null{number}, label %null, label %not_null{number}\nnot_null{number}:\n")
    return "".join(lines)


def _body(entry: Entry) -> str:
    """The tests and the call of a method, up to the end of its function's work."""
    tests = "".join(_tested(call, f"test{number}", "rejected") for number, call in enumerate(entry.tests))
    if entry.bound is None:
        call = _tested(entry.call, "method", "rejected", "0.0") if entry.call.tests else _called(entry.call)
        return f"{tests}{call}  br label %done\n"
    bound = "0x" + _bits(entry.bound)
    return f"""{_tested(entry.call, "method", "again", bound)}  br label %done
again:
{tests}{_called(entry.call, NAN)}  br label %done
"""


def _bits(value: float) -> str:
    """A double as IR writes it exactly."""
    return struct.pack(">d", value).hex().upper()


def _called(call: Call, bound: str | None = None) -> str:
    arguments = list(call.arguments)
    if call.tests:
        arguments += ([f"double {bound}"] if bound is not None else []) + ["ptr %passed"]
    arguments += [f"i64 {size}" for size in call.sizes]
    return f"  call i32 @{call.function}({', '.join(arguments)}, ptr %memory)\n"


def _tested(call: Call, label: str, otherwise: str, bound: str | None = None) -> str:
    """A call that goes on to `otherwise` if the function has not passed its input."""
    return f"""{_called(call, bound)}  %passed_{label} = load i64, ptr %passed, align 8
  %good_{label} = icmp ne i64 %passed_{label}, 0
  br i1 %good_{label}, label %after_{label}, label %{otherwise}
after_{label}:
"""


# --- facts ---------------------------------------------------------------------------------------------------------------


def fact_functions(interface: Interface, constants: Constants, oldest: str, size_t: str) -> str:
    """The exported functions that tell about the library, and what all functions need. `oldest`: the attributes of code for the oldest
    processor of this kind."""
    prefix = interface.prefix
    about = constants.memory(interface.about().encode() + b"\0")
    messages = [meaning for _, meaning in RESULTS.values()]
    return f"""
declare ptr @malloc({size_t})
declare void @free(ptr)
define ptr @{prefix}_about() {ATTRIBUTES} {{
  ret ptr {about}
}}
{_count(f"{prefix}_columns", len(interface.feature_labels))}{_count(f"{prefix}_classes", len(interface.classes))}\
{_texts(f"{prefix}_message", messages, constants)}{_texts(f"{prefix}_feature_name", interface.feature_labels, constants)}\
{_texts(f"{prefix}_class_name", interface.class_labels, constants)}attributes {ATTRIBUTES} = {{ nounwind {oldest} }}
"""


def _count(name: str, number: int) -> str:
    return f"define i64 @{name}() {ATTRIBUTES} {{\n  ret i64 {number}\n}}\n"


def _texts(name: str, texts: Sequence[str], constants: Constants) -> str:
    """A function from a number to a text, or to null. Offsets rather than pointers: those would have to be relocated by the loader."""
    if not texts:
        return f"define ptr @{name}(i64 %number) {ATTRIBUTES} {{\n  ret ptr null\n}}\n"
    encoded = [text.encode() + b"\0" for text in texts]
    starts, at = [], 0
    for data in encoded:
        starts.append(at)
        at += len(data)
    places = constants.memory(b"".join(start.to_bytes(8, "little") for start in starts))
    return f"""define ptr @{name}(i64 %number) {ATTRIBUTES} {{
  %known = icmp ult i64 %number, {len(texts)}
  br i1 %known, label %yes, label %no
yes:
  %place = getelementptr i64, ptr {places}, i64 %number
  %start = load i64, ptr %place, align 8
  %text = getelementptr i8, ptr {constants.memory(b"".join(encoded))}, i64 %start
  ret ptr %text
no:
  ret ptr null
}}
"""
