"""sklearn.linear_model and the linear machines of sklearn.svm."""

from __future__ import annotations

from typing import Any

import numpy as np

from hbc.ir.graph import Node
from hbc.ops import tensor as t
from hbc.ops.linear import Linear, Softmax
from hbc.parser.registry import Result, converts
from hbc.parser.sklearn.common import as_float, checked, labels, promote


def _scores(m: Any, x: Node) -> Node:
    x, (coef, intercept) = promote(as_float(checked(m, x)), np.atleast_2d(m.coef_), np.atleast_1d(m.intercept_))
    return Linear(coef.T, np.broadcast_to(intercept, len(coef)))(x)


@converts("sklearn.linear_model.LogisticRegression")
def logistic_regression(m: Any, x: Node) -> Result:
    scores = _scores(m, x)
    if scores.type.columns == 1:
        flat = t.reshape(scores, "N")
        positive = t.sigmoid(scores)
        proba = t.concat([t.sub(1.0, positive), positive])
        index = t.cast(t.less(0.0, flat), "i64")
        decision = flat
    else:
        proba, index, decision = Softmax()(scores), t.argmax(scores, 1), scores
    return {
        "predict": labels(m.classes_, index),
        "decision_function": decision,
        "predict_proba": proba,
        "predict_log_proba": t.log(proba),
    }
