"""Drift: the counts are those of a plain count over the data, whichever way the rows come; and they are in the metrics."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from lightgbm import LGBMClassifier
from sklearn.base import clone
from sklearn.compose import ColumnTransformer, make_column_transformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    KBinsDiscretizer,
    MaxAbsScaler,
    MinMaxScaler,
    OneHotEncoder,
    RobustScaler,
    StandardScaler,
)

import hbc
from hbc.runtime.value_ranges import ranges_of
from hbc.serve.engine import Engine, Request
from hbc.serve.limits import Limits
from hbc.serve.logs import Log
from hbc.serve.metrics import exposition
from hbc.serve.repository import Repository
from hbc.serve.service import Service
from hbc.serve.statistics import Statistics

rng = np.random.default_rng(0)
ROWS = 400
FRAME = pd.DataFrame(
    {
        "age": rng.integers(20, 60, ROWS).astype(float),
        "town": rng.choice(["Köln", "Ulm"], ROWS),
        "class": rng.choice([1, 2, 3], ROWS),
    }
)
Y = np.where(FRAME["age"] + 10 * FRAME["class"] > 60, 1, 0)
ENCODER = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
MODEL = make_pipeline(
    make_column_transformer(("passthrough", ["age"]), (ENCODER, ["town", "class"])),
    LGBMClassifier(n_estimators=5, min_child_samples=2, verbose=-1, n_jobs=1),
)
NEW = pd.DataFrame(
    {
        "age": [30.0, np.nan, 5.0, 300.0, 40.0, 2.0, 30.0, 31.0, 32.0, 33.0],
        "town": ["Ulm", None, "Rom", "Bonn", "Köln", "Ulm", "Ulm", "Ulm", "Ulm", "Ulm"],
        "class": [1, 2, 9, 3, 3, 3, 1, 1, 1, 7],
    }
)
EXPECTED = {"age": [1, 0, 2, 1], "town": [1, 2, 0, 0], "class": [0, 2, 0, 0]}
"""Column → missing, unseen, below, above."""


@pytest.fixture(scope="module")
def model() -> Any:
    return MODEL.fit(FRAME, Y)


@pytest.fixture
def repository(model: Any, tmp_path: Path) -> Repository:
    hbc.convert(model, "numpy", FRAME).save(tmp_path / "m.hbc")
    found = Repository({"m": tmp_path / "m.hbc"}, drift=True)
    found.refresh()
    return found


def answered(repository: Repository, *requests: tuple[Any, Any, int]) -> dict[str, list[int]]:
    """The counts after requests of a form, a value and rows."""

    async def run() -> None:
        engine = Engine(Limits())
        for form, value, rows in requests:
            await engine.answer(Request(repository.get("m"), ("predict",), form, value, rows))
        engine.close()

    asyncio.run(run())
    statistics = repository.get("m").statistics
    assert statistics.drift_rows == len(NEW)
    return statistics.drift


RECORDS = [
    {name: None if value is None or value != value else value for name, value in record.items()}
    for record in NEW.to_dict("records")
]


@pytest.mark.every_case
@pytest.mark.parametrize("form", ["record", "records", "columns", "lists"])
def test_counts_are_those_of_the_data(repository: Repository, form: str) -> None:
    rows = len(NEW)
    asked: list[tuple[Any, Any, int]] = {
        "record": [("record", record, 1) for record in RECORDS],
        "records": [("records", RECORDS, rows)],
        "columns": [("columns", {name: NEW[name].to_numpy() for name in NEW}, rows)],
        "lists": [("columns", {name: [record[name] for record in RECORDS] for name in NEW}, rows)],
    }[form]
    assert answered(repository, *asked) == EXPECTED


@pytest.mark.every_case
@pytest.mark.parametrize("rows", [1, 3, 50])
def test_a_matrix(rows: int, tmp_path: Path) -> None:
    X = rng.normal(size=(ROWS, 3)).astype("float32")
    forest = RandomForestClassifier(5, random_state=0).fit(X, X[:, 0] > 0)
    compiled = hbc.convert(forest, "numpy")
    compiled.save(tmp_path / "m.hbc")
    repository = Repository({"m": tmp_path / "m.hbc"}, drift=True)
    repository.refresh()
    served = repository.get("m")
    new = (3 * rng.normal(size=(rows, 3))).astype("float32")
    for value in (new, new.tolist()):
        served.drift.look("matrix", value)  # type: ignore[union-attr]
    ranges = ranges_of(compiled)
    assert set(ranges) == {0, 1, 2}
    for column, (low, high) in ranges.items():
        assert X[:, column].min() <= low <= high <= X[:, column].max()
        expected = [0, 0, 2 * int((new[:, column] < low).sum()), 2 * int((new[:, column] > high).sum())]
        assert served.statistics.drift[f"column {column}"] == expected
    assert served.statistics.drift_rows == 2 * rows


@pytest.mark.every_case
def test_names_of_columns_that_a_model_reads_by_position(tmp_path: Path) -> None:
    """LightGBM's own models read frames by position; records and columns have names all the same, in any order."""
    X = pd.DataFrame(rng.normal(size=(ROWS, 2)), columns=["age", "pay"])
    model = LGBMClassifier(n_estimators=5, verbose=-1, n_jobs=1).fit(X, X["age"] * X["pay"] > 0)
    hbc.convert(model, "numpy").save(tmp_path / "m.hbc")
    repository = Repository({"m": tmp_path / "m.hbc"}, drift=True)
    repository.refresh()
    new = {"pay": [None, 0.0, 0.0], "age": [0.0, 99.0, -99.0]}
    drift, statistics = repository.get("m").drift, repository.get("m").statistics
    assert drift is not None
    drift.look("columns", new)
    for pay, age in zip(*new.values(), strict=True):
        drift.look("record", {"pay": pay, "age": age})
    assert statistics.drift_rows == 6
    assert statistics.drift == {"age": [0, 0, 2, 2], "pay": [2, 0, 0, 0]}


