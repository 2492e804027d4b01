"""Fitted models in files, each read by its own library."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hbc.errors import ArtifactError, no_such_file

READERS = {
    ".txt": "hbc.parser.lightgbm",
    ".lgb": "hbc.parser.lightgbm",
    ".json": "hbc.parser.xgboost",
    ".ubj": "hbc.parser.xgboost",
    ".cbm": "hbc.parser.catboost",
    ".onnx": "hbc.parser.onnxml",
    ".pkl": "hbc.parser.sklearn.pickles",
    ".pickle": "hbc.parser.sklearn.pickles",
    ".joblib": "hbc.parser.sklearn.pickles",
}
"""The module that reads a file by its suffix, with a function `read_file(path)`."""
LIBRARIES = {
    "hbc.parser.lightgbm": "LightGBM",
    "hbc.parser.xgboost": "XGBoost",
    "hbc.parser.catboost": "CatBoost",
    "hbc.parser.onnxml": "skl2onnx or onnxmltools",
}
"""The library that writes what a module reads; pickles have none."""
EXTRAS = {
    "hbc.parser.lightgbm": " (pip install 'hbc[lightgbm]')",
    "hbc.parser.xgboost": " (pip install 'hbc[xgboost]')",
    "hbc.parser.catboost": " (pip install 'hbc[catboost]')",
    "hbc.parser.onnxml": " (pip install 'hbc[onnx]')",
}
"""How hbc's extras install the library that a module needs."""
PICKLES = (".pkl", ".pickle", ".joblib")
DATA = tuple(suffix for suffix in READERS if suffix not in PICKLES)
"""The suffixes of files that run no code when they are read."""


def read_model(path: str | Path, trust: bool = False, expected: Iterable[str] = DATA) -> Any:
    """The fitted model in a file: a LightGBM text model, an XGBoost model (JSON or UBJSON), a CatBoost model (.cbm), an ONNX
    model, or, only with `trust`, a pickle.

    Unpickling runs whatever code the file contains, so it is refused unless the caller vouches for the file. expected: the suffixes that
    the caller takes, for the message of another one. Raises ArtifactError for a file that cannot be read, FileNotFoundError where there is
    none.
    """
    path = Path(path)
    if not path.exists():
        raise no_such_file(str(path))
    if path.is_dir():
        raise ArtifactError(path=str(path), found="a directory", expected="a file with a fitted model")
    module = READERS.get(path.suffix.lower())
    if module is None:
        advice = "A model saved by hbc is ready: hbc.load reads it." if path.suffix.lower() == ".hbc" else ""
        found = f"the suffix {path.suffix!r}" if path.suffix else "no suffix"
        raise ArtifactError(path=str(path), found=found, expected=f"one of {', '.join(expected)}", advice=advice)
    if path.suffix.lower() in PICKLES and not trust:
        raise ArtifactError(
            path=str(path),
            found="a pickle, which runs code when it is loaded",
            expected="a file that only holds data",
            advice="If you trust where it comes from: --trust on the command line; in Python, load it yourself and convert the model.",
        )
    return _read(module, "read_file", path, str(path), path.suffix.lower() in PICKLES)


def read_onnx(data: bytes) -> Any:
    """The ONNX model in its serialized form. Raises ArtifactError."""
    return _read(READERS[".onnx"], "read_bytes", data, "the bytes given as a model")


def _read(module: str, function: str, source: Any, path: str, pickled: bool = False) -> Any:
    try:
        return getattr(importlib.import_module(module), function)(source)
    except ImportError as error:
        raise ArtifactError(
            path=path,
            found=f"a file for which {error.name} is missing" if error.name else str(error),
            expected="the library that wrote the model to be installed",
            advice=f"Install it here{EXTRAS.get(module, '')}, or convert the model where it was trained and use the .hbc here.",
        ) from error
    except Exception as error:  # whatever a library raises for a broken file
        expected = "a pickle of a fitted model" if pickled else f"a fitted model, as {LIBRARIES[module]} writes it"
        damaged = pickled and not isinstance(error, AttributeError)  # which names a class that is not there
        reason = "it is no pickle, or a damaged one" if damaged else f"its library says: {_said(error)}"
        raise ArtifactError(path=path, found=f"a file that cannot be read ({reason})", expected=expected) from error


def _said(error: Exception) -> str:
    """What a library says: its first line, without the time and the place in its source with which XGBoost begins."""
    lines = re.sub(r"^\[\d\d:\d\d:\d\d\] \S+:\d+: ", "", str(error)).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
