"""A model as a function of SQL in DuckDB."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from engines.people import FRAME, people
from sklearn.linear_model import LinearRegression

import hbc
from hbc.engines.duckdb import register


@pytest.fixture
def con() -> Any:
    con = duckdb.connect()
    con.register("people", FRAME)
    yield con
    con.close()


def test_columns_are_arguments(con: Any, tmp_path: Path) -> None:
    model, compiled = people()
    assert register(con, compiled) is con
    path = tmp_path / "people.parquet"
    con.sql(f"COPY people TO '{path}' (ROW_GROUP_SIZE 2048)")
    con.execute("SET threads = 2")
    found = con.sql(f"SELECT id, hbc_predict(town, k, age) FROM '{path}' ORDER BY id").fetchall()
    assert [label for _, label in found] == model.predict(FRAME).tolist()
    counted = con.sql(f"SELECT count(*) FROM '{path}' WHERE hbc_predict(town, k, age) = 'yes'").fetchall()
    assert counted == [(int((model.predict(FRAME) == "yes").sum()),)]


def test_a_row_is_an_argument_and_several_results_are_a_struct(con: Any) -> None:
    model, compiled = people()
    register(con, compiled, "hbc_proba", ["predict_proba", "predict"], class_names=["it's no", 'a "yes"'])
    sql = """SELECT p.* FROM (SELECT id, hbc_proba(people) AS p FROM people) ORDER BY id"""
    found = con.sql(sql).to_arrow_table()
    assert found.schema.names == ["predict_proba_it's no", 'predict_proba_a "yes"', "predict"]
    np.testing.assert_allclose(np.column_stack(found.columns[:2]), model.predict_proba(FRAME), rtol=1e-12)
    assert found["predict"].to_pylist() == model.predict(FRAME).tolist()


def test_null_is_missing(con: Any) -> None:
    model, compiled = people()
    register(con, compiled)
    frame = FRAME.head(2).assign(age=[np.nan, 1.5], k=[3, 4], town=[None, "Ulm"])
    expected = model.predict(frame).tolist()
    sql = "SELECT hbc_predict(NULL, 3, NULL), hbc_predict('Ulm', 4::TINYINT, 1.5::DOUBLE)"
    assert list(con.sql(sql).fetchall()[0]) == expected
    assert con.sql("SELECT hbc_predict(town, k, age) FROM people LIMIT 0").fetchall() == []


def test_errors_of_hbc_are_told(con: Any) -> None:
    register(con, people()[1])
    for sql, message in {
        "SELECT hbc_predict(k) FROM people": "found 1 argument, expected 3",
        "SELECT hbc_predict(town, k) FROM people": "found 2 arguments, expected 3: town, k, age",
        "SELECT hbc_predict(town, k, town) FROM people": r"column 3 \('age'\): found the string",
        "SELECT hbc_predict({'age': 1.0, 'town': 'Ulm'})": "without the columns k",
    }.items():
        with pytest.raises(duckdb.InvalidInputException, match=message):
            con.sql(sql).fetchall()
    with pytest.raises(ValueError, match="expected some of"):
        register(con, people()[1], "other", "transform")


def test_every_type_of_results(con: Any) -> None:
    """The types of numbers that results have, as DuckDB's."""
    X = np.random.default_rng(0).normal(size=(50, 2))
    model = LinearRegression().fit(X, np.column_stack([X[:, 0], X[:, 1] * 2]))
    register(con, hbc.convert(model, backend="numpy"), "pair")
    con.register("numbers", pa.table({"a": X[:, 0], "b": X[:, 1]}))
    found = con.sql("SELECT p.* FROM (SELECT pair(a, b) AS p FROM numbers)").to_arrow_table()
    np.testing.assert_allclose(np.column_stack(found.columns), model.predict(X), rtol=1e-12)
    assert found.schema.names == ["predict_0", "predict_1"]
    with pytest.raises(duckdb.InvalidInputException, match="3 columns, expected 2 columns"):
        con.sql("SELECT pair(a, b, a) FROM numbers").fetchall()
