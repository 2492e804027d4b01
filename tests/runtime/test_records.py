"""Single records, many records and columns: the answers and the errors of the frame that they stand for, and of the source."""

from __future__ import annotations

import datetime
import decimal
import fractions
import json
import os
import pickle
import subprocess
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from backends import BACKENDS
from estimators import all_cases
from estimators.case import METHODS
from lightgbm import LGBMRegressor
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import LabelEncoder, OneHotEncoder, OrdinalEncoder, StandardScaler
from sklearn.tree import DecisionTreeClassifier

import hbc

pytestmark = pytest.mark.filterwarnings("ignore")

BACKEND = "torch" if "torch" in BACKENDS else "numpy"
"""One that compiles in no time, and leaves strings to the host as tvm does."""
CASES = {case.name: case for case in all_cases()}


def outcome(call: Any) -> Any:
    """What a call returns, or the words of the error that it raises."""
    try:
        return call()
    except hbc.HbcError as error:
        return str(error)


def assert_equal(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_equal(one, other)
    elif isinstance(expected, pd.DataFrame):
        pd.testing.assert_frame_equal(found, expected)
    elif isinstance(expected, str):
        assert found == expected
    else:
        dense = [x.toarray() if scipy.sparse.issparse(x) else np.asarray(x) for x in (found, expected)]
        assert dense[0].dtype == dense[1].dtype
        np.testing.assert_array_equal(*dense)


def assert_close(found: Any, expected: Any) -> None:
    if isinstance(expected, (list, tuple)):
        for one, other in zip(found, expected, strict=True):
            assert_close(one, other)
        return
    dense = [x.toarray() if scipy.sparse.issparse(x) else np.asarray(x) for x in (found, expected)]
    if dense[1].dtype.kind == "f":
        np.testing.assert_allclose(*dense, rtol=1e-4, atol=1e-5)
    else:
        np.testing.assert_array_equal(*dense)


def frame_of(model: Any, records: list[Any]) -> pd.DataFrame:
    """The frame that records stand for. None is NaN among numbers; among strings it is what the model knows as missing. Categories of
    pandas have their dtype: a record holds their values."""
    names = [column.name if column.name is not None else i for i, column in enumerate(model.schema.columns)]
    if not isinstance(records[0], dict):
        records = [dict(zip(names, record, strict=True)) for record in records]
    by_position = model.schema.columns[0].name is None
    facts = dict(zip(list(records[0]) if by_position else names, model.spec.columns, strict=False))
    numbers = {name for name, fact in facts.items() if not fact.strings}
    frame = pd.DataFrame([{k: np.nan if v is None and k in numbers else v for k, v in record.items()} for record in records])
    for name, fact in facts.items():
        values = [record.get(name, np.nan) for record in records]
        if fact.strings and name in frame and any(value is None for value in values):
            missing = np.nan if fact.knows_nan and not fact.knows_none else None
            frame[name] = pd.Series([missing if value is None else value for value in values], dtype=object)
        if (fact.category_values or fact.categories_only) and name in frame:
            frame[name] = pd.Categorical(values, categories=list(fact.category_values) or None)
    return frame


def tabular(X: Any) -> bool:
    return isinstance(X, pd.DataFrame) or (isinstance(X, np.ndarray) and X.ndim == 2)


@pytest.mark.parametrize("name", CASES)
def test_a_record_is_the_frame_of_it(name: str) -> None:
    """Rows of every kind of table, each twice: the first time a record goes the way of a frame, the second time its own."""
    case = CASES[name]
    model, X = case.make()
    if not tabular(X):
        pytest.skip("no table")
    compiled = hbc.convert(model, BACKEND, X if case.sample else None)
    records = X[:6].to_dict("records") if isinstance(X, pd.DataFrame) else [tuple(row) for row in X[:6].tolist()]
    for method in compiled.methods:
        if method in case.options or method.startswith("staged"):
            continue
        handle = compiled.bind_record(method)
        call = compiled._calls[method]
        for record in records * 2:
            frame = frame_of(compiled, [record])
            found = outcome(partial(handle, record))
            assert_equal(found, outcome(partial(call, frame)))
            if not isinstance(found, str) and method in (case.methods or METHODS):
                try:
                    expected = getattr(model, method)(frame)
                except Exception:
                    continue  # what the source refuses of frames only, hbc may take
                assert_close(found, expected)
        for _ in range(2):
            assert_equal(outcome(partial(handle.rows, records)), outcome(partial(call, frame_of(compiled, records))))


# --- odd values, on the backend that has the short way ------------------------------------------------------------------

RANDOM = np.random.default_rng(5)
PEOPLE = pd.DataFrame(
    {
        "age": RANDOM.integers(1, 90, 200),
        "pay": np.where(RANDOM.random(200) < 0.1, np.nan, RANDOM.normal(size=200)),
        "town": RANDOM.choice(["Ulm", "Köln", "Bonn"], 200),
        "job": pd.Series(np.where(RANDOM.random(200) < 0.2, None, RANDOM.choice(["cook", "clerk"], 200)), dtype=object),
    }
)
RICH = (PEOPLE["age"] + 30 * (PEOPLE["town"] == "Ulm") + 10 * (PEOPLE["job"] == "cook") > 50).to_numpy()
NUMBERS = pd.DataFrame(RANDOM.normal(size=(200, 3)), columns=list("abc"))


def encoded(encoder: Any, imputer: Any = "passthrough") -> Any:
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    steps = ColumnTransformer([("n", numbers, ["age", "pay"]), ("w", make_pipeline(imputer, encoder), ["town", "job"])])
    return make_pipeline(steps, LogisticRegression()).fit(PEOPLE, RICH), PEOPLE


def lightgbm() -> Any:
    library = pytest.importorskip("lightgbm")
    return library.LGBMClassifier(n_estimators=5, verbose=-1).fit(NUMBERS, NUMBERS["a"] > 0), NUMBERS


MODELS: dict[str, Any] = {
    "unknown ignored": lambda: encoded(OneHotEncoder(handle_unknown="ignore")),
    "unknown refused": lambda: encoded(OneHotEncoder()),
    "unknown warned of": lambda: encoded(OneHotEncoder(handle_unknown="ignore", drop="first")),
    "ordinal": lambda: encoded(OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)),
    "imputed strings": lambda: encoded(
        OneHotEncoder(handle_unknown="ignore"), SimpleImputer(missing_values=None, strategy="most_frequent")
    ),
    "names in order": lambda: (make_pipeline(StandardScaler(), LogisticRegression()).fit(NUMBERS, NUMBERS["a"] > 0), NUMBERS),
    "a forest": lambda: (RandomForestClassifier(5, max_depth=3).fit(NUMBERS, NUMBERS["a"] > 0), NUMBERS),
    "no names": lightgbm,
    "integer categories": lambda: (OneHotEncoder(handle_unknown="ignore").fit(PEOPLE[["age"]]), PEOPLE[["age"]]),
    "missing categories": lambda: (OrdinalEncoder().fit(PEOPLE[["pay"]]), PEOPLE[["pay"]]),
    "own dtype": lambda: (StandardScaler().fit(NUMBERS), NUMBERS),
    "a frame": lambda: (StandardScaler().set_output(transform="pandas").fit(NUMBERS), NUMBERS),
}
ODD: list[Any] = [
    *(
        None,
        float("nan"),
        np.nan,
        float("inf"),
        -0.0,
        0,
        1,
        -1,
        True,
        False,
        "",
        "1",
        "1.5",
        " 2 ",
        "nan",
        "x",
        "Ulm",
        "ulm",
        "cook",
    ),
    *("K\u00f6ln", "\ud800", "\0pandas.NA", 2**31, 2**53 + 1, 2**63, 2**64, -(2**63) - 1, 10**400, 1e300, -1e39, 1e-320),
    *(
        np.float32(1.5),
        np.float64(2.5),
        np.float16(1),
        np.int64(3),
        np.int8(3),
        np.uint64(2**63),
        np.bool_(True),
        np.str_("Ulm"),
    ),
    *(
        decimal.Decimal("1.5"),
        decimal.Decimal("NaN"),
        fractions.Fraction(1, 2),
        1j,
        b"Ulm",
        [1],
        (1,),
        {},
        np.array(2.0),
        object,
    ),
    *(
        datetime.date(2026, 1, 1),
        datetime.datetime(2026, 1, 1),
        pd.NA,
        pd.NaT,
        pd.Timestamp("2026-01-01"),
        np.datetime64("2026-01-01"),
    ),
]


