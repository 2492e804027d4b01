"""Linear and Softmax, each as one ONNX operator. Sums are exact to their tolerance only."""

from __future__ import annotations

from collections.abc import Mapping

from hbc.compiler.costs import OneHotCosts
from hbc.compiler.onnx.builder import Builder, emits
from hbc.ir.graph import Node
from hbc.ir.types import DType
from hbc.ops.linear import Linear, Softmax

ONE_HOT: Mapping[DType, OneHotCosts] = {
    "f64": OneHotCosts(code=20, added=2.4, column=12, multiplied=0.09, bytes=8, call=90_000),
    "f32": OneHotCosts(code=18, added=0.5, column=11, multiplied=0.033, bytes=4, call=90_000),
}
"""The costs of products with one-hot codes, by dtype. A sum of rows of a table is a Gather, which keeps all of them, and a ReduceSum.
Measured on one core of an AMD Zen 3, 1,000 rows of 36 codes: with 20 categories each and 64 outputs, sums take 4.0 µs and products 11.6;
with 512 outputs 71 and 35. In float32 1.2 and 9.2, and 7.9 and 17."""


@emits(Linear)
def _linear(b: Builder, op: Linear, node: Node) -> str:
    return b("Gemm", *b.inputs(node), op.coef, op.intercept)


@emits(Softmax)
def _softmax(b: Builder, op: Softmax, node: Node) -> str:
    return b("Softmax", *b.inputs(node), axis=-1)
