"""The shortest way from Python into compiled code: a function of the interpreter's own kind, in the compiled library itself.

`quick(X)` and `quick(X, out)` test the arrays, make the result and call the compiled function, all in machine code. By tvm_ffi and numpy's
functions one row of 20 columns takes 1.1 µs more. What it does not take, it passes on to a function in Python, if it was given one. So a
Handle (hbc/runtime/handle.py) runs no Python at all, which would take 0.1 µs.

A call with much work releases Python's lock (GIL) while it computes, as `run_free` of hbc/process.py does. Then other threads run Python
code: so the call has its own references to its arrays, and its own copies of their shapes, which Python code may change.

The code reads the fields of arrays as C extensions do: numpy's and CPython's headers promise their places. Nothing is trusted unseen:
`usable` compares what stands there with what Python says. Elsewhere (other interpreters, builds without the lock or for debugging, TVM's
JIT) there is no entry, and calls go by tvm_ffi.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy import ndarray

from hbc.ir.types import Array
from hbc.process import CALLS, flights

SYMBOL = "hbc_call"
"""The name of the entry in a library. Any library's entry calls the compiled functions of all."""

WORD = 8
# The words of a record.
NDARRAY, NEXT, WIDTH, LEAST, FEW, MANY, X_DTYPE, OUT_DTYPE, OUT_RANK, OUT_WIDTH, TESTS, RUN, COUNT, OUT_PLACE = range(14)
EMPTY, TAKE, DROP, NONE, RELEASE, REGAIN, FLIGHTS, OTHERWISE, CALL, OUT_NAME, NAMES, METHOD, PASSED = *range(14, 26), 29
# From PASSED on stand two DLTensors of six words (data, device, rank and dtype, shape, strides, offset), and the arguments of the function,
# two words each. Every call completes a copy of them on its stack, since several threads may be in a call.
X_TENSOR, OUT_TENSOR, ARGUMENTS = 0, 6, 12
MOST_ARGUMENTS = 30
"""The most arguments of a function that the copy has room for. Those that hbc compiles have some ten."""

TENSOR, TENSOR_OBJECT, INTEGER, FLOAT = 7, 70, 1, 3
"""Kinds of arguments of TVM's functions: a pointer to a DLTensor, a Tensor of tvm_ffi, an i64, an f64."""
CPU = 1  # DLDevice
KINDS = {"i": 0, "u": 1, "f": 2, "b": 6}  # DLDataType
FAST_CALL, KEYWORDS = 0x80, 0x02
"""PyMethodDef: the function takes an array of arguments, how many have no name, and a tuple of the names of the others."""

TUPLE_SIZE = 16
"""Where a tuple has the number of its items, in bytes. The items stand behind all other fields, at `tuple.__basicsize__`."""
C_CONTIGUOUS, ALIGNED, WRITEABLE = 0x1, 0x100, 0x400  # the flags of an array
TYPE, MEMORY, RANK, SHAPE, DTYPE, FLAGS = 8, 16, 24, 32, 56, 64
"""Where fields of an array stand, in bytes: numpy's PyArrayObject_fields behind CPython's PyObject."""
KIND = 24
"""Where a dtype has eight bytes that tell dtypes apart: kind, character, order of bytes, flags, and number. Arrays that came out of a
pickle (from other processes, joblib's files) have dtypes that are equal to numpy's own ones, and other objects."""
EMPTY_IN_NUMPY = 184
"""The number of PyArray_Empty among numpy's functions for C."""
NUMPY_VERSIONS = (0x01000009, 0x02000000)
"""The versions of numpy's interface for C, whose first function tells it: 1.x and 2.x."""


def _load(name: str, pointer: str, offset: int, kind: str = "ptr") -> str:
    return f"""  %{name}.at = getelementptr i8, ptr %{pointer}, i64 {offset}
  %{name} = load {kind}, ptr %{name}.at, align 4
"""


def _word(name: str, number: int, kind: str = "i64") -> str:
    return _load(name, "record", WORD * number, kind)


def _put(number: int, value: str, place: str = "record") -> str:
    name = f"put{number}.{place}"
    return f"""  %{name} = getelementptr i8, ptr %{place}, i64 {WORD * number}
  store {value}, ptr %{name}, align 8
"""


def _require(name: str, test: str) -> str:
    return f"  %{name} = {test}\n  br i1 %{name}, label %{name}.yes, label %none\n{name}.yes:\n"


