"""What the classifiers and regressors of ai.onnx.ml share: labels, and what is made of scores (onnxruntime's ml_common.h)."""

from __future__ import annotations

import numpy as np

from hbc.ir.graph import Node
from hbc.ir.types import Array
from hbc.ops import tensor as t
from hbc.ops.linear import Softmax
from hbc.parser.frame import Refusal
from hbc.parser.onnxml.values import Call


def table_of_labels(call: Call) -> Array:
    """The class labels: strings, where there are some, otherwise integers."""
    strings = call.get("classlabels_strings", [])
    integers = call.get("classlabels_int64s", call.get("classlabels_ints", np.zeros(0, np.int64)))
    return np.array(strings, str) if len(strings) else np.asarray(integers, np.int64)


def labels(names: Array, index: Node) -> Node:
    """names[index] for i64[N]."""
    return t.take(names, index, axis=0)


def label_of(names: Array, second: Node) -> Node:
    """The second label where bool[N], otherwise the first."""
    return labels(names, t.cast(second, "i64"))


def logistic(x: Node) -> Node:
    """1 / (1 + e^-|x|), and 1 minus that below 0."""
    upper = t.div(1.0, t.add(1.0, t.exp(t.neg(t.absolute(x)))))
    return t.where(t.less(x, 0.0), t.sub(1.0, upper), upper)


def probit(x: Node) -> Node:
    """√2 · erf⁻¹(2x - 1), by Winitzki's approximation of the inverse error function."""
    y = t.sub(t.mul(x, 2.0), 1.0)
    log = t.log(t.mul(t.sub(1.0, y), t.add(1.0, y)))
    half = t.add(t.mul(log, 0.5), float(np.float32(2) / np.float32(np.float32(3.14159) * np.float32(0.147))))
    root = t.sqrt(t.sub(t.mul(half, half), t.mul(log, float(np.float32(1) / np.float32(0.147)))))
    size = t.sqrt(t.sub(root, half))
    return t.mul(t.where(t.less(y, 0.0), t.neg(size), size), 1.41421356)


def softmax_zero(x: Node) -> Node:
    """A softmax over the scores that are not 0; the others stay 0."""
    largest = t.max_(x, axis=1, keepdims=True)
    scored = t.less(float(np.float32(1e-7)), t.absolute(x))
    powers = t.exp(t.sub(x, largest))
    total = t.sum_(t.where(scored, powers, 0.0), axis=1, keepdims=True)
    return t.div(t.where(scored, powers, t.mul(x, t.exp(t.neg(largest)))), total)


def post_transform(scores: Node, name: str, *, alone: bool = False) -> Node:
    """The scores [N, K] transformed; `alone`: they are one column, of which only PROBIT makes something else."""
    if name == "NONE" or (alone and name != "PROBIT"):
        return scores
    if name == "LOGISTIC":
        return logistic(scores)
    if name == "SOFTMAX":
        return Softmax()(scores)
    if name == "SOFTMAX_ZERO":
        return softmax_zero(scores)
    if name == "PROBIT":
        return probit(scores)
    raise Refusal(f"its post_transform is {name!r}.")
