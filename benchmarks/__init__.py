"""Benchmarks. Answers are checked before anything is timed. Engines run side by side, with a fixed number of threads."""

import os

# One thread for every engine. This must be set before any of them is imported.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
