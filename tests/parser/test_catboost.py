"""CatBoost: every leaf at the borders, categories in every form, and refused models."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from backends import BACKENDS, COMPILED
from estimators.catboost_cases import Y3, X, Z, categories, of_categories
from installed import reads
from sklearn.ensemble import StackingClassifier, VotingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier

import hbc
from hbc.ops.hashed_categories import HashText
from hbc.parser.catboost import read_document

catboost = pytest.importorskip("catboost")
SETTINGS: dict[str, Any] = {"iterations": 25, "depth": 6, "verbose": 0, "allow_writing_files": False, "thread_count": 1}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("policy", ["SymmetricTree", "Depthwise", "Lossguide"])
@pytest.mark.parametrize("nan_mode", ["Min", "Max"])
def test_leaves_at_the_borders(nan_mode: str, policy: str, backend: str, tmp_path: Path) -> None:
    """Leaf numbers and sums are CatBoost's for float64 values at every border, one float32 or float64 ulp beside it, NaN, ±inf and -0.0."""
    model = catboost.CatBoostRegressor(**SETTINGS, nan_mode=nan_mode, grow_policy=policy).fit(X, Z)
    model.save_model(str(tmp_path / "m.json"), format="json")
    features = json.loads((tmp_path / "m.json").read_text())["features_info"]["float_features"]
    rng = np.random.default_rng(0)
    rows = np.empty((400, 5))
    for feature in features:
        b = np.float32(feature["borders"] or [0.0])
        pool = [b, np.nextafter(b, np.float32(9)), np.nextafter(b, np.float32(-9)), np.nextafter(b.astype(float), 9)]
        pool += [np.nextafter(b.astype(float), -9), [np.nan, np.inf, -np.inf, -0.0, 1e-45, 1e300]]
        rows[:, feature["flat_feature_index"]] = rng.choice(np.concatenate([np.asarray(p, float) for p in pool]), 400)
    compiled = hbc.convert(model, backend)
    with np.errstate(over="ignore"):
        inputs = (rows, rows.astype(np.float32))
    for data in inputs:
        np.testing.assert_allclose(compiled.predict(data), model.predict(data), rtol=1e-7, atol=1e-9)
        np.testing.assert_array_equal(compiled.calc_leaf_indexes(data), model.calc_leaf_indexes(data), strict=True)


@pytest.mark.parametrize("form", ["cbm", "json"])
@pytest.mark.parametrize("zeros", [False, True])
def test_numbers_of_leaves_of_a_loaded_model(form: str, zeros: bool, tmp_path: Path) -> None:
    """CatBoost's own order of the leaves of a tree depends on the format that it was loaded from. Weights tell it if no value does."""
    model = catboost.CatBoostRegressor(**SETTINGS, grow_policy="Lossguide").fit(X, Z)
    if zeros:
        model.set_leaf_values(np.zeros_like(model.get_leaf_values()))
    model.save_model(str(tmp_path / "model"), format=form)
    loaded = catboost.CatBoostRegressor().load_model(str(tmp_path / "model"), format=form)
    np.testing.assert_array_equal(hbc.convert(loaded, "numpy").calc_leaf_indexes(X), loaded.calc_leaf_indexes(X), strict=True)


