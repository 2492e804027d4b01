"""Records, dicts of columns, batches of pyarrow and sparse columns of pandas: the source's answer for the frame that they stand for."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.feature_extraction import DictVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler, OneHotEncoder, OrdinalEncoder, StandardScaler

import hbc

lightgbm = pytest.importorskip("lightgbm")
xgboost = pytest.importorskip("xgboost")

pytestmark = pytest.mark.filterwarnings("ignore")

RANDOM = np.random.default_rng(3)
NUMBERS = pd.DataFrame(np.where(RANDOM.random((50, 3)) < 0.5, 0, RANDOM.normal(size=(50, 3))), columns=list("abc"))
PEOPLE = pd.DataFrame(
    {"age": RANDOM.integers(1, 90, 50), "town": RANDOM.choice(["Bonn", "Ulm"], 50), "pay": RANDOM.normal(size=50)}
)
Y = (NUMBERS.sum(axis=1) > 0).astype(int)

FORMS: dict[str, Any] = {
    "records": lambda frame: frame.to_dict("records"),
    "records in another order": lambda frame: frame[frame.columns[::-1]].to_dict("records"),
    "one record": lambda frame: frame[:1].to_dict("records"),
    "records without a value": lambda frame: [{"age": 3, "town": "Ulm", "pay": 1.0}, {"town": "Bonn", "pay": None}],
    "columns": lambda frame: frame.to_dict("list"),
    "columns of arrays": lambda frame: {name: frame[name].to_numpy() for name in frame},
    "series": lambda frame: dict(frame.items()),
}
BATCHES: dict[str, Any] = {
    "batch": lambda frame: pa.RecordBatch.from_pandas(frame),
    "reader": lambda frame: pa.Table.from_pandas(frame).to_reader(max_chunksize=7),
}


def models() -> dict[str, tuple[Any, pd.DataFrame]]:
    words = ColumnTransformer([("n", StandardScaler(), ["age", "pay"]), ("w", OneHotEncoder(), ["town"])])
    framed = StandardScaler().set_output(transform="pandas")
    return {
        "linear": (LogisticRegression().fit(NUMBERS, Y), NUMBERS),
        "words": (make_pipeline(words, HistGradientBoostingClassifier(max_iter=3)).fit(PEOPLE, Y), PEOPLE),
        "one encoder": (OrdinalEncoder().fit(PEOPLE[["town"]]), PEOPLE[["town"]]),
        "own dtype": (MaxAbsScaler().fit(NUMBERS), NUMBERS.astype("float32")),
        "frames": (framed.fit(NUMBERS), NUMBERS),
        "lightgbm": (lightgbm.LGBMRegressor(n_estimators=3, verbose=-1).fit(NUMBERS, Y), NUMBERS),
        "xgboost": (xgboost.XGBRegressor(n_estimators=3).fit(NUMBERS, Y), NUMBERS),
    }


def assert_same(model: Any, compiled: Any, given: Any, frame: Any) -> int:
    """How many methods the source answers for `frame`. The others must be refused."""
    answers = 0
    for method in compiled.methods:
        if not hasattr(model, method) or method.startswith("staged"):
            continue
        try:
            expected = getattr(model, method)(frame)
        except Exception:
            with pytest.raises(hbc.InvalidInputError):
                getattr(compiled, method)(given())
            continue
        found = getattr(compiled, method)(given())
        assert type(found) is type(expected)
        dense = [x.toarray() if scipy.sparse.issparse(x) else np.asarray(x) for x in (found, expected)]
        assert dense[0].dtype == dense[1].dtype
        np.testing.assert_allclose(*dense, rtol=1e-5, atol=1e-7)
        answers += 1
    return answers


@pytest.mark.every_case
@pytest.mark.parametrize("form", FORMS)
def test_as_the_frame_that_pandas_makes(form: str) -> None:
    answers = 0
    for model, frame in models().values():
        compiled, given = hbc.convert(model, "numpy"), FORMS[form](frame)
        answers += assert_same(model, compiled, lambda given=given: given, pd.DataFrame(given))
    assert answers


@pytest.mark.every_case
@pytest.mark.parametrize("form", BATCHES)
def test_batches_of_pyarrow(form: str) -> None:
    """The source is given the table of pyarrow, since it does not take all of these. A reader can be read once."""
    for model, frame in models().values():
        assert assert_same(
            model, hbc.convert(model, "numpy"), lambda frame=frame: BATCHES[form](frame), pa.Table.from_pandas(frame)
        ) or (
            getattr(model, "_sklearn_output_config", None)  # scikit-learn makes no frame of pandas of a table
        )


SPARSE: dict[str, Any] = {
    "zeros": lambda: NUMBERS.astype(pd.SparseDtype(float, 0.0)),
    "missing": lambda: NUMBERS.astype(pd.SparseDtype(float, np.nan)),
    "beside a dense column": lambda: NUMBERS.astype({"a": pd.SparseDtype(float, 0.0)}),
    "float32": lambda: NUMBERS.astype(pd.SparseDtype("float32", 0.0)),
    "other order": lambda: NUMBERS[list("bac")].astype(pd.SparseDtype(float, 0.0)),
}


@pytest.mark.every_case
@pytest.mark.parametrize("form", SPARSE)
def test_sparse_columns_of_pandas(form: str) -> None:
    others = [
        MaxAbsScaler(),
        StandardScaler(),
        RandomForestClassifier(3),
        HistGradientBoostingClassifier(max_iter=2),
    ]
    fitted = [model.fit(NUMBERS, Y) for model in others] + [models()[name][0] for name in ("linear", "lightgbm", "xgboost")]
    frame = SPARSE[form]()
    answers = [assert_same(model, hbc.convert(model, "numpy"), SPARSE[form], frame) for model in fitted]
    assert any(answers) or form == "other order"


def test_a_sparse_sample_and_columns_that_are_picked() -> None:
    frame = SPARSE["zeros"]()
    model = LogisticRegression().fit(NUMBERS, Y)
    np.testing.assert_allclose(hbc.convert(model, "numpy", frame).predict_proba(frame), model.predict_proba(frame), rtol=1e-6)
    with pytest.raises(hbc.InvalidInputError, match="a dense one"):  # encoders read column by column, and would answer
        hbc.convert(OneHotEncoder().fit(NUMBERS), "numpy").transform(frame)
    picked = ColumnTransformer([("n", MaxAbsScaler(), ["a", "b"])]).fit(NUMBERS)
    with pytest.raises(hbc.InvalidInputError, match=r"column 'a'.*sparse columns.*subtype"):
        hbc.convert(picked, "numpy").transform(frame)


def test_samples() -> None:
    model, frame = models()["words"]
    for form in (FORMS["records"], FORMS["columns"], BATCHES["batch"], BATCHES["reader"]):
        compiled = hbc.convert(model, "numpy", form(frame))
        np.testing.assert_allclose(compiled.predict_proba(form(frame)), model.predict_proba(frame), rtol=1e-6)


def test_dicts_of_a_vectorizer_stay_dicts() -> None:
    model = DictVectorizer().fit([{"a": 1.0, "b": "x"}, {"b": "y"}])
    given = [{"b": "x"}, {"a": 2.0}]
    np.testing.assert_array_equal(hbc.convert(model, "numpy").transform(given).toarray(), model.transform(given).toarray())


REFUSED: dict[str, tuple[Any, str]] = {
    "a dict of single values": ({"a": 1.0, "b": 2.0, "c": 3.0}, r"value of 'a' is a single one \(1.0\).*\[X\]"),
    "a single value beside columns": ({"a": [1.0], "b": 2.0, "c": [3.0]}, r"value of 'b'"),
    "a string": ({"a": "xyz"}, "value of 'a'"),
    "an empty dict": ({}, "a dict without columns"),
    "columns of different lengths": ({"a": [1.0], "b": [2.0, 3.0], "c": [3.0]}, "a dict of columns that is no frame"),
    "a row among dicts": ([{"a": 1.0}, [1.0]], "a list in row 1"),
    "another name": ([{"a": 1.0, "b": 2.0, "d": 3.0}], "now missing: c"),
    "another case": ([{"A": 1.0, "b": 2.0, "c": 3.0}], r"now missing: a \(there is 'A' for 'a', which differs in case\)"),
    "a row as a series": (NUMBERS.iloc[0], r"a Series.*X.to_frame\(\).T if it is one row"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    given, message = REFUSED[name]
    with pytest.raises(hbc.InvalidInputError, match=message):
        hbc.convert(models()["linear"][0], "numpy").predict(given)


def test_columns_picked_by_name_that_differ_in_case() -> None:
    compiled = hbc.convert(models()["words"][0], "numpy")
    with pytest.raises(
        hbc.InvalidInputError, match=r"without the columns age \(there is 'Age' for 'age', which differs in case\)"
    ):
        compiled.predict(PEOPLE.rename(columns={"age": "Age"}))


def test_without_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = hbc.convert(models()["linear"][0], "numpy")

    def missing(_: Any) -> None:
        raise ImportError

    monkeypatch.setattr("narwhals.stable.v2.Implementation.to_native_namespace", missing)
    record = {"a": 1.0, "b": 2.0, "c": 3.0}
    assert compiled.predict([record]) == compiled.predict(np.array([[1.0, 2.0, 3.0]]))
    for _ in range(2):
        with pytest.raises(hbc.InvalidInputError, match=r"a list of dicts, and no pandas.*record\[name\] for name"):
            compiled.predict([record | {"a": None}])
        monkeypatch.setitem(sys.modules, "narwhals.stable.v2", None)  # as in a folder of `hbc runtime`


ODD = [
    0,
    -1,
    3.5,
    float("nan"),
    None,
    True,
    "u",
    "Ulm",
    "1.5",
    np.float32(1.1),
    np.int64(7),
    2**24 + 1,
    2**63,
    1e39,
    float("inf"),
    [1],
]


@pytest.mark.parametrize("name", ["linear", "words", "lightgbm", "xgboost"])
def test_a_list_of_few_dicts_is_the_frame_of_them(name: str) -> None:
    """Most lists make no frame; a list with None does. Half of them hold odd values, a missing key, a further one, or another order."""
    model, frame = models()[name]
    compiled, known, random = hbc.convert(model, "numpy", frame), frame.to_dict("records"), np.random.default_rng(5)
    kinds = {"answered": 0, "rejected": 0}
    for _ in range(150):
        records = [dict(known[i]) for i in random.integers(0, len(known), random.choice([1, 1, 3]))]
        for record in records:
            for place in np.flatnonzero(random.random(len(frame.columns)) < 0.15):
                record[frame.columns[place]] = ODD[random.integers(len(ODD))]
            change = random.random()
            if change < 0.05:
                del record[frame.columns[0]]
            elif change < 0.1:
                record["more"] = 1
            elif change < 0.15:
                for key in list(record)[:1]:
                    record[key] = record.pop(key)
        try:
            expected = compiled.predict(pd.DataFrame(records))
        except hbc.InvalidInputError as error:
            with pytest.raises(type(error)):
                compiled.predict(records)
            kinds["rejected"] += 1
            continue
        np.testing.assert_array_equal(compiled.predict(records), expected, err_msg=str(records))
        kinds["answered"] += 1
    assert min(kinds.values()) > 20, kinds


def test_the_example_of_the_documentation() -> None:
    text = (Path(hbc.__file__).parents[1] / "docs" / "inputs.md").read_text()
    names: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0], names)
    assert names["compiled"].predict([{"age": 40, "town": "Ulm"}]) == names["model"].predict(names["people"].assign(age=40)[:1])
