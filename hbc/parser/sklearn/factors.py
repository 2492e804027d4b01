"""Converters for NMF, MiniBatchNMF and LatentDirichletAllocation: rows as mixtures of components or topics, found by iteration."""

from __future__ import annotations

from typing import Any

import numpy as np

from hbc.ir.graph import Node
from hbc.ir.signature import Sparse
from hbc.ir.types import FLOAT32_LIMIT, NUMPY_DTYPES, Array, dtype_name
from hbc.ops import tensor as t
from hbc.ops.checks import CheckLeast
from hbc.ops.nmf import CoordinateDescent, MultiplicativeUpdates
from hbc.ops.topics import Topics
from hbc.parser.frame import Refusal
from hbc.parser.front_door import maker, note_input
from hbc.parser.registry import Result, converts, public_name
from hbc.parser.sklearn.shared.common import checked, float_of, rejected
from hbc.parser.sparsity import is_sparse, sparse_format


def _penalties(m: Any, width: int) -> tuple[float, float]:
    """(l1, l2): the penalties on the weights that `transform` finds, for `width` features (_BaseNMF._compute_regularization)."""
    return width * m.alpha_W * m.l1_ratio, width * m.alpha_W * (1.0 - m.l1_ratio)


def _reject_csc(m: Any, x: Node) -> None:
    """Note that the caller's CSC is rejected. Raises Refusal if the step before makes CSC. Reason: where beta_loss is not 2, multiplicative
    updates divide the entries of x by those of a CSR matrix, place by place (_special_sparse_dot)."""
    if m._beta_loss == 2:
        return
    note_input(Sparse(csc=False))
    made = maker(x)
    if made is not None and sparse_format(made[0], "csr *").startswith("csc"):
        if is_sparse(x):
            raise Refusal("the source mixes up the entries of the sparse matrix (CSC) that the step before gives.")
        note_input(Sparse(accepted=False))


@converts("sklearn.decomposition.NMF")
def nmf(m: Any, x: Node) -> Result:
    """`transform` gives the weights of the components in each row, [N, K], all ≥ 0. All rows of a call together decide when the iteration
    stops, as in the source."""
    if m.solver == "mu":
        _reject_csc(m, x)
    x = float_of(checked(m, x))
    h = np.asarray(m.components_)
    if not h.any():
        raise Refusal("its components are all 0, and the source's transform raises an error.", "Fit it on other data.")
    if h.dtype != NUMPY_DTYPES[x.type.dtype]:
        x = t.cast(
            rejected(m, x, f"its components are {h.dtype}, and the source takes that dtype only: cast it with astype"),
            dtype_name(h.dtype),
        )
    # For beta_loss ≤ 0 the divergence has a logarithm or a quotient of x, and the source rejects 0 as well as negative numbers.
    x = CheckLeast(public_name(type(m)), exclusive=m._beta_loss <= 0)(x)
    l1, l2 = _penalties(m, h.shape[1])
    if m.solver == "mu":
        return MultiplicativeUpdates(h, float(m._beta_loss), l1, l2, float(m.tol), int(m.max_iter))(x)
    transposed = np.ascontiguousarray(h.T)
    gram = np.dot(transposed.T, transposed)
    gram.flat[:: len(h) + 1] += l2
    return CoordinateDescent(gram, l1, float(m.tol), int(m.max_iter), _order(m))(t.matmul(x, transposed))


def _order(m: Any) -> int:
    """The seed for the order of the components, or -1 if they keep theirs. Raises Refusal if the order is random at every call."""
    if not m.shuffle:
        return -1
    if not isinstance(m.random_state, (int, np.integer)):
        found = "no seed" if m.random_state is None else "a RandomState"
        raise Refusal(
            f"it shuffles its components with {found} as random_state, and gives another result at every call.",
            "Set random_state to an integer.",
        )
    return int(m.random_state)


@converts("sklearn.decomposition.MiniBatchNMF")
def mini_batch_nmf(m: Any, x: Node) -> Result:
    """`transform` as of NMF with solver="mu", with two differences: it stops at a small change of the weights, and it does not reject
    negative numbers."""
    _reject_csc(m, x)
    x = float_of(checked(m, x))
    h: Array = np.asarray(m.components_)
    l1, l2 = _penalties(m, h.shape[1])
    return MultiplicativeUpdates(h, float(m._beta_loss), l1, l2, float(m.tol), int(m._transform_max_iter), online=True)(x)


@converts("sklearn.decomposition.LatentDirichletAllocation")
def latent_dirichlet_allocation(m: Any, x: Node) -> Result:
    """`transform` gives the shares of the topics in each document, [N, K], in the dtype of the components."""
    words = np.asarray(m.exp_dirichlet_component_)
    kind = dtype_name(words.dtype)
    x = t.cast(checked(m, x, limit=FLOAT32_LIMIT if kind == "f32" else float("inf")), kind)
    x = CheckLeast(public_name(type(m)))(x)
    return Topics(words, float(m.doc_topic_prior_), float(m.mean_change_tol), int(m.max_doc_update_iter))(x)
