"""Functions for the classifiers and regressors of ai.onnx.ml: labels, and post_transform of scores (onnxruntime's ml_common.h)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hbc.ir.graph import Node
from hbc.ir.types import Array
from hbc.ops import tensor as t
from hbc.ops.linear import Softmax
from hbc.parser.frame import Refusal
from hbc.parser.onnxml.values import Call


def table_of_labels(call: Call) -> Array:
    """The class labels of a node: strings if it has any, otherwise int64."""
    strings = call.get("classlabels_strings", [])
    integers = call.get("classlabels_int64s", call.get("classlabels_ints", np.zeros(0, np.int64)))
    return np.array(strings, str) if len(strings) else np.asarray(integers, np.int64)


def labels(names: Array, index: Node) -> Node:
    """names[index] for index i64[N]."""
    return t.take(names, index, axis=0)


def label_of(names: Array, second: Node) -> Node:
    """names[1] where `second` (bool[N]) is true, otherwise names[0]."""
    return labels(names, t.cast(second, "i64"))


def first_largest(x: Node, axis: int) -> Node:
    """The position of the first largest value along an axis, i64, as a loop with `>` finds it: NaN is ignored, but if the first value is
    NaN the position is 0."""
    if not x.type.is_float:
        return t.argmax(x, axis)
    missing = t.isnan(x)
    first = t.take(missing, np.array(0), axis=axis)
    return t.where(first, t.constant(0, "i64"), t.argmax(t.where(missing, -np.inf, x), axis))


def logistic(x: Node, exp: Callable[[Node], Node] = t.exp) -> Node:
    """The logistic function of x as ONNX Runtime computes it: 1 / (1 + e^-|x|) for x ≥ 0, and 1 minus that for x < 0."""
    upper = t.div(1.0, t.add(1.0, exp(t.neg(t.absolute(x)))))
    return t.where(t.less(x, 0.0), t.sub(1.0, upper), upper)


def softmax_zero(x: Node) -> Node:
    """A softmax over the scores of each row that are not 0 (|x| > 1e-7). The others become x · e^-max / Σ, which is 0 for x = 0, and NaN
    stays NaN alone. It is computed in float32, for scores of float64 too."""
    dtype, x = x.type.dtype, t.cast(x, "f32")
    largest = t.max_(t.where(t.isnan(x), float(np.finfo(np.float32).min), x), axis=1, keepdims=True)
    scored = t.less(float(np.float32(1e-7)), t.absolute(x))
    powers = t.exp(t.sub(x, largest))
    total = t.sum_(t.where(scored, powers, 0.0), axis=1, keepdims=True)
    return t.cast(t.div(t.where(scored, powers, t.mul(x, t.exp(t.neg(largest)))), total), dtype)


def post_transform(scores: Node, name: str, *, alone: bool = False) -> Node:
    """The scores [N, K] after the transformation `name`. `alone`: they are a single column, to which ONNX Runtime applies none.

    Raises Refusal for unknown transformations and for PROBIT. Near 1/2, ONNX Runtime's formula for PROBIT subtracts nearly equal float32
    numbers, so that the last bit of a logarithm changes the result by 1e-4; and hbc does not have the logarithm of its library.
    """
    if name == "PROBIT":
        raise Refusal("its post_transform is PROBIT, whose result depends on rounding.", "Export it with another one.")
    if name == "NONE" or (alone and name in ("LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO")):
        return scores
    if name == "LOGISTIC":
        return logistic(scores)
    if name == "SOFTMAX":
        return Softmax()(scores)
    if name == "SOFTMAX_ZERO":
        return softmax_zero(scores)
    raise Refusal(f"its post_transform is {name!r}.")