def test_ranges_are_those_of_the_splits() -> None:
    """Of LightGBM's own thresholds; of bins; none for what a linear model reads."""
    X = rng.normal(size=(ROWS, 3))
    classifier = LGBMClassifier(n_estimators=5, verbose=-1, n_jobs=1).fit(X, X[:, 0] * X[:, 1] > 0)
    trees = classifier.booster_.trees_to_dataframe().dropna(subset=["threshold"])
    found = ranges_of(hbc.convert(classifier, "numpy", X))
    assert set(found) <= {0, 1, 2}
    for name, splits in trees.groupby("split_feature"):
        low, high = found[int(name.rpartition("_")[2])]
        np.testing.assert_allclose([low, high], [splits["threshold"].min(), splits["threshold"].max()], rtol=1e-6)
    bins = KBinsDiscretizer(4, encode="onehot-dense", quantile_method="averaged_inverted_cdf")
    columns = make_column_transformer((bins, [0]), (StandardScaler(), [1, 2]))
    linear = make_pipeline(columns, LogisticRegression()).fit(X, X[:, 0] > 0)
    ranges = ranges_of(hbc.convert(linear, "numpy", X))
    assert set(ranges) == {0}
    edges = linear[0].transformers_[0][1].bin_edges_[0]
    np.testing.assert_allclose(ranges[0], (edges[1], edges[-2]))
    scaled = make_pipeline(StandardScaler(), classifier).fit(X, X[:, 0] > 0)
    splits = scaled[-1].booster_.trees_to_dataframe().dropna(subset=["threshold"]).groupby("split_feature")["threshold"]
    found = ranges_of(hbc.convert(scaled, "numpy", X))
    for name, thresholds in splits:
        column = int(name.rpartition("_")[2])
        ends = np.array([thresholds.min(), thresholds.max()]) * scaled[0].scale_[column] + scaled[0].mean_[column]
        np.testing.assert_allclose(found[column], ends, rtol=1e-5)


def test_metrics_and_other_processes(repository: Repository) -> None:
    answered(repository, ("records", RECORDS, len(NEW)))
    service = Service(repository, Engine(Limits()), Limits(), Log(io.StringIO()))
    text = exposition(service, repository.statistics())
    labels = 'model="m",version="1",column="age"'
    assert f"hbc_column_missing{{{labels}}} 1" in text
    assert f'hbc_column_outside{{{labels},side="below"}} 2' in text
    assert 'hbc_column_unseen{model="m",version="1",column="town"} 2' in text
    assert 'hbc_drift_rows{model="m",version="1"} 10' in text
    total = Statistics()
    for _ in range(2):
        total.add(repository.get("m").statistics.as_dict())
    assert total.drift == {name: [2 * count for count in counts] for name, counts in EXPECTED.items()}
    assert total.drift_rows == 20


def test_it_is_off_unless_asked_for(model: Any, tmp_path: Path) -> None:
    hbc.convert(model, "numpy", FRAME).save(tmp_path / "m.hbc")
    repository = Repository({"m": tmp_path / "m.hbc"})
    repository.refresh()
    assert repository.get("m").drift is None
    service = Service(repository, Engine(Limits()), Limits(), Log(io.StringIO()))
    assert "hbc_column" not in exposition(service, repository.statistics())


