"""LinearClassifier and LinearRegressor, computed in float32 throughout (onnxruntime/core/providers/cpu/ml/linear*.cc)."""

from __future__ import annotations

import numpy as np

from hbc.ir.graph import Node
from hbc.ops import tensor as t
from hbc.ops.linear import Linear
from hbc.parser.frame import Refusal
from hbc.parser.onnxml.transforms import first_largest, label_of, labels, post_transform, table_of_labels
from hbc.parser.onnxml.values import ML, Call, implements


def _scores(call: Call, n_outputs: int) -> Node:
    """x · coefficientsᵀ + intercepts, f32[N, n_outputs]."""
    x = t.cast(call.matrix(0), "f32")
    coefficients = call.get("coefficients", np.zeros(0, np.float32))
    if len(coefficients) != n_outputs * x.type.columns:
        raise Refusal(f"it has {len(coefficients)} coefficients for {n_outputs} outputs of {x.type.columns} columns.")
    intercepts = call.get("intercepts", np.zeros(0, np.float32))
    if not len(intercepts):
        intercepts = np.zeros(n_outputs, np.float32)
    return Linear(coefficients.reshape(n_outputs, -1).T.copy(), intercepts)(x)


@implements("LinearRegressor", attributes=("coefficients", "intercepts", "post_transform", "targets"), domain=ML)
def linear_regressor(call: Call) -> Node:
    targets = int(call.get("targets", 1))
    return post_transform(_scores(call, targets), call.get("post_transform", "NONE"), alone=targets == 1)


@implements(
    "LinearClassifier",
    attributes=("classlabels_ints", "classlabels_strings", "coefficients", "intercepts", "multi_class", "post_transform"),
    domain=ML,
)
def linear_classifier(call: Call) -> tuple[Node, Node]:
    names = table_of_labels(call)
    size = len(call.get("intercepts", ()))
    if size < 1 or len(names) < size:
        raise Refusal(f"it has {size} intercepts for {len(names)} classes.")
    scores = _scores(call, size)
    transform = call.get("post_transform", "NONE")
    if size > 1:
        return labels(names[:size], first_largest(scores, 1)), post_transform(scores, transform)
    if len(names) != 2 or transform != "NONE":
        raise Refusal(
            f"it has one score for {len(names)} classes and post_transform {transform}.",
            "Export it with a score for each class.",
        )
    won = t.less(0.0, scores)
    return label_of(names, t.reshape(won, "N")), t.concat([t.sub(1.0, scores), scores])
