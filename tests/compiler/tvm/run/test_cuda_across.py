"""A model on several GPUs: rows are shared, results are those of one GPU to the bit. The cards are the emulator's."""

from __future__ import annotations

import pickle
import threading
import traceback
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
pytest.importorskip("sklearn")
from cuda_on_cpu import Card, cannot_run, emulated  # noqa: E402
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier  # noqa: E402
from sklearn.preprocessing import OneHotEncoder, StandardScaler  # noqa: E402

import hbc  # noqa: E402
from hbc.compiler.tvm.run.card import CudaError  # noqa: E402
from hbc.runtime import across  # noqa: E402

emulates = pytest.mark.skipif(cannot_run() is not None, reason=str(cannot_run()))
DEVICES = ["cuda:0", "cuda:1", "cuda:2"]
X = np.random.default_rng(0).normal(size=(1001, 4)).astype(np.float32)
LABELS = np.digitize(X[:, 0] * X[:, 1], [-0.3, 0.3])


@pytest.fixture
def card() -> Iterator[Card]:
    with emulated(seed=3, keeps_lanes=True) as card, mock.patch.object(across, "LEAST_ROWS", 100):
        yield card


def forest(y: Any = LABELS) -> RandomForestClassifier:
    return RandomForestClassifier(5, max_depth=3, random_state=0).fit(X, y)


def copied(card: Card) -> Any:
    """A context. Yields a list to which every copy of rows to a card adds (the card's number, its thread, rows)."""
    found: list[tuple[int, int, int]] = []
    copy = Card.copy

    def noted(self: Card, array: Any, tensor: Any, way: int, stream: Any) -> None:
        if way == 1:
            found.append((self.number, threading.get_ident(), len(array)))
        copy(self, array, tensor, way, stream)

    return mock.patch.object(Card, "copy", noted), found


@emulates
def test_each_card_has_a_part_of_the_rows(card: Card) -> None:
    model = forest()
    one = hbc.convert(model, "tvm", device="cuda")
    cards = one.across(DEVICES)
    watched, found = copied(card)
    with watched:
        answer = cards.predict_proba(X)
    np.testing.assert_array_equal(answer, one.predict_proba(X))
    np.testing.assert_allclose(answer, model.predict_proba(X), rtol=1e-6)
    assert sorted((number, rows) for number, _, rows in found) == [(0, 333), (1, 334), (2, 334)]
    assert len({thread for _, thread, _ in found}) == 3
    assert cards.devices == tuple(DEVICES)
    assert [each.device for each in cards.models] == DEVICES
    np.testing.assert_array_equal(cards.classes_, model.classes_)


@emulates
@pytest.mark.parametrize(
    ("rows", "parts"), [(0, []), (1, [1]), (199, [199]), (200, [100, 100]), (299, [149, 150]), (300, [100, 100, 100])]
)
def test_few_rows_go_to_fewer_cards(card: Card, rows: int, parts: list[int]) -> None:
    one = hbc.convert(OneHotEncoder(sparse_output=False).fit(np.arange(8).reshape(4, 2)), "tvm", device="cuda")
    cards = one.across(DEVICES)
    data = np.tile(np.array([[0, 1], [6, 7], [2, 5]]), (100, 1))[:rows]
    watched, found = copied(card)
    if not rows:
        with pytest.raises(hbc.InvalidInputError, match="0 rows"):
            cards.transform(data)
        return
    with watched:
        answer = cards.transform(data)
    assert [number for _, _, number in sorted(found)] == parts
    np.testing.assert_array_equal(answer, one.transform(data))


