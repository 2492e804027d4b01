"""PairwiseCoupling in PyTorch: sweeps over all rows at once, until no row needs another sweep."""

from __future__ import annotations

import torch
from torch import Tensor

from hbc.compiler.torch.exact import Function, scripted
from hbc.compiler.torch.rules import runs
from hbc.ir.graph import Node
from hbc.ops.coupling import PairwiseCoupling


def coupled(r: Tensor, places: Tensor, sweeps: int, tolerance: float) -> Tensor:
    """PairwiseCoupling of r[N, P], [N, K]. places[K, K] holds the column of r for each pair of classes."""
    classes = places.size(0)
    places = places.to(r.device)
    against = torch.index_select(r, 1, places.flatten()).reshape(r.size(0), classes, classes)
    above = torch.ones([classes, classes], device=r.device).triu(1) > 0
    against = torch.where(above, against, 1 - against)
    transposed = against.transpose(1, 2)
    Q = -transposed * against
    diagonal = torch.zeros([r.size(0), classes], dtype=r.dtype, device=r.device)
    for j in range(classes):
        square = transposed[:, :, j] * transposed[:, :, j]
        square[:, j] = 0.0
        diagonal = diagonal + square
    Q.diagonal(0, 1, 2).copy_(diagonal)
    p = torch.full([r.size(0), classes], 1.0 / classes, dtype=r.dtype, device=r.device)
    on = torch.ones([r.size(0), 1], dtype=torch.bool, device=r.device)
    for _ in range(sweeps):
        Qp = torch.zeros_like(p)
        for j in range(classes):
            Qp = Qp + Q[:, :, j] * p[:, j : j + 1]
        pQp = torch.zeros_like(p[:, :1])
        for j in range(classes):
            pQp = pQp + p[:, j : j + 1] * Qp[:, j : j + 1]
        on = on & (torch.abs(Qp - pQp) >= tolerance).any(1, keepdim=True)
        if not bool(on.any()):
            break
        next = p.clone()
        for i in range(classes):
            least = Q[:, i, i : i + 1]
            diff = (pQp - Qp[:, i : i + 1]) / least
            next[:, i : i + 1] += diff
            whole = 1 + diff
            pQp = (pQp + diff * (diff * least + 2 * Qp[:, i : i + 1])) / whole / whole
            Qp = (Qp + diff * Q[:, i]) / whole
            next = next / whole
        p = torch.where(on, next, p)
    return p


@runs(PairwiseCoupling)
def _pairwise_coupling(op: PairwiseCoupling, node: Node) -> Function:
    places, sweeps, tolerance = torch.from_numpy(op.places), op.sweeps, op.tolerance
    return lambda r: scripted(coupled)(r, places, sweeps, tolerance)