def compiled_of(name: str) -> tuple[Any, Any, pd.DataFrame]:
    model, frame = MODELS[name]()
    return model, hbc.convert(model, "tvm" if "tvm" in BACKENDS else BACKEND, frame), frame


def usual(record: Any, position: int, value: Any) -> Any:
    return {name: value if i == position else item for i, (name, item) in enumerate(record.items())}


@pytest.mark.parametrize("name", MODELS)
def test_odd_values_act_as_in_a_frame(name: str) -> None:
    """Each value in each column, after the short way has been found for usual ones; and each again, when it may be known."""
    model, compiled, frame = compiled_of(name)
    method = "predict_proba" if hasattr(model, "predict_proba") else "transform"
    handle, call = compiled.bind_record(method), getattr(compiled, method)
    ordinary = [
        {column: float(value) if isinstance(value, float) else value for column, value in row.items()}
        for row in frame[:8].to_dict("records")
    ]
    for record in ordinary:
        assert_equal(handle(record), call(frame_of(compiled, [record])))
    answers = 0
    for position in range(frame.shape[1]):
        for value in ODD:
            record = usual(ordinary[0], position, value)
            try:
                expected = outcome(partial(call, frame_of(compiled, [record])))
            except OverflowError:  # of pandas before 3, for large integers
                continue
            except UnicodeEncodeError as error:  # pandas' own
                expected = f"X: found a list of dicts that is no frame ({error}), expected a table."
            for _ in range(2):
                assert_equal(outcome(partial(handle, record)), expected)
                assert_equal(outcome(partial(handle, tuple(record.values()))), expected)
            answers += not isinstance(expected, str)
    assert answers


