"""Tells where the source library holds a matrix as a sparse one. hbc computes with dense matrices. That makes a difference to XGBoost only:
it takes the values that a sparse matrix leaves out as missing, not as 0."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from hbc.ir.graph import Input, Node
from hbc.ops.checks import Check
from hbc.ops.tensor import Concat
from hbc.parser.frame import Frame, nodes_of
from hbc.parser.front_door import maker
from hbc.parser.registry import public_name
from hbc.parser.release import since

KEEPING = (
    *("preprocessing.", "feature_selection.", "impute.", "feature_extraction."),
    *("random_projection.SparseRandomProjection", "kernel_approximation.AdditiveChi2Sampler"),
)
"""Names of scikit-learn's transformers, or of packages of them, that return a sparse matrix for a sparse matrix."""

GRAPHS = ("sklearn.neighbors.KNeighborsTransformer", "sklearn.neighbors.RadiusNeighborsTransformer")
"""Transformers that return a sparse graph of neighbours."""


def is_sparse(x: Node | Frame, given: bool = False) -> bool:
    """Whether the source library holds x in a sparse matrix. Operators that compute each column on its own do not change that. `given`: the
    model's own input is sparse."""
    if isinstance(x, Frame):
        return any(is_sparse(node, given) for node in nodes_of(x))
    if given and isinstance(x.op, Input):
        return True
    made = maker(x)
    if made is not None:
        model, source = made
        return gives_sparse(model, source is not None and is_sparse(source, given))
    if x.op.columnwise or isinstance(x.op, (Check, Concat)) or type(x.op).__name__ == "SelectColumns":
        return any(is_sparse(source, given) for source in x.inputs)
    return False


def tagged_as_sparse(m: Any) -> bool:
    """Whether a model takes sparse matrices, by scikit-learn's tags. Models of other libraries, and classes without readable tags, count as
    taking them."""
    if not type(m).__module__.startswith("sklearn."):
        return True
    try:
        return bool(m.__sklearn_tags__().input_tags.sparse)
    except (AttributeError, TypeError, ValueError):
        return True


HOLDING = ("steps", "transformers", "transformer_list", "estimator", "estimators", "regressor")
"""Attributes of estimators that hold others."""


def rejects_sparse(m: Any, x: Node | Frame) -> bool:
    """Whether m alone, which holds no other estimators, is given a sparse matrix and rejects it if the model's own input is sparse."""
    # The tags of those that hold others leave some out (the remainder of a ColumnTransformer), and count others that are given a dense
    # matrix (the last steps of a Pipeline).
    return not any(hasattr(m, name) for name in HOLDING) and not tagged_as_sparse(m) and is_sparse(x, given=True)


def of_a_graph(x: Node | Frame) -> bool:
    """Whether the entries of x are in the order of a graph of neighbours: by distance, not by column. x is such a graph, or made from one
    by operators that keep the places of entries."""
    if isinstance(x, Frame):
        return any(of_a_graph(column.node) for column in x.columns)
    made = maker(x)
    if made is not None and public_name(type(made[0])) in GRAPHS:
        return True
    keeps = made is not None and gives_sparse(made[0], True)
    return (keeps or x.op.columnwise or isinstance(x.op, (Check, Concat))) and any(of_a_graph(source) for source in x.inputs)


def gives_sparse(m: Any, sparse: bool) -> bool:
    """Whether `m.transform` returns a sparse matrix, for a sparse or (`sparse` false) a dense matrix."""
    if m is None or isinstance(m, str):
        return sparse and m != "drop"
    name = public_name(type(m))
    library, _, rest = name.partition(".")
    if name == "sklearn.pipeline.Pipeline":
        for _, step in m.steps:
            sparse = gives_sparse(step, sparse)
        return sparse
    if name == "sklearn.pipeline.FeatureUnion":
        return any(gives_sparse(member, sparse) for _, member in m.transformer_list)
    if name == "sklearn.compose.ColumnTransformer":
        return bool(m.sparse_output_)
    if hasattr(m, "best_estimator_") or name == "sklearn.frozen.FrozenEstimator":
        return gives_sparse(getattr(m, "best_estimator_", None) or m.estimator, sparse)
    if name.startswith("sklearn.ensemble.Stacking"):
        return sparse and bool(m.passthrough)
    for option in ("sparse_output", "sparse"):
        if isinstance(getattr(m, option, None), bool):
            return bool(getattr(m, option))
    if name == "sklearn.preprocessing.KBinsDiscretizer":
        return bool(m.encode == "onehot")
    if name.startswith("sklearn.feature_extraction.") or name in GRAPHS:
        return True
    if getattr(m, "dense_output", False):
        return False
    if name == "sklearn.random_projection.SparseRandomProjection" and isinstance(m.components_, np.ndarray):
        return False  # its density is 1, as that of "auto" is for a single column
    if name.startswith("sklearn.feature_selection.") and not m.get_support().any():
        return False  # numpy.empty((rows, 0)), for a sparse matrix too
    return sparse and (library != "sklearn" or rest.startswith(KEEPING))


