"""The process of one checkout (benchmarks/checkouts.py). It imports the hbc that is there, and nothing of its insides."""

from __future__ import annotations

import os
import pickle
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import hbc
from benchmarks.timing import measure


def serve() -> None:
    """Convert and measure for the other process: pickled requests come in, pickled replies go out."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    hbc.strategies("tvm")  # imports the backend
    call: Any = None
    batches: dict[int, list[Any]] = {}
    while True:
        try:
            what, value = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        reply: Any
        try:
            if what == "convert":
                model, method, X = pickle.loads(Path(value).read_bytes())
                start = time.perf_counter()
                call = getattr(hbc.convert(model, "tvm", threads=1), method)
                call(X[:2])
                seconds = time.perf_counter() - start
                found = call(X)
                batches = {}
                reply = seconds, _numbers(found)
            else:
                rows, budget = value
                parts = batches.setdefault(rows, [X[i : i + rows] for i in range(0, min(len(X), 100 * rows), rows)])
                reply = measure(call, parts, budget)["p50"]
        except Exception as error:
            reply = error
        pickle.dump(reply, replies)
        replies.flush()


def _numbers(found: Any) -> Any:
    """An answer as one array. A sparse matrix gives its parts: as an array, 1,000 rows of 2^20 columns would take 8 GB."""
    if hasattr(found, "tocsr"):
        rows = found.tocsr()
        return np.concatenate([rows.data, rows.indices, rows.indptr])
    return np.asarray(found[0] if isinstance(found, list) else found)
