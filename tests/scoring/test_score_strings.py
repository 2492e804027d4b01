"""Strings of Parquet that are read as dictionaries are strings to the model: the results are those of the source for
`pandas.read_parquet`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from installed import older
from pyarrow import parquet
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder

import hbc
from hbc.scoring import readers
from hbc.scoring.readers import CODED_ROWS, ParquetReader

ROWS = 3 * CODED_ROWS
TOWNS = ["Oslo", "Zürich", "東京", "", "1"]


def frame_of(rows: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {"town": rng.choice(TOWNS, rows), "code": rng.choice(["1", "2", "03"], rows), "x": rng.normal(size=rows)}
    )
    return frame


def fitted(encoder: Any) -> Any:
    frame = frame_of(300)
    steps = make_column_transformer((encoder, ["town", "code"]), remainder="passthrough")
    return make_pipeline(steps, LinearRegression()).fit(frame, frame.x + (frame.town == "Oslo") + (frame.code == "2"))


def types(path: Path, columns: list[str], rows: int = 1 << 16) -> list[str]:
    """The types of the columns of strings, as they are read."""
    with readers.raw(str(path)) as source:
        reader = ParquetReader(source, lambda name: None if name == "x" else "text")
        assert {str(field.type) for field in reader.fields(columns)} <= {"string", "large_string", "double"}
        found = {str(kind) for piece in reader.pieces(columns, rows, 1) for kind in piece.batch.schema.types}
    return sorted(found)


DICTIONARY = "dictionary<values=string, indices=int32, ordered=0>"


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_answers_of_the_source(kind: Any, tmp_path: Path) -> None:
    """Every row group has a dictionary of its own, the second one a string that fit has not seen, and each has missing ones."""
    frame = frame_of(ROWS, seed=1)
    frame.loc[CODED_ROWS + 5, "town"] = "unknown"
    frame.loc[::7, "code"] = None
    table = pa.Table.from_pandas(frame)
    for name in ("town", "code"):
        table = table.set_column(table.schema.get_field_index(name), name, table[name].cast(kind))
    path = tmp_path / "rows.parquet"
    if kind == pa.string_view() and older("pyarrow", 21):
        pytest.skip("pyarrow before 21 does not write it")
    parquet.write_table(table, path, row_group_size=CODED_ROWS)
    if kind != pa.string_view():
        assert types(path, ["town", "code", "x"]) == [DICTIONARY, "double"]
    for encoder in (
        OneHotEncoder(handle_unknown="ignore"),
        OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1, encoded_missing_value=-2),
    ):
        source = fitted(encoder)
        hbc.score(hbc.convert(source, backend="numpy"), path, tmp_path / "out", keep=["code", "x"])
        out = parquet.read_table(tmp_path / "out")
        assert out.schema.field("code").type == kind or kind == pa.string_view()
        assert out["code"].to_pylist() == table["code"].to_pylist()
        # BLAS may sum a batch in another order than all rows at once: near 0, that is much of the result.
        np.testing.assert_allclose(out["predict"], source.predict(frame), rtol=1e-12, atol=1e-14)
        (tmp_path / "out").rename(tmp_path / type(encoder).__name__)


def test_an_unknown_string_is_bad_in_its_own_row_only(tmp_path: Path) -> None:
    """Its row group's dictionary has it for all batches of the group."""
    source = fitted(OneHotEncoder())
    frame = frame_of(5 * CODED_ROWS, seed=2)
    bad = 5 * CODED_ROWS - 3
    frame.loc[bad, "town"] = "unknown"
    frame.to_parquet(tmp_path / "rows.parquet")
    model = hbc.convert(source, backend="numpy")
    with pytest.raises(hbc.InvalidInputError, match=f"row {bad} .*column 'town'"):
        hbc.score(model, tmp_path / "rows.parquet", tmp_path / "none.parquet")
    summary = hbc.score(model, tmp_path / "rows.parquet", tmp_path / "out.parquet", bad_rows=tmp_path / "bad.jsonl")
    assert summary.bad_rows == 1
    found = parquet.read_table(tmp_path / "out.parquet")["predict"]
    assert found[bad].as_py() is None
    good = frame.drop(index=bad)
    np.testing.assert_allclose(found.drop_null(), source.predict(good), rtol=1e-12, atol=1e-14)


def test_strings_that_stand_for_categories(tmp_path: Path) -> None:
    """Strings are the categories of these names, whatever else a dictionary has. Categories of the file stay categories."""
    frame = frame_of(400).astype({"town": pd.CategoricalDtype(TOWNS), "code": "category"})
    source = lightgbm.LGBMRegressor(n_estimators=5, verbose=-1).fit(frame, frame.x + (frame.town == "Oslo"))
    model = hbc.convert(source, backend="numpy")
    plain = frame_of(ROWS, seed=3)
    given = plain.astype({"town": frame.town.dtype, "code": frame.code.dtype})
    plain.to_parquet(tmp_path / "strings.parquet")
    given.to_parquet(tmp_path / "categories.parquet")
    for name in ("strings", "categories"):
        hbc.score(model, tmp_path / f"{name}.parquet", tmp_path / f"{name}-out.parquet")
        found = parquet.read_table(tmp_path / f"{name}-out.parquet")["predict"]
        np.testing.assert_allclose(found, source.predict(given), rtol=1e-12)


def test_many_different_strings_small_groups_and_small_batches_are_read_as_strings(tmp_path: Path) -> None:
    """A dictionary would grow by every string of the row group, and each row group would be a batch."""
    frame = frame_of(ROWS, seed=4)
    frame["town"] = [f"town {i}" for i in range(ROWS)]
    path = tmp_path / "rows.parquet"
    frame.to_parquet(path, row_group_size=ROWS)
    assert types(path, ["town"]) == ["string"] or types(path, ["town"]) == ["large_string"]
    assert types(path, ["code"]) == [DICTIONARY]
    assert DICTIONARY not in types(path, ["code"], CODED_ROWS - 1)
    parquet.write_table(pa.Table.from_pandas(frame), path, row_group_size=CODED_ROWS - 1)
    assert DICTIONARY not in types(path, ["code"])
    parquet.write_table(pa.Table.from_pandas(frame), path, use_dictionary=False)
    assert DICTIONARY not in types(path, ["code"])


def test_the_bytes_do_not_depend_on_how_strings_are_read(tmp_path: Path) -> None:
    """With little memory, batches are small, and strings are read as such."""
    path = tmp_path / "rows.parquet"
    frame_of(ROWS, seed=5).to_parquet(path, row_group_size=ROWS // 2 + 11)
    model = hbc.convert(fitted(OrdinalEncoder()), backend="numpy")
    for name, memory in (("large", "1GiB"), ("small", "401MiB")):
        hbc.score(model, path, tmp_path / f"{name}.parquet", keep="town", memory=memory)
    assert (tmp_path / "large.parquet").read_bytes() == (tmp_path / "small.parquet").read_bytes()


def test_numbers_and_strings_need_no_pandas(model: Path, frame: pd.DataFrame, tmp_path: Path) -> None:
    """It takes longer to import than all else that a process with a small file does."""
    frame.to_parquet(tmp_path / "rows.parquet")
    code = "import sys, hbc; hbc.score(*sys.argv[1:], methods='predict_proba'); sys.exit('pandas' in sys.modules)"
    subprocess.run([sys.executable, "-c", code, model, tmp_path / "rows.parquet", tmp_path / "out.parquet"], check=True)
