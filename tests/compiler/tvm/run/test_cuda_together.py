"""Several methods for the same rows on a GPU: one function computes them, and X is copied to the card once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

pytest.importorskip("tvm")
from cuda_on_cpu import Card, cannot_run, emulated
from sklearn.compose import make_column_transformer
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import hbc
from hbc.compiler.tvm.run import lanes
from hbc.compiler.tvm.run.card import TO_CARD
from hbc.compiler.tvm.run.lanes import MULTIPLE

pytestmark = pytest.mark.skipif(cannot_run() is not None, reason=str(cannot_run()))
RNG = np.random.default_rng(0)
ROWS = 4 * MULTIPLE + 77
X = RNG.normal(size=(ROWS, 4)).astype(np.float32)
MODELS = {
    "forest": (lambda: RandomForestClassifier(5, max_depth=4, random_state=0), ["predict", "predict_proba"]),
    "forest and its leaves": (lambda: RandomForestClassifier(5, random_state=0), ["predict", "predict_proba", "apply"]),
    "scaled regression": (
        lambda: make_pipeline(StandardScaler(), LogisticRegression()),
        ["decision_function", "predict", "predict_proba"],
    ),
}


@contextmanager
def copies_to_card() -> Iterator[list[int]]:
    """A context whose list gets the number of rows of each copy to the emulator's card."""
    copy, rows = Card.copy, []

    def counted(card: Card, array: Any, tensor: Any, way: int, stream: Any) -> None:
        if way == TO_CARD:
            rows.append(len(array))
        copy(card, array, tensor, way, stream)

    with mock.patch.object(Card, "copy", counted):
        yield rows


@pytest.mark.parametrize("strategy", ["auto", "walk"])
@pytest.mark.parametrize("name", MODELS)
def test_methods_together_copy_x_once(name: str, strategy: Any) -> None:
    make, methods = MODELS[name]
    model = make().fit(X[:300], X[:300, 0] > X[:300, 1])
    with emulated(seed=3, keeps_lanes=True) as card, copies_to_card() as copies:
        compiled = hbc.convert(model, "tvm", device="cuda", strategy=strategy)
        executable = next(variant for kinds, variant in compiled.variants.items() if set(kinds) == {"f32"}).ready.executable
        for data in (X, X[:300]):
            before = len(card.launches)
            copies.clear()
            found = executable.run_together(methods, [data])
            assert (len(card.launches) - before, copies) == (1, [len(data)])
            for method, values in zip(methods, found, strict=True):
                for one, alone in zip(values, executable.run(method, [data]), strict=True):
                    np.testing.assert_array_equal(one, alone, strict=True)
        assert [value.shape[0] for values in executable.run_together(methods, [X[:0]]) for value in values] == [0] * len(
            methods
        )


METHODS = ["predict", "predict_proba", "decision_function"]


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return pd.DataFrame({"age": RNG.integers(18, 80, ROWS).astype(float), "town": RNG.choice(["Ulm", "Bonn", "Kiel"], ROWS)})


@pytest.fixture(scope="module")
def pipeline(frame: pd.DataFrame) -> Any:
    columns = make_column_transformer((OneHotEncoder(handle_unknown="ignore"), ["town"]), remainder="passthrough")
    model = make_pipeline(columns, GradientBoostingClassifier(n_estimators=5))
    return model.fit(frame, np.where((frame.age > 40) ^ (frame.town == "Ulm"), "left", "stayed"))


def test_arrow_sends_a_table_once(pipeline: Any, frame: pd.DataFrame) -> None:
    """Also in pieces, halved because the card is small, and from several threads."""
    table = pa.Table.from_pandas(frame)
    expected = hbc.convert(pipeline, "tvm").arrow(METHODS)(table)
    with emulated(seed=5, keeps_lanes=True) as card, copies_to_card() as copies:
        score = hbc.convert(pipeline, "tvm", device="cuda").arrow(METHODS)
        found = score(table)
        assert len(card.launches) == 1
        assert copies == [ROWS] * 2, "not once for each of the two arrays"  # numbers, and the codes of the towns
        with ThreadPoolExecutor(3) as pool:
            assert all(other.equals(found) for other in pool.map(score, [table] * 6))
    with mock.patch.object(lanes, "LANE_BYTES", 1 << 30), emulated(seed=6, size=MULTIPLE * 150, keeps_lanes=True) as card:
        assert hbc.convert(pipeline, "tvm", device="cuda", threads=1).arrow(METHODS)(table).equals(found)
        assert len(card.launches) > 4
    assert found.column(0).equals(expected.column(0))
    for one, other in zip(found.columns[1:], expected.columns[1:], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)