ALWAYS_CSC = ("preprocessing.QuantileTransformer", "impute.SimpleImputer", "impute.MissingIndicator")
"""Their sparse results are CSC."""
KEEPING_CSC = (
    *("Binarizer", "FunctionTransformer", "MaxAbsScaler", "PolynomialFeatures", "RobustScaler", "SparseRandomProjection"),
    *("StackingClassifier", "StackingRegressor"),
)
"""Their results are CSC for CSC, otherwise CSR."""
WIDE_INDICES = ("preprocessing.LabelBinarizer", *(name.removeprefix("sklearn.") for name in GRAPHS))
"""The indices of their results are int64 since scikit-learn 1.9, and int32 before."""
CONFIGURED = (
    *("impute.MissingIndicator", "feature_extraction.", "random_projection."),
    "kernel_approximation.AdditiveChi2Sampler",
)
"""Scikit-learn's configuration decides whether their results are scipy's sparse arrays or matrices, whichever the input is."""
CONFIGURED_LATER = "preprocessing.PolynomialFeatures"
"""The same since scikit-learn 1.9."""


def sparse_format(m: Any, given: str) -> str:
    """The format of `m.transform`'s result for an input of the format `given`: "csr" or "csc", or "" for a dense matrix.

    " i64" behind it means indices of int64. " *" means scipy's sparse array or matrix, whichever the input is; without it,
    scikit-learn's configuration decides (`sparse_class`)."""
    if m is None or isinstance(m, str):
        return given if m != "drop" else ""
    if not gives_sparse(m, bool(given)):
        return ""
    name = public_name(type(m)).removeprefix("sklearn.")
    if name == "pipeline.Pipeline":
        for _, step in m.steps:
            given = sparse_format(step, given)
        return given
    if hasattr(m, "best_estimator_") or name == "frozen.FrozenEstimator":
        return sparse_format(getattr(m, "best_estimator_", None) or m.estimator, given)
    if name in ("pipeline.FeatureUnion", "compose.ColumnTransformer"):
        members = m.transformer_list if name == "pipeline.FeatureUnion" else m.transformers_
        return "csr *" if any(sparse_format(member[1], given).endswith("*") for member in members) else "csr"
    configured = name.startswith(CONFIGURED) or (name == CONFIGURED_LATER and since(1, 9))
    kind = " *" if given.endswith("*") and not configured else ""
    if name in ALWAYS_CSC:
        return "csc" + kind
    if given.startswith("csc") and name.rpartition(".")[2] in KEEPING_CSC:
        return "csc" + kind
    return "csr i64" if name in WIDE_INDICES and since(1, 9) else "csr" + kind


def may_be_sparse(x: Node, missing: bool = False) -> bool:
    """Whether the source may hold x in a sparse matrix if the model's own input is sparse. With `missing`, also whether the values that
    are NaN in the input may still be NaN in x."""
    if missing and (x.op.removes_missing or not x.type.is_float):
        return False
    if isinstance(x.op, Input):
        return True
    made = maker(x)
    if made is not None and not gives_sparse(made[0], True):
        return False
    return any(may_be_sparse(source, missing) for source in x.inputs)


def sparse_class(m: Any) -> str:
    """Either "array" or "matrix": the classes of scipy.sparse that `m.transform` returns. Since scikit-learn 1.9 its configuration decides
    (`sparse_interface`). Before, SplineTransformer alone returns arrays."""
    if since(1, 9):
        return "array" if sys.modules["sklearn"].get_config()["sparse_interface"] == "sparray" else "matrix"
    while public_name(type(m)) == "sklearn.pipeline.Pipeline":
        m = m.steps[-1][1]
    return "array" if public_name(type(m)) == "sklearn.preprocessing.SplineTransformer" else "matrix"
