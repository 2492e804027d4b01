"""Converters for sklearn.preprocessing: scalers, Normalizer, Binarizer, KBinsDiscretizer, PolynomialFeatures."""

from __future__ import annotations

from itertools import chain, combinations, combinations_with_replacement
from typing import Any

import numpy as np

from hbc.ir.graph import Node
from hbc.ir.signature import Column, Sparse
from hbc.ir.types import FLOAT32_LIMIT, NUMPY_DTYPES, Array, dtype_name
from hbc.ops import tensor as t
from hbc.ops.columns import Rank
from hbc.ops.encoding import OneHot
from hbc.ops.functions import Polynomial
from hbc.ops.scaling import Affine, Binarize, Clip, Normalize, Standardize
from hbc.parser.frame import Refusal
from hbc.parser.front_door import ANY_INTEGER, in_dtype_of, note, note_input, sparse_values_round_otherwise
from hbc.parser.registry import Result, converts
from hbc.parser.release import since
from hbc.parser.sklearn.shared.common import as_float, checked, float_of, own_float
from hbc.parser.sparsity import is_sparse, may_be_sparse, of_a_graph


def _scaled_sparsely(x: Node, scale: Array | None) -> Node | None:
    """x · (1 / scale), which is how the source scales x if it holds it in a sparse matrix. None if x is dense: the source then divides.
    If x is sparse only when the model's own input is, that is noted, because the two ways round differently."""
    if is_sparse(x):
        return x if scale is None else Affine(1.0 / scale, np.zeros(len(scale), NUMPY_DTYPES[x.type.dtype]))(x)
    if may_be_sparse(x):
        sparse_values_round_otherwise()
    return None


@converts("sklearn.preprocessing.StandardScaler")
def standard_scaler(m: Any, x: Node) -> Result:
    x = own_float(checked(m, x, allow_nan=True))
    sparse = _scaled_sparsely(x, m.scale_ if m.with_std else None)
    if sparse is not None:
        return sparse
    dtype = NUMPY_DTYPES[x.type.dtype if since(1, 8) else "f64"]  # 1.8 casts its parameters to the dtype of X
    mean = np.asarray(m.mean_, dtype) if m.with_mean else None
    scale = np.asarray(m.scale_, dtype) if m.with_std else None
    return Standardize(mean, scale)(x)


@converts("sklearn.preprocessing.RobustScaler")
def robust_scaler(m: Any, x: Node) -> Result:
    x = own_float(checked(m, x, allow_nan=True))
    sparse = _scaled_sparsely(x, m.scale_ if m.with_scaling else None)
    if sparse is not None:
        return sparse
    return Standardize(m.center_ if m.with_centering else None, m.scale_ if m.with_scaling else None)(x)


@converts("sklearn.preprocessing.MinMaxScaler")
def min_max_scaler(m: Any, x: Node) -> Result:
    y = Affine(m.scale_, m.min_)(own_float(checked(m, x, allow_nan=True)))
    low, high = m.feature_range
    return Clip(float(low), float(high))(y) if m.clip else y


@converts("sklearn.preprocessing.MaxAbsScaler")
def max_abs_scaler(m: Any, x: Node) -> Result:
    x = own_float(checked(m, x, allow_nan=True))
    y = _scaled_sparsely(x, m.scale_)
    y = Standardize(None, m.scale_)(x) if y is None else y
    return Clip(-1.0, 1.0)(y) if since(1, 8) and m.clip else y  # 1.8 has the option


@converts("sklearn.preprocessing.Normalizer")
def normalizer(m: Any, x: Node) -> Result:
    if may_be_sparse(x):
        sparse_values_round_otherwise()
    return Normalize(m.norm)(as_float(checked(m, x)))


@converts("sklearn.preprocessing.Binarizer")
def binarizer(m: Any, x: Node) -> Result:
    # The source compares in the common float dtype of X and the threshold; a threshold that is a Python number has no dtype and follows X.
    kinds = [NUMPY_DTYPES[x.type.dtype], np.asarray(m.threshold).dtype if hasattr(m.threshold, "dtype") else None]
    floats = [kind for kind in kinds if kind is not None and kind.kind == "f"]
    compared = dtype_name(np.result_type(*floats)) if floats else "f64"
    note(x, Column(integer_bits=ANY_INTEGER))
    if m.threshold < 0 and may_be_sparse(x):
        note_input(Sparse(accepted=False))  # the source rejects them
    return in_dtype_of(x, Binarize(float(m.threshold), compared)(checked(m, x)))


@converts("sklearn.preprocessing.KBinsDiscretizer")
def k_bins_discretizer(m: Any, x: Node) -> Result:
    if m.dtype is not None and np.dtype(m.dtype) == np.float32 and x.type.dtype == "f64":
        x = t.cast(checked(m, x, limit=FLOAT32_LIMIT), "f32")
    else:
        x = float_of(checked(m, x))
        x = x if m.dtype is None else t.cast(x, dtype_name(m.dtype))
    dtype = NUMPY_DTYPES[x.type.dtype]
    inner = [_left_edges(np.asarray(edges[1:-1]), dtype) for edges in m.bin_edges_]
    table = np.full((len(inner), max([1, *map(len, inner)])), np.inf, dtype)
    for row, edges in zip(table, inner, strict=True):
        row[: len(edges)] = edges
    bins = Rank(table)(x)
    if m.encode == "ordinal":
        return t.cast(bins, x.type.dtype)
    counts = np.asarray(m.n_bins_)
    value = np.concatenate([np.arange(count, dtype=np.int32) for count in counts])
    return OneHot(np.repeat(np.arange(len(counts)), counts), value, x.type.dtype)(bins)


def _left_edges(edges: Array, dtype: np.dtype[Any]) -> Array:
    """Edges e' in `dtype` such that e' < x is equivalent to e ≤ x for every x of that dtype."""
    rounded = edges.astype(dtype)
    rounded = np.where(rounded < edges, np.nextafter(rounded, dtype.type(np.inf)), rounded)  # the least number ≥ e
    return np.nextafter(rounded, dtype.type(-np.inf))


@converts("sklearn.preprocessing.PolynomialFeatures")
def polynomial_features(m: Any, x: Node) -> Result:
    choose = combinations if m.interaction_only else combinations_with_replacement
    degrees = range(max(1, m._min_degree), m._max_degree + 1)
    terms = [*chain.from_iterable(choose(range(x.type.columns), degree) for degree in degrees)]
    if m.include_bias:
        terms.insert(0, ())
    dense = m._num_combinations(x.type.columns, 0, m._max_degree, m.interaction_only, m.include_bias)
    if (m.n_output_features_, m._n_out_full) != (len(terms), dense):
        raise Refusal(
            f"its include_bias or interaction_only was changed after fit: it was fitted for {m.n_output_features_} columns of output, "
            f"and would now make {len(terms)}. The source then leaves some columns unwritten, or fails.",
            "Fit it again.",
        )
    if may_be_sparse(x):
        sparse_values_round_otherwise()
    if of_a_graph(x):
        raise Refusal(
            "it multiplies columns of a graph of neighbours, whose entries are sorted by distance. The source then puts products into "
            "wrong columns.",
            "Put a step between them that sorts the entries by column, or makes a dense array.",
        )
    table = np.full((len(terms), max(1, *map(len, terms), 1)), -1, np.int64)
    for row, term in zip(table, terms, strict=True):
        row[len(row) - len(term) :] = term
    return Polynomial(table)(own_float(checked(m, x)))
