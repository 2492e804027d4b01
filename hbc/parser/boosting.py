"""Functions that several converters of tree libraries use: thresholds, leaf numbers, staged sums, and splits on categories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from hbc.ir.graph import Node
from hbc.ir.types import Array, DType, N
from hbc.ops import tensor as t
from hbc.ops.checks import CheckValues
from hbc.ops.columns import Categorize
from hbc.ops.tree import CategoryPlanes, TreeEnsemble
from hbc.parser.frame import Frame, Refusal, as_matrix

NO_NUMBERS = (
    *("pandas.ObjectDType", "pandas.StringDtype", "pandas.CategoricalDtype"),
    *("polars.String", "polars.Categorical", "polars.Enum", "polars.Null", "polars.Object", "polars.Decimal", "polars.Float16"),
    *("pyarrow.string", "pyarrow.large_string", "pyarrow.string_view", "pyarrow.null", "pyarrow.decimal128"),
    *("pyarrow.halffloat", "pyarrow.dictionary"),
)
"""The dtypes of columns of frames that LightGBM and XGBoost do not read as numbers. (Of categories they take the codes.)"""


def rounded_down(thresholds: Array) -> Array:
    """The largest float32 ≤ each float64 threshold, as float32. For every float32 x, `x <= threshold` compared in float64 then equals
    `x <= rounded` compared in float32."""
    with np.errstate(over="ignore", under="ignore"):
        rounded = thresholds.astype(np.float32)
        return np.where(rounded.astype(np.float64) > thresholds, np.nextafter(rounded, np.float32(-np.inf)), rounded)


def leaves(ensemble: TreeEnsemble, x: Node) -> Node:
    """The leaf that each row reaches in each tree, i64[N, T], as the source library numbers leaves."""
    return replace(ensemble, output="leaf")(x)


def flat(sums: Node) -> Node:
    """`sums` without its last axis if that has length 1: libraries return a single output as a vector. Otherwise `sums` itself."""
    return t.reshape(sums, *sums.type.shape[:-1]) if sums.type.shape[-1] == 1 else sums


def staged(ensemble: TreeEnsemble, x: Node, init: Node | None = None) -> Node:
    """The sums after each round of trees, f64[N, S, K] for S rounds. They start from `init` (f64[N, K]; default: the ensemble's base),
    and trees are added in their order. A round is K trees if a leaf holds one value, and one tree if a leaf holds a vector."""
    outputs = ensemble.n_outputs
    values = ensemble.values.astype(np.float64)
    first = outputs // values.shape[1]
    if init is None:
        values[: ensemble.leaf_counts[:first].sum()] += np.repeat(
            ensemble.base.reshape(first, -1), ensemble.leaf_counts[:first], axis=0
        )
    reached = leaves(replace(ensemble, leaf_ids=np.arange(len(values))), x)
    rounds = ensemble.n_trees // first
    terms = t.reshape(t.take(values, reached, axis=0), N, rounds, outputs)
    if init is None:
        return t.cumsum(terms, 1)
    sums = t.cumsum(t.concat([t.reshape(init, N, 1, outputs), terms]), 1)
    return t.take(sums, np.arange(1, rounds + 1), axis=1)


class PlaneTable:
    """Collects the tests "is this feature one of these categories?" of an ensemble, and makes a column of 0 and 1 of each: a plane.

    TreeEnsemble compares numbers only, so it tests `plane <= 0.5` instead. Planes stand behind the columns of x. Equal tests (the same
    feature, set and side of missing values) share a plane. `sets_go_left`: a row whose category is in the set goes left, as in LightGBM;
    otherwise it goes right, as in XGBoost and CatBoost.
    """

    def __init__(self, n_features: int, *, sets_go_left: bool) -> None:
        self.n_features = n_features
        self.sets_go_left = sets_go_left
        self._planes: dict[tuple[int, bytes, bool], int] = {}

    def add(self, feature: int, categories: Array, *, missing_left: bool) -> int:
        """The number of the column that a node compares with 0.5 instead of testing whether `feature` is one of `categories`. Missing
        values go left if `missing_left`."""
        key = feature, np.sort(categories.astype(np.int64)).tobytes(), missing_left
        return self.n_features + self._planes.setdefault(key, len(self._planes))

    def behind(self, x: Node) -> Node:
        """x with the planes behind its columns; x itself if no test was added."""
        if not self._planes:
            return x
        sets = [np.frombuffer(categories, np.int64) for _, categories, _ in self._planes]
        left = np.full(len(sets), self.sets_go_left)
        planes = CategoryPlanes.of_sets(
            [feature for feature, _, _ in self._planes],
            sets,
            inside=~left,
            missing=np.array([not missing_left for _, _, missing_left in self._planes]),
            invalid=left,
            truncate_negative=self.sets_go_left,
            limit=2.0**31 if self.sets_go_left else 2.0**24,
        )
        return t.concat([x, planes(x)])


def integers_as_f32(x: Node | Frame) -> Node:
    """x as one matrix, with float32 for its integers beside floats. XGBoost and CatBoost read the columns of a frame one by one, so that
    integers become float32 without float64 in between."""
    if not isinstance(x, Frame) or len(set(x.dtypes)) == 1:
        return as_matrix(x)
    narrow = {c.node: t.cast(c.node, "f32") for c in x.columns if c.node.type.dtype == "i64"}
    return replace(x, columns=tuple(replace(c, node=narrow.get(c.node, c.node)) for c in x.columns)).matrix()


def string_categories(categories: Sequence[object]) -> Array | None:
    """The categories of a column of a frame, as an array of strings. None if they are the integers 0..n-1, so that each one equals its
    code. Raises Refusal for other categories."""
    if all(isinstance(category, str) for category in categories):
        return np.array(list(categories), str)
    if list(categories) == list(range(len(categories))):
        return None
    raise Refusal(
        f"a categorical column has the categories {', '.join(map(repr, categories[:5]))}, which are neither strings nor 0..n-1. "
        "Such a column holds codes in an array, but the categories themselves in a frame.",
        "Give the column strings as categories, or its codes as integers.",
    )


def with_codes(x: Frame, categories: Mapping[int, Array], dtype: DType, known_to: str | None = None) -> Node:
    """All columns of x as one matrix of `dtype` (f32 or f64). In the columns of `categories`, a string becomes its position among the
    categories of its column, and a missing or unknown string becomes NaN. `known_to` is the name of an estimator that rejects unknown
    strings: the input is then checked for them. Raises StringsNeeded if such a column was taken for numbers so far."""
    x.need_strings(sorted(categories))
    blocks, run = [], []
    for i in range(len(x)):
        if i not in categories:
            run.append(i)
            continue
        if run:
            blocks.append(t.cast(x.select(run).matrix(), dtype))
            run = []
        column = x.column(i)
        if known_to is not None:
            column = _known(column, categories[i], x.name(i), known_to)
        code = Categorize(categories[i])(column)
        missing = t.less(code, t.constant(0, "i64"))
        blocks.append(t.where(missing, t.constant(np.nan, dtype), t.cast(code, dtype)))
    if run:
        blocks.append(t.cast(x.select(run).matrix(), dtype))
    return t.concat(blocks)


def _known(column: Node, categories: Array, name: str, owner: str) -> Node:
    """The column of strings with a check: a call is rejected if a string is not one of `categories`. Missing values pass."""
    yes = np.array([True])
    return CheckValues(
        owner,
        allow_nan=True,
        allow_inf=True,
        min_rows=0,
        values=categories[None, :],
        counts=np.array([len(categories)]),
        nan=yes,
        none=yes,
        columns=(name,),
    )(column)
