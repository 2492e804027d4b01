"""Benchmarks: answers are checked before anything is timed; engines run side by side in one process, threads pinned."""

import os

# Before any engine is imported: one thread for all of them.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
