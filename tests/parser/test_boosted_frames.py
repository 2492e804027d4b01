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


def assert_same_or_both_raise(model: Any, compiled: Any, given: dict[str, Any]) -> None:
    for name, X in given.items():
        try:
            expected = model.predict(X)
        except Exception:
            expected = None
        if expected is None:
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


INTEGERS: dict[str, Any] = {
    "tens": np.array([10, 20, 30, 40]),
    "not in order": np.array([3, 1, 0, 2]),
    "places": np.array([0, 1, 2, 3]),
    "negative": np.array([-1, 7, 1000]),
    "narrow": np.array([5, 200, 7], np.uint8),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", INTEGERS)
def test_xgboost_fitted_on_categories_that_are_integers(name: str) -> None:
    """Of a frame XGBoost takes categories by their value, of an array by their place."""
    xgboost, polars, pyarrow = (pytest.importorskip(library) for library in ("xgboost", "polars", "pyarrow"))
    fitted = INTEGERS[name]
    drawn = RANDOM.choice(len(fitted), 80)
    values = fitted[drawn]
    frame = FRAME.assign(c=pd.Categorical(values, categories=fitted))
    model = xgboost.XGBRegressor(n_estimators=4, enable_categorical=True).fit(frame, drawn % 2 + FRAME.x)
    arrow = pyarrow.table({"c": pyarrow.array(values).dictionary_encode(), "x": FRAME.x.to_numpy()})
    forms = {
        "fitted": frame,
        "one row": frame[:1],
        "another order": frame.assign(c=frame.c.cat.reorder_categories(fitted[::-1].copy())),
        "fewer": frame.assign(c=frame.c.cat.set_categories(fitted[:2])),
        "missing": frame.assign(c=frame.c.where(frame.index % 3 > 0)),
        "float32 beside": frame.astype({"x": np.float32}),
        "one more": frame.assign(c=frame.c.cat.add_categories([fitted.max() + 1])),
        "of another width": frame.assign(c=pd.Categorical(values.astype("int32"), categories=fitted.astype("int32"))),
        "of strings": frame.assign(c=pd.Categorical(values.astype(str))),
        "numbers": frame.assign(c=values),
        "codes": frame.assign(c=frame.c.cat.codes),
        "array of codes": np.column_stack([drawn, FRAME.x]),
        "names in another order": frame[["x", "c"]],
        "polars": polars.DataFrame({"c": values, "x": FRAME.x.to_numpy()}),
        "dictionary of arrow": arrow,
    }
    for each in (model, model.get_booster()):
        compiled = hbc.convert(each, "numpy")
        answers = 0
        for form, X in forms.items():
            try:
                expected = model.predict(X)
            except Exception:
                expected = None
            try:
                found = compiled.predict(X)
            except hbc.InvalidInputError:
                # For an unknown integer XGBoost 3.2 takes the next larger category, if there is one.
                assert expected is None or form in ("one more", "dictionary of arrow"), form
                continue
            assert expected is not None, form
            answers += 1
            np.testing.assert_allclose(found, expected, rtol=1e-6, err_msg=form)
        assert answers == 7
    np.testing.assert_array_equal(compiled.apply(frame), model.apply(frame))