@pytest.mark.parametrize("name", MODELS)
def test_other_keys_act_as_other_columns(name: str) -> None:
    _, compiled, frame = compiled_of(name)
    method = compiled.methods[0]
    handle, call = compiled.bind_record(method), getattr(compiled, method)
    record = frame.to_dict("records")[0]
    first = next(iter(record))
    others = [
        record,
        dict(reversed(record.items())),
        {**record, "more": "x"},
        {**record, 7: "x"},
        {"more": None, **record},
        {key: value for key, value in record.items() if key != first},
        {key.upper(): value for key, value in record.items()},
        dict(enumerate(record.values())),
        types.MappingProxyType(record),
        {},
    ]
    for other in others * 2:
        expected = outcome(partial(call, frame_of(compiled, [dict(other)]))) if other else None
        found = outcome(partial(handle, other))
        assert_equal(found, expected) if other else None
        assert other or isinstance(found, str)
    for wrong in ("x", None, 3, np.zeros(frame.shape[1]), tuple(record.values())[1:], [*record.values(), 1]):
        assert isinstance(outcome(partial(handle, wrong)), str)


@pytest.mark.parametrize("name", MODELS)
def test_many_records_and_columns(name: str) -> None:
    model, compiled, frame = compiled_of(name)
    method = "predict_proba" if hasattr(model, "predict_proba") else "transform"
    handle, call = compiled.bind_record(method), getattr(compiled, method)
    records = frame[:50].to_dict("records")
    for _ in range(2):  # the second time the short way is known
        assert_equal(handle.rows(records), call(frame_of(compiled, records)))
    assert_equal(handle.rows([tuple(record.values()) for record in records]), call(frame_of(compiled, records)))
    odd = [usual(record, row % len(record), value) for row, (record, value) in enumerate(zip(records, ODD[:20], strict=False))]
    for some in (odd[:1], odd[1:2], odd[:3], odd[8:9], odd):
        assert_equal(outcome(partial(handle.rows, some)), outcome(partial(call, frame_of(compiled, some))))
    assert_close(handle.rows(records), getattr(model, method)(frame[:50]))
    holes = [{key: value for key, value in record.items() if (row + len(key)) % 7} for row, record in enumerate(records)]
    assert_equal(outcome(partial(handle.rows, holes)), outcome(partial(call, frame_of(compiled, holes))))
    lists, arrays = frame[:50].to_dict("list"), {key: frame[key][:50].to_numpy() for key in frame}
    for columns in (lists, arrays, dict(frame[:50].items())):
        assert_equal(handle.columns(columns), call(frame_of(compiled, records)))
    for wrong in ([], {}, "x"):
        assert isinstance(outcome(partial(handle.rows, wrong)), str)
    assert isinstance(outcome(partial(handle.columns, {key: [1] * (i + 1) for i, key in enumerate("abcdef")})), str)


