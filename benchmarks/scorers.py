"""The programs that `benchmarks/scoring.py` starts: `python -m benchmarks.scorers NAME MODEL_FOLDER OUT THREADS FILE…` reads files of
Parquet, scores them and writes files of Parquet. Each prints the seconds of its loop, without imports and without loading the model."""

from __future__ import annotations

import os
import pickle
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

BATCH = 1 << 16
"""Rows that are read together. It is the number of rows that hbc computes together."""
ANSWERS = pa.schema([("predict_proba_0", pa.float64()), ("predict_proba_1", pa.float64())])
Score = Callable[[Any], Any]
"""A batch → the batch of its answers."""


def answers(shares: Any) -> Any:
    """The batch for probabilities [rows, 2], or [rows] of the second class."""
    columns = [1 - shares, shares] if shares.ndim == 1 else list(np.asarray(shares, "f8").T)
    return pa.RecordBatch.from_arrays([pa.array(column) for column in columns], schema=ANSWERS)


def alone(folder: Path, threads: int) -> Score:
    """pyarrow alone: it reads all columns, and writes numbers that cost nothing."""
    shares = np.random.default_rng(0).random((BATCH, 2))
    return lambda batch: answers(shares[: batch.num_rows])


def arrow_loop(folder: Path, threads: int) -> Score:
    """hbc's `m.arrow` in a loop."""
    import hbc

    return hbc.load(folder / "model.hbc").arrow("predict_proba")


def sklearn_loop(folder: Path, threads: int) -> Score:
    """scikit-learn's pipeline on the frame of pandas of each batch."""
    model = pickle.loads((folder / "model.pkl").read_bytes())
    model[-1].set_params(n_jobs=threads)
    return lambda batch: answers(model.predict_proba(batch.to_pandas()))


def onnxruntime_loop(folder: Path, threads: int) -> Score:
    """ONNX Runtime with the graph of skl2onnx and onnxmltools: numbers as float32, strings as Python objects."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(folder / "model.onnx", options, providers=["CPUExecutionProvider"])

    def score(batch: Any) -> Any:
        inputs = {}
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            values = column.to_numpy(zero_copy_only=False)
            inputs[name] = (values if values.dtype.kind == "O" else values.astype("f4")).reshape(-1, 1)
        return answers(session.run(["probabilities"], inputs)[0])

    return score


def duckdb_whole(files: list[str], out: Path, folder: Path, threads: int) -> float:
    """DuckDB reads, calls scikit-learn's pipeline as a vectorised function of its own, and writes."""
    import duckdb

    model = pickle.loads((folder / "model.pkl").read_bytes())
    model[-1].set_params(n_jobs=threads)
    schema = pq.read_schema(files[0])

    def score(*columns: Any) -> Any:
        return pa.array(model.predict_proba(pa.table(dict(zip(schema.names, columns, strict=True))).to_pandas())[:, 1])

    connection = duckdb.connect()
    connection.execute(f"SET threads = {threads}")
    connection.create_function("score", score, None, "DOUBLE", type="arrow", null_handling="special")
    start = time.perf_counter()
    for file in files:
        query = f"SELECT 1 - p AS predict_proba_0, p AS predict_proba_1 FROM (SELECT score({', '.join(schema.names)}) AS p FROM '{file}')"
        connection.execute(f"COPY ({query}) TO '{out / Path(file).name}' (FORMAT parquet)")
    return time.perf_counter() - start


LOOPS = {"pyarrow": alone, "arrow": arrow_loop, "sklearn": sklearn_loop, "onnxruntime": onnxruntime_loop}


def batches(file: str) -> Iterator[Any]:
    """Reads a file as far as it is asked for, and frees what was read."""
    with pq.ParquetFile(file, pre_buffer=False, buffer_size=1 << 20) as opened:
        yield from opened.iter_batches(BATCH)


def loop(files: list[str], out: Path, score: Score) -> float:
    start = time.perf_counter()
    for file in files:
        with pq.ParquetWriter(out / Path(file).name, ANSWERS) as writer:
            for batch in batches(file):
                writer.write_batch(score(batch))
    return time.perf_counter() - start


def main(name: str, folder: str, target: str, threads: str, *files: str) -> None:
    warnings.simplefilter("ignore")
    out, count = Path(target), int(threads)
    out.mkdir(parents=True, exist_ok=True)
    pa.set_cpu_count(count)
    pa.set_io_thread_count(count)
    os.environ.pop("PYTHONWARNINGS", None)
    if name == "duckdb":
        seconds = duckdb_whole(list(files), out, Path(folder), count)
    else:
        seconds = loop(list(files), out, LOOPS[name](Path(folder), count))
    print(seconds)


if __name__ == "__main__":
    main(*sys.argv[1:])
