"""Each format gives what the source gives on the frame of pandas."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.tree import DecisionTreeClassifier

import hbc
from hbc.errors import InvalidInputError
from hbc.scoring.readers import ParquetReader

WRITERS: dict[str, Callable[[pd.DataFrame, Path], Any]] = {
    "rows.parquet": lambda frame, path: frame.to_parquet(path, row_group_size=100),
    "rows.feather": lambda frame, path: frame.to_feather(path),
    "rows.csv": lambda frame, path: frame.to_csv(path, index=False),
    "rows.csv.gz": lambda frame, path: frame.to_csv(path, index=False),
    "rows.tsv": lambda frame, path: frame.to_csv(path, index=False, sep="\t"),
    "rows.jsonl": lambda frame, path: frame.to_json(path, orient="records", lines=True, double_precision=15),
    "rows.jsonl.gz": lambda frame, path: frame.to_json(path, orient="records", lines=True, double_precision=15),
    "rows.arrows": lambda frame, path: write_stream(frame, path),
}
READERS: dict[str, Callable[[Path], pd.DataFrame]] = {
    "out.parquet": pd.read_parquet,
    "out.feather": pd.read_feather,
    "out.csv": pd.read_csv,
    "out.csv.gz": pd.read_csv,
    "out.jsonl": lambda path: pd.read_json(path, lines=True, precise_float=True),
    "out.arrows": lambda path: pa.ipc.open_stream(str(path)).read_pandas(),
}


def write_stream(frame: pd.DataFrame, path: Path) -> None:
    table = pa.Table.from_pandas(frame)
    with pa.ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table, 77)


def same(found: pd.DataFrame, frame: pd.DataFrame, source: Any) -> None:
    expected = source.predict_proba(frame[["age", "rooms", "town"]])
    assert list(found.columns) == ["id", "predict_proba_no", "predict_proba_yes", "predict"]
    np.testing.assert_allclose(found[["predict_proba_no", "predict_proba_yes"]].to_numpy(), expected, rtol=1e-9)
    assert found.predict.tolist() == source.predict(frame[["age", "rooms", "town"]]).tolist()
    assert found.id.astype(int).tolist() == frame.id.tolist()


@pytest.mark.parametrize("name", WRITERS)
def test_inputs(name: str, model: Path, source: Any, frame: pd.DataFrame, tmp_path: Path) -> None:
    WRITERS[name](frame, tmp_path / name)
    summary = hbc.score(model, tmp_path / name, tmp_path / "out.parquet", methods="predict_proba,predict", keep="id")
    assert (summary.rows, summary.bad_rows, summary.files) == (500, 0, 1)
    same(pd.read_parquet(tmp_path / "out.parquet"), frame, source)


@pytest.mark.parametrize("name", READERS)
def test_outputs(name: str, model: Path, source: Any, frame: pd.DataFrame, tmp_path: Path) -> None:
    frame.to_parquet(tmp_path / "rows.parquet", row_group_size=100)
    hbc.score(model, tmp_path / "rows.parquet", tmp_path / name, methods=["predict_proba", "predict"], keep=["id"])
    same(READERS[name](tmp_path / name), frame, source)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "rows.parquet"])


def test_a_single_column_of_csv_has_no_empty_lines(model: Path, frame: pd.DataFrame, tmp_path: Path) -> None:
    """Null would be an empty line, and readers pass over those."""
    for row in (0, 3, 4, 499):
        frame.loc[row, "age"] = np.inf
    frame.to_csv(tmp_path / "rows.csv", index=False)
    for method, rest in (("predict", pd.Series(["yes"]).dtype), ("decision_function", "float64")):
        hbc.score(model, tmp_path / "rows.csv", tmp_path / "out.csv", methods=method, bad_rows=tmp_path / "bad", restart=True)
        found = pd.read_csv(tmp_path / "out.csv").iloc[:, 0]
        assert len(found) == 500
        assert np.flatnonzero(found.isna()).tolist() == [0, 3, 4, 499]
        assert found.dtype == rest
        expected = getattr(hbc.load(model), method)(frame[["age", "rooms", "town"]].drop(index=[0, 3, 4, 499]))
        assert found.dropna().tolist() == pytest.approx(expected.tolist())


def test_checksums_of_parquet_are_read(model: Path, frame: pd.DataFrame, tmp_path: Path) -> None:
    """A flipped bit of a number is found, where the file has checksums. (pyarrow writes none by default.)"""
    path = tmp_path / "rows.parquet"
    frame["age"] = np.linspace(20, 60, 500)
    options: dict[str, Any] = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
    pa.parquet.write_table(pa.Table.from_pandas(frame), path, **options)
    data = bytearray(path.read_bytes())
    data[data.index(frame["age"][250].tobytes())] ^= 1
    path.write_bytes(data)
    with pytest.raises(hbc.ArtifactError, match=r"cannot be read .*checksum"):
        hbc.score(model, path, tmp_path / "out.parquet")
    assert not (tmp_path / "out.parquet").exists()


def test_labels_that_are_floats_keep_their_dtype(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": np.arange(20.0)})
    source = DecisionTreeClassifier().fit(frame, np.where(frame.a > 9, 16777217.0, 16777219.0))
    frame.to_parquet(tmp_path / "x.parquet")
    model = hbc.convert(source, "numpy", frame)
    hbc.score(model, tmp_path / "x.parquet", tmp_path / "y.parquet", methods=["predict", "predict_proba"], dtype="float32")
    found = pd.read_parquet(tmp_path / "y.parquet")
    np.testing.assert_array_equal(found["predict"], source.predict(frame))
    assert [str(kind) for kind in found.dtypes] == ["float64", "float32", "float32"]


@pytest.mark.parametrize("text", [" NA", "  "])
def test_a_missing_word_with_spaces_is_text_as_in_pandas(tmp_path: Path, text: str) -> None:
    frame = pd.DataFrame({"a": np.arange(20.0), "b": np.arange(20.0)})
    source = HistGradientBoostingClassifier(max_iter=2).fit(frame, frame.a > 9)
    (tmp_path / "x.csv").write_text(f"a,b\n{text},1\n2,3\n")
    with pytest.raises(ValueError, match="could not convert string to float"):
        source.predict(pd.read_csv(tmp_path / "x.csv"))
    with pytest.raises(InvalidInputError, match="text that is no number"):
        hbc.score(hbc.convert(source, "numpy", frame), tmp_path / "x.csv", tmp_path / "y.parquet")


def test_the_bytes_of_a_column_whose_name_has_a_dot(tmp_path: Path) -> None:
    """They counted as 0, so that long strings behind short ones took more than the memory that is allowed."""
    texts = ["x"] * 100 + ["x" * 5000] * 100
    table = pa.table({"a.b": texts, "ab": texts, "both": [{"a": text} for text in texts]})
    pa.parquet.write_table(table, tmp_path / "x.parquet", use_dictionary=False)
    reader = ParquetReader(tmp_path / "x.parquet", lambda name: "text")
    assert reader.width(["a.b"]) == reader.width(["ab"]) > 2000
    assert reader.width(["both"]) > 2000
