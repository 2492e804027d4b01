"""Pins every engine's threads before it is imported: the machine has two cores, and xdist uses both."""

import os
import tempfile

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TVM_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

# What somebody tuned on this computer changes nothing here.
os.environ["HBC_CACHE"] = os.path.join(tempfile.gettempdir(), "hbc-tests-have-no-cache")
