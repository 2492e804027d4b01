"""A model as an expression of Polars, eager, lazy and streaming."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from engines.people import FRAME, people
from sklearn.linear_model import LinearRegression

import hbc
from hbc.engines.polars import predict

FRAME_POLARS = pl.from_pandas(FRAME)


def probabilities(frame: Any) -> Any:
    return frame[["predict_proba_no", "predict_proba_yes"]].to_numpy()


def test_labels_are_a_column_of_the_frame() -> None:
    model, compiled = people()
    found = FRAME_POLARS.with_columns(predict(compiled))
    assert found["predict"].to_list() == model.predict(FRAME).tolist()
    assert found.columns == [*FRAME_POLARS.columns, "predict"]


@pytest.mark.every_case
@pytest.mark.parametrize("engine", ["in-memory", "streaming"])
def test_probabilities_of_a_lazy_frame_are_structs(engine: Any, tmp_path: Path) -> None:
    model, compiled = people()
    FRAME_POLARS.write_parquet(tmp_path / "people.parquet", row_group_size=100)
    lazy = pl.scan_parquet(tmp_path / "people.parquet").filter(pl.col("k") < 5)
    scored = lazy.with_columns(predict(compiled, ["predict_proba", "predict"])).unnest("predict_proba")
    assert scored.collect_schema()["predict"] == pl.String
    found = scored.collect(engine=engine)
    rest = FRAME[FRAME["k"] < 5]
    np.testing.assert_allclose(probabilities(found), model.predict_proba(rest), rtol=1e-12)
    assert found["predict"].to_list() == model.predict(rest).tolist()


def test_one_column_needs_no_list() -> None:
    """A name was taken for the list of its characters."""
    X = np.arange(10.0)[:, None]
    compiled = hbc.convert(LinearRegression().fit(X, X[:, 0] * 2), backend="numpy")
    frame = pl.DataFrame({"age": X[:, 0], "b": X[:, 0]})
    for columns in ("age", pl.col("age"), ["age"], (pl.col("age"),)):
        np.testing.assert_allclose(frame.select(predict(compiled, columns=columns))["predict"], X[:, 0] * 2, atol=1e-12)


@pytest.mark.parametrize("columns", [np.array("age"), 3, [3], (), b"age", [["age"]], {"age": 1}.values()])
def test_columns_that_are_none_are_refused(columns: Any) -> None:
    with pytest.raises(ValueError, match=r"columns: found .*, expected names or expressions of Polars, one or several"):
        predict(people()[1], columns=columns)


def test_categories_chunks_and_no_rows() -> None:
    model, compiled = people()
    frame = FRAME_POLARS.with_columns(pl.col("town").cast(pl.Categorical))
    chunks = pl.concat([frame[:5], frame[5:], frame[:0]], rechunk=False)
    assert chunks.with_columns(predict(compiled))["predict"].to_list() == model.predict(FRAME).tolist()
    assert frame[:0].with_columns(predict(compiled)).schema["predict"] == pl.String
    assert frame.group_by("k").agg(predict(compiled).count())["predict"].sum() == len(frame)


def test_a_model_without_names_takes_the_columns_that_are_named() -> None:
    X = np.random.default_rng(0).normal(size=(50, 2))
    model = LinearRegression().fit(X, X[:, 0] - 2 * X[:, 1])
    compiled = hbc.convert(model, backend="numpy")
    frame = pl.DataFrame({"second": X[:, 1], "first": X[:, 0]})
    found = frame.select(predict(compiled, columns=["first", "second"]))
    np.testing.assert_allclose(found["predict"].to_numpy(), model.predict(X))
    renamed = people()[1]
    assert (
        FRAME_POLARS.rename({"age": "years"})
        .with_columns(predict(renamed, columns=[pl.col("years").alias("age"), "k", "town"]))["predict"]
        .to_list()
        == people()[0].predict(FRAME).tolist()
    )
    with pytest.raises(ValueError, match="the model knows none"):
        predict(compiled)


def test_errors_of_hbc_are_told() -> None:
    compiled = people()[1]
    with pytest.raises(pl.exceptions.ColumnNotFoundError, match="age"):
        FRAME_POLARS.drop("age").with_columns(predict(compiled))
    with pytest.raises(pl.exceptions.ComputeError, match=r"column 3 \('age'\): found the string"):
        FRAME_POLARS.with_columns(pl.lit("x").alias("age")).with_columns(predict(compiled))
    with pytest.raises(ValueError, match="expected some of"):
        predict(compiled, "transform")


def test_frames_of_pandas_give_the_same() -> None:
    model, compiled = people()
    again = pl.from_pandas(pd.concat([FRAME, FRAME]))
    assert again.with_columns(predict(compiled))["predict"].to_list() == model.predict(FRAME).tolist() * 2
