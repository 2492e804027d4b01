"""Spark scores in its workers, of which one is killed."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")
if shutil.which("java") is None:
    pytest.skip("no Java runtime", allow_module_level=True)

from engine_cases import METHODS, MODEL, NAMES, TABLE, require_same, run_example
from fragment_cases import killed_once, require_same_files
from killing import KilledOnce
from pyspark.sql import SparkSession
from sklearn.linear_model import LinearRegression

import hbc
from hbc.engines.spark import map_tasks, score, udf
from hbc.errors import InvalidInputError

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]  # 15 s on a quiet computer


@pytest.fixture(scope="module")
def spark(mortal: Path) -> Iterator[Any]:
    """Two workers at once; a task is tried up to four times."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    options = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "200",
    }
    session = SparkSession.builder.master("local[2,4]").config(map=options).getOrCreate()
    yield session
    session.stop()


def test_answers(spark: Any, model: Path, files: Path) -> None:
    frame = spark.read.parquet(str(files))
    scored = score(frame, model, METHODS, ("id", "noted"))
    assert scored.columns == ["id", "noted", *NAMES]
    require_same(scored.toArrow(), ordered=False)
    dotted = frame.limit(30).withColumnRenamed("fare", "a.b")
    unnamed = hbc.convert(LinearRegression().fit([[1.0], [3.0]], [1.0, 2.0]), "numpy")
    assert score(dotted.select("`a.b`"), unnamed).count() == 30
    plan = score(frame, hbc.load(model), keep="id")._jdf.queryExecution().toString()
    assert "noted" not in plan.partition("Physical Plan")[2]
    with pytest.raises(InvalidInputError, match="expected also 'fare'"):
        score(frame.drop("fare"), model)
    assert score(frame.filter("fare > 99"), model).count() == 0


def test_kept_columns_of_any_type(spark: Any, model: Path) -> None:
    frame = spark.createDataFrame(TABLE.slice(0, 20).to_pandas()).selectExpr(
        "*",
        "array(id) as a",
        "timestamp_seconds(id) as t",
        "cast(id as decimal(12, 2)) as d",
        "struct(id, noted) as s",
        "id as `x.y``z`",
    )
    keep = ["a", "t", "d", "s", "x.y`z"]
    found = score(frame, model, keep=keep).collect()
    assert found[0].__fields__ == [*keep, "predict"]
    assert [tuple(row)[:-1] for row in found] == [tuple(row) for row in frame.select("a", "t", "d", "s", "`x.y``z`").collect()]


def test_a_function_for_columns(spark: Any, model: Path, files: Path) -> None:
    frame = spark.read.parquet(str(files))
    inputs = hbc.load(model).arrow().columns
    one = frame.withColumn("predict", udf(model)(*inputs)).select("id", "predict").toArrow()
    rows = TABLE.take(pa.array(one["id"])).to_pandas()
    assert one["predict"].to_pylist() == MODEL.predict(rows).tolist()
    many = frame.select("id", udf(model, "predict_proba", 64)(*inputs).alias("p")).select("id", "p.*").toArrow()
    rows = TABLE.take(pa.array(many["id"])).to_pandas()
    np.testing.assert_allclose(np.column_stack(many.columns[1:]), MODEL.predict_proba(rows), rtol=1e-5, atol=1e-6)

    X = np.random.default_rng(0).normal(size=(50, 2))
    source = LinearRegression().fit(X, X @ [1.0, 2.0])
    unnamed = udf(hbc.convert(source, "numpy", X))
    found = spark.createDataFrame(X.tolist(), ["a", "b"]).select(unnamed("a", "b").alias("y")).toArrow()
    np.testing.assert_allclose(found["y"], source.predict(X))


def test_a_worker_is_killed(spark: Any, model: Path, files: Path, mortal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mortal.unlink(missing_ok=True)
    monkeypatch.setattr("hbc.engines.spark.WorkerMethod", KilledOnce)
    require_same(score(spark.read.parquet(str(files)), model, METHODS, ("id", "noted")).toArrow(), ordered=False)
    assert mortal.exists()


def test_files_of_hbc_score(
    spark: Any, model: Path, files: Path, mortal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mortal.unlink(missing_ok=True)
    monkeypatch.setattr("hbc.scoring.job.run_task", killed_once)
    require_same_files("spark", model, files, tmp_path, workers=2)
    assert mortal.exists()


def test_a_thread_without_a_session_of_its_own_uses_that_of_the_process(spark: Any) -> None:
    """It was ended with the tasks of the thread."""
    with ThreadPoolExecutor(1) as pool:
        assert list(pool.submit(list, map_tasks(abs, [-3], 1, None)).result()) == [3]
    assert spark.range(3).count() == 3
    assert list(map_tasks(abs, [-3], 1, "local[2,4]")) == [3]
    with pytest.raises(
        ValueError, match=r"found 'local\[7\]', and a Spark session of this process with the master 'local\[2,4\]'"
    ):
        next(map_tasks(abs, [-3], 1, "local[7]"))


def test_the_example_of_the_page(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_example("Spark")
    assert pq.read_table("scored").column_names == ["town", "predict_proba_left", "predict_proba_stayed"]
