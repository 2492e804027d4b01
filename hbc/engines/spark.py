"""Spark: `score(frame, "model.hbc")` is a frame of a model's results; `udf("model.hbc")` is a function for
columns; `map_tasks` is for `hbc score --engine spark`."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from inspect import Parameter, Signature
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkRuntimeError
from pyspark.ml.functions import predict_batch_udf
from pyspark.sql import SparkSession
from pyspark.sql.functions import col
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from hbc.engines.worker import WorkerMethod, require_data
from hbc.process import cpus
from hbc.runtime.model import CompiledModel


def score(
    frame: Any,
    model: CompiledModel | str | os.PathLike[str],
    methods: str | Sequence[str] | None = None,
    keep: str | Sequence[str] = (),
    *,
    class_names: Sequence[str] | None = None,
) -> Any:
    """A `pyspark.sql.DataFrame` with a row for each row of `frame`: the kept columns, then the results of the model. It is lazy, as all
    frames are.

    model: a CompiledModel, or the path of a file that `CompiledModel.save` wrote. Each worker is sent the file, and loads it once.
    methods: one or several, by default "predict". keep: names of columns of `frame` to return too. class_names: names for the columns of
    probabilities, instead of the classes.

    Only the columns that are needed are read. Batches have `spark.sql.execution.arrow.maxRecordsPerBatch` rows. Spark replaces a worker
    that dies, and computes its partition again. Rows keep the order of `frame` in each partition. Raises ValueError for an unknown method,
    InvalidInputError if a column is missing, TypeError for other data."""
    require_data("frame", frame, "mapInArrow", "a DataFrame of Spark: spark.createDataFrame makes one of pandas'")
    method = WorkerMethod(model, methods, keep, class_names)
    names = method.reads(frame.columns)
    quoted = ["`" + name.replace("`", "``") + "`" for name in names]
    # On the way the columns have names of their own: Spark's mapInArrow fails for a name with a dot.
    data = frame.select(*[col(name).alias(f"c{i}") for i, name in enumerate(quoted)])

    def scored(batches: Iterator[Any]) -> Iterator[Any]:
        return method.stream(batch.rename_columns(names) for batch in batches)

    kept = [frame.schema[name] for name in method.keep]
    return data.mapInArrow(scored, StructType([*kept, *from_arrow_schema(method.results).fields]))


def udf(
    model: CompiledModel | str | os.PathLike[str], method: str | None = None, batch_size: int = 10_000
) -> Callable[..., Any]:
    """A function for columns of Spark, made by `pyspark.ml.functions.predict_batch_udf`:
    `frame.withColumn("risk", udf("model.hbc")("age", "town"))`.

    Its arguments are the columns of the model, in the order of `CompiledModel.arrow(method).columns`; those of a model that knows no names
    in the order in which it was fitted. The result is a column, or for several columns a struct of them: `.select("risk.*")`.

    model: a CompiledModel, or the path of a file that `CompiledModel.save` wrote. Each worker is sent the file, and loads it once.
    method: by default "predict". batch_size: the rows that are computed together.

    The columns go through pandas, which makes float64 of integers with nulls, and takes longer: `score` passes Arrow on. Raises
    ValueError for an unknown method."""
    computed = WorkerMethod(model, method)
    names = computed.names
    kind = from_arrow_schema(computed.results)
    single = len(kind.fields) == 1

    def make() -> Callable[..., Any]:
        def predict(*columns: Any) -> Any:
            batch = pa.RecordBatch.from_arrays([pa.array(column, from_pandas=True) for column in columns], names)
            answer = computed.answer(batch)
            found = {name: answer.column(name).to_numpy(zero_copy_only=False) for name in answer.schema.names}
            return found.popitem()[1] if single else found

        # Spark counts the parameters, and passes as many columns.
        parameters = [Parameter(f"column_{i}", Parameter.POSITIONAL_ONLY) for i in range(len(names))]
        predict.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        return predict

    return predict_batch_udf(make, return_type=kind.fields[0].dataType if single else kind, batch_size=batch_size)


def map_tasks(function: Callable[[Any], Any], tasks: Sequence[Any], workers: int | None, address: str | None) -> Iterator[Any]:
    """Yields function(task) for each task, as Spark's workers are done with them: a job for each task. A task whose worker dies is tried
    again.

    workers: the most tasks at a time, by default one a CPU of this computer, or as many as the cluster of this process takes. address: the
    master of a cluster; without it that of the session of this process, or one that is started here and ended. Raises ValueError if this
    process has a session with another master: there can be one only."""
    found, at_once = _session(), workers or cpus()
    ours = found is None
    if found is not None and address not in (None, found.sparkContext.master):
        raise ValueError(
            f"engine_address: found {address!r}, and a Spark session of this process with the master {found.sparkContext.master!r}; "
            "expected none, for that session"
        )
    session = found or _started(address or f"local[{at_once},4]")
    if workers is None and not (ours and address is None):
        at_once = session.sparkContext.defaultParallelism

    def computed(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            done = [pickle.dumps(function(pickle.loads(task))) for task in batch.column(0).to_pylist()]
            yield pa.RecordBatch.from_arrays([pa.array(done, pa.binary())], ["done"])

    def one(task: Any) -> Any:
        frame = session.createDataFrame([(pickle.dumps(task),)], "task binary").coalesce(1)
        return pickle.loads(frame.mapInArrow(computed, "done binary").collect()[0][0])

    pool = ThreadPoolExecutor(at_once, "hbc score")
    try:
        for future in as_completed([pool.submit(one, task) for task in tasks]):
            yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)
        if ours:
            session.stop()


def _session() -> Any:
    """The session of this thread or else of this process. None if there is none. A thread has no session of its own until it makes one, and
    the one that the builder gave it then would be ended here, though others use it."""
    try:
        return SparkSession.active()
    except PySparkRuntimeError:
        return None


def _started(master: str) -> Any:
    return SparkSession.builder.master(master).appName("hbc score").config("spark.ui.enabled", "false").getOrCreate()