def entry() -> str:
    """The entry in LLVM's IR. `self` is an array of words, the record; records of other dtypes may follow it."""
    flags, written = C_CONTIGUOUS | ALIGNED, C_CONTIGUOUS | ALIGNED | WRITEABLE
    return f"""
define ptr @{SYMBOL}(ptr %self, ptr %arguments, i64 %unnamed, ptr %names) nounwind {{
start:
  %answer = alloca [2 x i64], align 64
  %call = alloca [{ARGUMENTS + 2 * MOST_ARGUMENTS} x i64], align 64
  %X.sizes = alloca [2 x i64], align 64
  %out.sizes = alloca [2 x i64], align 64
{_load("first", "self", MEMORY)}\
  %all.unnamed = icmp eq ptr %names, null
  br i1 %all.unnamed, label %counted, label %named
named:
{_load("names.count", "names", TUPLE_SIZE, "i64")}\
{_load("names.place", "first", WORD * NAMES, "i64")}\
{_load("out.name", "first", WORD * OUT_NAME)}\
  %name.at = getelementptr i8, ptr %names, i64 %names.place
  %name = load ptr, ptr %name.at, align 8
  %is.out = icmp eq ptr %name, %out.name
  %is.single = icmp eq i64 %names.count, 1
  %has.X = icmp eq i64 %unnamed, 1
  %out.alone = and i1 %is.out, %is.single
  %out.named = and i1 %out.alone, %has.X
  br i1 %out.named, label %counted, label %none
counted:
  %count = phi i64 [ %unnamed, %start ], [ 2, %named ]
  %without.X = sub i64 %count, 1
  %one.or.two = icmp ult i64 %without.X, 2
  br i1 %one.or.two, label %taking, label %none
taking:
{_load("X", "arguments", 0)}\
{_load("X.type", "X", TYPE)}\
  %ndarray.at = getelementptr i8, ptr %first, i64 {WORD * NDARRAY}
  %ndarray = load ptr, ptr %ndarray.at, align 8
  %X.array = icmp eq ptr %X.type, %ndarray
  br i1 %X.array, label %fields, label %none
fields:
{_load("X.dtype", "X", DTYPE)}\
{_load("X.rank", "X", RANK, "i32")}\
{_load("X.flags", "X", FLAGS, "i32")}\
  br label %each
each:
  %known = phi ptr [ %first, %fields ], [ %next, %other ]
{_load("dtype", "known", WORD * X_DTYPE)}\
  %same = icmp eq ptr %dtype, %X.dtype
  br i1 %same, label %found, label %other
other:
{_load("next", "known", WORD * NEXT)}\
  %last = icmp eq ptr %next, null
  br i1 %last, label %alike, label %each
alike:
{_load("X.kind", "X.dtype", KIND, "i64")}\
  br label %each.alike
each.alike:
  %candidate = phi ptr [ %first, %alike ], [ %following, %other.alike ]
{_load("own.dtype", "candidate", WORD * X_DTYPE)}\
{_load("own.kind", "own.dtype", KIND, "i64")}\
  %is.alike = icmp eq i64 %own.kind, %X.kind
  br i1 %is.alike, label %found, label %other.alike
other.alike:
{_load("following", "candidate", WORD * NEXT)}\
  %none.alike = icmp eq ptr %following, null
  br i1 %none.alike, label %none, label %each.alike
found:
  %record = phi ptr [ %known, %each ], [ %candidate, %each.alike ]
{_require("matrix", "icmp eq i32 %X.rank, 2")}\
  %X.layout = and i32 %X.flags, {flags}
{_require("plain", f"icmp eq i32 %X.layout, {flags}")}\
{_load("X.shape", "X", SHAPE)}\
{_load("rows", "X.shape", 0, "i64")}\
{_load("columns", "X.shape", WORD, "i64")}\
{_word("width", WIDTH)}\
{_require("wide", "icmp eq i64 %columns, %width")}\
{_word("least", LEAST)}\
{_require("enough", "icmp sge i64 %rows, %least")}\
{_word("many", MANY)}\
{_require("short", "icmp slt i64 %rows, %many")}\
{_word("out.dtype", OUT_DTYPE, "ptr")}\
{_word("out.rank", OUT_RANK)}\
{_word("out.width", OUT_WIDTH)}\
{_word("take", TAKE, "ptr")}\
{_put(0, "i64 %rows", "X.sizes")}\
{_put(1, "i64 %columns", "X.sizes")}\
{_put(0, "i64 %rows", "out.sizes")}\
{_put(1, "i64 %out.width", "out.sizes")}\
  %one = icmp eq i64 %count, 1
  br i1 %one, label %make, label %given
make:
{_word("empty", EMPTY, "ptr")}\
  %rank = trunc i64 %out.rank to i32
  call void %take(ptr %out.dtype)
  %made = call ptr %empty(i32 %rank, ptr %out.sizes, ptr %out.dtype, i32 0)
  %no_memory = icmp eq ptr %made, null
  br i1 %no_memory, label %failed, label %run
failed:
  ret ptr null
given:
{_load("out", "arguments", WORD)}\
{_load("out.type", "out", TYPE)}\
{_require("out.array", "icmp eq ptr %out.type, %ndarray")}\
{_load("out.own", "out", DTYPE)}\
{_require("out.same", "icmp eq ptr %out.own, %out.dtype")}\
{_load("out.flags", "out", FLAGS, "i32")}\
  %out.layout = and i32 %out.flags, {written}
{_require("out.plain", f"icmp eq i32 %out.layout, {written}")}\
{_load("out.dimensions", "out", RANK, "i32")}\
  %out.long = sext i32 %out.dimensions to i64
{_require("out.fits", "icmp eq i64 %out.long, %out.rank")}\
{_load("out.shape", "out", SHAPE)}\
{_load("out.rows", "out.shape", 0, "i64")}\
{_require("out.enough", "icmp eq i64 %out.rows, %rows")}\
  %vector = icmp eq i64 %out.rank, 1
  br i1 %vector, label %taken, label %out.matrix
out.matrix:
{_load("out.columns", "out.shape", WORD, "i64")}\
{_require("out.wide", "icmp eq i64 %out.columns, %out.width")}\
  br label %taken
taken:
  call void %take(ptr %out)
  br label %run
run:
  %result = phi ptr [ %made, %make ], [ %out, %taken ]
{_word("function", RUN, "ptr")}\
{_word("passed", COUNT, "i32")}\
{_word("out.place", OUT_PLACE)}\
  %words = zext i32 %passed to i64
  %pairs = add i64 %words, {ARGUMENTS // 2}
  %template = getelementptr i8, ptr %record, i64 {WORD * PASSED}
  br label %copy
copy:
  %pair = phi i64 [ 0, %run ], [ %pair.next, %copy ]
  %from = getelementptr [2 x i64], ptr %template, i64 %pair
  %to = getelementptr [2 x i64], ptr %call, i64 %pair
  %both = load <2 x i64>, ptr %from, align 8
  store <2 x i64> %both, ptr %to, align 16
  %pair.next = add i64 %pair, 1
  %copied = icmp eq i64 %pair.next, %pairs
  br i1 %copied, label %fill, label %copy
fill:
{_load("X.data", "X", MEMORY)}\
{_load("result.data", "result", MEMORY)}\
{_put(X_TENSOR, "ptr %X.data", "call")}\
{_put(X_TENSOR + 3, "ptr %X.sizes", "call")}\
{_put(OUT_TENSOR, "ptr %result.data", "call")}\
{_put(OUT_TENSOR + 3, "ptr %out.sizes", "call")}\
  %values = getelementptr i8, ptr %call, i64 {WORD * ARGUMENTS}
  %out.tensor = getelementptr i8, ptr %call, i64 {WORD * OUT_TENSOR}
  %out.argument = getelementptr i8, ptr %values, i64 %out.place
{_put(1, "ptr %call", "values")}\
{_put(1, "ptr %out.tensor", "out.argument")}\
{_put(5, "i64 %rows", "out.argument")}\
  store i64 0, ptr %answer, align 8
  %answer.value = getelementptr i8, ptr %answer, i64 {WORD}
  store i64 0, ptr %answer.value, align 8
{_word("few", FEW)}\
{_word("flights", FLIGHTS, "ptr")}\
  %closed = load i64, ptr %flights, align 8
  %calls.at = getelementptr i8, ptr %flights, i64 {WORD * CALLS}
  %open = icmp eq i64 %closed, 0
  %worth = icmp sge i64 %rows, %few
  %free = and i1 %open, %worth
  br i1 %free, label %release, label %compute
release:
{_word("let.go", RELEASE, "ptr")}\
  call void %take(ptr %X)
  %calls.before = load i64, ptr %calls.at, align 8
  %calls.begun = add i64 %calls.before, 1
  store i64 %calls.begun, ptr %calls.at, align 8
  %released = call ptr %let.go()
  br label %compute
compute:
  %thread = phi ptr [ null, %fill ], [ %released, %release ]
  %code = call i32 %function(ptr null, ptr %values, i32 %passed, ptr %answer)
  %holds = icmp eq ptr %thread, null
  br i1 %holds, label %computed, label %regain
regain:
{_word("get.back", REGAIN, "ptr")}\
{_word("let.fall", DROP, "ptr")}\
  call void %get.back(ptr %thread)
  %calls.after = load i64, ptr %calls.at, align 8
  %calls.ended = sub i64 %calls.after, 1
  store i64 %calls.ended, ptr %calls.at, align 8
  call void %let.fall(ptr %X)
  br label %computed
computed:
  %worked = icmp eq i32 %code, 0
{_word("tests", TESTS)}\
  %untested = icmp eq i64 %tests, 0
  %good = load i64, ptr %answer.value, align 8
  %is_good = icmp ne i64 %good, 0
  %passes = or i1 %untested, %is_good
  %done = and i1 %worked, %passes
  br i1 %done, label %return, label %give_up
return:
  ret ptr %result
give_up:
{_word("drop", DROP, "ptr")}\
  call void %drop(ptr %result)
  br label %none
none:
{_load("otherwise", "first", WORD * OTHERWISE)}\
  %no.other = icmp eq ptr %otherwise, null
  br i1 %no.other, label %nothing, label %pass_on
pass_on:
{_load("call.python", "first", WORD * CALL)}\
  %passed.on = call ptr %call.python(ptr %otherwise, ptr %arguments, i64 %unnamed, ptr %names)
  ret ptr %passed.on
nothing:
{_load("none.object", "first", WORD * NONE)}\
{_load("count.up", "first", WORD * TAKE)}\
  call void %count.up(ptr %none.object)
  ret ptr %none.object
}}
"""


