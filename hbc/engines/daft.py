"""Daft: `score(frame, "model.hbc")` is a frame of a model's results."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import daft
import pyarrow as pa

from hbc.engines.worker import WorkerMethod, require_data
from hbc.runtime.model import CompiledModel


def score(
    frame: Any,
    model: CompiledModel | str | os.PathLike[str],
    methods: str | Sequence[str] | None = None,
    keep: str | Sequence[str] = (),
    *,
    class_names: Sequence[str] | None = None,
    **options: Any,
) -> Any:
    """A `daft.DataFrame` with a row for each row of `frame`: the kept columns, then the results of the model. It is lazy, as all frames
    are.

    model: a CompiledModel, or the path of a file that `CompiledModel.save` wrote. A worker elsewhere is sent the file, and loads it once.
    methods: one or several, by default "predict". keep: names of columns of `frame` to return too. class_names: names for the columns of
    probabilities, instead of the classes.
    options: more of `daft.func.batch`, such as `batch_size`. `use_process=True` computes in processes of their own. Here that is False:
    compiled code lets other threads run, and nothing is copied.

    Only the columns that are needed are read. Rows keep their order. Raises ValueError for an unknown method, InvalidInputError if a
    column is missing, TypeError for other data."""
    require_data("frame", frame, "column_names", "a DataFrame of Daft: daft.from_pandas makes one of pandas'")
    method = WorkerMethod(model, methods, keep, class_names)
    inputs = method.inputs(frame.column_names)

    def results(*columns: Any) -> Any:
        batch = pa.RecordBatch.from_arrays([column.to_arrow() for column in columns], inputs)
        return method.answer(batch).to_struct_array()

    kind = daft.DataType.from_arrow_type(pa.struct(list(method.results)))
    function = daft.func.batch(return_dtype=kind, unnest=True, **{"use_process": False, **options})(results)
    return frame.select(*method.keep, function(*map(daft.col, inputs)))
