"""hbc refuses models of libraries that are older than those it was compared with."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import lightgbm
import numpy as np
import pytest
import sklearn
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline

import hbc
from hbc.errors import BackendUnavailableError
from hbc.parser.release import LEAST, require_release, since

X = np.arange(12.0).reshape(6, 2)


def test_the_extras_ask_for_the_least_releases() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    for package, least in LEAST.items():
        (asked,) = project["optional-dependencies"][package]
        assert tuple(map(int, re.findall(r"\d+", asked.partition(">=")[2]))) == least


def test_an_older_release_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_pipeline(LinearRegression()).fit(X, X[:, 0])
    monkeypatch.setattr(sklearn, "__version__", "1.7.1")
    require_release.cache_clear()
    with pytest.raises(
        BackendUnavailableError, match=r"1\.7\.1 may compute otherwise than those from 1\.7\.2 on.*hbc\[sklearn\]"
    ):
        hbc.convert(model, "numpy")
    monkeypatch.undo()
    require_release.cache_clear()
    hbc.convert(model, "numpy")


def test_an_older_library_inside_a_pipeline_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_pipeline(lightgbm.LGBMRegressor(verbose=-1).fit(X, X[:, 0])).fit(X, X[:, 0])
    monkeypatch.setattr(lightgbm, "__version__", "4.5.0.99")
    require_release.cache_clear()
    with pytest.raises(BackendUnavailableError, match=r"'lightgbm'.*4\.5\.0 may compute otherwise"):
        hbc.convert(model, "numpy")
    require_release.cache_clear()


@pytest.mark.parametrize(
    ("version", "later"), [("1.7.2", False), ("1.8.0", True), ("1.8rc1", True), ("1.10.dev0", True), ("2.0", True)]
)
def test_releases_are_compared_as_numbers(version: str, later: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sklearn, "__version__", version)
    assert since(1, 8) == later
