"""A model with numbers, missing values and strings, and the frame that it is tested with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hbc


@pytest.fixture(scope="session")
def source() -> Any:
    """The fitted pipeline: the oracle. Its libraries are imported here, since this file is read where they are missing."""
    from scoring_rows import FEATURES, frame_of
    from sklearn.compose import make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    frame = frame_of(400, seed=1)
    y = np.where(frame.rooms + np.nan_to_num(frame.age) / 10 > 8, "yes", "no")
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    steps = make_column_transformer((numbers, ["age", "rooms"]), (OneHotEncoder(handle_unknown="ignore"), ["town"]))
    return make_pipeline(steps, LogisticRegression()).fit(frame[FEATURES], y)


@pytest.fixture(scope="session")
def model(source: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of the compiled pipeline. Its backend is numpy, which starts at once."""
    path = tmp_path_factory.mktemp("model") / "model.hbc"
    hbc.convert(source, backend="numpy").save(path)
    return path


@pytest.fixture
def frame() -> Any:
    """500 other rows of it."""
    from scoring_rows import frame_of

    return frame_of(500)
