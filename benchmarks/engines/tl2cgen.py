"""tl2cgen: C code for the model, compiled by gcc."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import tl2cgen

from benchmarks.engines import Task, treelite

load = treelite.load


def build(model: Any, task: Task) -> Any:
    """A call of the code with quantized thresholds, its fastest option. Users have arrays, so its own matrix is made inside the call."""
    folder = Path(tempfile.mkdtemp(prefix="tl2cgen-"))
    library = folder / "model.so"
    tl2cgen.export_lib(model, toolchain="gcc", libpath=library, params={"parallel_comp": 8, "quantize": 1})
    predictor = tl2cgen.Predictor(library, nthread=task.threads)
    return lambda X: predictor.predict(tl2cgen.DMatrix(X, dtype=task.dtype))
