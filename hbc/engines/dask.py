"""Dask: `score(frame, "model.hbc")` is a frame of a model's results; `map_tasks` is for `hbc score --engine dask`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import dask
import distributed
import pandas as pd
import pyarrow as pa
from distributed.comm.addressing import parse_address
from distributed.comm.registry import get_backend

from hbc.engines.worker import WorkerMethod, require_data
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
    keep their order. Raises ValueError for an unknown method, InvalidInputError if a column is missing, TypeError for other data."""
    require_data("frame", frame, "map_partitions", "a DataFrame of Dask: dask.dataframe.from_pandas makes one of pandas'")
    method = WorkerMethod(model, methods, keep, class_names)
    data = frame[method.reads(frame.columns)]
    return data.map_partitions(_scored, dask.delayed(method, traverse=False), meta=_scored(data._meta, method))


def _scored(frame: Any, method: WorkerMethod) -> Any:
    """The answer to a partition, a frame of pandas. Raises InvalidInputError."""
    inputs = method.inputs(frame.columns)
    try:
        table = pa.Table.from_pandas(frame[inputs], preserve_index=False)
    except (pa.ArrowException, TypeError) as error:  # TypeError: sparse columns
        raise InvalidInputError(
            found=f"a column that Arrow cannot hold ({error})",
            expected="columns of one type: numbers, strings or categories",
            advice="Make sparse columns dense before, and objects of one type: frame.astype({column: 'float64'}).",
        ) from error
    found = method.answer(table).to_pandas().set_axis(frame.index)
    return pd.concat([frame[list(method.keep)], found], axis=1)


def map_tasks(function: Callable[[Any], Any], tasks: Sequence[Any], workers: int | None, address: str | None) -> Iterator[Any]:
    """Yields function(task) for each task, as Dask's workers are done with them. A task whose worker dies is given to another.

    workers: the processes of a cluster that is started here and ended, by default one a CPU; another cluster decides itself. address: of
    that one; without it the one that this process is connected to. Raises ValueError for what is no address, OSError if nothing answers
    there."""
    with contextlib.ExitStack() as stack:
        client = _client(stack, workers, address)
        futures = client.map(_call, list(tasks), function=client.scatter(function, broadcast=True), pure=False)
        with client.as_current():
            completed = distributed.as_completed(futures)
        try:
            for future in completed:
                yield future.result()
        finally:
            client.cancel(futures)


def _client(stack: contextlib.ExitStack, workers: int | None, address: str | None) -> Any:
    """The client of `map_tasks`. What is started for it ends with `stack`. It is not the process's default: one that cannot connect would
    stay that, and every other computation of Dask would fail."""
    if address is not None:
        try:
            scheme, _ = parse_address(address, strict=True)
            get_backend(scheme)
            return stack.enter_context(distributed.Client(address, set_as_default=False))
        except ValueError as error:
            raise ValueError(
                f"engine_address: found {address!r} ({error}), expected that of a cluster, such as tcp://host:8786"
            ) from error
    try:
        return distributed.get_client()
    except ValueError:  # this process is connected to none
        options = {"n_workers": workers, "threads_per_worker": 1, "host": "127.0.0.1", "dashboard_address": None}
        cluster = stack.enter_context(distributed.LocalCluster(**options))
        return stack.enter_context(distributed.Client(cluster, set_as_default=False))


def _call(task: Any, function: Callable[[Any], Any]) -> Any:
    return function(task)
