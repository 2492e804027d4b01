"""Strings on their way to a GPU: some rows are read, tested and encoded while those before them are copied and computed. The emulator's
card does nothing before someone waits for it, or does it when chance says so."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

pytest.importorskip("tvm")
from cuda_on_cpu import Card, cannot_run, emulated
from sklearn.compose import make_column_transformer
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.feature_extraction.text import HashingVectorizer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder

import hbc
from hbc.runtime import calls, host
from hbc.runtime.input.frame_reader import FrameReader

pytestmark = pytest.mark.skipif(cannot_run() is not None, reason=str(cannot_run()))
PART, ROWS = 60, 260  # five parts, and enough for methods together; the emulator runs 512 threads a row of so few trees
RNG = np.random.default_rng(0)
TEXTS = ["town", "job"]
FRAME = pd.DataFrame(
    {
        "age": RNG.integers(18, 80, ROWS).astype(float),
        "town": RNG.choice(["Ulm", "Bonn", "Kiel"], ROWS),
        "job": RNG.choice([f"job {i}" for i in range(40)], ROWS),
        "pay": RNG.normal(size=ROWS),
    }
)
OBJECTS = FRAME.astype(object).to_numpy()
LABELS = np.where((FRAME.age > 40) ^ (FRAME.town == "Ulm"), "left", "stayed")
DOCUMENTS = [" ".join(RNG.choice(["red", "green", "blue", "cat", "dog"], 4)) for _ in range(ROWS)]


def encoded(encoder: Any, model: Any, columns: Any = TEXTS, X: Any = FRAME) -> Any:
    return make_pipeline(make_column_transformer((encoder, columns), remainder="passthrough"), model).fit(X, LABELS)


def boosted() -> Any:
    return GradientBoostingClassifier(n_estimators=5, random_state=0)


MODELS: dict[str, Callable[[], Any]] = {
    "one-hot": lambda: encoded(OneHotEncoder(handle_unknown="ignore"), boosted()),
    "ordinal": lambda: encoded(OrdinalEncoder(), RandomForestClassifier(5, max_depth=4, random_state=0)),
    "array": lambda: encoded(OneHotEncoder(handle_unknown="ignore"), boosted(), [1, 2], OBJECTS),
    "linear": lambda: encoded(OneHotEncoder(), LogisticRegression(max_iter=1000)),
    "tf-idf": lambda: make_pipeline(TfidfVectorizer(), boosted()).fit(DOCUMENTS, LABELS),
    "hashed": lambda: make_pipeline(HashingVectorizer(n_features=64), boosted()).fit(DOCUMENTS, LABELS),
}
FRAMES: dict[str, Callable[[], Any]] = {
    "pandas": lambda: FRAME,
    "objects": lambda: FRAME.astype(dict.fromkeys(TEXTS, object)),
    "categories": lambda: FRAME.astype(dict.fromkeys(TEXTS, "category")),
    "polars": lambda: pl.from_pandas(FRAME),
}
INPUTS: dict[str, dict[str, Callable[[], Any]]] = {
    "array": {"array": lambda: OBJECTS, "list": lambda: OBJECTS.tolist()},
    "tf-idf": {"list": lambda: DOCUMENTS, "array": lambda: np.array(DOCUMENTS, object)},
    "hashed": {"list": lambda: DOCUMENTS},
}


@contextmanager
def in_parts(seed: int = 1, **options: Any) -> Iterator[Card]:
    """The emulator, and parts of PART rows."""
    with (
        mock.patch.object(host, "ROWS_OF_PART", PART),
        mock.patch.object(calls, "ROWS_OF_PART", PART),
        mock.patch.object(host, "ROWS_AT_ONCE", PART),
        emulated(seed, keeps_lanes=True, **options) as card,
    ):
        yield card


def require_same(found: Any, wanted: Any) -> None:
    if found.dtype.kind == "f":
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-12)
    else:
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("name", MODELS)
def test_the_answers_are_the_source_s(name: str, threads: int) -> None:
    model = MODELS[name]()
    with in_parts(seed=3) as card:
        compiled = hbc.convert(model, "tvm", device="cuda", threads=threads)
        for make in INPUTS.get(name, FRAMES).values():
            X = make()
            for method in ("predict", "predict_proba"):
                for data, launches in ((X, 5), (X[:PART], 1), (X[:1], 1)):
                    before = len(card.launches)
                    require_same(getattr(compiled, method)(data), getattr(model, method)(data))
                    assert len(card.launches) - before == launches


@pytest.mark.parametrize(("name", "data"), [("one-hot", FRAME), ("array", OBJECTS), ("tf-idf", DOCUMENTS)])
def test_a_part_is_encoded_before_the_last_one_is_waited_for(name: str, data: Any) -> None:
    events: list[Any] = []
    wait, part_of = Card.wait, calls.part_of

    def waited(card: Card, stream: Any) -> None:
        events.append("wait")
        wait(card, stream)

    def encoded(value: Any, first: int, end: int) -> Any:
        if first not in events:  # a model may have several inputs
            events.append(first)
        assert end - first <= PART
        return part_of(value, first, end)

    with in_parts(seed=0):
        compiled = hbc.convert(MODELS[name](), "tvm", device="cuda", threads=1)
        compiled.predict_proba(data[:10])
        with mock.patch.object(Card, "wait", waited), mock.patch.object(calls, "part_of", encoded):
            compiled.predict_proba(data)
    assert events == [0, 60, "wait", 120, "wait", 180, "wait", 240, "wait", "wait"]


def changed(row: int, column: str, value: Any) -> pd.DataFrame:
    frame = FRAME.astype(object)
    frame.loc[row, column] = value
    return frame.astype({name: float for name in ("age", "pay") if not isinstance(frame[name][row], str)})


BAD = {
    "a category that fit has not seen, in the last row": changed(ROWS - 1, "town", "Rom"),
    "an unseen category in the first part, another in the third": changed(5, "job", "x").assign(
        town=np.where(np.arange(ROWS) == 150, "Rom", FRAME.town)
    ),
    "None": changed(ROWS - 1, "town", None),
    "NaN": changed(130, "job", np.nan),
    "pandas.NA": changed(130, "job", pd.NA),
    "a number among strings, and an infinity before it": changed(200, "job", 7).assign(
        age=np.where(np.arange(ROWS) == 3, np.inf, FRAME.age)
    ),
    "an infinity in the last row": changed(ROWS - 1, "age", np.inf),
    "bytes": changed(ROWS - 2, "town", b"Ulm"),
    "a column of numbers": FRAME.assign(town=1.5),
    "a column without values": FRAME.assign(town=np.nan),
}


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("name", ["one-hot", "ordinal", "linear", "array"])
def test_errors_are_those_of_the_whole_input(name: str, threads: int) -> None:
    """Also their rows, and which one is found first. What passes has the answers of the CPU."""
    model, rejected = MODELS[name](), 0
    whole = hbc.convert(model, "tvm")
    with in_parts(seed=5):
        compiled = hbc.convert(model, "tvm", device="cuda", threads=threads)
        for X in BAD.values():
            data = X.to_numpy(object) if name == "array" else X
            found, wanted = (answer(each, data) for each in (compiled, whole))
            assert type(found) is type(wanted)
            if isinstance(wanted, str):
                rejected += 1
                assert found == wanted
            else:
                require_same(found, wanted)
        assert rejected >= 3
        data = OBJECTS if name == "array" else FRAME
        require_same(compiled.predict(data), model.predict(data))


def answer(compiled: Any, X: Any) -> Any:
    """What predict_proba returns, or the text of its error."""
    try:
        return compiled.predict_proba(X)
    except hbc.InvalidInputError as error:
        return str(error)


def test_parts_are_halved_on_a_small_card_and_shared_by_threads() -> None:
    model = MODELS["one-hot"]()
    wanted = model.predict_proba(FRAME)
    with mock.patch.object(host, "ROWS_OF_PART", 1 << 13), mock.patch.object(calls, "ROWS_OF_PART", 1 << 13):
        large = pd.concat([FRAME] * 80, ignore_index=True)
        with emulated(seed=7, size=400_000, keeps_lanes=True) as card:
            compiled = hbc.convert(model, "tvm", device="cuda", threads=1)
            require_same(compiled.predict_proba(large), np.concatenate([wanted] * 80))
            assert len(card.launches) > 3, "the parts were not halved"
        with emulated(size=1000), pytest.raises(hbc.DeviceMemoryError):
            hbc.convert(model, "tvm", device="cuda").predict_proba(large)
    with in_parts(seed=8):
        compiled = hbc.convert(model, "tvm", device="cuda", threads=3)
        with ThreadPoolExecutor(4) as pool:
            for found in pool.map(compiled.predict_proba, [FRAME] * 8):
                require_same(found, wanted)


def test_several_methods_of_a_table() -> None:
    model, methods = MODELS["one-hot"](), ["predict", "predict_proba", "decision_function"]
    table = pa.Table.from_pandas(FRAME)
    wanted = hbc.convert(model, "tvm").arrow(methods)(table)
    with in_parts(seed=9) as card:
        found = hbc.convert(model, "tvm", device="cuda").arrow(methods)(table)
        assert len(card.launches) == 5
    assert found.column(0).equals(wanted.column(0))
    for one, other in zip(found.columns[1:], wanted.columns[1:], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


def test_what_is_looked_at_as_a_whole_is_read_as_a_whole() -> None:
    """One warning for all rows; and an encoder alone, which the host computes."""
    model = encoded(OneHotEncoder(handle_unknown="warn"), boosted())
    encoder = OneHotEncoder(sparse_output=False).fit(FRAME[TEXTS])
    odd = FRAME.assign(town=np.where(np.arange(ROWS) % 100 == 7, "Rom", FRAME.town))
    with in_parts(seed=2) as card, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = hbc.convert(model, "tvm", device="cuda").predict_proba(odd)
        assert len(card.launches) == 1
        assert [str(each.message)[:24] for each in caught] == ["Found unknown categories"]
        np.testing.assert_array_equal(
            hbc.convert(encoder, "tvm", device="cuda").transform(FRAME[TEXTS]), encoder.transform(FRAME[TEXTS])
        )
        require_same(found, model.predict_proba(odd))


def test_a_cpu_reads_the_whole_input() -> None:
    with in_parts(), mock.patch.object(FrameReader, "_can_wait", side_effect=AssertionError):
        hbc.convert(MODELS["one-hot"](), "tvm").predict(FRAME)
