"""The converter for sklearn.neighbors.KernelDensity."""

from __future__ import annotations

from typing import Any

import numpy as np

from hbc.ir.graph import Node
from hbc.ops import tensor as t
from hbc.parser.frame import Refusal
from hbc.parser.registry import Result, converts
from hbc.parser.sklearn.shared.common import checked
from hbc.parser.sklearn.shared.distances import metric_of, tree_search

REFUSED = {
    "gaussian": "far from all points the source's logarithm is wrong by rounding errors (by 60 of 600 at four standard deviations).",
    "": "it is 0 beyond the bandwidth. If no point is that near, the source returns rounding errors (-37 instead of -inf).",
}
"""Why a kernel is refused, by its name; "" for the other kernels of bounded width.

The source starts from an upper bound on the density and subtracts the parts that nodes of its tree turn out not to have
(_binary_tree.pxi.tp, _kde_single_depthfirst). Where the density is smaller than the rounding of these bounds, only rounding errors are
left. The exponential kernel falls slowly enough, so it converts."""


@converts("sklearn.neighbors.KernelDensity")
def kernel_density(m: Any, x: Node) -> Result:
    """`score_samples`[n] = ln Σ_m weight[m] · exp(-|x[n] - points[m]| / h) + ln norm - ln Σ weight, f64[N], over all points m."""
    from sklearn.neighbors._kd_tree import kernel_norm

    if m.atol > 0 or m.rtol > 1e-8:
        raise Refusal(
            f"with atol={m.atol} and rtol={m.rtol} it leaves out terms, and its tree decides which ones.", "Set both to 0."
        )
    if m.kernel != "exponential":
        raise Refusal(f"kernel {m.kernel!r}: {REFUSED.get(m.kernel) or REFUSED['']}", "Use kernel='exponential'.")
    tree = m.tree_
    data = np.asarray(tree.data)
    found = tree_search(tree, False, metric_of(m.metric, m.metric_params), t.cast(checked(m, x), "f64"), ordered=False)
    terms = t.div(t.neg(found.all_distances()), float(m.bandwidth_))
    total = float(len(data))
    if tree.sample_weight is not None:
        with np.errstate(divide="ignore"):
            terms = t.add(terms, np.log(np.asarray(tree.sample_weight))[None])
        total = float(tree.sum_weight)
    largest = t.max_(terms, 1, keepdims=True)
    shift = t.where(t.less(-np.inf, largest), largest, 0.0)
    density = t.add(t.log(t.sum_(t.exp(t.sub(terms, shift)), 1)), t.reshape(shift, "N"))
    norm = float(kernel_norm(m.bandwidth_, data.shape[1], m.kernel, return_log=True))
    return {"score_samples": t.sub(t.add(density, norm), float(np.log(total)))}