class Record(np.ndarray[Any, Any]):
    """The words of an entry, and what must live as long: the code, the tables, and the records that follow."""

    kept: tuple[Any, ...]


NAME = ctypes.create_string_buffer(b"quick")
OUT = sys.intern("out")
"""The very string that a call by name passes."""


class Quick:
    """`function`: quick(X) or quick(X, out), which returns the result. What it does not take, and values that do not pass the tests, it
    passes on to `otherwise`, and returns what that returns; without one it returns None.

    It takes arrays [rows, width] of one dtype, C-contiguous, of `least` to `many` - 1 rows; and as `out` only an array of just the shape
    and dtype of the result (the very dtype object that numpy has for it). From `few` rows on it releases Python's lock (GIL) while it
    computes."""

    def __init__(self, record: Record, function: Callable[..., Array | None]) -> None:
        self.record = record
        self.function = function

    def and_then(self, other: Quick) -> None:
        """Let the function take the arrays of another one too, of another dtype."""
        last = self.record
        while last[NEXT]:
            last = last.kept[-1]
        last.kept = (*last.kept, other.record)
        last[NEXT] = other.record.ctypes.data


def quick_way(
    addresses: tuple[int, int],
    dtypes: tuple[np.dtype[Any], np.dtype[Any]],
    widths: tuple[int, int | None],
    rows: tuple[int, int, int],
    tables: Sequence[Any],
    last: Sequence[float],
    kept: Any,
    otherwise: Callable[..., Any] | None = None,
) -> Quick | None:
    """The quick way into a function with one input and one result. None where this interpreter or numpy is not as expected, for dtypes
    other than numbers and booleans, and for more than MOST_ARGUMENTS.

    addresses: of the entry, and of TVM's packed function. dtypes, widths: of X and of the result, which has no columns if its width is
    None. rows: `least`, `few` and `many`. tables: as TVM's tensors. last: the bound, if the function tests its input. kept: what must live
    as long. otherwise: called with the arguments that it does not take. If it is None, the answer to those is None.
    """
    make_array = usable()
    if make_array is None or any(dtype.kind not in KINDS or not dtype.isnative for dtype in dtypes):
        return None
    python, count = ctypes.pythonapi, len(tables) + 4 + len(last)
    if count > MOST_ARGUMENTS:
        return None
    record = np.zeros(PASSED + ARGUMENTS + 2 * count, np.int64).view(Record)
    here = record.ctypes.data
    singles = [np.dtype(dtype.str) for dtype in dtypes]  # the objects that arrays of these dtypes have
    rank = 1 if widths[1] is None else 2
    record[[NDARRAY, X_DTYPE, OUT_DTYPE]] = id(ndarray), *map(id, singles)
    record[[WIDTH, LEAST, FEW, MANY]] = widths[0], *rows
    record[[OUT_RANK, OUT_WIDTH, TESTS]] = rank, widths[1] or 0, len(last)
    record[[RUN, COUNT, OUT_PLACE]] = addresses[1], count, WORD * 2 * (len(tables) + 1)
    record[[EMPTY, TAKE, DROP, NONE]] = make_array, address_of(python.Py_IncRef), address_of(python.Py_DecRef), id(None)
    save, restore = python.PyEval_SaveThread, python.PyEval_RestoreThread
    record[[RELEASE, REGAIN, FLIGHTS]] = address_of(save), address_of(restore), ctypes.addressof(flights)
    record[[OTHERWISE, CALL]] = 0 if otherwise is None else id(otherwise), address_of(python.PyObject_Vectorcall)
    record[[OUT_NAME, NAMES]] = id(OUT), tuple.__basicsize__
    passed = record[PASSED:]
    passed[X_TENSOR : X_TENSOR + 3] = _tensor(singles[0], 2)
    passed[OUT_TENSOR : OUT_TENSOR + 3] = _tensor(singles[1], rank)
    arguments = [
        (TENSOR, 0),  # a call knows where X and the result are, and the rows
        *((TENSOR_OBJECT, table.__chandle__()) for table in tables),
        *((TENSOR, 0), (INTEGER, 0), (INTEGER, 0)),
        *((FLOAT, int(np.float64(bound).view(np.int64))) for bound in last),
    ]
    passed[ARGUMENTS:] = np.array(arguments, np.int64).reshape(-1)
    # CPython reads this while it frees the function, before it lets go of the record.
    record[METHOD : METHOD + 3] = ctypes.addressof(NAME), addresses[0], FAST_CALL | KEYWORDS
    record.kept = (kept, tables, singles, otherwise)
    make_function = python.PyCFunction_NewEx
    make_function.restype, make_function.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    return Quick(record, make_function(here + WORD * METHOD, record, None))


