"""The columns that `CompiledModel.arrow` returns, for every kind of result and of model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import NMF
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.feature_extraction.text import HashingVectorizer, TfidfVectorizer
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression
from sklearn.multioutput import ClassifierChain
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import KBinsDiscretizer, LabelEncoder, OneHotEncoder, StandardScaler
from sklearn.svm import SVC

import hbc

RNG = np.random.default_rng(0)
X = pd.DataFrame(RNG.normal(size=(120, 3)), columns=["a", "b", "c"])
TABLE = pa.Table.from_pandas(X)
CLASS = RNG.integers(0, 3, 120)
WORDS = np.array(["no", "perhaps", "yes"])[CLASS]
PAIR = np.column_stack([CLASS > 0, CLASS])


def columns(found: Any) -> list[Any]:
    """The columns of a result of the source, in the order of Arrow's."""
    parts = found if isinstance(found, list | tuple) else [found]
    dense = [np.asarray(part.toarray() if hasattr(part, "toarray") else part) for part in parts]
    return [column for part in dense for column in part.reshape(len(part), -1).T]


RESULTS: dict[str, tuple[Any, str, list[str], Any]] = {
    "labels": (LogisticRegression().fit(X, WORDS), "predict", ["predict"], pa.string()),
    "bool": (LogisticRegression().fit(X, CLASS > 0), "predict", ["predict"], pa.bool_()),
    "floats": (LogisticRegression().fit(X, CLASS * 1.0), "predict", ["predict"], pa.float64()),
    "floats by class": (
        LogisticRegression().fit(X, CLASS * 1.0),
        "predict_proba",
        ["predict_proba_0.0", "predict_proba_1.0", "predict_proba_2.0"],
        pa.float64(),
    ),
    "objects": (LogisticRegression().fit(X, WORDS.astype(object)), "predict", ["predict"], pa.string()),
    "scores": (LogisticRegression().fit(X, CLASS > 0), "decision_function", ["decision_function"], pa.float64()),
    "pairs": (
        SVC(decision_function_shape="ovo").fit(X, WORDS),
        "decision_function",
        ["decision_function_0", "decision_function_1", "decision_function_2"],
        pa.float64(),
    ),
    "targets": (RandomForestClassifier(3, max_depth=3).fit(X, PAIR), "predict", ["predict_0", "predict_1"], pa.int64()),
    "targets by class": (
        RandomForestClassifier(3, max_depth=3).fit(X, PAIR),
        "predict_proba",
        ["predict_proba_0_0", "predict_proba_0_1", "predict_proba_1_0", "predict_proba_1_1", "predict_proba_1_2"],
        pa.float64(),
    ),
    "chain": (
        ClassifierChain(LogisticRegression()).fit(X, PAIR[:, :1]),
        "predict_proba",
        ["predict_proba_0"],
        pa.float64(),
    ),
    "leaves": (RandomForestClassifier(3, max_depth=3).fit(X, CLASS), "apply", ["apply_0", "apply_1", "apply_2"], pa.int64()),
    "leaves of classes": (
        GradientBoostingClassifier(n_estimators=2, max_depth=2).fit(X, CLASS),
        "apply",
        [f"apply_{tree}_{label}" for tree in range(2) for label in range(3)],
        pa.float64(),
    ),
    "neighbours": (
        KNeighborsClassifier(2, algorithm="kd_tree").fit(X, CLASS),
        "kneighbors",
        ["kneighbors_0_0", "kneighbors_0_1", "kneighbors_1_0", "kneighbors_1_1"],
        None,
    ),
    "numbers": (StandardScaler().fit(X), "transform", ["transform_0", "transform_1", "transform_2"], pa.float64()),
    "frame": (StandardScaler().set_output(transform="pandas").fit(X), "transform", ["a", "b", "c"], pa.float64()),
    "frame of polars": (
        ColumnTransformer([("n", StandardScaler(), ["b"])]).set_output(transform="polars").fit(X),
        "transform",
        ["n__b"],
        pa.float64(),
    ),
    "sparse": (
        make_pipeline(KBinsDiscretizer(2, encode="ordinal", quantile_method="averaged_inverted_cdf"), OneHotEncoder()).fit(X),
        "transform",
        [f"transform_{i}" for i in range(6)],
        pa.float64(),
    ),
}


