"""Ray: `score(dataset, "model.hbc")` is a dataset of a model's results; `map_tasks` is for `hbc score --engine ray`."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ray
from ray.data import ActorPoolStrategy

from hbc.engines.worker import WorkerMethod, require_data
from hbc.runtime.model import CompiledModel


class HbcActor:
    """An actor of Ray Data. Its process has loaded the model before the first block comes."""

    def __init__(self, method: WorkerMethod) -> None:
        self._method = method
        method.results  # noqa: B018

    def __call__(self, block: Any) -> Any:
        return self._method(block)


def score(
    dataset: Any,
    model: CompiledModel | str | os.PathLike[str],
    methods: str | Sequence[str] | None = None,
    keep: str | Sequence[str] = (),
    *,
    class_names: Sequence[str] | None = None,
    workers: int | None = None,
    **options: Any,
) -> Any:
    """A `ray.data.Dataset` with a row for each row of `dataset`: the kept columns, then the results of the model. It is lazy, as all
    datasets are.

    model: a CompiledModel, or the path of a file that `CompiledModel.save` wrote. Each worker is sent the file, and loads it once.
    methods: one or several, by default "predict". keep: names of columns of `dataset` to return too. class_names: names for the columns of
    probabilities, instead of the classes.
    workers: the most actors, each a process with the model; by default Ray decides. There may be fewer: Ray waits for ever if all CPUs
    belong to actors, and none is left to read. options: more of `Dataset.map_batches`, such as
    `num_cpus` or `batch_size`.

    Only the columns that are needed are read. Ray replaces an actor that dies, and gives its blocks to another. Rows come in the order of
    `dataset` if `ray.data.DataContext.get_current().execution_options.preserve_order` is true. Raises ValueError for an unknown method,
    InvalidInputError if a column is missing, TypeError for other data."""
    require_data("dataset", dataset, "map_batches", "a Dataset of Ray: ray.data.from_pandas makes one of a frame")
    method = WorkerMethod(model, methods, keep, class_names)
    columns = dataset.columns()
    data = dataset if columns is None else dataset.select_columns(method.reads(columns))  # None: it has no rows
    if workers is not None:
        options["compute"] = ActorPoolStrategy(min_size=1, max_size=workers)
    return data.map_batches(HbcActor, fn_constructor_args=(method,), batch_format="pyarrow", zero_copy_batch=True, **options)


def map_tasks(function: Callable[[Any], Any], tasks: Sequence[Any], workers: int | None, address: str | None) -> Iterator[Any]:
    """Yields function(task) for each task, as Ray's workers are done with them. A task whose worker dies is given to another.

    workers: the most tasks at a time, by default one a CPU. address: of a cluster; without it the one that this process is connected to, or
    one that is started here and ended. Raises ValueError for an address in a process that is connected already."""
    ours = not ray.is_initialized()
    if not ours and address is not None:
        raise ValueError(
            f"engine_address: found {address!r} in a process that is connected to Ray, expected none, for that cluster "
            "(or call ray.shutdown() before)"
        )
    if ours:
        local = {} if address is not None else {"num_cpus": workers, "include_dashboard": False}
        ray.init(address=address, logging_level="ERROR", log_to_driver=False, **local)
    waiting: list[Any] = []
    try:
        kept = ray.put(function)
        call = ray.remote(_call)
        left = iter(tasks)
        waiting = [call.remote(kept, task) for task in itertools.islice(left, workers)]
        while waiting:
            (done,), waiting = ray.wait(waiting)
            waiting += [call.remote(kept, task) for task in itertools.islice(left, 1)]
            yield ray.get(done)
    finally:
        if ours:
            ray.shutdown()
        else:
            for reference in waiting:
                ray.cancel(reference)


def _call(function: Callable[[Any], Any], task: Any) -> Any:
    return function(task)
