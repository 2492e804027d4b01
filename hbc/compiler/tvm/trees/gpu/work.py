"""The work of a warp of rows, by the parts of an SM that it keeps busy.

All numbers of work in this package were counted in whole kernels for sm_90 by `cd tests && python -m cuda_on_cpu.counts` (tests/cuda_on_cpu
has counts.py for walks and beside.py for what is beside them). Those were 500 trees of 28 features: LightGBM of depth 3 to 6 and 8 and of
31 leaves, XGBoost of depth 6 and 8, forests of depth 8 and of unlimited depth. No card has measured them.
"""

from __future__ import annotations

import numpy as np

from hbc.ir.types import Array

PARTS = ("all", "alu", "fma", "wavefronts", "tensor")
"""All instructions, those of the ALU, those of the FMA pipe, wavefronts of shared memory or lines of L1, and products of tensor cores: of
16 × 32 times 32 × 8 integers of 8 bits."""
RATES = np.array([4.0, 2.0, 2.0, 1.0, 0.5])
"""How many of each an SM executes in a clock. Of products, as many as one of sm_80 by NVIDIA's figure. That of sm_90 is twice as high, but
it is for other instructions (`wgmma`), and no card has shown how fast `mma.sync` is there."""


def work(instructions: float, alu: float, fma: float, wavefronts: float, tensor: float = 0.0) -> Array:
    """f64[5]: how much of each of PARTS."""
    return np.array([instructions, alu, fma, wavefronts, tensor])


def clocks(of: Array) -> float:
    """The clocks of an SM for some work: the most that one of its parts is busy."""
    return float((of / RATES).max())
