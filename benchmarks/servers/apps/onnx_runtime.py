"""FastAPI before ONNX Runtime. The file is hbc's own export, which runs no slower than those of skl2onnx."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from fastapi import FastAPI
from pydantic import BaseModel

options = onnxruntime.SessionOptions()
options.intra_op_num_threads = options.inter_op_num_threads = 1
session = onnxruntime.InferenceSession(str(Path(os.environ["MODEL_FOLDER"]) / "model.onnx"), options)
DTYPES = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(string)": object}
INPUTS = {each.name: DTYPES[each.type] for each in session.get_inputs()}
MIXED = os.environ["MODEL_KIND"] == "mixed"

app = FastAPI()


class Body(BaseModel):
    """The body of a request: rows of numbers, or records."""

    rows: list[list[float]] | None = None
    records: list[dict[str, Any]] | None = None


@app.post("/predict")
async def predict(body: Body) -> dict[str, list[float]]:
    """`async`, since a call takes less time than the way to a thread and back."""
    if MIXED:
        feed = {
            name: np.array([record[name] for record in body.records or ()], dtype).reshape(-1, 1)
            for name, dtype in INPUTS.items()
        }
    else:
        feed = {"X": np.array(body.rows, np.float32)}
    (found,) = session.run(["predict_proba"], feed)
    return {"probabilities": found[:, 1].tolist()}