def _tensor(dtype: np.dtype[Any], rank: int) -> tuple[int, int, int]:
    """The first words of a DLTensor: no data yet, the device, the rank and dtype."""
    return 0, CPU, rank | KINDS[dtype.kind] << 32 | 8 * dtype.itemsize << 40 | 1 << 48


def address_of(function: Any) -> int:
    """That of a function of a library, as ctypes knows it."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0


@cache
def usable() -> int | None:
    """The address of numpy's PyArray_Empty. None unless this is CPython with its lock, and arrays and tuples have their fields where the
    entry reads them."""
    plain = sys.implementation.name == "cpython" and object.__basicsize__ == 2 * WORD and sys.byteorder == "little"
    if not plain or ctypes.sizeof(ctypes.c_void_p) != WORD:
        return None
    for array in (np.empty((3, 5), np.float32), np.empty(7, np.int64)[::2], np.empty((2, 3), np.float64, "F")):
        if not _as_expected(array):
            return None
    names = ("out",)
    size, name = (ctypes.c_int64.from_address(id(names) + at).value for at in (TUPLE_SIZE, tuple.__basicsize__))
    if (size, name) != (1, id(names[0])):
        return None
    multiarray = sys.modules.get("numpy._core.multiarray") or sys.modules.get("numpy.core.multiarray")
    capsule = getattr(multiarray, "_ARRAY_API", None)
    if capsule is None:
        return None
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    functions = ctypes.cast(pointer_of(capsule, None), ctypes.POINTER(ctypes.c_void_p))
    if ctypes.CFUNCTYPE(ctypes.c_uint)(functions[0])() not in NUMPY_VERSIONS:
        return None
    return functions[EMPTY_IN_NUMPY]


def _as_expected(array: Array) -> bool:
    """Whether an array has its fields where the entry reads them."""

    def read(at: int, kind: Any) -> Any:
        return kind.from_address(id(array) + at).value

    shape = (ctypes.c_int64 * array.ndim).from_address(read(SHAPE, ctypes.c_void_p))
    dtype = array.dtype
    return (
        ndarray.__basicsize__ >= FLAGS + 4
        and read(TYPE, ctypes.c_void_p) == id(ndarray)
        and read(MEMORY, ctypes.c_void_p) == array.ctypes.data
        and read(RANK, ctypes.c_int) == array.ndim
        and tuple(shape) == array.shape
        and read(DTYPE, ctypes.c_void_p) == id(dtype)
        and ctypes.string_at(id(dtype) + KIND, 3) == f"{dtype.kind}{dtype.char}{dtype.byteorder}".encode()
        and ctypes.c_int.from_address(id(dtype) + KIND + 4).value == dtype.num
        and read(FLAGS, ctypes.c_int) & (C_CONTIGUOUS | ALIGNED | WRITEABLE)
        == array.flags.num & (C_CONTIGUOUS | ALIGNED | WRITEABLE)
    )