def test_items_are_records_too() -> None:
    words = ["a cat sat", "the dog ran", "a dog sat"]
    text = hbc.convert(make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(words, [0, 1, 1]), BACKEND)
    np.testing.assert_array_equal(text.bind_record("predict_proba")(words[1]), text.predict_proba(words[1:2]))
    np.testing.assert_array_equal(text.bind_record("predict_proba").rows(words), text.predict_proba(words))
    labels = hbc.convert(LabelEncoder().fit(["a", "b"]), BACKEND)
    assert labels.bind_record("transform")("b").tolist() == [1]
    with pytest.raises(ValueError, match="found 'transform'"):
        text.bind_record("transform")


def test_threads_share_a_handle() -> None:
    _, compiled, frame = compiled_of("unknown ignored")
    handle, records = compiled.bind_record("predict_proba"), frame.to_dict("records")
    expected = compiled.predict_proba(frame)

    def work(seed: int) -> bool:
        order = np.random.default_rng(seed).permutation(len(records))
        return all((handle(records[i]) == expected[i : i + 1]).all() for i in order)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(16)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_process_goes_on() -> None:
    _, compiled, frame = compiled_of("unknown ignored")
    handle, records = compiled.bind_record("predict_proba"), frame[:20].to_dict("records")
    expected = compiled.predict_proba(frame[:20])
    assert all((handle(record) == expected[i]).all() for i, record in enumerate(records))
    child = os.fork()
    if not child:
        same = all((handle(record) == expected[i]).all() for i, record in enumerate(records))
        os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0


ALONE = """
import json, pickle, sys
for name in ("pandas", "sklearn", "scipy", "lightgbm"):
    sys.modules[name] = None
import hbc
model = hbc.load(sys.argv[1])
records, expected = pickle.loads(open(sys.argv[2], "rb").read())
handle = model.bind_record("predict_proba")
assert all((handle(record) == row).all() for record, row in zip(records * 2, expected * 2))
assert (handle.rows(records) == [row[0] for row in expected]).all()
try:
    handle({**records[0], "pay": "much"})
except hbc.InvalidInputError as error:
    assert "found the string 'much' in row 0" in str(error), error
else:
    raise AssertionError
print(json.dumps(model.schema.json()))
"""


