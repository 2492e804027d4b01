"""Converters for LightGBM: LGBMClassifier, LGBMRegressor, LGBMRanker, LGBMModel and Booster.

Trees are read from the text of the model file (`model_to_string`), which holds every double with 17 digits. The JSON of `dump_model`
would clip infinite thresholds, and is ten times slower. Decisions of nodes follow LightGBM's include/LightGBM/tree.h
(NumericalDecision, CategoricalDecision). Sums and links follow src/boosting/gbdt_prediction.cpp and src/objective/*.hpp.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hbc.ir.graph import Node
from hbc.ir.signature import FRAME_LIBRARIES, Arrays, Column, Frames, Sparse
from hbc.ir.types import Array, N
from hbc.lazy import record
from hbc.ops import tensor as t
from hbc.ops.checks import Check
from hbc.ops.linear import Logistic, Softmax
from hbc.ops.missing import Impute
from hbc.ops.tree import TreeEnsemble
from hbc.parser import boosting
from hbc.parser.boosting import PlaneTable, flat, rounded_down, with_codes
from hbc.parser.frame import Frame, Refusal, as_frame, select_columns
from hbc.parser.front_door import (
    container_of,
    given_columns,
    holds_categories,
    is_alone,
    keeps_dtypes,
    note_codes,
    note_dtypes_of_made_frames,
    note_given,
    note_input,
    note_numbers_for_categories,
    read_as_f64_from_frames,
)
from hbc.parser.labels import labels
from hbc.parser.lightgbm_categories import are_texts, columns_of_categories
from hbc.parser.once import read_once
from hbc.parser.registry import Described, Result, WithoutRows, converts, describes, public_name, returns_without_rows
from hbc.parser.rounds import asked_of

WINDOW = float(np.float32(1e-35))
"""LightGBM's kZeroThreshold. LightGBM replaces every x with |x| <= WINDOW by 0 before any tree sees it (src/c_api.cpp,
RowPairFunctionFromDenseMatric)."""

# Bits of decision_type. The two bits above them hold the missing type: 0 (none), MISSING_ZERO or 2 (NaN).
CATEGORICAL, DEFAULT_LEFT = 1, 2
MISSING_ZERO = 1

NO_NUMBERS = (*boosting.NO_NUMBERS, "pandas.ArrowDtype")
"""The dtypes of frames from which LightGBM reads no numbers."""

ESTIMATORS = ("lightgbm.LGBMClassifier", "lightgbm.LGBMRegressor", "lightgbm.LGBMRanker", "lightgbm.LGBMModel")


def read_file(path: Path) -> Any:
    """The lightgbm.Booster in a text file that `Booster.save_model` wrote. Raises ValueError if the file is cut off."""
    import lightgbm

    text = path.read_text()
    if text.startswith("tree\nversion=v4") and "\nend of trees\n" not in text:
        # LightGBM would read past the end of the text, in memory that is not its own.
        raise ValueError("the file is cut off: it has no 'end of trees'")
    return lightgbm.Booster(model_file=path)


DECLARED = "\n[categorical_feature: "
"""The line of the parameters, behind the trees, that has the columns of categories. `Model.header` has it under this key."""


@record
class Model:
    """The text of a model file, by field."""

    header: dict[str, str]
    """The value of each field of the header."""
    trees: dict[str, list[str]]
    """For each field of a tree, its text in every tree, in order; "" for a tree that lacks the field."""
    known: dict[str, Array] = field(default_factory=dict)
    """A cache of the fields that were parsed to arrays. Each variant of a graph (one for each input dtype) asks for them; parsing 500
    trees of 255 leaves takes 0.08 s."""

    def numbers(self, field: str) -> Array:
        """One field of all trees, one after the other, as a read-only f64 array."""
        return self._all(field, _floats)

    def integers(self, field: str) -> Array:
        """One field of all trees, one after the other, as a read-only i64 array."""
        return self._all(field, _integers)

    def _all(self, field: str, read: Callable[[str], Array]) -> Array:
        if field not in self.known:
            self.known[field] = read(" ".join(self.trees[field]))
            self.known[field].flags.writeable = False
        return self.known[field]

    @property
    def declared(self) -> set[int] | None:
        """The columns that were given to LightGBM as columns of categories. None: the file does not say."""
        text = self.header.get(DECLARED)
        return None if text is None or not text.replace(",", "0").isdecimal() else set(map(int, text.split(",")))

    @property
    def trees_per_iteration(self) -> int:
        return int(self.header["num_tree_per_iteration"])


def _floats(text: str) -> Array:
    return np.fromstring(text.strip(), np.float64, sep=" ")


def _integers(text: str) -> Array:
    return np.fromstring(text.strip(), np.int64, sep=" ")


FIELDS = (
    "num_leaves",
    "num_cat",
    "split_feature",
    "threshold",
    "decision_type",
    "left_child",
    "right_child",
    "leaf_value",
    "internal_count",
    "leaf_count",
    "cat_boundaries",
    "cat_threshold",
    "is_linear",
    "leaf_const",
    "num_features",
    "leaf_features",
    "leaf_coeff",
)


def read_model(booster: Any, rounds: tuple[int, int] | None = None) -> Model:
    """The model of these rounds (from the first to before the second), or of those that LightGBM itself uses by default."""
    if rounds is None:
        return read_text(booster.model_to_string())
    first, end = rounds
    return read_text(booster.model_to_string(num_iteration=end - first, start_iteration=first))


def read_text(text: str) -> Model:
    """The fields of a model file: lines `key=value`, with one block for each tree that starts at `Tree=` (GBDT::SaveModelToString)."""
    header: dict[str, str] = {}
    trees: dict[str, list[str]] = {field: [] for field in FIELDS}
    block: dict[str, str] = header
    start = text.rfind(DECLARED)
    if start >= 0:
        header[DECLARED] = text[start + len(DECLARED) : text.index("]", start)]
    for line in text.splitlines():
        key, _, value = line.partition("=")
        if key in ("Tree", "end of trees"):
            if block is not header:
                for field, values in trees.items():
                    values.append(block.get(field, ""))
            if key == "end of trees":
                break
            block = {}
        block[key] = value
    return Model(header, trees)


@record
class Layout:
    """Numbers the nodes of all trees from 0 on, tree after tree. Within a tree the inner nodes come first, then the leaves."""

    leaf_counts: Array
    """The number of leaves of each tree, i64[T]."""
    roots: Array
    """The number of each tree's root, i64[T]."""
    inner_tree: Array
    """The tree of each inner node, i64[I]."""
    inner: Array
    """The number of each inner node, i64[I]."""
    leaves: Array
    """The number of each leaf, i64[L]."""

    @staticmethod
    def of(leaf_counts: Array) -> Layout:
        ends = np.cumsum(2 * leaf_counts - 1)
        roots = ends - (2 * leaf_counts - 1)
        tree = np.repeat(np.arange(len(leaf_counts)), leaf_counts - 1)
        leaf_tree = np.repeat(np.arange(len(leaf_counts)), leaf_counts)
        return Layout(
            leaf_counts,
            roots,
            tree,
            roots[tree] + _position_in_group(leaf_counts - 1),
            roots[leaf_tree] + leaf_counts[leaf_tree] - 1 + _position_in_group(leaf_counts),
        )

    def child(self, child: Array) -> Array:
        """The numbers of children, i64[I]. `child` holds them as LightGBM stores them: the inner node's position in its tree, or ~leaf."""
        in_tree: Array = np.where(child >= 0, child, self.leaf_counts[self.inner_tree] - 1 + ~child)
        return np.asarray(self.roots[self.inner_tree] + in_tree)

    def nodes(self, inner: Array, leaves: Any, dtype: Any) -> Array:
        """One array over all nodes, from the values of the inner nodes and the values of the leaves."""
        array = np.empty(len(self.inner) + len(self.leaves), dtype)
        array[self.inner], array[self.leaves] = inner, leaves
        return array


