"""The methods of a fitted model as its own library computes them, for comparing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from hbc.parser.registry import public_name

OPTIONS = {
    "lightgbm": {"raw_score": {"raw_score": True}, "apply": {"pred_leaf": True}},
    "xgboost": {"raw_score": {"output_margin": True}, "apply": {"pred_leaf": True}},
}
"""Library → method of a compiled model → the options of `predict` that stand for it, where the source has no method of this name."""


def source_call(model: Any, method: str) -> Callable[[Any], Any] | None:
    """The function of X that a method of the compiled model stands for; None if the source has none that hbc knows how to call."""
    name = public_name(type(model))
    options = OPTIONS.get(name.partition(".")[0], {})
    if name == "onnx.ModelProto":
        from hbc.parser.onnxml.session import session_call

        return session_call(model, method)
    if name == "xgboost.Booster":
        matrix = sys.modules["xgboost"].DMatrix
        return lambda X: model.predict(matrix(X), **options.get(method, {}))
    if hasattr(model, method):
        return getattr(model, method)
    if method in options:
        return lambda X: model.predict(X, **options[method])
    return None
