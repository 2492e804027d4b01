"""Which columns had the categories that a LightGBM model keeps, and what records hold there."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import hbc

lightgbm = pytest.importorskip("lightgbm")

pytestmark = pytest.mark.filterwarnings("ignore")

RANDOM = np.random.default_rng(4)
ROWS = 150
PLACES = RANDOM.integers(0, 3, (ROWS, 4))
X_VALUES = RANDOM.normal(size=ROWS)
Y = ((PLACES.sum(1) % 3) + X_VALUES > 1).astype(int)


def of(values: list[Any], column: int, **options: Any) -> Any:
    """A column of these categories, drawn at random."""
    return pd.Categorical.from_codes(PLACES[:, column] % len(values), categories=pd.Index(values), **options)


def fitted(frame: pd.DataFrame, **options: Any) -> Any:
    model = lightgbm.LGBMClassifier(
        n_estimators=5, num_leaves=6, min_child_samples=3, min_data_per_group=3, cat_smooth=1, verbose=-1, n_jobs=1
    )
    return model.fit(frame, Y, **options)


def assert_frames(model: Any, compiled: Any, frame: pd.DataFrame) -> None:
    missing = frame.assign(c=frame.c.where(frame.index % 4 > 0))
    for given in (frame, frame[:1], missing):
        np.testing.assert_allclose(compiled.predict_proba(given), model.predict_proba(given), rtol=1e-9)


def assert_records(model: Any, compiled: Any, frame: pd.DataFrame) -> None:
    """Records are the rows of the frame: one by one, some, a list given to the method, columns."""
    rows, expected = frame[:20].to_dict("records"), model.predict_proba(frame[:20])
    score = compiled.bind_record("predict_proba")
    for _ in range(2):  # the first goes the usual way
        np.testing.assert_allclose(np.concatenate([score(row) for row in rows]), expected, rtol=1e-9)
        np.testing.assert_allclose(np.concatenate([score(tuple(row.values())) for row in rows]), expected, rtol=1e-9)
        np.testing.assert_allclose(score.rows(rows), expected, rtol=1e-9)
        np.testing.assert_allclose(compiled.predict_proba(rows), expected, rtol=1e-9)
    np.testing.assert_allclose(score.columns(frame[:20].to_dict("list")), expected, rtol=1e-9)


FRAMES: dict[str, Any] = {
    "tens": {"c": of([10, 20, 30], 0), "x": X_VALUES, "d": of([7, 5], 1)},
    "floats": {"x": X_VALUES, "c": of([0.5, 1.5, -2.0], 0)},
    "bool": {"x": X_VALUES, "c": of([False, True], 0)},
    "strings": {"x": X_VALUES, "c": of(["é", "b", ""], 0)},
    "strings and numbers": {"c": of(["u", "v"], 0), "x": X_VALUES, "d": of([30, 10, 20], 1)},
    "mixed": {"x": X_VALUES, "c": pd.Categorical.from_codes(PLACES[:, 0], categories=pd.Index(["u", 3, 2.5], dtype=object))},
    "places": {"c": of([0, 1, 2], 0), "x": X_VALUES},
    "ordered": {"x": X_VALUES, "c": of([10, 20, 30], 0, ordered=True)},
    "ordered beside": {"x": X_VALUES, "c": of([10, 20, 30], 0, ordered=True), "d": of([1, 2, 3], 1), "e": of([5, 6], 2)},
    "one category": {"c": pd.Categorical([4] * ROWS, categories=[4, 9]), "x": X_VALUES, "d": of([1, 2], 1)},
    "only categories": {"c": of([10, 20, 30], 0), "d": of([3, 1, 2], 1)},
    "negative": {"c": of([-1, -(2**40), 2**40], 0), "x": X_VALUES},
    "integers beside": {"c": of([10, 20, 30], 0), "x": PLACES[:, 1] * 100, "d": of([7, 5], 2)},
}


@pytest.mark.parametrize("name", FRAMES)
def test_frames_and_records(name: str) -> None:
    frame = pd.DataFrame(FRAMES[name])
    model = fitted(frame)
    for source in (model, lightgbm.Booster(model_str=model.booster_.model_to_string())):
        compiled = hbc.convert(source, "numpy")
        if source is model:
            assert_frames(model, compiled, frame)
            assert_records(model, compiled, frame)
        else:
            np.testing.assert_allclose(compiled.predict(frame), source.predict(frame), rtol=1e-9)


def test_bool_and_the_integers_that_equal_it(tmp_path: Path) -> None:
    """False equals 0 in Python. Facts about a column of bool once stood for those of [0, 1]: of another model in the process, and in the
    file of a model with both."""
    flags, numbers = of([False, True], 0), of([0, 1], 1)
    for columns in ({"c": flags, "x": X_VALUES}, {"c": numbers, "x": X_VALUES}, {"c": flags, "d": numbers, "x": X_VALUES}):
        frame = pd.DataFrame(columns)
        model = fitted(frame)
        hbc.convert(model, "numpy").save(tmp_path / "m.hbc")
        swapped = frame.assign(
            **{name: frame[name].cat.reorder_categories(frame[name].cat.categories[::-1]) for name in "cd" if name in frame}
        )
        for compiled in (hbc.convert(model, "numpy"), hbc.load(tmp_path / "m.hbc")):
            assert_frames(model, compiled, frame)
            assert_frames(model, compiled, swapped)


@pytest.mark.parametrize("backend", ["numpy", "tvm"])
def test_a_value_that_is_no_category(backend: str) -> None:
    """Another number is missing, as in a frame of the fitted categories; a value of another kind is rejected."""
    frame = pd.DataFrame(FRAMES["strings and numbers"])
    model = fitted(frame)
    score = hbc.convert(model, backend).bind_record("predict_proba")
    record = {"c": "u", "x": 0.25, "d": 10}
    known = {name: frame[name].cat.categories for name in "cd"}
    for changed in (
        {"d": 99},
        {"d": None},
        {"d": float("nan")},
        {"d": 10.5},
        {"d": 10.0},
        {"c": "zz"},
        {"c": None},
        {"d": np.int8(20)},
    ):
        row = record | changed
        given = pd.DataFrame({name: [row[name]] for name in row})
        given = given.assign(**{name: pd.Categorical([row[name]], categories=known[name]) for name in known})
        for _ in range(2):
            np.testing.assert_allclose(score(row), model.predict_proba(given), rtol=1e-9, err_msg=str(changed))
    for column, wrong in itertools.chain(
        itertools.product("d", ["10", True, pd.NA, [10], b"x", 1j, np.array([10])]), itertools.product("c", [3, True, [1]])
    ):
        with pytest.raises(hbc.InvalidInputError, match=f"'{column}'|column"):
            score(record | {column: wrong})


def test_a_saved_model_takes_the_same(tmp_path: Any) -> None:
    frame = pd.DataFrame(FRAMES["strings and numbers"])
    model = make_pipeline(
        ColumnTransformer(
            [("x", StandardScaler(), ["x"])], remainder="passthrough", verbose_feature_names_out=False
        ).set_output(transform="pandas"),
        lightgbm.LGBMClassifier(n_estimators=4, min_child_samples=3, verbose=-1),
    ).fit(frame, Y)
    hbc.convert(model, "numpy", frame).save(tmp_path / "model.hbc")
    compiled = hbc.load(tmp_path / "model.hbc")
    assert_frames(model, compiled, frame)
    score = compiled.bind_record("predict_proba")
    np.testing.assert_allclose(
        np.concatenate([score(row) for row in frame[:20].to_dict("records")]), model.predict_proba(frame[:20]), rtol=1e-9
    )
    assert [column.categories for column in compiled.schema.columns] == [("u", "v"), None, (30, 10, 20)]


def test_columns_that_fit_do_not_say_where_the_categories_were() -> None:
    """The caller of fit has named another column than that of the categories. Both have numbers 0 to 2."""
    frame = pd.DataFrame({"x": X_VALUES, "c": of([10, 20, 30], 0), "n": PLACES[:, 1]})
    model = fitted(frame, categorical_feature=["n"])
    compiled = hbc.convert(model, "numpy")
    with pytest.raises(hbc.InvalidInputError, match="found no categories"):
        compiled.predict(frame)  # hbc takes them to be in n, as is usual
    with pytest.raises(hbc.InvalidInputError, match=r"convert the model with such a frame as the sample"):
        compiled.bind_record("predict")({"x": 0.5, "c": 10, "n": 1})
    sampled = hbc.convert(model, "numpy", frame)
    assert_frames(model, sampled, frame)
    assert_records(model, sampled, frame)


def test_a_column_named_by_the_caller_that_cannot_have_been_it() -> None:
    frame = pd.DataFrame({"x": X_VALUES, "c": of([10, 20, 30], 0), "n": PLACES[:, 1] * 50})
    model = fitted(frame, categorical_feature=["n"])
    compiled = hbc.convert(model, "numpy")
    assert_frames(model, compiled, frame)
    assert_records(model, compiled, frame)


def test_frames_are_certain_where_records_are_not() -> None:
    """A column of 0 and 1 could have held the codes of two categories."""
    frame = pd.DataFrame({"flag": PLACES[:, 1] % 2, "c": of([10, 20, 30], 0)})
    model = fitted(frame)
    compiled = hbc.convert(model, "numpy")
    assert_frames(model, compiled, frame)
    with pytest.raises(hbc.InvalidInputError, match="as the sample"):
        compiled.bind_record("predict")({"flag": 1, "c": 10})
    assert_records(model, hbc.convert(model, "numpy", frame), frame)
    swapped = frame[["c", "flag"]].set_axis(["flag", "c"], axis=1)
    for each in (compiled, hbc.convert(model, "numpy", frame)):
        with pytest.raises(hbc.InvalidInputError):  # LightGBM reads categories in whichever column they are
            each.predict(swapped)


def test_what_cannot_be_told_is_refused() -> None:
    frame = pd.DataFrame({"x": X_VALUES, "c": of([10, 20, 30], 0, ordered=True), "n": PLACES[:, 1]})
    model = fitted(frame)
    with pytest.raises(
        hbc.UnsupportedOperatorError, match=r"does not say in which: several columns fit.*Pass such a frame as the sample"
    ):
        hbc.convert(model, "numpy")
    compiled = hbc.convert(model, "numpy", frame)
    assert_frames(model, compiled, frame)
    assert_records(model, compiled, frame)
    with pytest.raises(hbc.UnsupportedOperatorError, match="infinity as a category"):
        hbc.convert(fitted(frame.assign(c=of([1.0, np.inf], 0))), "numpy")


def test_many_columns_are_told_at_once() -> None:
    """The ways to choose columns are counted, not tried."""
    columns = {f"n{i}": PLACES[:, i % 4] for i in range(60)} | {
        f"c{i}": of([10, 20, 30], i % 4, ordered=True) for i in range(30)
    }
    with pytest.raises(hbc.UnsupportedOperatorError, match="several columns fit"):
        hbc.convert(fitted(pd.DataFrame(columns)), "numpy")
