"""Ray Data: `score(dataset, "model.hbc")` is a dataset of a model's results."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from ray.data import ActorPoolStrategy

from hbc.engines.worker import Scorer
from hbc.runtime.model import CompiledModel


class HbcScorer:
    """An actor of Ray Data. Its process has loaded the model before the first block comes."""

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer
        scorer.results  # noqa: B018

    def __call__(self, block: Any) -> Any:
        return self._scorer(block)


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
    InvalidInputError if a column is missing."""
    scorer = Scorer(model, methods, keep, class_names)
    columns = dataset.columns()
    data = dataset if columns is None else dataset.select_columns(scorer.reads(columns))  # None: it has no rows
    if workers is not None:
        options["compute"] = ActorPoolStrategy(min_size=1, max_size=workers)
    return data.map_batches(HbcScorer, fn_constructor_args=(scorer,), batch_format="pyarrow", zero_copy_batch=True, **options)
