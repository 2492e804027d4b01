"""The rows that the tests of scoring are about."""

from __future__ import annotations

import numpy as np
import pandas as pd

FEATURES = ["age", "rooms", "town"]


def frame_of(rows: int, seed: int = 0) -> pd.DataFrame:
    """Rows with missing numbers, an integer column, strings that are not ASCII, and a column that no model reads."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "id": np.arange(rows),
            "town": rng.choice(["Oslo", "Zürich", "東京", "a,b", 'say "hi"'], rows),
            "age": rng.normal(40, 10, rows),
            "rooms": rng.integers(1, 9, rows),
            "note": [f"note {i}" for i in range(rows)],
        }
    )
    frame.loc[frame.index % 7 == 3, "age"] = np.nan
    return frame
