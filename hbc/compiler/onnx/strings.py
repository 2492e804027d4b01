"""Selections of columns, and operators on strings in ONNX. An exported model has the operators on strings in its graph. In hbc's own calls
they run on the host: a look-up in a Python dict is cheaper than to make strings for ONNX Runtime, and tells None and NaN from texts."""

from __future__ import annotations

from typing import Any

import numpy as np

from hbc.compiler.onnx.builder import NAN_MARKER, NONE_MARKER, Builder, emits
from hbc.ir.graph import Node
from hbc.ops.columns import Categorize, SelectColumns
from hbc.ops.missing import ImputeText, MissingText


@emits(SelectColumns)
def _select_columns(b: Builder, op: SelectColumns, node: Node) -> str:
    (x,) = b.inputs(node)
    return b("Gather", x, op.indices, axis=1)


def _of_strings(op: Any) -> bool:
    return op.categories.dtype.kind in "UO"


@emits(Categorize, when=_of_strings)
def _categorize(b: Builder, op: Categorize, node: Node) -> str:
    (x,) = b.inputs(node)
    keys = [*map(str, op.categories), NONE_MARKER, NAN_MARKER]
    if b.dialect.plain:
        codes = np.array([*range(len(op.categories)), op.none, op.nan])
        equal = b("Equal", x, np.array([keys], object))
        found = b("Gather", codes, b("ArgMax", b.cast(equal, "u8"), axis=1, keepdims=1))
        return b("Where", b.any(equal, axis=1, keepdims=True), found, np.asarray(op.unknown))
    return b(
        "LabelEncoder",
        x,
        domain="ai.onnx.ml",
        keys_strings=keys,
        values_int64s=[*range(len(op.categories)), op.none, op.nan],
        default_int64=op.unknown,
    )


@emits(MissingText)
def _missing_text(b: Builder, op: MissingText, node: Node) -> str:
    (x,) = b.inputs(node)
    texts = [text for text, wanted in ((NAN_MARKER, op.nan), (NONE_MARKER, op.none)) if wanted]
    texts += [] if op.value is None else [op.value]
    if not texts:
        shape = b("Shape", x)
        return b("Expand", np.asarray(False), shape)
    if b.dialect.opset < 19 and not b.dialect.plain:  # Equal takes strings from opset 19 on
        ones = [1] * len(texts)
        known = b("LabelEncoder", x, domain="ai.onnx.ml", keys_strings=texts, values_int64s=ones, default_int64=0)
        return b.cast(known, "bool")
    missing = b("Equal", x, np.asarray(texts[0]))
    for text in texts[1:]:
        missing = b("Or", missing, b("Equal", x, np.asarray(text)))
    return missing


@emits(ImputeText)
def _impute_text(b: Builder, op: ImputeText, node: Node) -> str:
    missing, x = b.inputs(node)
    return b("Where", missing, op.fill, x)
