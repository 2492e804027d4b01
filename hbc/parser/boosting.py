"""What the converters of LightGBM and XGBoost share."""

from __future__ import annotations

import numpy as np

from hbc.ir.types import Array


def rounded_down(thresholds: Array) -> Array:
    """The largest float32 ≤ each float64 threshold: for a float32 x, `x <= threshold` in float64 is `x <= rounded` in float32."""
    with np.errstate(over="ignore", under="ignore"):
        rounded = thresholds.astype(np.float32)
        return np.where(rounded.astype(np.float64) > thresholds, np.nextafter(rounded, np.float32(-np.inf)), rounded)
