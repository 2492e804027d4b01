"""SVMRegressor (onnxruntime/core/providers/cpu/ml/svmregressor.cc). Kernels are computed in float64 here. ONNX Runtime computes them in
float32, so differences are its rounding errors."""

from __future__ import annotations

import numpy as np

from hbc.ir.graph import Node
from hbc.ir.types import Array
from hbc.ops import tensor as t
from hbc.parser.frame import Refusal
from hbc.parser.onnxml.transforms import post_transform
from hbc.parser.onnxml.values import ML, Call, implements


def _kernel(call: Call, x: Node, vectors: Array) -> Node:
    """The kernel between every row and every vector, f64[N, V]. Raises Refusal for an unknown kernel."""
    parameters = call.get("kernel_params", np.zeros(3, np.float32)).astype(np.float64)
    gamma, coef0, degree = parameters if len(parameters) >= 3 else (0.0, 0.0, 0.0)
    x = t.cast(x, "f64")
    dot = t.matmul(x, np.ascontiguousarray(vectors.T, np.float64))
    match call.get("kernel_type", "LINEAR"):
        case "LINEAR":
            return dot
        case "POLY":
            base = t.add(t.mul(dot, gamma), coef0)
            return _power(base, degree)
        case "RBF":
            squares = t.sum_(t.mul(x, x), axis=1, keepdims=True)
            distance = t.add(t.sub(squares, t.mul(dot, 2.0)), np.square(vectors.astype(np.float64)).sum(axis=1))
            return t.exp(t.mul(t.maximum(distance, 0.0), -gamma))
        case "SIGMOID":
            return t.tanh(t.add(t.mul(dot, gamma), coef0))
    raise Refusal(f"its kernel is {call.get('kernel_type')!r}.")


def _power(x: Node, degree: float) -> Node:
    """x^degree; by repeated products for whole degrees from 1 to 16."""
    if degree != int(degree) or not 1 <= degree <= 16:
        return t.power(x, degree)
    result = x
    for _ in range(int(degree) - 1):
        result = t.mul(result, x)
    return result


@implements(
    "SVMRegressor",
    attributes=(
        "coefficients",
        "kernel_params",
        "kernel_type",
        "n_supports",
        "one_class",
        "post_transform",
        "rho",
        "support_vectors",
    ),
    domain=ML,
)
def svm_regressor(call: Call) -> Node:
    x = t.cast(call.matrix(0), "f32")
    count = int(call.get("n_supports", 0))
    coefficients, rho = call.get("coefficients"), call.get("rho")
    if count < 1 or len(rho) < 1:
        raise Refusal("it has no support vectors.")
    vectors = call.get("support_vectors").reshape(count, -1)
    sums = t.matmul(_kernel(call, x, vectors), coefficients[:count, None].astype(np.float64))
    scores = t.cast(t.add(sums, float(rho[0])), "f32")
    if int(call.get("one_class", 0)):
        return t.where(t.less(0.0, scores), t.constant(1.0, "f32"), t.constant(-1.0, "f32"))
    return post_transform(scores, call.get("post_transform", "NONE"), alone=True)
