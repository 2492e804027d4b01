"""SVMClassifier and SVMRegressor (onnxruntime/core/providers/cpu/ml/svm*.cc).

RBF kernels, the sums of a classifier and its probabilities have ONNX Runtime's order of float32 operations. Its other kernels are products
of matrices, whose order of sums depends on its processor and on the number of rows; so do the sums of a regressor. They are computed in
float64 here, so that differences are its rounding errors. What is too large or too small for float32 is infinite or 0 here too.
"""

from __future__ import annotations

import numpy as np

from hbc.ir.graph import Node
from hbc.ir.types import Array
from hbc.lazy import record
from hbc.ops import tensor as t
from hbc.ops.coupling import PairSums, PairwiseCoupling
from hbc.ops.linear import Linear
from hbc.ops.nearest import Distances
from hbc.parser.frame import Refusal
from hbc.parser.onnxml.transforms import first_largest, label_of, labels, logistic, post_transform, table_of_labels
from hbc.parser.onnxml.values import ML, Call, implements
from hbc.parser.pairs import votes

ARRAYS = ("support_vectors", "coefficients", "rho", "prob_a", "prob_b")
LEAST_PROBABILITY = np.float32(1e-7)
"""The lower bound for the probability of one class against another."""


def _kernel(call: Call, x: Node, vectors: Array) -> Node:
    """The kernel between every row and every vector, numbers of float32 in f64[N, V]. Raises Refusal for an unknown kernel, and for
    parameters that are not three."""
    parameters = _parameters(call)
    kernel = call.get("kernel_type", "LINEAR")
    if kernel == "RBF":
        squares = t.cast(Distances(vectors, "rounded")(x), "f32")
        return t.cast(_exponential(t.mul(squares, -parameters[0])), "f64")
    gamma, coef0, degree = parameters.astype(np.float64)
    dot = _single(t.matmul(t.cast(x, "f64"), np.ascontiguousarray(vectors.T.astype(np.float64))))
    if kernel == "LINEAR":
        return dot
    base = _single(t.add(t.mul(dot, gamma), coef0))
    if kernel == "POLY":
        return _single(_power(base, degree))
    if kernel == "SIGMOID":
        return _single(t.tanh(base))
    raise Refusal(f"its kernel is {kernel!r}.")


def _parameters(call: Call) -> Array:
    """gamma, coef0 and degree, f32[3]. Raises Refusal for other numbers of them, as ONNX Runtime does even where no kernel needs them."""
    parameters = np.asarray(call.get("kernel_params", np.zeros(0, np.float32)))
    if len(parameters) != 3:
        raise Refusal(f"its kernel_params are {len(parameters)} numbers, expected gamma, coef0 and degree.")
    return parameters


def _single(x: Node) -> Node:
    """x rounded to float32."""
    return t.cast(t.cast(x, "f32"), "f64")


def _exponential(x: Node) -> Node:
    """e^x for x f32, rounded once, as glibc's expf does (but for a few of a thousand numbers)."""
    return t.cast(t.exp(t.cast(x, "f64")), "f32")


def _power(x: Node, degree: float) -> Node:
    """x^degree; by repeated products for whole degrees from 1 to 16."""
    if degree not in range(1, 17):
        return t.power(x, degree)
    result = x
    for _ in range(int(degree) - 1):
        result = t.mul(result, x)
    return result


@implements(
    "SVMRegressor",
    attributes=(
        "coefficients",
        "kernel_params",
        "kernel_type",
        "n_supports",
        "one_class",
        "post_transform",
        "rho",
        "support_vectors",
    ),
    domain=ML,
)
def svm_regressor(call: Call) -> Node:
    """The sums, or with one_class 1 where they are positive and -1 elsewhere. post_transform does nothing."""
    x = t.cast(call.matrix(0), "f32")
    count = int(call.get("n_supports", 0))
    coefficients, rho, numbers = (
        call.get(name, np.zeros(0, np.float32)) for name in ("coefficients", "rho", "support_vectors")
    )
    if not len(rho):
        raise Refusal("it has no rho.")
    if count > 0:
        if len(numbers) != count * x.type.columns or len(coefficients) < count:
            raise Refusal(
                f"its {count} support vectors have {len(numbers)} numbers and {len(coefficients)} coefficients"
                f" for {x.type.columns} columns."
            )
        kernel = _kernel(call, x, numbers.reshape(count, -1))
        sums = t.matmul(kernel, coefficients[:count, None].astype(np.float64))
        scores = t.cast(t.add(sums, float(rho[0])), "f32")
    else:
        _parameters(call)
        if len(coefficients) != x.type.columns:
            raise Refusal(f"it has {len(coefficients)} coefficients for {x.type.columns} columns.")
        scores = Linear(coefficients[:, None].copy(), rho[:1])(x)
    if int(call.get("one_class", 0)):
        return t.where(t.less(0.0, scores), t.constant(1.0, "f32"), t.constant(-1.0, "f32"))
    return scores


# --- classifiers -------------------------------------------------------------------------------------------------------


@record
class Machine:
    """The attributes of an SVMClassifier with support vectors."""

    vectors: Array
    """f32[V, F]."""
    counts: Array
    """The number of vectors of each class; those of one class stand together."""
    coefficients: Array
    """f32[K - 1, V]. Row r of a vector of class c is for class r if r < c, else for class r + 1."""
    rho: Array
    """f32[P], for each pair of classes."""
    sigmoids: tuple[Array, Array] | None
    """prob_a and prob_b, f32[P] each, with which scores become probabilities; None without them."""

    def decisions(self, kernel: Node) -> Node:
        """The decision for each pair i < j of classes, f64[N, P]: the products of kernel f32[N, V] and coefficients, rounded to float32,
        are added in float64: those of the vectors of class i, those of class j, rho. Raises Refusal for a pair without vectors."""
        empty = np.flatnonzero(self.counts == 0)
        if len(empty) > 1:
            raise Refusal(f"neither class {empty[0]} nor class {empty[1]} has support vectors.")
        sums = PairSums(tuple(self.counts.tolist()), self.coefficients)(kernel)
        return t.add(sums, self.rho.astype(np.float64))