def test_counts_stay_when_the_model_is_loaded_anew(repository: Repository) -> None:
    answered(repository, ("records", RECORDS, len(NEW)))
    repository.load("m")
    assert repository.get("m").statistics.drift == EXPECTED
    assert repository.get("m").drift is not None


SCALERS = {
    "standard": StandardScaler(),
    "min-max": MinMaxScaler((-1, 2)),
    "clipped": MinMaxScaler(clip=True),
    "robust": RobustScaler(),
    "greatest": MaxAbsScaler(),
    "two": make_pipeline(SimpleImputer(), StandardScaler(), MinMaxScaler()),
    "columns": ColumnTransformer([("a", RobustScaler(), [2, 0]), ("b", "passthrough", [1])]),
}


@pytest.mark.every_case
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("scaler", SCALERS)
def test_numbers_that_are_scaled_before_trees(scaler: str, dtype: str) -> None:
    """Exactly the numbers beyond the range are scaled to numbers beyond the outermost threshold."""
    X = (rng.normal(size=(ROWS, 3)) * [1, 1e-3, 1e4] + [0, 5, -1e5]).astype(dtype)
    source = make_pipeline(clone(SCALERS[scaler]), RandomForestClassifier(8, random_state=0)).fit(
        X, X[:, 0] + X[:, 2] / 1e4 > -10
    )
    place = [2, 0, 1] if scaler == "columns" else [0, 1, 2]
    trees = [tree.tree_ for tree in source[-1].estimators_]
    feature, threshold = (np.concatenate([getattr(tree, name) for tree in trees]) for name in ("feature", "threshold"))
    ranges = ranges_of(hbc.convert(source, "numpy", X))
    for column, origin in enumerate(place):
        of_column = threshold[feature == column]
        found = ranges.get(origin)
        if found is None:
            assert not len(of_column)
            continue
        assert X[:, origin].min() <= found[0] <= found[1] <= X[:, origin].max()
        for end, side in zip(found, (-1, 1), strict=True):
            inside = np.array(end, dtype)
            numbers = np.tile(X[:1], (2, 1))
            numbers[:, origin] = inside, np.nextafter(inside, np.array(side * np.inf, dtype))
            scaled = source[:-1].transform(numbers)[:, column].astype("float32")  # scikit-learn's trees compare these
            least = np.float32(of_column.min())
            least = least if least <= of_column.min() else np.nextafter(least, np.float32(-np.inf))
            beyond = scaled < least if side < 0 else scaled > of_column.max()
            assert list(beyond) == [False, True]


def test_a_column_that_is_chosen_twice_and_scaled_again() -> None:
    """Each copy is carried back alone: numbers of one way are none of the other's, though both stand in one column at first."""
    X = rng.normal(size=(ROWS, 2)) * [1, 5] + [0, 3]
    twice = ColumnTransformer([("b", "passthrough", [1, 0]), ("a", "passthrough", [0])])
    source = make_pipeline(StandardScaler(), twice, MinMaxScaler(), RandomForestClassifier(8, random_state=0)).fit(
        X, X[:, 0] > 0
    )
    trees = [tree.tree_ for tree in source[-1].estimators_]
    feature, threshold = (np.concatenate([getattr(tree, name) for tree in trees]) for name in ("feature", "threshold"))
    scaler, last = source[0], source[2]
    before = (threshold - last.min_[feature]) / last.scale_[feature]
    ranges = ranges_of(hbc.convert(source, "numpy", X))
    assert set(ranges) == {0, 1}
    for column, copies in ((0, [1, 2]), (1, [0])):
        numbers = before[np.isin(feature, copies)] * scaler.scale_[column] + scaler.mean_[column]
        np.testing.assert_allclose(ranges[column], (numbers.min(), numbers.max()), rtol=1e-5)


def test_a_scaler_that_reverses_and_a_model_that_computes() -> None:
    X = rng.normal(size=(ROWS, 2)).astype("float32")
    scaler = StandardScaler().fit(X)
    scaler.scale_ *= -1
    forest = RandomForestClassifier(5, random_state=0).fit(scaler.transform(X), X[:, 0] > 0)
    found = ranges_of(hbc.convert(make_pipeline(scaler, forest), "numpy", X))
    feature, threshold = (
        np.concatenate([getattr(e.tree_, name) for e in forest.estimators_]) for name in ("feature", "threshold")
    )
    assert set(found) == {0, 1}
    for column, ends in found.items():
        of_column = threshold[feature == column]
        expected = np.array([of_column.max(), of_column.min()]) * scaler.scale_[column] + scaler.mean_[column]
        np.testing.assert_allclose(ends, expected, rtol=1e-5)
    linear = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, X[:, 0] > 0)
    assert ranges_of(hbc.convert(linear, "numpy", X)) == {}
