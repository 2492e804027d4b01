"""Random rows in each format give what the source gives for the frame of pandas, or both reject them."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

import hbc

TOWNS = ["a", "ü", "a,b", 'x"y', "two\nlines", "  wide ", "01", "1.5", "True", "東", "it's", "\ttab"]
COLUMNS = {
    "linear": ["x", "i", "town", "k", "flag"],
    "forest": ["word", "town", "x", "i", "flag"],
    "boosting": ["x", "i", "k", "flag", "word"],
    "categories": ["x", "i", "word"],
}


def random_frame(rng: np.random.Generator, rows: int, wild: bool) -> pd.DataFrame:
    scale = rng.choice([1, 1e-300, 1e300, 1e5], rows) if wild else 1
    frame = pd.DataFrame(
        {
            "x": rng.normal(size=rows) * scale,
            "i": rng.integers(-5, 9, rows),
            "k": rng.choice([10, 20, 30], rows),
            "flag": rng.random(rows) < 0.5,
            "town": rng.choice(TOWNS, rows),
            "word": rng.choice(["p", "q", "r"], rows),
        }
    )
    if not wild:
        return frame
    frame.loc[rng.random(rows) < 0.1, "x"] = np.nan
    frame.loc[rng.random(rows) < 0.1, "x"] = -0.0
    if rng.random() < 0.4:
        frame.loc[rng.random(rows) < 0.3, "i"] = np.nan
    if rng.random() < 0.3:
        frame["town"] = frame.town.where(rng.random(rows) < 0.8, None)
    if rng.random() < 0.2:
        frame["word"] = "unknown"
    if rng.random() < 0.2:
        frame["i"] = frame.i * float(1 << 49)
    if rng.random() < 0.1:
        frame.loc[0, "x"] = np.inf
    return frame


@pytest.fixture(scope="module")
def sources() -> dict[str, Any]:
    frame = random_frame(np.random.default_rng(0), 300, wild=False)
    scaled = make_pipeline(SimpleImputer(), StandardScaler())
    onehot, ordinal = (
        OneHotEncoder(handle_unknown="ignore"),
        OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1),
    )
    pipelines = {
        "linear": make_pipeline(
            make_column_transformer((scaled, ["x", "i"]), (onehot, ["town", "k", "flag"])), LinearRegression()
        ),
        "forest": make_pipeline(
            make_column_transformer((ordinal, ["word", "town"]), (SimpleImputer(), ["x", "i", "flag"])),
            RandomForestRegressor(3),
        ),
        "boosting": make_pipeline(
            make_column_transformer((OrdinalEncoder(), ["word"]), remainder="passthrough"),
            HistGradientBoostingRegressor(max_iter=3),
        ),
        "categories": lightgbm.LGBMRegressor(n_estimators=3, verbose=-1, min_child_samples=2),
    }
    given = {name: frame[COLUMNS[name]] for name in pipelines}
    given["categories"] = given["categories"].astype({"word": "category"})
    return {name: each.fit(given[name], frame.x + frame.k) for name, each in pipelines.items()}


def written(frame: pd.DataFrame, path: Path) -> pd.DataFrame:
    """Write the frame. Returns it as pandas reads the file, with the types of the columns of text."""
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
        return pd.read_csv(path, dtype={"town": str, "word": str})
    if path.suffix == ".jsonl":
        items = frame.astype(object).where(frame.notna(), None).to_dict("records")
        path.write_text("".join(json.dumps(item).replace("Infinity", "1e999") + "\n" for item in items))
        return frame
    writer, reader = (frame.to_parquet, pd.read_parquet) if path.suffix == ".parquet" else (frame.to_feather, pd.read_feather)
    writer(path)
    return reader(path)


def answer_of(source: Any, name: str, frame: pd.DataFrame) -> np.ndarray | None:
    """The source's answer, None if it rejects the frame."""
    given = frame[COLUMNS[name]]
    if name == "categories":
        given = given.astype({"word": pd.CategoricalDtype(sorted(given.word.unique()))})
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return np.asarray(source.predict(given))
    except ValueError:
        return None


def compare(sources: dict[str, Any], tmp_path: Path, seeds: range) -> None:
    compiled = {name: hbc.convert(source, backend="numpy") for name, source in sources.items()}
    answered, rejected = 0, 0
    for seed in seeds:
        rng = np.random.default_rng(seed)
        frame = random_frame(rng, int(rng.choice([1, 2, 3, 50])), wild=True)
        for suffix in ("parquet", "feather", "csv", "jsonl"):
            path = tmp_path / f"x.{suffix}"
            read = written(frame, path)
            for name, source in sources.items():
                expected = answer_of(source, name, read)
                if suffix == "jsonl" and np.isinf(read.x).any():
                    expected = None  # 1e999 is no number of float64: a line that cannot be read
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        hbc.score(compiled[name], path, tmp_path / "out.parquet")
                except (hbc.InvalidInputError, hbc.ArtifactError):  # of the only line of a file, the file is told
                    assert expected is None, f"{seed}, {suffix}, {name}"
                    rejected += 1
                else:
                    assert expected is not None, f"{seed}, {suffix}, {name}"
                    found = pd.read_parquet(tmp_path / "out.parquet").iloc[:, 0]
                    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6, err_msg=f"{seed}, {suffix}, {name}")
                    answered += 1
    assert answered > 4 * len(seeds)
    assert rejected or len(seeds) < 20


def test_random_files(sources: dict[str, Any], tmp_path: Path) -> None:
    compare(sources, tmp_path, range(8))


@pytest.mark.slow
def test_many_random_files(sources: dict[str, Any], tmp_path: Path) -> None:
    compare(sources, tmp_path, range(100, 250))