def _machine(call: Call, classes: int, columns: int) -> Machine:
    """Reads the attributes. Raises Refusal for arrays that are too short, for which ONNX Runtime reads beyond their ends."""
    counts = np.asarray(call.get("vectors_per_class"))
    total, size = int(counts.sum()), classes * (classes - 1) // 2
    if len(counts) != classes or classes < 2 or counts.min() < 0:
        raise Refusal(f"it has {len(counts)} numbers of support vectors for {classes} classes.")
    found = {name: call.get(name, np.zeros(0, np.float32)) for name in ARRAYS}
    if len(found["support_vectors"]) != total * columns:
        raise Refusal(f"its {total} support vectors have {len(found['support_vectors'])} numbers for {columns} columns.")
    sigmoids = (found["prob_a"], found["prob_b"]) if len(found["prob_a"]) or len(found["prob_b"]) else None
    least = {"coefficients": (classes - 1) * total, "rho": size, **({"prob_a": size, "prob_b": size} if sigmoids else {})}
    for name, number in least.items():
        if len(found[name]) < number:
            raise Refusal(f"its {name} has {len(found[name])} numbers, expected {number}.")
    return Machine(
        found["support_vectors"].reshape(total, columns),
        counts,
        found["coefficients"][: (classes - 1) * total].reshape(classes - 1, total),
        found["rho"][:size],
        None if sigmoids is None else (sigmoids[0][:size], sigmoids[1][:size]),
    )


def _probabilities(scores: Node, machine: Machine) -> Node:
    """The probability of each class, f32[N, K]: a sigmoid of each pair's score, then the coupling of all pairs."""
    assert machine.sigmoids is not None
    exponent = t.add(t.mul(scores, machine.sigmoids[0]), machine.sigmoids[1])
    share = t.sub(1.0, logistic(exponent, _exponential))
    share = t.minimum(t.maximum(share, LEAST_PROBABILITY), np.float32(1) - LEAST_PROBABILITY)
    return PairwiseCoupling(len(machine.counts), single=True)(share)


@implements(
    "SVMClassifier",
    attributes=(
        "classlabels_ints",
        "classlabels_strings",
        "kernel_params",
        "kernel_type",
        "post_transform",
        "vectors_per_class",
        *ARRAYS,
    ),
    domain=ML,
)
def svm_classifier(call: Call) -> tuple[Node, Node]:
    """The labels are those of the classes with the most votes of pairs. The scores are the probabilities of the classes if there are
    prob_a and prob_b, else the decisions for the pairs, f32[N, P], and for two classes [-decision, decision]."""
    x, names = t.cast(call.matrix(0), "f32"), table_of_labels(call)
    transform = call.get("post_transform", "NONE")
    if not len(names):
        raise Refusal("it has no class labels.")
    if not np.any(call.get("vectors_per_class", 0)):
        return _linear(call, x, names)
    machine = _machine(call, len(names), x.type.columns)
    kernel = t.cast(_kernel(call, x, machine.vectors), "f32")
    decisions = machine.decisions(kernel)
    label = labels(names, t.argmax(votes(t.less(0.0, decisions), len(names)), 1))
    scores = t.cast(decisions, "f32")
    if machine.sigmoids is not None:
        return label, post_transform(_probabilities(scores, machine), transform)
    if len(names) > 2:
        return label, post_transform(scores, transform)
    if transform == "LOGISTIC":
        raise Refusal(
            "it has two classes, no probabilities and post_transform LOGISTIC, which only some releases of ONNX Runtime apply.",
            "Export it with post_transform NONE.",
        )
    post_transform(scores, transform)  # raises Refusal for an unknown one; it is not applied
    return label, t.concat([t.neg(scores) if transform == "NONE" else t.sub(1.0, scores), scores])


def _linear(call: Call, x: Node, names: Array) -> tuple[Node, Node]:
    """An SVMClassifier without support vectors: x · coefficients of each class + the first rho. The label of two classes is the second one
    where its rule says so: the largest score is at least 1/2 if no coefficient is negative, else it is positive."""
    coefficients, rho, one, other = (
        call.get(name, np.zeros(0, np.float32)) for name in ("coefficients", "rho", "prob_a", "prob_b")
    )
    _parameters(call)
    if len(one) != len(other):
        raise Refusal(f"its prob_a has {len(one)} numbers, its prob_b {len(other)}.")
    if len(coefficients) != len(names) * x.type.columns or not len(coefficients) or not len(rho):
        raise Refusal(
            f"it has {len(coefficients)} coefficients and {len(rho)} rho for {len(names)} classes of {x.type.columns} columns."
        )
    scores = Linear(coefficients.reshape(len(names), -1).T.copy(), np.repeat(rho[:1], len(names)))(x)
    winner = first_largest(scores, 1)
    result = post_transform(scores, call.get("post_transform", "NONE"), alone=len(names) == 1)
    if len(names) != 2 or len(one):
        return labels(names, winner), result
    largest = t.reshape(t.take_along(scores, t.reshape(winner, "N", 1)), "N")
    second = t.less_equal(0.5, largest) if bool((coefficients >= 0).all()) else t.less(0.0, largest)
    return label_of(names, t.logical_or(second, t.equal(winner, 1))), result
