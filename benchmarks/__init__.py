"""Benchmarks. Answers are checked before anything is timed. Engines run side by side, with a fixed number of threads."""

import os
import sys

# One thread for every engine. This must be set before any of them is imported.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

# OpenBLAS chooses its kernels by the processor. A machine may name older ones for all programs (OPENBLAS_CORETYPE), which slow NumPy and
# scikit-learn down: 1.4 times on a product of matrices on Zen 5 with Haswell's. A process that has NumPy already, such as that of the
# tests, keeps them for itself and so for its children: else their answers would differ from its own in the last bits.
if "numpy" not in sys.modules:
    for variable in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
        os.environ.pop(variable, None)