def test_leaves_in_an_order_that_nothing_tells_have_no_numbers(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    model = catboost.CatBoostRegressor(**SETTINGS, grow_policy="Lossguide").fit(X, Z)
    model.set_leaf_values(np.zeros_like(model.get_leaf_values()))
    model.save_model(str(path), format="json")
    path.write_text(re.sub(r'"weight":\s*\d+', '"weight": 1', path.read_text()))
    loaded = catboost.CatBoostRegressor().load_model(str(path), format="json")
    compiled = hbc.convert(loaded, "numpy")
    np.testing.assert_array_equal(compiled.predict(X), loaded.predict(X))
    assert "calc_leaf_indexes" not in compiled.methods


@pytest.mark.parametrize("backend", ["numpy", "tvm"])
def test_one_row_of_integer_categories_alone(backend: str) -> None:
    """Integers become strings with codes; the short way of one row once took them for an array (AttributeError)."""
    frame = pd.DataFrame({"c": np.arange(len(X)) % 5, "x": X[:, 0]})
    model = catboost.CatBoostRegressor(**SETTINGS, cat_features=["c"]).fit(frame, Z + frame.c)
    compiled = hbc.convert(model, backend)
    record = compiled.bind_record("predict")
    for row in [*range(6), *range(6)]:
        one = frame[row : row + 1]
        if row == 5:
            one = one.assign(c=7)  # no category of fit
        rows = one.to_dict("records")
        for found in (compiled.predict(one), compiled.predict(rows), record(rows[0]), record.rows(rows * 3)[:1]):
            np.testing.assert_allclose(found, model.predict(one), rtol=1e-9)


@pytest.mark.parametrize("backend", ["numpy", "tvm"])
def test_categories_that_no_tree_reads_are_looked_at(backend: str) -> None:
    frame = pd.DataFrame({"c": "same", "x": X[:, 0]})
    model = catboost.CatBoostRegressor(**SETTINGS, cat_features=["c"]).fit(frame, Z)
    compiled = hbc.convert(model, backend)
    for rows in (1, 3):
        for value in ("other", 7):
            other = frame[:rows].assign(c=value)
            np.testing.assert_allclose(compiled.predict(other), model.predict(other), rtol=1e-9)
        for missing in (None, np.nan, pd.NA):
            given = other.astype({"c": object})
            given.loc[rows - 1, "c"] = missing
            for predict, error in ((model.predict, Exception), (compiled.predict, hbc.InvalidInputError)):
                with pytest.raises(error):
                    predict(given)


@pytest.mark.parametrize("loss", ["Logloss", "Focal:focal_alpha=0.3;focal_gamma=2", "MultiLogloss"])
def test_threshold_of_probability(loss: str) -> None:
    y = np.stack([Z > 0, Z > 1], axis=1) if loss == "MultiLogloss" else Z > 0
    model = catboost.CatBoostClassifier(**SETTINGS, loss_function=loss).fit(X, y.astype(int))
    before = model.predict(X)
    model.set_probability_threshold(0.8 if loss == "Logloss" else 0.51)
    assert (model.predict(X) != before).any()
    np.testing.assert_array_equal(hbc.convert(model, "numpy").predict(X), model.predict(X), strict=True)


def test_several_labels_of_a_file(tmp_path: Path) -> None:
    """It is read as a classifier. A label is 1 where its raw sum is above 0."""
    model = catboost.CatBoostClassifier(**SETTINGS, loss_function="MultiLogloss").fit(
        X, np.stack([Z > 0, Z > 1], 1).astype(int)
    )
    model.save_model(str(tmp_path / "m.cbm"))
    compiled = hbc.convert(tmp_path / "m.cbm", "numpy")
    for method in ("predict", "predict_proba", "predict_log_proba"):
        for rows in (X, X[:1]):
            expected = getattr(model, method)(rows)
            np.testing.assert_allclose(getattr(compiled, method)(rows), expected, rtol=1e-12, strict=True)
    np.testing.assert_array_equal(list(compiled.staged_predict(X)), list(model.staged_predict(X)), strict=True)


@pytest.mark.parametrize("loss", ["Poisson", "RMSEWithUncertainty", "MultiQuantile:alpha=0.1,0.9", "Cox"])
@pytest.mark.parametrize("how", ["fitted", "file", "blob", "sum", "sum of a regressor"])
def test_what_a_regressor_predicts(loss: str, how: str, tmp_path: Path) -> None:
    """A regressor that was loaded from bytes does not know its loss, and predicts raw sums. So does a sum of models."""
    model = catboost.CatBoostRegressor(**{**SETTINGS, "iterations": 3, "loss_function": loss}).fit(X, np.exp(Z / 4))
    model.save_model(str(tmp_path / "m.cbm"))
    if how == "file":
        model = catboost.CatBoostRegressor().load_model(str(tmp_path / "m.cbm"))
    elif how == "blob":
        model = catboost.CatBoostRegressor().load_model(blob=(tmp_path / "m.cbm").read_bytes())
    elif how != "fitted":
        model = catboost.sum_models([model, model], weights=[0.5, 1.0])
        model = catboost.to_regressor(model) if how == "sum of a regressor" else model
    compiled, expected = hbc.convert(model, "numpy").predict(X), model.predict(X)
    np.testing.assert_allclose(compiled, expected, rtol=1e-12, atol=1e-14, strict=True)


def test_what_catboost_cannot_write() -> None:
    """CatBoost's JSON takes no infinite leaf."""
    model = catboost.CatBoostRegressor(**SETTINGS).fit(X, Z)
    model.set_leaf_values(np.full_like(model.get_leaf_values(), np.inf))
    with pytest.raises(hbc.UnsupportedOperatorError, match="CatBoost cannot write it as JSON"):
        hbc.convert(model, "numpy")


def test_saved_models_need_no_catboost(tmp_path: Path) -> None:
    model = catboost.CatBoostClassifier(**SETTINGS).fit(X, Y3)
    compiled = hbc.convert(model, "numpy")
    np.testing.assert_array_equal(compiled.classes_, model.classes_)
    compiled.save(tmp_path / "model.hbc")
    np.testing.assert_allclose(hbc.load(tmp_path / "model.hbc").predict_proba(X), model.predict_proba(X), rtol=1e-9)


def test_hashes_of_strings_of_every_length() -> None:
    """The values of one-hot splits are the hashes of the strings that the model was fitted on."""
    rng = np.random.default_rng(0)
    letters = np.array([*"abcXYZ 0123é漢😀ß\0\n"])
    for lengths in (range(140), range(140, 210)):
        texts = ["".join(rng.choice(letters, length)) for length in lengths]
        X = np.array(texts * 2, object)[:, None]
        y = np.tile(rng.normal(size=len(texts)), 2)
        options = {**SETTINGS, "iterations": 40, "depth": 4, "one_hot_max_size": 255, "learning_rate": 1}
        model = catboost.CatBoostRegressor(**options, cat_features=[0]).fit(X, y)
        (feature,) = read_document(model)["features_info"]["categorical_features"]
        assert len(feature["values"]) > 20
        assert set(feature["values"]) <= set(HashText().evaluate(X)[:, 0].tolist())
        np.testing.assert_allclose(hbc.convert(model, "numpy").predict(X), model.predict(X), rtol=1e-9)


@pytest.fixture(scope="module")
def with_categories() -> Any:
    model, _ = of_categories("CatBoostRegressor", max_ctr_complexity=2, one_hot_max_size=3)
    return model, hbc.convert(model, "numpy")


def forms() -> dict[str, Any]:
    """Frames and arrays whose categories are given in every way that CatBoost takes."""
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    frame = categories(60, 2, 5)
    integers = np.random.default_rng(3).integers(0, 5, (40, 6))
    coded = frame.assign(text=pd.Categorical(frame.text), integer=pd.Categorical(frame.integer))
    mixed = [1, "2", np.int8(-3), True, np.bool_(False), np.uint64(2**64 - 1)] * 10
    columns = {
        **{
            f"integer as {kind}": ("integer", frame.integer.astype(kind)) for kind in ("int8", "Int64", "str", "string", object)
        },
        "bool": ("integer", frame.integer > 0),
        "nullable bool": ("integer", (frame.integer > 0).astype("boolean")),
        "large": ("integer", pd.Series([2**64 - 1, 3] * 30, dtype="uint64")),
        "mixed": ("text", pd.Series(mixed, dtype=object)),
        "categories of bool": ("category", pd.Categorical([True, False] * 30)),
    }
    return {
        **{about: frame.assign(**{name: values}) for about, (name, values) in columns.items()},
        "codes": coded,
        "many rows": categories(3000, 4, 5).astype({"category": "str"}),
        "polars": pl.from_pandas(frame.astype({"category": "str"})),
        "objects": frame.to_numpy(object),
        "lists": frame.to_numpy(object).tolist(),
        "no rows": frame[:0],
        **{f"array of {kind.__name__}": integers.astype(kind) for kind in (np.int64, np.uint8, bool)},
        "sparse": pytest.importorskip("scipy.sparse").csr_matrix(integers),
    }


def test_every_form_of_categories(with_categories: Any) -> None:
    model, compiled = with_categories
    for about, data in forms().items():
        if reads("catboost", about):
            np.testing.assert_allclose(compiled.predict(data), model.predict(data), rtol=1e-9, err_msg=about)


def test_what_is_no_category(with_categories: Any) -> None:
    pd = pytest.importorskip("pandas")
    model, compiled = with_categories
    frame = categories(4, 2)
    wrong = [pd.Series(["a", value, "b", "c"], dtype=object) for value in (None, np.nan, pd.NA, 1.0, np.float32(2), 2**64)]
    wrong += [[1.0, 2.0, 3.0, 4.0], pd.Categorical(["a", None, "b", "c"]), pd.Series([1, None, 2, 3], dtype="Int64")]
    for name in ("text", "same"):  # a column that no tree reads, too
        for values in wrong:
            data = frame.assign(**{name: values})
            with pytest.raises((catboost.CatBoostError, TypeError, OverflowError)):
                model.predict(data)
            with pytest.raises(hbc.InvalidInputError, match=name):
                compiled.predict(data)
    with pytest.raises(hbc.InvalidInputError):
        compiled.predict(np.zeros((3, 6)))


def test_what_is_no_number(with_categories: Any) -> None:
    """Beside columns of categories, those of numbers took what CatBoost refuses."""
    pd = pytest.importorskip("pandas")
    model, compiled = with_categories
    frame, name = categories(4, 2), "x"
    flags = [True, None, False, True]
    kinds = ["boolean", *(["bool[pyarrow]"] if importlib.util.find_spec("pyarrow") else [])]
    for values in (pd.Categorical([1, 2, 1, 2]), *(pd.array(flags, kind) for kind in kinds)):
        data = frame.assign(**{name: values})
        with pytest.raises(catboost.CatBoostError):
            model.predict(data)
        with pytest.raises(hbc.InvalidInputError, match=f"{name}.*expected numbers"):
            compiled.predict(data)
    for values in ([1, 2, 3, 4], pd.array([1, None, 2, 3], "Int64"), pd.array([True] * 4, "boolean")):
        data = frame.assign(**{name: values})
        np.testing.assert_allclose(compiled.predict(data), model.predict(data), rtol=1e-9)


@pytest.mark.parametrize("backend", COMPILED)
def test_strings_of_several_classes_are_only_looked_up(backend: str) -> None:
    """Their matrix of one column was made after the look-up, by a graph of the host: one row took 20 µs in place of 0.7."""
    y = np.array(["a", "long", "longer"])[np.digitize(Z, [-0.5, 0.5])]
    source = catboost.CatBoostClassifier(**SETTINGS).fit(X, y)
    compiled = hbc.convert(source, backend)
    for rows in (X, X[:1], X[:0]):
        np.testing.assert_array_equal(compiled.predict(rows), source.predict(rows), strict=True)
    assert all("predict" in variant.ready.executable.labels for variant in compiled.variants.values())


@pytest.mark.filterwarnings("ignore:A column-vector y was passed")
def test_labels_in_a_matrix_of_one_column() -> None:
    """CatBoost predicts [N, 1] for several classes. Of such members scikit-learn makes arrays of other axes, and fails or answers for one
    row; hbc answered for all rows. The labels of stacking are a vector; hbc gave a matrix."""
    known = np.nan_to_num(X)
    y = np.array(["a", "long", "longer"])[np.digitize(Z, [-0.5, 0.5])]
    member = catboost.CatBoostClassifier(**SETTINGS)
    hard = VotingClassifier([("a", member), ("b", LogisticRegression())]).fit(known, y)
    with pytest.raises(ValueError, match="inhomogeneous"):
        hard.predict(known)
    chain = ClassifierChain(member).fit(known, np.stack([Y3, Y3], axis=1))
    with pytest.raises(ValueError, match="broadcast"):
        chain.predict(known)
    alone = VotingClassifier([("a", member)]).fit(known, y)
    assert alone.predict(known).shape == (1,)
    for refused, said in ((hard, "is a matrix"), (alone, "is a matrix"), (chain, "is not a number for every row")):
        with pytest.raises(hbc.UnsupportedOperatorError, match=said):
            hbc.convert(refused, "numpy")
    targets = MultiOutputClassifier(member).fit(X, np.stack([y, y[::-1]], axis=1))
    assert targets.predict(X).shape == (1, len(X), 2)
    compiled = hbc.convert(targets, "numpy")
    assert not hasattr(compiled, "predict")
    for found, expected in zip(compiled.predict_proba(X), targets.predict_proba(X), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9)
    stacked = StackingClassifier([("a", member)], member, cv=2).fit(X, y)
    assert stacked.predict(X).shape == (len(X),)
    np.testing.assert_array_equal(hbc.convert(stacked, "numpy").predict(X), stacked.predict(X), strict=True)


def test_categories_are_saved(with_categories: Any, tmp_path: Path) -> None:
    _, compiled = with_categories
    compiled.save(tmp_path / "model.hbc")
    X = categories(50, 5, 3)
    np.testing.assert_array_equal(hbc.load(tmp_path / "model.hbc").predict(X), compiled.predict(X))


class OwnLoss:
    """A loss that somebody has written."""

    def calc_ders_range(self, approxes: Any, targets: Any, weights: Any) -> list[tuple[float, float]]:
        return [(float(target - approx), -1.0) for approx, target in zip(approxes, targets, strict=True)]


@pytest.mark.filterwarnings("ignore:Failed to import numba", "ignore:Failed to optimize method")
def test_what_is_refused() -> None:
    two = ["Borders:TargetBorderCount=3", "Borders:TargetBorderCount=1"]
    with pytest.raises(hbc.UnsupportedOperatorError, match="several binarizations"):
        hbc.convert(of_categories("CatBoostRegressor", simple_ctr=two)[0], "numpy")
    for loss in ("MultiRMSE", "SurvivalAft"):
        options = {**SETTINGS, "iterations": 5, "loss_function": loss, "cat_features": ["text"]}
        frame = categories(100, 0)[["text", "x"]]
        targets = np.stack([np.arange(100), np.arange(100) + 1], axis=1)
        with pytest.raises(hbc.UnsupportedOperatorError, match="several targets"):
            hbc.convert(catboost.CatBoost(options).fit(frame, targets), "numpy")
    texts = np.array([["some words"], ["other words"], ["some other"], ["words"]] * 50, object)
    of_texts = catboost.CatBoostClassifier(**SETTINGS, text_features=[0]).fit(texts, [0, 1, 0, 1] * 50)
    with pytest.raises(hbc.UnsupportedOperatorError, match="text features"):
        hbc.convert(of_texts, "numpy")
    own = catboost.CatBoostClassifier(**SETTINGS, loss_function=OwnLoss(), eval_metric="Logloss").fit(X, (Z > 0).astype(int))
    with pytest.raises(hbc.UnsupportedOperatorError, match="PythonUserDefined"):
        hbc.convert(own, "numpy")
    with pytest.raises(hbc.NotFittedError):
        hbc.convert(catboost.CatBoostRegressor(), "numpy")
