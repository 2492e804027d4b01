"""FastAPI before the library that trained the model, as its documentation shows."""

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from source import probabilities

app = FastAPI()


class Body(BaseModel):
    """The body of a request: rows of numbers, or records."""

    rows: list[list[float]] | None = None
    records: list[dict[str, Any]] | None = None


@app.post("/predict")
async def predict(body: Body) -> dict[str, list[float]]:
    """`async`, since a call takes less time than the way to a thread and back."""
    return {"probabilities": probabilities({"rows": body.rows, "records": body.records})}
