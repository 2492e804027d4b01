"""Converters for sklearn.neural_network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hbc.ir.graph import Node
from hbc.ops import tensor as t
from hbc.ops.linear import Logistic, Softmax
from hbc.parser.frame import Refusal
from hbc.parser.labels import labels
from hbc.parser.registry import Result, converts
from hbc.parser.sklearn.linear import affine
from hbc.parser.sklearn.shared.common import checked, float_of

ACTIVATIONS: dict[str, Callable[[Node], Node]] = {
    "identity": lambda x: x,
    "exp": t.exp,
    "tanh": t.tanh,
    "logistic": Logistic(),
    "relu": lambda x: t.maximum(x, 0.0),
    "softmax": lambda x: Softmax()(x),
}


def _activation(name: str) -> Callable[[Node], Node]:
    if name not in ACTIVATIONS:
        raise Refusal(f"its activation {name!r} is unknown.")
    return ACTIVATIONS[name]


def _forward(m: Any, x: Node) -> Node:
    """The output of the last layer, [N, K]: aᵢ₊₁ = activation(aᵢ · coefs_[i] + intercepts_[i]). The last layer has an activation of its
    own. Raises Refusal for an unknown activation."""
    x = checked(m, x)
    last = len(m.coefs_) - 1
    for i, (coef, intercept) in enumerate(zip(m.coefs_, m.intercepts_, strict=True)):
        x = _activation(m.out_activation_ if i == last else m.activation)(affine(x, coef, intercept))
    return x


@converts("sklearn.neural_network.MLPRegressor")
def mlp_regressor(m: Any, x: Node) -> Result:
    y = _forward(m, x)
    return {"predict": t.reshape(y, "N") if y.type.columns == 1 else y}


@converts("sklearn.neural_network.MLPClassifier")
def mlp_classifier(m: Any, x: Node) -> Result:
    """`predict` gives, for two classes, the second one if y > 0.5; for several classes, the one with the largest y; for multilabel targets,
    each label with y > 0.5."""
    kind = m._label_binarizer.y_type_
    if kind == "binary" and len(m.classes_) != 2:
        raise Refusal("it was fitted on one class only.")
    y = _forward(m, x)
    if m.n_outputs_ == 1:
        proba = t.concat([t.sub(1.0, y), y])
        predicted = labels(m.classes_, t.cast(t.less(0.5, t.reshape(y, "N")), "i64"))
    elif kind == "multiclass":
        proba, predicted = y, labels(m.classes_, t.argmax(y, 1))
    elif kind == "multilabel-indicator":
        proba, predicted = y, t.cast(t.less(0.5, y), "i64")
    else:
        raise Refusal(f"its labels are of the unknown kind {kind!r}.")
    return {"predict": predicted, "predict_proba": proba, "predict_log_proba": t.log(proba)}


@converts("sklearn.neural_network.BernoulliRBM")
def bernoulli_rbm(m: Any, x: Node) -> Result:
    """`transform` gives P(h = 1 | v = x) = σ(x · componentsᵀ + intercept_hidden)."""
    return Logistic()(affine(float_of(checked(m, x)), np.asarray(m.components_).T, m.intercept_hidden_))
