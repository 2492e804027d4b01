"""Class labels of classifiers, for the converters of all libraries."""

from __future__ import annotations

import numpy as np

from hbc.ir.graph import Node
from hbc.ir.types import Array
from hbc.ops import tensor as t
from hbc.parser.frame import Refusal


def labels(classes: Array, index: Node) -> Node:
    """classes[index]: the class labels (numbers or strings) for indices i64[N].

    Labels of uint32 and uint64 become int64 in the graph, and float16 becomes float32; the runtime restores the dtype. Raises Refusal for
    labels that no tensor can hold: bytes, and Python objects that are neither all strings nor all numbers of one type."""
    if classes.dtype.kind == "O":
        values = classes.tolist()
        classes = np.asarray(values)
        kinds = sorted({"str" if isinstance(value, str) else type(value).__name__ for value in values})
        if len(kinds) > 1 or classes.dtype.kind not in "Uifb":
            raise Refusal(f"its class labels are Python objects of type {' and '.join(kinds)}.", "Use strings or numbers.")
    if classes.dtype.kind not in "Uiufb":  # some classifiers accept bytes, which have no tensor type
        raise Refusal(f"its class labels are of the dtype {classes.dtype}.", "Use strings or numbers.")
    if classes.dtype.kind == "u" and classes.dtype.itemsize >= 4:
        classes = classes.astype(np.int64)
    if classes.dtype == np.float16:
        classes = classes.astype(np.float32)
    return t.take(classes, index, axis=0)
