"""`CompiledModel.arrow`: Arrow in, Arrow out, with the answers of the source for the frame of pandas that Arrow makes of the input."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from installed import older
from lightgbm import LGBMRegressor
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import hbc

RNG = np.random.default_rng(0)
ROWS = 700
FRAME = pd.DataFrame(
    {"age": RNG.normal(size=ROWS), "k": RNG.integers(0, 9, ROWS), "town": RNG.choice(["Ulm", "Bonn", "Köln"], ROWS)}
)
FRAME.loc[::7, "town"] = None
FRAME.loc[::11, "age"] = np.nan
TABLE = pa.Table.from_pandas(FRAME.assign(id=range(ROWS))[["id", "town", "k", "age"]], preserve_index=False)
"""The columns in another order, and one more."""


@pytest.fixture(scope="module")
def people() -> tuple[Any, Any]:
    columns = ColumnTransformer(
        [
            ("numbers", make_pipeline(SimpleImputer(), StandardScaler()), ["age", "k"]),
            ("words", OneHotEncoder(handle_unknown="ignore"), ["town"]),
        ]
    )
    model = make_pipeline(columns, LogisticRegression()).fit(FRAME, RNG.choice(["no", "yes"], ROWS))
    return model, hbc.convert(model, backend="numpy")


def same(found: Any, model: Any, frame: pd.DataFrame) -> None:
    """Asserts that these are the labels and probabilities of the source."""
    assert found["predict"].to_pylist() == model.predict(frame).tolist()
    probabilities = np.column_stack([found["predict_proba_no"], found["predict_proba_yes"]])
    np.testing.assert_allclose(probabilities, model.predict_proba(frame), rtol=1e-12)


METHODS = ("predict", "predict_proba")

SOURCES: dict[str, tuple[Callable[[], Any], type]] = {
    "table": (lambda: TABLE, pa.Table),
    "chunks": (
        lambda: pa.concat_tables([TABLE.slice(0, 3), TABLE.slice(3, 600), TABLE.slice(603, 0), TABLE.slice(603)]),
        pa.Table,
    ),
    "batch": (lambda: TABLE.combine_chunks().to_batches()[0], pa.RecordBatch),
    "reader": (lambda: TABLE.to_reader(100), pa.RecordBatchReader),
    "polars": (lambda: pl.from_arrow(TABLE), pa.RecordBatchReader),
    "pandas": (lambda: FRAME, pa.RecordBatchReader),
    "dictionary": (lambda: TABLE.set_column(1, "town", TABLE["town"].dictionary_encode()), pa.Table),
    "large strings": (lambda: TABLE.set_column(1, "town", TABLE["town"].cast(pa.large_string())), pa.Table),
    "views": (lambda: TABLE.set_column(1, "town", TABLE["town"].cast(pa.string_view())), pa.Table),
}


@pytest.mark.every_case
@pytest.mark.parametrize("name", SOURCES)
def test_every_container_gives_the_answers_of_the_source(people: tuple[Any, Any], name: str) -> None:
    make, kind = SOURCES[name]
    model, compiled = people
    method = compiled.arrow(METHODS)
    found = method(make())
    assert isinstance(found, kind)
    assert found.schema == method.schema
    found = found.read_all() if isinstance(found, pa.RecordBatchReader) else found
    found.validate(full=True)
    same(found, model, FRAME)


def test_only_the_named_columns_are_read(people: tuple[Any, Any]) -> None:
    method = people[1].arrow(METHODS)
    assert method.columns == ["age", "k", "town"]
    assert method.schema == pa.schema(
        [("predict", pa.string()), ("predict_proba_no", pa.float64()), ("predict_proba_yes", pa.float64())]
    )
    assert people[1].arrow().schema.names == ["predict"]
    named = people[1].arrow("predict_proba", class_names=["left", "stayed"])
    assert named.schema.names == ["predict_proba_left", "predict_proba_stayed"]


def test_slices_and_no_rows(people: tuple[Any, Any]) -> None:
    method = people[1].arrow(METHODS)
    whole = method(TABLE)
    assert method(TABLE.slice(13, 5)).equals(whole.slice(13, 5))
    coded = TABLE.set_column(1, "town", TABLE["town"].dictionary_encode())
    for row in range(3):
        assert method(TABLE.slice(row, 1)).equals(whole.slice(row, 1))
        assert method(coded.slice(row, 1)).equals(whole.slice(row, 1))
    assert method(TABLE.slice(0, 0)).equals(whole.slice(0, 0))
    assert method(TABLE.slice(0, 0).to_reader()).read_all().equals(whole.slice(0, 0))
    assert method(pa.RecordBatch.from_pylist([], TABLE.schema)).schema == method.schema


def test_a_copy_answers_the_same(people: tuple[Any, Any]) -> None:
    method = people[1].arrow(METHODS)
    assert pickle.loads(pickle.dumps(method))(TABLE).equals(method(TABLE))


def test_errors_come_before_the_first_batch_where_they_can(people: tuple[Any, Any]) -> None:
    method = people[1].arrow()
    with pytest.raises(hbc.InvalidInputError, match="without the columns age"):
        method(TABLE.drop_columns(["age"]).to_reader())
    with pytest.raises(hbc.InvalidInputError, match="two columns of one name"):
        method(TABLE.append_column("age", TABLE["age"]))
    with pytest.raises(hbc.InvalidInputError, match="__arrow_c_stream__"):
        method([[1, 2, 3]])
    with pytest.raises(hbc.InvalidInputError, match="no stream of batches"):
        method(TABLE["age"])
    with pytest.raises(ValueError, match="expected some of"):
        people[1].arrow("transform")
    with pytest.raises(ValueError, match="class_names: found 1 name, expected 2"):
        people[1].arrow("predict_proba", class_names=["left"])


def test_rows_in_errors_count_from_the_start_of_the_stream(people: tuple[Any, Any]) -> None:
    ages = TABLE["age"].to_pylist()
    ages[250] = float("inf")
    table = TABLE.set_column(3, "age", pa.array(ages))
    answers = people[1].arrow()(table.to_reader(100))
    assert answers.read_next_batch().num_rows == 100
    answers.read_next_batch()
    with pytest.raises(hbc.InvalidInputError, match=r"row 50.*counting rows from row 200|counting rows from row 200.*row 50"):
        answers.read_next_batch()


def test_objects_are_made_of_a_dictionary_once(people: tuple[Any, Any]) -> None:
    method = people[1].arrow()
    table = TABLE.set_column(1, "town", TABLE["town"].dictionary_encode())
    list(method(table.to_reader(100)))
    known = dict(method._dictionaries)
    list(method(table.to_reader(100)))
    assert known
    assert all(method._dictionaries[place] is held for place, held in known.items())


def test_threads_share_a_method(people: tuple[Any, Any]) -> None:
    method = people[1].arrow(METHODS)
    other = TABLE.set_column(1, "town", TABLE["town"].dictionary_encode()).select(["age", "town", "k"])
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(method, [TABLE, other] * 20))
    assert all(each.equals(method(TABLE)) for each in found)


def test_lightgbm_finds_columns_by_the_names_of_fit() -> None:
    """The source goes by their positions, so that a table in another order would silently be another one."""
    frame = pd.DataFrame(RNG.normal(size=(200, 3)), columns=["u", "a", "z"])
    model = LGBMRegressor(n_estimators=5, verbose=-1).fit(frame, frame["u"] - 2 * frame["z"])
    method = hbc.convert(model, backend="numpy").arrow()
    assert method.columns == ["u", "a", "z"]
    table = pa.table({"id": np.arange(200), **{name: frame[name] for name in ("z", "u", "a")}})
    np.testing.assert_allclose(method(table)["predict"], model.predict(frame), rtol=1e-12)
    with pytest.raises(hbc.InvalidInputError, match="without the columns a, expected the names of fit, u, a, z"):
        method(table.drop_columns(["a"]))
    if older("lightgbm", 4, 7):
        return  # it names the columns of an array itself
    unnamed = hbc.convert(LGBMRegressor(n_estimators=5, verbose=-1).fit(frame.to_numpy(), frame["u"]), backend="numpy").arrow()
    assert unnamed.columns is None
    with pytest.raises(hbc.InvalidInputError, match="4 columns, expected 3"):
        unnamed(table)
