"""Arrays, lists and frames that LightGBM, XGBoost and their Boosters take or reject: the compiled model gives the same, or both raise. A
compiled model may reject an input that the source takes only if the input is listed here."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pandas as pd
import pytest
from installed import reads

import hbc

polars = pytest.importorskip("polars")
pyarrow = pytest.importorskip("pyarrow")
lightgbm = pytest.importorskip("lightgbm")
xgboost = pytest.importorskip("xgboost")

pytestmark = pytest.mark.filterwarnings("ignore")

RANDOM = np.random.default_rng(5)
X = RANDOM.normal(size=(60, 4)).round(2)
Y, SUM = (X[:, 0] > 0).astype(int), X.sum(1)
NAMES = list("abcd")


def named(columns: Any) -> pd.DataFrame:
    return pd.DataFrame(X, columns=columns)


FITTED_ON = {"array": X, "names": named(NAMES), "integers": pd.DataFrame(X)}
TEXT = named(NAMES).astype("str")
ONE_TEXT = named(NAMES).assign(b=TEXT["b"])
INPUTS: dict[str, Any] = {
    "array": X,
    "float32": X.astype(np.float32),
    "one row": X[:1],
    "list": X.tolist(),
    "tuple": tuple(map(tuple, X.tolist())),
    "the names": named(NAMES),
    "other names": named(list("abce")),
    "another order": named(list("bacd")),
    "integers": pd.DataFrame(X),
    "integers in another order": pd.DataFrame(X)[[1, 0, 2, 3]],
    "digits": named(list("0123")),
    "integers beside strings": named(["a", "b", 2, 3]),
    "a column less": named(NAMES)[list("abc")],
    "a column more": named(NAMES).assign(e=1.0),
    "no rows": named(NAMES)[:0],
    "numeric strings": TEXT,
    "one of numeric strings": ONE_TEXT,
    "strings as objects": TEXT.astype(object),
    "numbers as objects": named(NAMES).astype(object),
    "int8 beside floats": named(NAMES).assign(c=np.int8(3)),
    "nullable": named(NAMES).astype("Float64"),
    "polars": polars.DataFrame(X, schema=NAMES),
    "polars, other names": polars.DataFrame(X, schema=list("abce")),
    "polars of numeric strings": polars.DataFrame(X.astype(str), schema=NAMES),
    "polars with one of them": polars.DataFrame({"a": X[:, 0], "b": X[:, 1].astype(str), "c": X[:, 2], "d": X[:, 3]}),
    "polars of categories": polars.DataFrame(X.astype(str), schema=NAMES, strict=False).cast(polars.Categorical),
    "arrow": pyarrow.table({name: X[:, i] for i, name in enumerate(NAMES)}),
    "arrow of numeric strings": pyarrow.table({name: X[:, i].astype(str) for i, name in enumerate(NAMES)}),
}

STRICTER: set[tuple[str, ...]] = {
    ("lightgbm", "integers beside strings"),
    ("lightgbm", "numbers as objects"),
    ("xgboost", "polars, other names"),  # inplace_predict compares the names of pandas only
    ("xgboost", "polars of categories"),  # whose codes it takes for numbers
    ("xgboost", "integers beside strings"),
    ("xgboost", "a column less"),  # a DMatrix may have any width
    ("xgboost", "a column more"),
    ("xgboost", "polars", "integers"),
    ("xgboost", "arrow", "integers"),
}
"""(library, input) or (library, input, fitted on): what a model rejects though some method of the source takes it."""


@functools.cache
def models(library: str, fitted_on: str) -> dict[str, Any]:
    given = FITTED_ON[fitted_on]
    if library == "lightgbm":
        options = {"n_estimators": 3, "num_leaves": 4, "verbose": -1}
        classifier = lightgbm.LGBMClassifier(**options).fit(given, Y)
        return {
            "classifier": classifier,
            "regressor": lightgbm.LGBMRegressor(**options).fit(given, SUM),
            "ranker": lightgbm.LGBMRanker(**options).fit(given, Y, group=[30, 30]),
            "Booster": classifier.booster_,
        }
    options = {"n_estimators": 3, "max_depth": 2}
    classifier = xgboost.XGBClassifier(**options).fit(given, Y)
    return {
        "classifier": classifier,
        "regressor": xgboost.XGBRegressor(**options).fit(given, SUM),
        "ranker": xgboost.XGBRanker(**options).fit(given, Y, qid=np.repeat([0, 1], 30)),
        "linear": xgboost.XGBRegressor(n_estimators=3, booster="gblinear").fit(given, SUM),
        "Booster": classifier.get_booster(),
    }


def source(model: Any, method: str, given: Any) -> Any:
    """What the source returns. A Booster of XGBoost predicts in place, which asks pandas for names only; its leaves need a DMatrix."""
    if isinstance(model, xgboost.Booster):
        if method == "apply":
            return model.predict(xgboost.DMatrix(given), pred_leaf=True)
        return model.inplace_predict(given, predict_type="margin" if method == "raw_score" else "value")
    last = model.steps[-1][1] if hasattr(model, "steps") else model
    options = {"raw_score": {"raw_score": True}, "apply": {"pred_leaf": True}} if "lightgbm" in type(last).__module__ else {}
    if method in options:
        return model.predict(given, **options[method])
    return model.predict(given, output_margin=True) if method == "raw_score" else getattr(model, method)(given)


@pytest.mark.every_case
@pytest.mark.parametrize("fitted_on", FITTED_ON)
@pytest.mark.parametrize("library", ["lightgbm", "xgboost"])
def test_the_same_answer_or_both_an_error(library: str, fitted_on: str) -> None:
    differences = []
    for kind, model in models(library, fitted_on).items():
        compiled = hbc.convert(model, "numpy")
        for method in compiled.methods:
            for name, given in INPUTS.items():
                if not reads(library, name):
                    continue
                try:
                    expected = source(model, method, given)
                except Exception:
                    expected = None
                try:
                    found = getattr(compiled, method)(given)
                except hbc.InvalidInputError:
                    listed = {(library, name), (library, name, fitted_on)} & STRICTER
                    if expected is not None and not listed and len(given):
                        differences.append(f"{kind}.{method} of {name}: rejected")
                    continue
                if expected is None:
                    differences.append(f"{kind}.{method} of {name}: answered")
                elif found.shape != expected.shape or not np.allclose(found, expected, rtol=1e-5, atol=1e-6):
                    differences.append(f"{kind}.{method} of {name}: different")
    assert not differences, "\n".join(differences)


def test_integer_categories_of_lightgbm() -> None:
    """A frame of pandas must have the categories of fitting, which are their own codes; an array has no categories."""
    frame = pd.DataFrame({"x": X[:, 0], "n": pd.Categorical(np.arange(60) % 5), "m": pd.Categorical(np.arange(60) % 3)})
    model = lightgbm.LGBMRegressor(n_estimators=4, min_child_samples=2, verbose=-1).fit(frame, SUM + np.arange(60) % 5)
    compiled = hbc.convert(model, "numpy")
    missing = frame.assign(n=frame["n"].where(frame["n"] != 2))
    for given in (frame, frame[:1], missing, frame.astype(float).to_numpy()):
        np.testing.assert_allclose(compiled.predict(given), model.predict(given), rtol=1e-12)
    for wrong in (frame.astype({"n": int}), frame.astype(int), frame.assign(x=pd.Categorical(np.arange(60) % 2))):
        with pytest.raises(ValueError, match="categorical_feature do not match"):
            model.predict(wrong)
        with pytest.raises(hbc.InvalidInputError, match=r"found (no categories|the dtype category)"):
            compiled.predict(wrong)
    unknown = frame.assign(n=pd.Categorical(np.full(60, 99)))  # which LightGBM takes for missing values
    np.testing.assert_allclose(compiled.predict(unknown), model.predict(unknown), rtol=1e-12)


def test_names_of_catboost() -> None:
    """It compares them as text, and finds columns in another order by them, which is refused. An array has no names."""
    catboost = pytest.importorskip("catboost")
    frames = [pd.DataFrame(X), named(list("0123")), named(NAMES), named(["a", 1, 2, 3])]
    frames += [frame[[*frame.columns[1::-1], *frame.columns[2:]]] for frame in frames]
    for fitted_on in FITTED_ON.values():
        model = catboost.CatBoostRegressor(n_estimators=4, depth=2, verbose=0, thread_count=1, allow_writing_files=False)
        model.fit(fitted_on, SUM)
        compiled = hbc.convert(model, "numpy")
        answers = 0
        for given in (X, *frames):
            try:
                found = compiled.predict(given)
            except hbc.InvalidInputError:
                assert fitted_on is not X
                continue
            answers += 1
            np.testing.assert_allclose(found, model.predict(given), rtol=1e-12)
        assert answers == (9 if fitted_on is X else 3 if 0 in fitted_on.columns else 2)


def test_what_needs_names_has_no_way_around_them(tmp_path: Any) -> None:
    """After a call with a frame, in a saved model, and by a handle."""
    model = models("xgboost", "names")["classifier"]
    compiled = hbc.convert(model, "numpy")
    expected = model.apply(FITTED_ON["names"])
    compiled.save(tmp_path / "model.hbc")
    for each in (compiled, hbc.load(tmp_path / "model.hbc")):
        for _ in range(2):
            np.testing.assert_array_equal(each.apply(FITTED_ON["names"]), expected)
        with pytest.raises(hbc.InvalidInputError, match="names of columns"):
            each.apply(X)
        with pytest.raises(ValueError, match="named columns"):
            each.bind("apply")
