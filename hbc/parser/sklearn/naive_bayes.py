"""Converters for sklearn.naive_bayes. `joint` is always the joint log likelihood of row and class, [N, C]."""

from __future__ import annotations

from typing import Any

import numpy as np

from hbc.ir.graph import Node
from hbc.ir.signature import Column
from hbc.ir.types import NUMPY_DTYPES, Array
from hbc.ops import tensor as t
from hbc.ops.checks import CheckValues
from hbc.ops.linear import LogSoftmax
from hbc.parser.front_door import ANY_INTEGER, note
from hbc.parser.labels import labels
from hbc.parser.registry import Result, converts, public_name
from hbc.parser.sklearn.linear import affine, float_type
from hbc.parser.sklearn.shared.common import checked, promote


def _outputs(m: Any, joint: Node) -> Result:
    """The methods of _BaseNB, computed from the joint log likelihoods [N, C]."""
    log_proba = LogSoftmax()(joint)
    return {
        "predict": labels(m.classes_, t.argmax(joint, 1)),
        "predict_proba": t.exp(log_proba),
        "predict_log_proba": log_proba,
        "predict_joint_log_proba": joint,
    }


@converts("sklearn.naive_bayes.GaussianNB")
def gaussian_nb(m: Any, x: Node) -> Result:
    """joint[n, c] = ln prior[c] - ½ Σ_f ln 2π var[c, f] - ½ Σ_f (x[n, f] - theta[c, f])² / var[c, f]."""
    x, (theta, variance) = promote(checked(m, x), m.theta_, m.var_)
    difference = t.sub(t.reshape(x, "N", 1, x.type.columns), theta[None])
    squares = t.sum_(t.div(t.mul(difference, difference), variance[None]), axis=2)
    constant = -0.5 * np.sum(np.log(2.0 * np.pi * m.var_), axis=1)
    dtype = float_type(NUMPY_DTYPES[squares.type.dtype], constant.dtype, np.asarray(m.class_prior_).dtype)
    with np.errstate(divide="ignore"):
        prior = np.log(m.class_prior_)
    likelihood = t.sub(constant.astype(NUMPY_DTYPES[dtype]), t.mul(t.cast(squares, dtype), 0.5))
    return _outputs(m, t.add(prior.astype(NUMPY_DTYPES[dtype]), likelihood))


@converts("sklearn.naive_bayes.MultinomialNB")
def multinomial_nb(m: Any, x: Node) -> Result:
    """joint = x · feature_log_probᵀ + class_log_prior. Like the source, it accepts negative x in prediction."""
    return _outputs(m, affine(checked(m, x), m.feature_log_prob_.T, m.class_log_prior_))


@converts("sklearn.naive_bayes.ComplementNB")
def complement_nb(m: Any, x: Node) -> Result:
    """joint = x · feature_log_probᵀ. The prior is added only if there is a single class."""
    prior: Any = m.class_log_prior_ if len(m.classes_) == 1 else 0.0
    return _outputs(m, affine(checked(m, x), m.feature_log_prob_.T, prior))


@converts("sklearn.naive_bayes.CategoricalNB")
def categorical_nb(m: Any, x: Node) -> Result:
    """joint[n, c] = class_log_prior[c] + Σ_f feature_log_prob[f][c, int(x[n, f])]. Numbers that are not a category are rejected."""
    sizes = np.array([table.shape[1] for table in m.feature_log_prob_])
    width = max(sizes)
    codes = CheckValues(
        public_name(type(m)),
        values=np.tile(np.arange(width), (len(sizes), 1)),
        counts=sizes,
        nan=np.zeros(len(sizes), bool),
        none=np.zeros(len(sizes), bool),
        columns=tuple(f"column {i}" for i in range(len(sizes))),
    )(t.cast(checked(m, x), "i64"))
    # One table for the categories of all features, [F * width, C]. The log likelihoods of a row are looked up in it and added.
    tables = np.stack([np.pad(table.T, ((0, width - table.shape[1]), (0, 0))) for table in m.feature_log_prob_])
    joint = t.constant(m.class_log_prior_[None])
    found = t.take(tables.reshape(-1, tables.shape[2]), t.add(codes, np.arange(len(sizes)) * width), axis=0)
    return _outputs(m, t.add(t.sum_(found, axis=1), joint))


@converts("sklearn.naive_bayes.BernoulliNB")
def bernoulli_nb(m: Any, x: Node) -> Result:
    """joint = b · (ln p - ln(1 - p))ᵀ + class_log_prior + Σ_f ln(1 - p), with b = 1 where x > binarize, else 0; b = x if binarize is
    None."""
    x = checked(m, x)
    if m.binarize is not None:
        note(x, Column(integer_bits=ANY_INTEGER))  # the source compares float16 in float16
        # For a float32 x, a threshold that is a Python number is rounded to float32 first; a numpy scalar widens x.
        compared = float_type(NUMPY_DTYPES[x.type.dtype], *([m.binarize.dtype] if isinstance(m.binarize, np.generic) else []))
        threshold = np.asarray(m.binarize, NUMPY_DTYPES[compared])
        x = t.cast(t.less(threshold, t.cast(x, compared)), "f32" if x.type.dtype == "f32" else "f64")
    present: Array = m.feature_log_prob_
    with np.errstate(divide="ignore", invalid="ignore"):
        absent = np.log(1 - np.exp(present))
        return _outputs(m, affine(x, (present - absent).T, m.class_log_prior_ + absent.sum(axis=1)))
