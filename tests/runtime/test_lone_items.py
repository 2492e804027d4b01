"""Lists of one document or dict: their short way has the bits of a call of many rows, and leaves strange objects to the long one."""

from __future__ import annotations

import warnings
from collections import Counter, OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import numpy as np
import pytest

pytest.importorskip("sklearn")

from backends import BACKENDS, installed
from sklearn.feature_extraction import DictVectorizer, FeatureHasher
from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer
from sklearn.pipeline import make_pipeline

import hbc
from hbc.errors import InvalidInputError
from hbc.ops.vectorizers import hashing

NAMES = [f"name {i}" for i in range(40)]
RNG = np.random.default_rng(0)
DICTS: list[Any] = [
    *({NAMES[i]: float(RNG.normal()) for i in RNG.permutation(40)[:20]} for _ in range(30)),
    *(
        {"city": str(RNG.choice(["Paris", "Rome", "Bonn"])), "n": int(RNG.integers(9)), "is new": bool(i % 2)}
        for i in range(10)
    ),
    {},
    {"unknown to the model": 1.0, "city": "nor this"},
    {"name 1": float("nan"), "name 2": float("inf"), "name 3": 0.0, "name 4": -0.0},
    {"city=Paris": 2.0, "city": "Paris"},
    {"x" * 100: 3.0, "name 1": 1.0},
    {"ü日😀": 1.5, "": 2.0, "a\0b": 3.0},
    {f"many {i}": 1.0 for i in range(300)},
    {"name 1": np.float64(2.5), "name 2": np.int64(3), "name 3": np.float32(0.1)},
    Counter("abracadabra"),
    OrderedDict(b=1.0, a=2.0),
]
TEXTS: list[Any] = [
    *(" ".join(RNG.choice(NAMES, 30)) for _ in range(20)),
    *("", " ", "x", "name", "NAME 1 name_1", "éa 日本 Name İx", "name " * 2000, "İ" * 4000, "ab\0cd name", np.str_("name 3")),
]
MODELS = {
    "DictVectorizer": (DictVectorizer(), DICTS),
    "DictVectorizer, another separator, float32": (DictVectorizer(separator="/", dtype=np.float32), DICTS),
    "FeatureHasher": (FeatureHasher(64), DICTS),
    "FeatureHasher, no signs, float32": (FeatureHasher(8, alternate_sign=False, dtype=np.float32), DICTS),
    "CountVectorizer": (CountVectorizer(), TEXTS),
    "CountVectorizer, accents, up to four characters": (
        CountVectorizer(analyzer="char_wb", ngram_range=(1, 4), strip_accents="unicode"),
        TEXTS,
    ),
    "HashingVectorizer, counts": (HashingVectorizer(n_features=100, norm=None), TEXTS),
    "Pipeline": (make_pipeline(CountVectorizer(binary=True)), TEXTS),
}


def same(found: Any, expected: Any, many: Any = None) -> None:
    """Two sparse matrices have the same entries. many: the matrix of which `expected` is a part, since scipy may give that narrower
    indices."""
    assert type(found) is type(expected)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert found.indices.dtype == (expected if many is None else many).indices.dtype
    np.testing.assert_array_equal(found.indptr, expected.indptr)
    np.testing.assert_array_equal(found.indices, expected.indices)
    np.testing.assert_array_equal(found.data, expected.data)


@pytest.mark.parametrize("backend", installed("tvm", "torch"))
@pytest.mark.parametrize("name", MODELS)
def test_one_is_as_among_many(name: str, backend: str) -> None:
    source, X = MODELS[name]
    source = source.fit(X)
    model = hbc.convert(source, backend)
    many = model.transform(X)
    dense = source.transform(X).toarray()
    np.testing.assert_allclose(many.toarray(), dense, rtol=1e-5, atol=1e-6)  # float32 is added up in another order
    found = []
    for _ in range(2):  # the first call of one row learns the short way
        found = [model.transform([item]) for item in X]
        for i, row in enumerate(found):
            same(row, many[[i]], many)
    for i, row in enumerate(found):  # no later call has written into them
        np.testing.assert_allclose(row.toarray(), dense[[i]], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("source", "X", "wrong"),
    [
        (DictVectorizer(), DICTS, [None, 3, "text", [("a", 1)], {"name 1": {"a": 1}}, {"name 1": 1 << 2000}, {"name 1": [1]}]),
        (FeatureHasher(16), DICTS, [None, 3, "text", {"name 1": None}, {"name 1": 1 << 2000}, {3: 1.0}, {"\ud800": 1.0}]),
        (CountVectorizer(), TEXTS, [3, 1.5, ["name"], {"name": 1}]),
    ],
    ids=["dicts", "hashed", "texts"],
)
def test_what_the_short_way_leaves_is_rejected_as_before(source: Any, X: Any, wrong: list[Any]) -> None:
    model = hbc.convert(source.fit(X), BACKENDS[-1])
    before = []
    for item in wrong:
        with pytest.raises(InvalidInputError) as error:
            hbc.convert(source, BACKENDS[-1]).transform([item])
        before.append(str(error.value))
    first = model.transform(X[:1])
    for item, message in zip(wrong, before, strict=True):
        with pytest.raises(InvalidInputError) as error:
            model.transform([item])
        assert str(error.value) == message
    same(model.transform(X[:1]), first)


@pytest.mark.parametrize("source", [DictVectorizer(dtype=np.float32), FeatureHasher(8, dtype=np.float32)], ids=str)
def test_numbers_beyond_float32_warn_nobody(source: Any) -> None:
    """The source warns; a call of many rows does not, and so neither does one of one row, at the first call or later."""
    model = hbc.convert(source.fit([{"a": 1.0}]), BACKENDS[-1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            assert model.transform([{"a": 1e300}]).data.tolist() == [np.inf]


def test_names_are_kept_up_to_a_number_of_them() -> None:
    source = FeatureHasher(32)
    model = hbc.convert(source.fit(DICTS), BACKENDS[-1])
    many = model.transform(DICTS)
    with mock.patch.object(hashing, "MOST_KEPT", 25):
        for i, item in enumerate(DICTS):
            same(model.transform([item]), many[[i]], many)


def test_threads_share_a_model() -> None:
    for source, X in MODELS.values():
        model = hbc.convert(source.fit(X), BACKENDS[-1])
        expected = [model.transform([item]) for item in X]
        with mock.patch.object(hashing, "MOST_KEPT", 25), ThreadPoolExecutor(4) as pool:
            for _ in range(5):
                for found, row in zip(pool.map(lambda item: model.transform([item]), X), expected, strict=True):  # noqa: B023
                    same(found, row)
