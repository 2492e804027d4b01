"""Linear and Softmax, each as one ONNX operator. Sums are exact to their tolerance only."""

from __future__ import annotations

from collections.abc import Mapping

from hbc.compiler.costs import OneHotCosts
from hbc.compiler.onnx.builder import Builder, emits
from hbc.ir.graph import Node
from hbc.ir.types import DType
from hbc.ops.linear import Linear, Softmax

WIDE = 512
"""From so many outputs on, the rows of tables that a Gather keeps leave the caches before they are added."""
ONE_HOT: Mapping[tuple[str, DType], OneHotCosts] = {
    ("one", "f64"): OneHotCosts((13, 3_500), (10, 1_000), added=1.2, column=9, multiplied=0.045, bytes=8, call=15_000),
    ("one", "f32"): OneHotCosts((13, 3_500), (10, 1_000), added=1.2, column=8.6, multiplied=0.02, bytes=4, call=15_000),
    ("some", "f64"): OneHotCosts((20, 3_500), (17, 1_000), added=0.6, column=9, multiplied=0.045, bytes=8, call=15_000),
    ("some", "f32"): OneHotCosts((20, 3_500), (17, 1_000), added=0.24, column=8.6, multiplied=0.02, bytes=4, call=15_000),
    ("wide", "f64"): OneHotCosts((20, 3_500), (17, 1_000), added=1.5, column=9, multiplied=0.055, bytes=8, call=15_000),
    ("wide", "f32"): OneHotCosts((20, 3_500), (17, 1_000), added=0.7, column=8.6, multiplied=0.022, bytes=4, call=15_000),
}
"""The costs of products with one-hot codes, by the number of outputs and the dtype. A sum of rows of a table is a Gather, which keeps all
of them, and a ReduceSum. Measured on one core of an AMD Zen 4, 1,000 to 2,000 rows of 30 codes in float64, ns a row and code: with 3
categories each sums take 16 for one output, 25 for 10 and 208 for 300, and products 27, 29 and 72; with 8 categories 16, 27 and 213, and
75, 75 and 175. For 2,500 outputs of 6 categories sums take 4,000 and products 870."""


def one_hot_costs(outputs: int, dtype: DType) -> OneHotCosts | None:
    """The costs of products with one-hot codes for so many outputs. None: this dtype was not measured."""
    return ONE_HOT.get(("one" if outputs == 1 else "some" if outputs < WIDE else "wide", dtype))


@emits(Linear)
def _linear(b: Builder, op: Linear, node: Node) -> str:
    return b("Gemm", *b.inputs(node), op.coef, op.intercept)


@emits(Softmax)
def _softmax(b: Builder, op: Softmax, node: Node) -> str:
    return b("Softmax", *b.inputs(node), axis=-1)