def _position_in_group(counts: Array) -> Array:
    """0, 1, …, counts[0] - 1, then 0, 1, …, counts[1] - 1, and so on, as one array."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def ensemble(model: Model, x: Node) -> tuple[TreeEnsemble, Node]:
    """The trees of a model, and the matrix that they read: x, and behind it two kinds of columns that some nodes read instead of one
    of x: copies with NaN for zero, and tests for sets of categories. Thresholds have the dtype of x (float32 or float64)."""
    layout = Layout.of(model.integers("num_leaves"))
    feature, threshold = model.integers("split_feature"), model.numbers("threshold")
    decision = model.integers("decision_type").astype(np.uint8)
    missing, default_left = (decision >> 2) & 3, (decision & DEFAULT_LEFT) > 0
    categorical = (decision & CATEGORICAL) > 0
    # LightGBM sees 0 for every x in the window, so a threshold inside the window moves to its edge: the upper one if 0 goes left.
    zero_left = threshold >= 0
    inside = (threshold >= -WINDOW) & (threshold < WINDOW)
    threshold = np.where(inside, np.where(zero_left, WINDOW, np.nextafter(-WINDOW, -np.inf)), threshold)
    missing_left = np.where(missing == 0, zero_left, default_left)

    # If zero counts as missing, it goes to the default side. If x <= threshold would send it to the other side, the node reads a
    # copy of its column that has NaN for zero.
    unnatural = (missing == MISSING_ZERO) & (zero_left != default_left) & ~categorical
    copied = np.unique(feature[unnatural])
    if len(copied):
        reads_copy = (missing == MISSING_ZERO) & np.isin(feature, copied) & ~categorical
        feature = np.where(reads_copy, x.type.columns + np.searchsorted(copied, feature), feature)
        x = t.concat([x, zero_as_missing(select_columns(x, copied.tolist()))])
    if categorical.any():
        planes, feature = PlaneTable(x.type.columns, sets_go_left=True), feature.copy()
        for node, categories in zip(np.flatnonzero(categorical), category_sets(model), strict=True):
            feature[node] = planes.add(int(feature[node]), categories, missing_left=False)
        threshold[categorical] = 0.5
        x = planes.behind(x)

    dtype = np.float32 if x.type.dtype == "f32" else np.float64
    values = model.numbers("leaf_value")
    numbers = np.arange(len(values))
    trees = TreeEnsemble(
        roots=layout.roots.astype(np.int32),
        feature=layout.nodes(feature, -1, np.int32),
        threshold=layout.nodes(rounded_down(threshold) if dtype is np.float32 else threshold, 0, dtype),
        left=layout.nodes(layout.child(model.integers("left_child")), numbers, np.int32),
        right=layout.nodes(layout.child(model.integers("right_child")), numbers, np.int32),
        missing_left=layout.nodes(missing_left, False, np.bool_),
        values=values[:, None],
        target=(np.arange(len(layout.roots)) % model.trees_per_iteration).astype(np.int32),
        leaf_ids=_position_in_group(layout.leaf_counts),
        base=np.zeros(model.trees_per_iteration),
        cover=_cover(model, layout),
    )
    return trees, x


def _cover(model: Model, layout: Layout) -> Array | None:
    """How many rows of the training data reached each node; None for a file that does not say."""
    inner, leaves = model.integers("internal_count"), model.integers("leaf_count")
    if (len(inner), len(leaves)) != (len(layout.inner), len(layout.leaves)):
        return None
    return layout.nodes(inner, leaves, np.int32)


def category_sets(model: Model) -> Iterator[Array]:
    """Yields the set of categories of each categorical node, i64[…], in the order of nodes. The file has one bit for each category,
    in words of 32 bits (Common::FindInBitset)."""
    for decisions, numbers, bounds, words in zip(
        *(model.trees[name] for name in ("decision_type", "threshold", "cat_boundaries", "cat_threshold")), strict=True
    ):
        categorical = _integers(decisions) & CATEGORICAL > 0
        if categorical.any():
            bits = np.unpackbits(_integers(words).astype("<u4").view(np.uint8), bitorder="little")
            starts = 32 * _integers(bounds)
            for number in _floats(numbers)[categorical].astype(np.int64):
                yield np.flatnonzero(bits[starts[number] : starts[number + 1]])


def linear_leaves(model: Model, trees: TreeEnsemble, reached: Node, x: Node) -> Node:
    """The sums f64[N, K] of trees with linear leaves (linear_tree=True, Tree::Predict). A leaf gives const + Σ coeff · x over its
    features, or its plain value if one of these features is NaN. The nodes read `reached`, the leaves read x."""
    const, owners, features, coefficients = trees.values[:, 0].copy(), [], [], []
    first = 0
    for linear, consts, counts, indices, coeffs, size in zip(
        *(model.trees[name] for name in ("is_linear", "leaf_const", "num_features", "leaf_features", "leaf_coeff")),
        trees.leaf_counts,
        strict=True,
    ):
        if linear == "1":
            const[first : first + size] = _floats(consts)
            owners.append(first + np.repeat(np.arange(size), _integers(counts)))
            features.append(_integers(indices))
            coefficients.append(_floats(coeffs))
        first += size
    # A row for each leaf: its features and their coefficients. Shorter rows are filled up with the number of a column of zeros,
    # which is put behind x below.
    owner = np.concatenate(owners)
    counts = np.bincount(owner, minlength=len(const))
    width = max(int(counts.max()), 1)
    feature, coefficient = np.full((len(const), width), x.type.columns), np.zeros((len(const), width))
    place = _position_in_group(counts)
    feature[owner, place], coefficient[owner, place] = np.concatenate(features), np.concatenate(coefficients)

    x = t.cast(x, "f64")
    column = select_columns(x, [0])
    x = t.concat([x, t.cast(t.less(column, column), "f64")])
    leaves = boosting.leaves(replace(trees, leaf_ids=np.arange(len(const))), reached)
    flat_shape, shape = (N, trees.n_trees * width), (N, trees.n_trees, width)
    read = t.take_along(x, t.reshape(t.take(feature, leaves, axis=0), *flat_shape))
    # Sums with NaN are not taken. Without NaN in them, no check of the result becomes one of the input.
    known = Impute(np.zeros(trees.n_trees * width))(read)
    products = t.mul(t.reshape(t.take(coefficient, leaves, axis=0), *flat_shape), known)
    linear_values = t.add(t.take(const, leaves, axis=0), t.sum_(t.reshape(products, *shape), axis=2, ordered=True))
    unknown = t.less(0.0, t.max_(t.reshape(t.cast(t.isnan(read), "f64"), *shape), axis=2))
    values = t.where(unknown, t.take(trees.values[:, 0], leaves, axis=0), linear_values)
    rounds = t.reshape(values, N, trees.n_trees // model.trees_per_iteration, model.trees_per_iteration)
    return t.sum_(rounds, axis=1, ordered=True)


def zero_as_missing(x: Node) -> Node:
    """x with NaN in place of every |x| <= WINDOW."""
    zero = t.less_equal(t.absolute(x), t.constant(WINDOW, x.type.dtype))
    return t.where(zero, t.constant(np.nan, x.type.dtype), x)


def link(objective: str, raw: Node) -> Node:
    """The output of `predict`, f64[N, K], computed from the sums of leaves `raw`, f64[N, K] (ObjectiveFunction::ConvertOutput). For a
    custom objective ("") these are the sums. Raises Refusal for an unknown objective."""
    name, *options = objective.split() or [""]
    settings = {key: value for key, _, value in (option.partition(":") for option in options)}
    if name in ("binary", "multiclassova"):
        return Logistic()(t.mul(raw, float(settings["sigmoid"])))
    if name == "multiclass":
        return Softmax()(raw)
    if name == "cross_entropy":
        return Logistic()(raw)
    if name == "cross_entropy_lambda":
        return t.log1p(t.exp(raw))
    if name in ("poisson", "gamma", "tweedie"):
        return t.exp(raw)
    if name in ("regression", "regression_l1", "huber", "fair", "quantile", "mape"):
        # reg_sqrt: Sign(x)·x·x
        return t.mul(raw, t.absolute(raw)) if "sqrt" in settings else raw
    if name in ("lambdarank", "rank_xendcg", ""):
        return raw
    raise Refusal(f"hbc does not know how its objective {name!r} turns the sums of leaves into predictions.")


@record
class Scores:
    """The three outputs of a booster."""

    raw: Node
    """The sums of leaves, f64[N, K]."""
    output: Node
    """The result of Booster.predict, f64[N, K]."""
    leaves: Node
    """The leaf that each row reaches in each tree, i32[N, T]."""

    @property
    def options(self) -> dict[str, Node]:
        """Two methods that LightGBM has as options of `predict`: `raw_score` (raw_score=True) and `apply` (pred_leaf=True)."""
        return {"raw_score": flat(self.raw), "apply": self.leaves}


def as_read(x: Node, container: str = "array") -> Node:
    """x in the dtype that LightGBM reads from a container (`container_of`). Floats stay. Integers of an array become float32 (basic.py,
    _np2d_to_np1d), those of a frame float64 (_data_from_pandas)."""
    if x.type.is_float:
        return x
    if container in FRAME_LIBRARIES:
        return t.cast(x, "f64")
    read = t.cast(x, "f32")
    return read_as_f64_from_frames(x, read) if container == "given" else read


def note_containers(m: Any, x: Node | Frame) -> None:
    """Note the containers and dtypes that LightGBM reads in other ways than hbc would: what is neither float32 nor float64 becomes float32
    in an array or a list, Python objects included. The scikit-learn classes make float64 of objects before, but not of a list."""
    if not keeps_dtypes(x):
        return
    note_input(Sparse(floats_only=True))
    if not given_columns(x):
        note_input(Frames(no_numbers=NO_NUMBERS))
    of_objects: Literal["lists", "all", "exact", "stacked"] = "stacked" if container_of(x) == "array" else "exact"
    if is_alone():
        of_objects = "all" if public_name(type(m)) == "lightgbm.Booster" else "lists"
    note_input(Arrays(plain_floats=True, objects_as_f32=of_objects))
    note_dtypes_of_made_frames(x)


def as_matrix(booster: Any, model: Model, x: Node | Frame) -> tuple[Node, dict[int, Column]]:
    """(x as the matrix of floats that LightGBM reads (basic.py), the columns of x that are places of categories in a frame). Floats stay.
    Integers of an array become float32 (_np2d_to_np1d), integers of a frame float64 (_data_from_pandas). Categories of a frame become
    their places among those of fitting: strings in the graph, other values when a frame is read."""
    stored, container, frame = booster.pandas_categorical or [], container_of(x), as_frame(x)
    found = columns_of_categories(stored, model, frame)
    if found is None:
        # Each value is its own place, whichever column it is in.
        others = tuple(dtype for dtype in NO_NUMBERS if dtype != "pandas.CategoricalDtype")
        note_input(Frames(no_numbers=others, integer_categories=tuple(map(len, stored))), x)
        if container in FRAME_LIBRARIES:
            note_input(Frames(required=True, libraries=("pandas",)))
        return as_read(frame.matrix(), container), {}
    note_input(Frames(no_numbers=NO_NUMBERS), x)
    texts, places = {}, {}
    for i, values in zip(found.columns, stored, strict=True):
        if are_texts(values):
            texts[i] = np.array(values, str)
        elif holds_categories(x, i):
            places[i] = Column(category_values=tuple(values), category_of_frame=not found.certain)
        else:
            note_numbers_for_categories(x)
    if not texts:
        return as_read(frame.matrix(), container), places
    note_given(frame.select(sorted(texts)), Column(categories_only=True))
    note_input(Frames(libraries=("pandas",)), x)
    return with_codes(frame, texts, "f32" if set(frame.dtypes) <= {"str", "f32"} else "f64"), places


def scores(booster: Any, x: Node | Frame, owner: str, min_rows: int) -> Scores:
    """The outputs of a Booster. `owner` is the class that error messages name; it rejects inputs of fewer than `min_rows` rows."""
    model = read_once(read_model, booster, asked_of(booster, booster.current_iteration()))
    matrix, places = as_matrix(booster, model, x)
    checked = Check(owner, allow_nan=True, allow_inf=True, min_rows=min_rows)(matrix)
    note_codes(checked, x, places, owner)
    x = checked
    trees, read = ensemble(model, x)
    raw = linear_leaves(model, trees, read, x) if "1" in model.trees["is_linear"] else trees(read)
    mean = t.div(raw, float(trees.n_trees // model.trees_per_iteration)) if "average_output" in model.header else raw
    return Scores(raw, link(model.header.get("objective", ""), mean), t.cast(boosting.leaves(trees, read), "i32"))


@describes("lightgbm.Booster")
def _booster_columns(m: Any) -> Described:
    # LightGBM reads the columns of a frame by position and ignores their names.
    return m.num_feature(), None


@describes(*ESTIMATORS)
def _model_columns(m: Any) -> Described:
    return (m.n_features_in_ if m.__sklearn_is_fitted__() else None), None


@converts("lightgbm.Booster", frame=True)
def booster(m: Any, x: Node | Frame) -> Result:
    note_input(Arrays(tuples=False), x)
    note_input(Frames(rows_required=True), x)
    note_containers(m, x)
    result = scores(m, x, public_name(type(m)), min_rows=0)
    return {"predict": flat(result.output), **result.options}


@returns_without_rows("lightgbm.Booster")
def _no_predictions(m: Any) -> WithoutRows:
    return {"predict": ("<f8", (0,)), "raw_score": ("<f8", (0,))}


def _scores(m: Any, x: Node | Frame) -> Scores:
    if m.get_params().get("pred_early_stop"):
        raise Refusal("pred_early_stop=True skips trees for some rows.", "Set pred_early_stop=False.")
    note_containers(m, x)
    return scores(m.booster_, x, public_name(type(m)), min_rows=1)


@converts("lightgbm.LGBMRegressor", "lightgbm.LGBMRanker", "lightgbm.LGBMModel", frame=True)
def lgbm_regressor(m: Any, x: Node | Frame) -> Result:
    result = _scores(m, x)
    return {"predict": flat(result.output), **result.options}


@converts("lightgbm.LGBMClassifier", frame=True)
def lgbm_classifier(m: Any, x: Node | Frame) -> Result:
    result = _scores(m, x)
    outputs = {**({"decision_function": flat(result.raw)} if hasattr(m, "decision_function") else {}), **result.options}
    if callable(m.objective_):
        # For a custom objective LightGBM knows no link, so both methods return the sums of leaves.
        return {"predict": flat(result.output), "predict_proba": flat(result.output), **outputs}
    proba = result.output
    if proba.type.columns == 1:
        proba = t.concat([t.sub(1.0, proba), proba])
    index = t.argmax(proba, 1) if len(m.classes_) > 1 else t.minimum(t.argmax(proba, 1), 0)
    return {"predict": labels(m.classes_, index), "predict_proba": proba, **outputs}