@pytest.mark.filterwarnings("ignore:X has feature names")  # apply of GradientBoosting: its own trees were fitted on arrays
@pytest.mark.every_case
@pytest.mark.parametrize("name", RESULTS)
def test_names_and_types(name: str) -> None:
    model, method, names, kind = RESULTS[name]
    arrow = hbc.convert(model, backend="numpy").arrow(method)
    found = arrow(TABLE)
    assert found.column_names == names
    assert found.schema == arrow.schema
    assert kind is None or set(found.schema.types) == {kind}
    expected = columns(getattr(model, method)(X))
    assert len(expected) == found.num_columns
    for ours, theirs in zip(found.columns, expected, strict=True):
        if theirs.dtype.kind in "OU":
            assert ours.to_pylist() == theirs.tolist()
        else:
            np.testing.assert_allclose(ours.to_numpy(), theirs.astype(float), rtol=1e-7, atol=1e-12)


def test_the_type_holds_the_results_of_every_input() -> None:
    """The source returns float32 for float32: the same numbers come as float64."""
    scaler = StandardScaler().fit(X)
    narrow = pa.Table.from_pandas(X.astype("f4"))
    found = hbc.convert(scaler, backend="numpy").arrow()(narrow)
    expected = scaler.transform(X.astype("f4"))
    assert expected.dtype == np.float32
    np.testing.assert_array_equal(np.column_stack(found.columns), expected.astype("f8"))


def test_several_methods_stand_side_by_side() -> None:
    model = LogisticRegression().fit(X, WORDS)
    compiled = hbc.convert(model, backend="numpy")
    both = compiled.arrow(["predict_proba", "predict"])(TABLE)
    assert both.column_names == ["predict_proba_no", "predict_proba_perhaps", "predict_proba_yes", "predict"]
    assert both.select([3]).equals(compiled.arrow("predict")(TABLE))
    with pytest.raises(ValueError, match="two columns of one name"):
        compiled.arrow("predict_proba", class_names=["a", "a", "b"])


def test_documents_and_vectors_are_one_column() -> None:
    texts = np.array(["the cat sat", "a dog", "", "Straße über 東京"] * 30, object)
    model = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(texts, WORDS)
    method = hbc.convert(model, backend="numpy").arrow(["predict_proba", "predict"])
    assert method.columns is None
    for kind in (pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())):
        found = method(pa.table({"text": pa.array(texts).cast(kind)}))
        assert found["predict"].to_pylist() == model.predict(texts).tolist()
        np.testing.assert_allclose(np.column_stack(found.columns[:3]), model.predict_proba(texts), rtol=1e-12)
    with pytest.raises(hbc.InvalidInputError, match="2 columns, expected one column"):
        method(pa.table({"text": texts, "id": np.arange(120)}))
    with pytest.raises(hbc.InvalidInputError):
        method(pa.table({"text": pa.array([None, "a"])}))
    curve = IsotonicRegression(out_of_bounds="clip").fit(X["a"], CLASS)
    found = hbc.convert(curve, backend="numpy").arrow()(TABLE.select(["a"]))
    np.testing.assert_allclose(found["predict"].to_numpy(), curve.predict(X["a"]))
    labels = LabelEncoder().fit(WORDS)
    found = hbc.convert(labels, backend="numpy").arrow()(pa.table({"y": WORDS}))
    assert found.columns[0].to_pylist() == labels.transform(WORDS).tolist()


def test_what_columns_cannot_hold_is_refused() -> None:
    texts = ["the cat sat", "a dog"]
    with pytest.raises(ValueError, match="1,048,576 numbers a row"):
        hbc.convert(HashingVectorizer().fit(texts), backend="numpy").arrow()
    with pytest.raises(ValueError, match="depends on the other rows"):
        hbc.convert(NMF(2, max_iter=500).fit(X.abs()), backend="numpy").arrow()
    kept = ColumnTransformer([("n", StandardScaler(), ["b"]), ("p", "passthrough", ["a"])]).set_output(transform="pandas")
    with pytest.raises(ValueError, match="unchanged columns of the input"):
        hbc.convert(kept.fit(X), backend="numpy").arrow()


def test_large_batches_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of more rows than are computed together comes back as one batch, a table in chunks."""
    monkeypatch.setattr("hbc.runtime.arrow.ROWS_AT_ONCE", 50)
    model = LogisticRegression().fit(X, WORDS)
    method = hbc.convert(model, backend="numpy").arrow(["predict", "predict_proba"])
    batch = TABLE.to_batches()[0]
    found = method(batch)
    assert found.num_rows == 120
    assert found["predict"].to_pylist() == model.predict(X).tolist()
    assert method(TABLE)["predict"].num_chunks == 3
    assert [each.num_rows for each in method(TABLE.to_reader())] == [50, 50, 20]
    broken = TABLE.set_column(0, "a", pa.array(np.where(np.arange(120) == 77, np.inf, X["a"])))
    with pytest.raises(hbc.InvalidInputError, match="counting rows from row 50"):
        method(broken)
