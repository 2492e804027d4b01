"""Strings for the categories of LightGBM, and names and rows for CatBoost: the compiled model gives the same, or both raise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hbc

pd = pytest.importorskip("pandas")

RANDOM = np.random.default_rng(0)
LETTERS = RANDOM.choice(list("abc"), 80)
FRAME = pd.DataFrame({"c": pd.Categorical(LETTERS), "x": RANDOM.normal(size=80)})
TARGET = 2.0 * (LETTERS == "a") + FRAME.x


def forms() -> dict[str, Any]:
    """The same rows, with the strings held in every way."""
    polars, pyarrow = pytest.importorskip("polars"), pytest.importorskip("pyarrow")
    texts = polars.DataFrame({"c": list(LETTERS), "x": FRAME.x.to_numpy()})
    arrow = pyarrow.array(list(LETTERS))
    return {
        "categories": FRAME,
        "other categories": FRAME.assign(c=pd.Categorical(LETTERS, categories=list("zcba"))),
        "objects": FRAME.assign(c=LETTERS.astype(object)),
        "strings": FRAME.assign(c=FRAME.c.astype("string")),
        "codes": FRAME.assign(c=FRAME.c.cat.codes),
        "polars": texts,
        "categories of polars": texts.with_columns(polars.col("c").cast(polars.Categorical)),
        "arrow": pyarrow.table({"c": arrow, "x": FRAME.x.to_numpy()}),
        "dictionary of arrow": pyarrow.table({"c": arrow.dictionary_encode(), "x": FRAME.x.to_numpy()}),
        "array": FRAME.to_numpy(object),
        "list": FRAME.to_numpy(object).tolist(),
    }


def assert_same_or_both_raise(model: Any, compiled: Any, given: dict[str, Any], stricter: tuple[str, ...] = ()) -> None:
    for name, X in given.items():
        try:
            expected = model.predict(X)
        except Exception:
            expected = None
        if expected is None or name in stricter:
            with pytest.raises(hbc.InvalidInputError):
                compiled.predict(X)
        else:
            np.testing.assert_allclose(compiled.predict(X), expected, rtol=1e-12, err_msg=name)


@pytest.mark.parametrize("sample", [None, FRAME], ids=["without a sample", "with a sample"])
def test_lightgbm_takes_strings_as_categories_of_pandas_only(sample: Any) -> None:
    lightgbm = pytest.importorskip("lightgbm")
    model = lightgbm.LGBMRegressor(n_estimators=4, min_child_samples=2, verbose=-1).fit(FRAME, TARGET)
    for each in (model, model.booster_):
        assert_same_or_both_raise(each, hbc.convert(each, "numpy", sample), forms())


@pytest.mark.parametrize("fitted", ["tuples", "array", "a tuple beside a string"])
def test_names_and_rows_that_are_tuples_for_catboost(fitted: str) -> None:
    catboost = pytest.importorskip("catboost")
    values = RANDOM.normal(size=(80, 2))
    names = {
        "tuples": pd.MultiIndex.from_tuples([("a", "b"), ("c", "d")]),
        "joined": ["a b", "c d"],
        "text": ["('a', 'b')", "('c', 'd')"],
        "a tuple beside a string": pd.Index(["x", ("c", "d")], tupleize_cols=False),
    }
    given = {name: pd.DataFrame(values, columns=columns) for name, columns in names.items()}
    given |= {"array": values, "tuple of rows": tuple(map(tuple, values)), "list of tuples": list(map(tuple, values))}
    options = {"iterations": 3, "verbose": 0, "allow_writing_files": False, "thread_count": 1}
    model = catboost.CatBoostRegressor(**options).fit(given[fitted], values[:, 0])
    assert_same_or_both_raise(model, hbc.convert(model, "numpy"), given)
