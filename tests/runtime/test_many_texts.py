"""Models of many columns of strings: one matrix of codes enters the device, and what is asked of columns is asked once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from backends import BACKENDS
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler, TargetEncoder

import hbc
from hbc.ir.graph import Input
from hbc.ir.origins import Origins
from hbc.ops import tensor as t
from hbc.optimizer.partition import MANY_COLUMNS

COLUMNS = MANY_COLUMNS + 8
ENCODERS = {
    "one-hot": OneHotEncoder(handle_unknown="ignore"),
    "ordinal": OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1, encoded_missing_value=-2),
    "target": TargetEncoder(),
}


def words(rows: int, seed: int, values: list[Any]) -> pd.DataFrame:
    g = np.random.default_rng(seed)
    drawn = {
        f"c{i}": np.array(values[: 2 + i % (len(values) - 1)], object)[g.integers(0, 2 + i % (len(values) - 1), rows)]
        for i in range(COLUMNS)
    }
    return pd.DataFrame(drawn).assign(n=g.normal(size=rows))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("encoder", ENCODERS)
def test_many_columns_of_strings(backend: str, encoder: str) -> None:
    X = words(60, 0, ["a", "b", None, "c", "dd"])
    columns = ColumnTransformer([("words", ENCODERS[encoder], list(X.columns[:-1])), ("n", StandardScaler(), ["n"])])
    source = make_pipeline(columns, LogisticRegression()).fit(X, np.arange(60) % 2)
    compiled = hbc.convert(source, backend)
    unseen = words(300, 1, ["b", "unseen", np.nan, "a", None])
    for rows in (X, unseen, unseen[:1], unseen[:7]):
        np.testing.assert_allclose(compiled.predict_proba(rows), source.predict_proba(rows), rtol=1e-5, atol=1e-6)
    record, known = compiled.bind_record("predict_proba"), X.fillna("a")
    for row in (*range(4), 0, 1):
        expected = source.predict_proba(known[row : row + 1])
        np.testing.assert_allclose(record(known[row : row + 1].to_dict("records")[0]), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("encoder", ENCODERS)
def test_one_matrix_of_codes_enters_the_device(encoder: str) -> None:
    """Each column was an input with loops of its own: LLVM took 10 s for 100 columns, and 3,000 did not end. Target encoded columns still
    were where numbers stand beside them: 40 s for 200."""
    X = words(60, 0, ["a", "b", "c"])
    columns = ColumnTransformer([("n", StandardScaler(), ["n"]), ("words", ENCODERS[encoder], list(X.columns[:-1]))])
    compiled = hbc.convert(make_pipeline(columns, LogisticRegression()).fit(X, np.arange(60) % 2))
    variant = next(iter(compiled.variants.values()))
    codes = [node.type.shape for node in variant.ready.executable.before.outputs["inputs"] if node.inputs]
    assert codes == [("N", COLUMNS)]


def test_origins_of_columns_side_by_side() -> None:
    """Each column asked all parts: 10 s for 1,000 of them."""
    x, y = Input("X", "f64", ("N", 2))(), Input("Y", "f64", ("N", 1))()
    node = t.concat([t.absolute(x), y, t.add(x, np.ones(2))])
    assert (
        Origins().all_of(node)
        == [Origins().of(node, i) for i in range(5)]
        == [{(x, 0)}, {(x, 1)}, {(y, 0)}, {(x, 0)}, {(x, 1)}]
    )
