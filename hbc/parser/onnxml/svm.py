"""SVMRegressor (onnxruntime/core/providers/cpu/ml/svmregressor.cc). Kernels are computed in float64 here. ONNX Runtime computes them in
float32, so differences are its rounding errors. What is too large or too small for float32 is infinite or 0 here too."""

from __future__ import annotations

import numpy as np

from hbc.ir.graph import Node
from hbc.ir.types import Array
from hbc.ops import tensor as t
from hbc.ops.nearest import Distances
from hbc.parser.frame import Refusal
from hbc.parser.onnxml.transforms import post_transform
from hbc.parser.onnxml.values import ML, Call, implements


def _kernel(call: Call, x: Node, vectors: Array) -> Node:
    """The kernel between every row and every vector, numbers of float32 in f64[N, V]. Raises Refusal for an unknown kernel."""
    parameters = call.get("kernel_params", np.zeros(3, np.float32)).astype(np.float64)
    gamma, coef0, degree = parameters if len(parameters) >= 3 else (0.0, 0.0, 0.0)
    x = t.cast(x, "f64")
    vectors = vectors.astype(np.float64)
    kernel = call.get("kernel_type", "LINEAR")
    if kernel == "RBF":
        return _single(t.exp(t.mul(Distances(vectors, "squared")(x), -gamma)))
    dot = _single(t.matmul(x, np.ascontiguousarray(vectors.T)))
    if kernel == "LINEAR":
        return dot
    base = _single(t.add(t.mul(dot, gamma), coef0))
    if kernel == "POLY":
        return _single(_power(base, degree))
    if kernel == "SIGMOID":
        return _single(t.tanh(base))
    raise Refusal(f"its kernel is {kernel!r}.")


def _single(x: Node) -> Node:
    """x rounded to float32."""
    return t.cast(t.cast(x, "f32"), "f64")


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
