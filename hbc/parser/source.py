"""The methods of a fitted model as its own library computes them, or ONNX Runtime, for comparing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from hbc.parser.registry import public_name
from hbc.parser.tools import OPTIONS, options_of


def source_call(model: Any, method: str) -> Callable[[Any], Any] | None:
    """The function of X that a method of the compiled model stands for; None if the source has none that hbc knows how to call."""
    name = public_name(type(model))
    options = OPTIONS.get(options_of(model) or name.partition(".")[0], {})
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


def onnx_call(model: Any, X: Any, method: str, threads: int) -> Callable[[Any], Any] | None:
    """ONNX Runtime's call for a model as skl2onnx or onnxmltools convert it, or as it is if it is one of ONNX; None if it is not plain
    which output is meant. Raises whatever the converters raise for what they do not know."""
    from hbc.parser.onnxml.others import as_onnx
    from hbc.parser.onnxml.session import session_call

    kind = public_name(type(model))
    if kind == "onnx.ModelProto":
        return session_call(model, method, threads)
    graph = as_onnx(model, X)
    names = [each.name for each in graph.graph.input]
    booster = kind.endswith(".Booster") and method == "predict"  # it predicts the probability of the second class
    run = session_call(graph, "predict_proba" if booster else method, threads)
    if run is None:
        return None

    def call(X: Any) -> Any:
        # skl2onnx changes names of columns: "mean radius" becomes "mean_radius".
        found = run(X.set_axis(names, axis=1) if hasattr(X, "columns") and len(names) > 1 else X)
        if booster and found.ndim == 2 and found.shape[1] == 2:
            return found[:, 1]
        return found[:, 0] if method == "predict" and found.ndim == 2 and found.shape[1] == 1 else found

    return call
