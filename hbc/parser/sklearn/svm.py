"""Converters for the estimators of sklearn.svm that use libsvm. (LinearSVC and LinearSVR are in linear.py.)"""

from __future__ import annotations

from typing import Any

import numpy as np

from hbc.ir.graph import Node
from hbc.ir.signature import Sparse
from hbc.ir.types import N
from hbc.ops import tensor as t
from hbc.ops.coupling import ClassProducts, PairwiseCoupling, class_pairs
from hbc.ops.nearest import Distances
from hbc.parser.frame import Refusal
from hbc.parser.front_door import note_input
from hbc.parser.labels import labels
from hbc.parser.pairs import one_vs_rest, votes
from hbc.parser.registry import Result, converts
from hbc.parser.sklearn.shared.common import checked
from hbc.parser.sklearn.shared.kernels import dense, named, whole_power
from hbc.parser.sparsity import may_be_sparse

LEAST_PROBABILITY = 1e-7
"""libsvm's lower bound for the probability of one class against another (svm_predict_probability)."""


def _kernel(m: Any, x: Node) -> Node:
    """The kernel between every row and every support vector, f64[N, M] (`Kernel::k_function` in libsvm's svm.cpp). Raises Refusal for a
    kernel that libsvm does not have, and for a model without support vectors."""
    kernel = named(m.kernel)
    if not m._sparse and may_be_sparse(x):
        note_input(Sparse(accepted=False))  # a model fitted on dense data rejects them
    x, vectors = t.cast(checked(m, x), "f64"), dense(m.support_vectors_).astype(np.float64)
    if not len(vectors):
        raise Refusal("it has no support vectors.", "Fit it with other parameters.")
    if kernel == "rbf":
        return t.exp(t.mul(Distances(vectors, "squared")(x), -float(m._gamma)))
    products = t.matmul(x, vectors.T)
    if kernel == "linear":
        return products
    inner = t.add(t.mul(products, float(m._gamma)), float(m.coef0))
    if kernel == "sigmoid":
        return t.tanh(inner)
    if kernel == "poly":
        return whole_power(inner, m.degree)
    raise Refusal(f"libsvm has no kernel {kernel!r}.")


def _sum(m: Any, x: Node) -> Node:
    """Σ dual_coef · K + intercept, f64[N]."""
    sums = t.add(t.matmul(_kernel(m, x), dense(m._dual_coef_).T.astype(np.float64)), np.asarray(m._intercept_))
    return t.reshape(sums, N)


@converts("sklearn.svm.SVR", "sklearn.svm.NuSVR")
def svr(m: Any, x: Node) -> Result:
    return {"predict": _sum(m, x)}


@converts("sklearn.svm.OneClassSVM")
def one_class_svm(m: Any, x: Node) -> Result:
    """`predict` gives 1 (an inlier) if the decision is above 0, else -1."""
    decision = _sum(m, x)
    inlier = t.cast(t.less(0.0, decision), "i64")
    return {
        "decision_function": decision,
        "score_samples": t.add(decision, np.asarray(m.offset_, np.float64).reshape(-1)),
        "predict": t.sub(t.mul(inlier, 2), 1),
    }


def _decisions(m: Any, x: Node) -> Node:
    """The decision for each pair i < j of classes, f64[N, P]: the sum over the support vectors of class i with their coefficients
    against j, plus the sum over those of class j with their coefficients against i.

    A sum takes the vectors of its own class only. A product over all vectors with coefficients 0 would give NaN where the kernel of
    another class is infinite."""
    kernel, coef = _kernel(m, x), dense(m._dual_coef_).astype(np.float64)
    if len(m.classes_) == 2:
        return t.add(t.matmul(kernel, coef.T), np.asarray(m._intercept_))
    # Column c · (classes - 1) + r is class c with row r of its coefficients: against class r if r < c, else against class r + 1.
    by_class, width = ClassProducts(tuple(m._n_support.tolist()), coef)(kernel), len(m.classes_) - 1
    first, second = class_pairs(len(m.classes_))
    one = t.take(by_class, first * width + second - 1, axis=1)
    other = t.take(by_class, second * width + first, axis=1)
    return t.add(t.add(one, other), np.asarray(m._intercept_))


@converts("sklearn.svm.SVC", "sklearn.svm.NuSVC")
def svc(m: Any, x: Node) -> Result:
    classes = len(m.classes_)
    decisions = _decisions(m, x)
    over_rest = m.decision_function_shape == "ovr" and classes > 2
    if classes == 2:
        outputs = {"decision_function": t.reshape(t.neg(decisions), N)}
    elif over_rest:
        won = votes(t.logical_not(t.less(decisions, 0.0)), classes)
        outputs = {"decision_function": one_vs_rest(won, t.concat([decisions, t.neg(decisions)]), classes)}
    else:
        outputs = {"decision_function": decisions}
    if m.break_ties and over_rest:
        outputs["predict"] = labels(m.classes_, t.argmax(outputs["decision_function"], 1))
    elif not m.break_ties or m.decision_function_shape != "ovo":  # the source's `predict` raises for that combination
        outputs["predict"] = labels(m.classes_, t.argmax(votes(t.less(0.0, decisions), classes), 1))
    if hasattr(m, "predict_proba"):
        if not (np.size(m._probA) and np.size(m._probB)):
            raise Refusal("it was fitted with probability=False, but has probability=True now.", "Fit it again.")
        outputs["predict_proba"] = proba = _proba(m, decisions)
        outputs["predict_log_proba"] = t.log(proba)
    return outputs


def _proba(m: Any, decisions: Node) -> Node:
    """Probabilities f64[N, classes]: Platt's sigmoid 1 / (1 + e^(dec · A + B)) of each pair, then the coupling of all pairs
    (svm_predict_probability)."""
    exponent = t.add(t.mul(decisions, np.asarray(m._probA)), np.asarray(m._probB))
    small = t.exp(t.neg(t.absolute(exponent)))
    share = t.div(t.where(t.less_equal(0.0, exponent), small, t.constant(np.ones((1, 1)))), t.add(small, 1.0))
    # Like libsvm's max, this turns NaN into the bound.
    share = t.where(t.less(LEAST_PROBABILITY, share), share, LEAST_PROBABILITY)
    return PairwiseCoupling(len(m.classes_))(t.minimum(share, 1 - LEAST_PROBABILITY))
