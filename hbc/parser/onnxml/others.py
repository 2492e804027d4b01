"""A fitted model as other converters write it to ONNX (skl2onnx, onnxmltools): what hbc is measured beside."""

from __future__ import annotations

from typing import Any

from hbc.parser.registry import public_name


def as_onnx(model: Any, X: Any) -> Any:
    """The ONNX model, for X with any number of rows: one input for a matrix or a frame of numbers, or if the converter cannot (a
    ColumnTransformer names columns) one for each column of a frame, float32 or strings. Raises whatever the converter raises for a model
    that it does not know, and ImportError where it is not installed."""
    if not hasattr(X, "columns"):
        return _written(model, [(X.shape[1], True)], ["X"])
    numbers = [dtype.kind in "biuf" for dtype in X.dtypes]
    if all(numbers):
        try:
            return _written(model, [(X.shape[1], True)], ["X"])
        except Exception:  # the one that is raised for the columns tells more
            pass
    return _written(model, [(1, number) for number in numbers], [str(name) for name in X.columns])


def _written(model: Any, inputs: list[tuple[int, bool]], names: list[str]) -> Any:
    """The ONNX model with inputs of so many columns each, and whether they are numbers."""
    library = public_name(type(model)).partition(".")[0]
    if library in ("lightgbm", "xgboost"):
        import onnxmltools
        from onnxmltools.convert.common import data_types

        more = {"zipmap": False} if library == "lightgbm" else {}
        return getattr(onnxmltools, f"convert_{library}")(model, initial_types=_types(inputs, names, data_types), **more)
    from skl2onnx import to_onnx
    from skl2onnx.common import data_types as types

    options = {"zipmap": False} if hasattr(model, "predict_proba") else None
    return to_onnx(model, initial_types=_types(inputs, names, types), options=options)


def _types(inputs: list[tuple[int, bool]], names: list[str], types: Any) -> list[tuple[str, Any]]:
    kinds = [(types.FloatTensorType if number else types.StringTensorType)([None, width]) for width, number in inputs]
    return list(zip(names, kinds, strict=True))
