"""Reads pickled estimators, as scikit-learn's users save them with pickle or joblib."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def read_file(path: Path) -> Any:
    """The object in a pickle file. Unpickling runs code from the file: only hbc.parser.files.read_model calls this, and only if its caller
    said that the file is trusted."""
    import joblib

    return joblib.load(path)
