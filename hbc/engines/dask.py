"""Dask: `score(frame, "model.hbc")` is a frame of a model's results."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import dask
import pandas as pd
import pyarrow as pa

from hbc.engines.worker import Scorer
from hbc.errors import InvalidInputError
from hbc.runtime.model import CompiledModel


def score(
    frame: Any,
    model: CompiledModel | str | os.PathLike[str],
    methods: str | Sequence[str] | None = None,
    keep: str | Sequence[str] = (),
    *,
    class_names: Sequence[str] | None = None,
) -> Any:
    """A `dask.dataframe.DataFrame` with a row for each row of `frame`, and its index: the kept columns, then the results of the model. It
    is lazy, as all frames are.

    model: a CompiledModel, or the path of a file that `CompiledModel.save` wrote. Each worker is sent the file, and loads it once.
    methods: one or several, by default "predict". keep: names of columns of `frame` to return too. class_names: names for the columns of
    probabilities, instead of the classes.

    Only the columns that are needed are read. Dask replaces a worker that dies, and computes its partitions again. Partitions and rows
    keep their order. Raises ValueError for an unknown method, InvalidInputError if a column is missing."""
    scorer = Scorer(model, methods, keep, class_names)
    data = frame[scorer.reads(frame.columns)]
    return data.map_partitions(_scored, dask.delayed(scorer, traverse=False), meta=_scored(data._meta, scorer))


def _scored(frame: Any, scorer: Scorer) -> Any:
    """The answer to a partition, a frame of pandas. Raises InvalidInputError."""
    inputs = scorer.inputs(frame.columns)
    try:
        table = pa.Table.from_pandas(frame[inputs], preserve_index=False)
    except pa.ArrowException as error:
        raise InvalidInputError(
            found=f"a column that Arrow cannot hold ({error})", expected="columns of one type: numbers, strings or categories"
        ) from error
    found = scorer.answer(table).to_pandas().set_axis(frame.index)
    return pd.concat([frame[list(scorer.keep)], found], axis=1)