@emulates
def test_all_kinds_of_arrays_and_results(card: Card) -> None:
    one = hbc.convert(forest(np.stack([LABELS, LABELS[::-1]], axis=1)), "tvm")
    cards = one.across(["cuda:1", "CUDA"])
    some = X[:301]
    for data in (
        some,
        some.astype(np.float64),
        np.asfortranarray(some),
        X[:602:2],
        some.round().astype(np.int64),
        some.astype(">f4"),
    ):
        assert isinstance(cards.predict_proba(data), list)
        for found, expected in zip(cards.predict_proba(data), cards.models[0].predict_proba(data), strict=True):
            np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(cards.predict(X), one.predict(X))
    words = hbc.convert(forest(np.array(["no", "perhaps", "yes"])[LABELS]), "tvm").across(["cuda:0", "cuda:1"])
    assert set(words.predict(X)) <= {"no", "perhaps", "yes"}
    np.testing.assert_array_equal(words.predict(X), words.models[1].predict(X))
    again = pickle.loads(pickle.dumps(words))
    assert again.devices == words.devices
    np.testing.assert_array_equal(again.predict(X), words.predict(X))


@emulates
def test_errors_are_those_of_one_card_and_name_the_card(card: Card) -> None:
    one = hbc.convert(StandardScaler().fit(X), "tvm", device="cuda")
    cards = one.across(DEVICES)
    bad = X.copy()
    bad[900, 2] = np.inf
    with pytest.raises(hbc.InvalidInputError, match="inf in row 900") as there:
        cards.transform(bad)
    with pytest.raises(hbc.InvalidInputError) as here:
        one.transform(bad)
    assert str(there.value) == str(here.value)
    cards.transform(X)
    wait = Card.wait

    def broken(self: Card, stream: Any) -> None:
        wait(self, stream)
        if self.number == 1:
            raise CudaError(700, "an illegal memory access")

    with mock.patch.object(Card, "wait", broken), pytest.raises(CudaError, match="illegal memory access") as caught:
        cards.transform(X)
    assert "cuda:1 had the rows 333 to 666 of X." in "".join(traceback.format_exception(caught.value))
    np.testing.assert_array_equal(cards.transform(X), one.transform(X))


@emulates
def test_what_is_not_split_is_refused(card: Card) -> None:
    cards = hbc.convert(forest(), "tvm").across(["cuda:0", "cuda:1"])
    for given, text in (
        (X.tolist(), "a list, expected a numpy array"),
        (X.astype(object), r"object\[1001, 4\]"),
        (X[0], r"float32\[4\]"),
        (np.ma.masked_array(X), "MaskedArray"),
    ):
        with pytest.raises(hbc.InvalidInputError, match=rf"{text}.*models\[0\].predict"):
            cards.predict(given)
    with pytest.raises(AttributeError, match="score is not split"):
        cards.score(X, LABELS)
    with pytest.raises(AttributeError, match="has the methods predict"):
        cards.transform(X)
    boosted = GradientBoostingClassifier(n_estimators=2, random_state=0).fit(X, LABELS)
    sparse = OneHotEncoder().fit(X[:5])
    for model, method, text in ((boosted, "staged_predict", "one by one"), (sparse, "transform", "a sparse matrix")):
        with pytest.raises(ValueError, match=rf"{method} .*{text}.*`models`"):
            getattr(hbc.convert(model, "tvm", X=X[:5]).across(["cuda:0"]), method)(X)
    with pytest.raises(hbc.InvalidInputError, match=r"4 columns|4 features|shape"):
        cards.predict(X[:, :3])


def test_devices_are_different_gpus() -> None:
    model = hbc.convert(forest(), "tvm")
    wrong: list[Any] = [[], ["cpu"], ["cuda", "cuda:0"], ["cuda:1", "cuda:1"], ["cuda:0", "cpu"], 2, None]
    for devices in wrong:
        with pytest.raises(ValueError, match="expected different GPUs"):
            model.across(devices)
    with pytest.raises(ValueError, match="unknown device 'cuda:x'"):
        model.across(["cuda:x"])
    with pytest.raises(ValueError, match="'numpy', which may give a row other bits"):
        hbc.convert(forest(), "numpy").across(["cuda:0"])


@pytest.mark.skipif(tvm.runtime.cuda(0).exist, reason="this computer has a GPU")
def test_without_gpus_it_says_so_at_once() -> None:
    with pytest.raises(hbc.BackendUnavailableError, match="no CUDA device"):
        hbc.convert(forest(), "tvm").across(["cuda:0", "cuda:1"])
