"""Pickled estimators, as scikit-learn's users save them (pickle or joblib)."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def read_file(path: Path) -> Any:
    """Unpickle: runs code from the file. Only hbc.parser.files.read_model calls this, after its caller said that the file is trusted."""
    import joblib

    return joblib.load(path)
