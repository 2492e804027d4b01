"""Linear and Softmax, each as one ONNX operator. Sums are exact to their tolerance only."""

from __future__ import annotations

from hbc.compiler.onnx.builder import Builder, emits
from hbc.ir.graph import Node
from hbc.ops.linear import Linear, Softmax


@emits(Linear)
def _linear(b: Builder, op: Linear, node: Node) -> str:
    return b("Gemm", *b.inputs(node), op.coef, op.intercept)


@emits(Softmax)
def _softmax(b: Builder, op: Softmax, node: Node) -> str:
    return b("Softmax", *b.inputs(node), axis=-1)
