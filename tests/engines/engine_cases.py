"""A model of numbers and strings, the rows that all engines score, and what scikit-learn says of them."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

import hbc

ROWS, FILES = 4_000, 8
METHODS = ("predict", "predict_proba")
NAMES = ["predict", "predict_proba_ja", "predict_proba_naïve", "predict_proba_nein"]


def rows(n: int, seed: int = 0) -> pa.Table:
    """Rows with missing values, integers beyond 2^24, and strings beyond ASCII."""
    rng = np.random.default_rng(seed)
    age = rng.uniform(18, 90, n)
    missing = rng.random(n) < 0.1
    return pa.table(
        {
            "id": np.arange(n),
            "town": rng.choice(["Köln", "Ulm", "東京", ""], n),
            "age": pa.array(age, mask=missing),
            "fare": rng.normal(size=n).astype("float32"),
            "visits": rng.integers(-(2**30), 2**30, n),
            "noted": pa.array([None if i % 7 == 0 else f"n{i}" for i in range(n)]),
        }
    )


def fitted() -> Any:
    data = rows(600, 1).to_pandas()
    columns = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), ["town"]), ("passthrough", ["visits", "age", "fare"])
    )
    high = data["age"].fillna(0) + 20 * (data["town"] == "Ulm")
    labels = np.select([high > 60, data["visits"] > 0], ["naïve", "ja"], "nein")
    return make_pipeline(columns, HistGradientBoostingClassifier(max_iter=5, random_state=0)).fit(data, labels)


MODEL = fitted()
TABLE = rows(ROWS)


def saved(folder: Path) -> Path:
    path = folder / "model.hbc"
    hbc.convert(MODEL, "numpy", rows(10, 1).to_pandas()).save(path)
    return path


def parquet(folder: Path) -> Path:
    """A folder of FILES files with the rows in order, two row groups each."""
    place = folder / "rows"
    place.mkdir()
    step = ROWS // FILES
    for i in range(FILES):
        pq.write_table(TABLE.slice(i * step, step), place / f"{i:03}.parquet", row_group_size=step // 2 + 1)
    return place


def require_same(found: pa.Table, keep: tuple[str, ...] = ("id", "noted"), ordered: bool = True) -> None:
    """The rows are all there, once, with what they were given and what scikit-learn says of them."""
    assert found.column_names == [*keep, *NAMES]
    ids = found["id"].to_numpy()
    assert sorted(ids) == list(range(ROWS))
    assert not ordered or list(ids) == list(range(ROWS))
    source = TABLE.take(pa.array(ids))
    for name in keep:
        assert found[name].to_pylist() == source[name].to_pylist()
    frame = source.to_pandas()
    assert found["predict"].to_pylist() == MODEL.predict(frame).tolist()
    probabilities = np.column_stack([found[f"predict_proba_{label}"].to_numpy() for label in MODEL.classes_])
    np.testing.assert_allclose(probabilities, MODEL.predict_proba(frame), rtol=1e-5, atol=1e-6)


def run_example(section: str) -> dict[str, Any]:
    """Run the examples of a section of docs/engines.md, in the working directory (which Spark's Java does not know). Returns their
    names."""
    page = (Path(__file__).parents[2] / "docs" / "engines.md").read_text()
    blocks = re.findall(
        r"```python\n(.*?)```", page.partition("## ")[0] + page.partition(f"## {section}\n")[2].partition("\n## ")[0], re.S
    )
    assert len(blocks) > 1
    names: dict[str, Any] = {}
    exec(blocks[0], names)
    names["people"].to_parquet("people.parquet")
    for block in blocks[1:]:
        exec(re.sub(r'"(people\.parquet|scored)"', lambda found: repr(os.path.abspath(found[1])), block), names)
    return names
