"""Input validation and dtype rules of scikit-learn, shared by its converters."""

from __future__ import annotations

from typing import Any

import numpy as np

from hbc.ir.graph import Node
from hbc.ir.signature import Arrays, Column
from hbc.ir.types import NUMPY_DTYPES, Array, DType, dtype_name
from hbc.ops import tensor as t
from hbc.ops.checks import Check, CheckValues
from hbc.parser.frame import Refusal
from hbc.parser.front_door import ANY_INTEGER, narrow_integers_give_f32, note, note_input, read_from_frames
from hbc.parser.registry import public_name


def checked(
    m: Any, x: Node, *, allow_nan: bool = False, allow_inf: bool = False, limit: float = float("inf"), min_rows: int = 1
) -> Node:
    """x with the checks of the estimator's `check_array`: a call whose values it rejects is rejected. The dtype of x stays."""
    return Check(public_name(type(m)), allow_nan, allow_inf, limit, min_rows)(x)


def rejected(m: Any, x: Node, reason: str) -> Node:
    """x, with a check that rejects every call, since the source rejects this dtype. `reason` becomes part of the message."""
    width, dtype = x.type.columns, NUMPY_DTYPES[x.type.dtype]
    none = np.zeros(width, bool)
    return CheckValues(
        public_name(type(m)),
        allow_nan=True,
        allow_inf=True,
        min_rows=0,
        values=np.zeros((width, 0), dtype),
        counts=np.zeros(width, np.int64),
        nan=none,
        none=none,
        columns=tuple(f"column {i} of {dtype} ({reason})" for i in range(width)),
    )(x)


def without_missing(m: Any, x: Node, none: bool = False) -> Node:
    """The strings x, with a check that rejects NaN but accepts None; with `none`, it rejects None but accepts NaN."""
    width = x.type.columns
    return CheckValues(
        public_name(type(m)),
        allow_nan=True,
        allow_inf=True,
        min_rows=0,
        values=np.zeros((width, 0), "<U1"),
        counts=np.zeros(width, np.int64),
        nan=np.full(width, not none),
        none=np.full(width, none),
        columns=tuple(f"column {i}" for i in range(width)),
        allowed=False,
    )(x)


def as_float(x: Node) -> Node:
    """x after `check_array(dtype=FLOAT_DTYPES)`: floats keep their dtype, anything else becomes float64. Notes that columns of float16 are
    rejected, since the source computes them in float16 or float64, and the graph in float32."""
    note(x, Column(integer_bits=ANY_INTEGER))
    return x if x.type.is_float else t.cast(x, "f64")


def float_of(x: Node) -> Node:
    """`as_float` for an estimator that may receive a frame: `check_array` knows the dtypes of pandas' frames only (`read_from_frames`)."""
    return as_float(read_from_frames(x))


def own_float(x: Node) -> Node:
    """`float_of` for estimators whose result has the dtype of X. They would compute float16 in float16, so it is rejected."""
    note(x, Column(integer_bits=ANY_INTEGER))
    return float_of(x)


def narrow_as_parameters(x: Node, *dtypes: np.dtype[Any]) -> None:
    """Note that numpy computes x in float32 if x holds narrow integers, if that is so beside parameters of these dtypes
    (`narrow_integers_give_f32`)."""
    if x.type.dtype == "i64" and np.result_type(np.int16, *dtypes) == np.float32:
        narrow_integers_give_f32(x)


def promote(x: Node, *parameters: Array) -> tuple[Node, list[Array]]:
    """(x, the parameters), all in numpy's common dtype, in which `x @ parameter` is computed; float64 if that is no float dtype."""
    narrow_as_parameters(x, *(p.dtype for p in parameters))
    common = np.result_type(NUMPY_DTYPES[x.type.dtype], *(p.dtype for p in parameters))
    dtype: DType = dtype_name(common if common.kind == "f" else np.float64)
    return t.cast(x, dtype), [np.asarray(p, NUMPY_DTYPES[dtype]) for p in parameters]


def hstack(blocks: list[Node]) -> Node:
    """numpy.hstack of matrices. Blocks without columns count for the common dtype too. Raises Refusal for strings beside numbers."""
    kinds = {block.type.dtype for block in blocks}
    if kinds == {"str"}:
        return t.concat(blocks)
    if "str" in kinds:
        raise Refusal(
            "its output has columns of strings beside numbers.",
            "Encode the strings in it (OneHotEncoder, OrdinalEncoder) or drop them.",
        )
    if "f32" in kinds:
        for block in blocks:
            if block.type.dtype == "i64":
                note(block, Column(integer_bits=32))  # narrower ones stay float32
    note_input(Arrays(native_order=True))
    common = dtype_name(np.result_type(*(NUMPY_DTYPES[kind] for kind in kinds)))
    return t.concat([t.cast(block, common) for block in blocks])  # also blocks without columns: they may have checks