def test_a_loaded_model_without_pandas_and_its_library(tmp_path: Path) -> None:
    _, compiled, frame = compiled_of("unknown ignored")
    records = [
        {key: item.item() if isinstance(item, np.generic) else item for key, item in row.items()}
        for row in frame[:9].to_dict("records")
    ]
    expected = [compiled.predict_proba(frame[i : i + 1]) for i in range(9)]
    compiled.save(tmp_path / "model.hbc")
    (tmp_path / "records.pkl").write_bytes(pickle.dumps((records, [row.tolist() for row in expected])))
    environment = {**os.environ, "PYTHONPATH": str(Path(hbc.__file__).parents[1])}
    command = [sys.executable, "-c", ALONE, str(tmp_path / "model.hbc"), str(tmp_path / "records.pkl")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    assert json.loads(done.stdout) == json.loads(json.dumps(compiled.schema.json()))


def test_the_source_warns_and_so_does_a_record() -> None:
    """Of unknown categories, each time: they are not remembered as accepted."""
    _, compiled, frame = compiled_of("unknown warned of")
    handle = compiled.bind_record("predict_proba")
    record = {**frame.to_dict("records")[0], "town": "Rome"}
    for _ in range(3):
        with pytest.warns(UserWarning, match="unknown categories"):
            handle(record)


def test_strings_are_remembered_for_frames_of_one_row() -> None:
    """The short way of one row is that of frames too: an unknown string is refused after known ones have passed."""
    model, compiled, frame = compiled_of("unknown refused")
    for row in (frame[:1], frame[1:2], frame[:1]):
        np.testing.assert_allclose(compiled.predict_proba(row), model.predict_proba(row), rtol=1e-6)
    for unknown in ("Rome", None, float("nan")):
        with pytest.raises(hbc.InvalidInputError, match="town"):
            compiled.predict_proba(frame[:1].assign(town=pd.Series([unknown], dtype=object, index=frame.index[:1])))


@pytest.mark.parametrize("encoder", [OneHotEncoder(handle_unknown="ignore"), OneHotEncoder(), OrdinalEncoder()], ids=str)
@pytest.mark.parametrize("towns_matter", [False, True])
def test_strings_that_no_tree_reads_are_looked_at(encoder: Any, towns_matter: bool) -> None:
    """Columns of which nothing is left in the compiled model are tested in every call, not only in the first."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame(
        {"age": rng.normal(size=200), "town": rng.choice(["Ulm", "Bonn"], 200), "port": rng.choice(["S", "C"], 200)}
    )
    y = (X["age"] > 0) ^ (towns_matter & (X["town"] == "Ulm"))
    columns = ColumnTransformer([("age", "passthrough", ["age"]), ("words", encoder, ["town", "port"])], sparse_threshold=0)
    model = make_pipeline(columns, DecisionTreeClassifier(max_depth=3)).fit(X, y)
    compiled = hbc.convert(model, BACKEND)
    score = compiled.bind_record("predict_proba")
    usual = [{"age": 1.0, "town": town, "port": port} for town in ("Ulm", "Bonn") for port in ("S", "C")]
    for record in usual * 2:
        expected = model.predict_proba(pd.DataFrame([record]))
        np.testing.assert_allclose(score(record), expected)
        np.testing.assert_allclose(compiled.predict_proba(pd.DataFrame([record])), expected)
    np.testing.assert_allclose(score.rows(usual), model.predict_proba(pd.DataFrame(usual)))
    for port in (3, True, 1.5, np.nan, None, [1], "Q"):
        record = {"age": 1.0, "town": "Ulm", "port": port}
        frame = pd.DataFrame([record])
        try:
            expected = model.predict_proba(frame)
        except (TypeError, ValueError):
            for call in (partial(score, record), partial(score.rows, [record] * 2), partial(compiled.predict_proba, frame)):
                with pytest.raises(hbc.InvalidInputError):
                    call()
        else:
            for _ in range(2):
                np.testing.assert_allclose(score(record), expected)
                np.testing.assert_allclose(compiled.predict_proba(frame), expected)


@pytest.mark.parametrize("names", [False, True])
def test_rows_with_keys_in_another_order(names: bool) -> None:
    """Where columns count by position, many records are in the order of the first one's keys, as in a frame, also after the first call."""
    X = pd.DataFrame(np.random.default_rng(0).normal(size=(200, 2)), columns=["age", "pay"])
    model = LGBMRegressor(n_estimators=20, verbose=-1, n_jobs=1).fit(X if names else X.to_numpy(), X["age"] * 3)
    rows = hbc.convert(model, BACKEND).bind_record("predict").rows
    usual = [{"age": 1.0, "pay": -1.0}, {"age": 0.5, "pay": 1.0}]
    turned = [dict(reversed(record.items())) for record in usual]
    for records in (usual, [usual[0], turned[1]], [turned[0], usual[1]], turned, usual):
        np.testing.assert_allclose(rows(records), model.predict(pd.DataFrame(records)))
    with pytest.raises(hbc.InvalidInputError):
        rows([usual[0], (0.5, 1.0)])


def test_a_test_of_numbers_and_strings_looks_at_numbers_in_every_call() -> None:
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"age": rng.normal(size=200) * 0.3, "town": rng.choice(["Ulm", "Bonn"], 200)})
    encoder = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    words = make_pipeline(SimpleImputer(strategy="constant", fill_value="?", missing_values=None), encoder)
    columns = ColumnTransformer([("age", StandardScaler(), ["age"]), ("town", words, ["town"])])
    model = make_pipeline(columns, DecisionTreeClassifier(max_depth=3)).fit(X, X["age"] > 0)
    compiled = hbc.convert(model, BACKEND)
    score = compiled.bind_record("predict_proba")
    usual = {"age": 0.1, "town": "Ulm"}
    for _ in range(3):
        np.testing.assert_allclose(score(usual), model.predict_proba(pd.DataFrame([usual])))
    for age in (1.5e38, -1e39, 1e300):  # in float32, which trees compare, the scaled number is infinite
        record = {"age": age, "town": "Ulm"}
        frame = pd.DataFrame([record])
        with pytest.raises(ValueError, match="infinity"):
            model.predict_proba(frame)
        for call in (partial(score, record), partial(score.rows, [record, record]), partial(compiled.predict_proba, frame)):
            with pytest.raises(hbc.InvalidInputError):
                call()
    np.testing.assert_allclose(score(usual), model.predict_proba(pd.DataFrame([usual])))
