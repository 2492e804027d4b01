"""Converters for XGBoost 2 and 3: XGBClassifier, XGBRegressor, XGBRanker, the random forests, and Booster.

Models are read from `save_raw("ubj")`, whose floats keep their bits. Decisions of nodes follow XGBoost's src/predictor/predict_fn.h,
links follow src/objective/*, and the outputs of the scikit-learn classes follow python-package/xgboost/sklearn.py.
XGBoost computes in float32 throughout: every input is cast to it first. A margin is XGBoost's word for the sum of leaves and base score.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hbc.ir.graph import Graph, Input, Node
from hbc.ir.signature import Arrays, Column, Frames, Sparse
from hbc.ir.types import FLOAT32_LIMIT, Array, N
from hbc.lazy import cached_property, record
from hbc.ops import tensor as t
from hbc.ops.checks import Check
from hbc.ops.linear import Logistic, Softmax
from hbc.ops.tree import Tree, TreeEnsemble, join
from hbc.parser import boosting, ubjson
from hbc.parser.boosting import NO_NUMBERS, PlaneTable, flat, integers_as_f32, string_categories, with_codes
from hbc.parser.frame import Frame, Refusal, as_frame, select_columns
from hbc.parser.front_door import (
    computed_of_names_only,
    container_of,
    given_columns,
    holds_categories,
    is_alone,
    note_codes,
    note_dtypes_of_made_frames,
    note_given,
    note_input,
    note_names,
    note_numbers_for_categories,
)
from hbc.parser.once import read_once
from hbc.parser.order_of_sums import order_shows, with_order
from hbc.parser.registry import (
    Described,
    Result,
    WithoutRows,
    converts,
    describes,
    has_own_labels,
    public_name,
    returns_without_rows,
)
from hbc.parser.release import since
from hbc.parser.rounds import asked_of
from hbc.parser.sparsity import is_sparse

LOGIT = ("reg:logistic", "binary:logistic")
LOG = ("count:poisson", "reg:gamma", "reg:tweedie", "survival:cox", "survival:aft")
IDENTITY = (
    "binary:logitraw",
    "reg:squarederror",
    "reg:linear",
    "reg:squaredlogerror",
    "reg:absoluteerror",
    "reg:quantileerror",
    "reg:pseudohubererror",
    "rank:ndcg",
    "rank:map",
    "rank:pairwise",
)
MULTICLASS = ("multi:softmax", "multi:softprob")

LEAST_LOGIT = np.float32(-88.7)
"""XGBoost's common::Sigmoid takes smaller margins for this one, so that no probability is 0: the least is 3e-39."""


def read_file(path: Path) -> Any:
    """The xgboost.Booster in a JSON or UBJSON file, written by `save_model` of a Booster or of a scikit-learn class. Raises ValueError
    for a file that would crash the installed XGBoost."""
    import xgboost

    _require_vector_leaves(path.read_bytes())
    return xgboost.Booster(model_file=path)


def _require_vector_leaves(data: bytes) -> None:
    """Raises ValueError if the installed XGBoost would crash on this file. XGBoost 3.2 and later keep vector leaves in a field of their
    own (leaf_weights), and crash on a model with vector leaves that an older version wrote without this field."""
    size = re.search(rb'size_leaf_vector(?:"\s*:\s*"|SL.{8})(\d+)', data, re.DOTALL)
    if since(3, 2, "xgboost") and size is not None and int(size[1]) > 1 and b"leaf_weights" not in data:
        raise ValueError("it has trees with vector leaves from before XGBoost 3.2, which the installed version cannot read")


@record
class Learner:
    """The parts of a model's document (the `learner` in XGBoost's UBJSON)."""

    document: dict[str, Any]

    @property
    def objective(self) -> str:
        return str(self.document["objective"]["name"])

    @property
    def booster(self) -> str:
        return str(self.document["gradient_booster"]["name"])

    @property
    def n_outputs(self) -> int:
        parameters = self.document["learner_model_param"]
        return max(int(parameters["num_class"]), int(parameters.get("num_target", 1)), 1)

    @property
    def model(self) -> dict[str, Any]:
        """The part of the document that holds the trees, or the weights of gblinear."""
        booster = self.document["gradient_booster"]
        return dict(booster["gbtree"]["model"] if self.booster == "dart" else booster["model"])

    @property
    def categories(self) -> dict[int, Array]:
        """column → its categories, an array of strings, as in the training frame. XGBoost 3.1 and later keep them; for older models the
        dict is empty. Raises Refusal for a category that is not ASCII."""
        result = {}
        for column, stored in enumerate(self.model.get("cats", {}).get("enc", ())):
            if "offsets" in stored and len(stored["values"]):
                # A letter outside ASCII has several bytes, but XGBoost 3.2 counts one: its own table of categories is then wrong.
                if (stored["values"] < 0).any():
                    raise Refusal("a category is not ASCII, and XGBoost does not keep such categories whole.", "Rename them.")
                text, ends = stored["values"].astype(np.uint8).tobytes().decode(), stored["offsets"].tolist()
                result[column] = np.array([text[a:b] for a, b in itertools.pairwise(ends)], str)
        return result

    @property
    def integer_categories(self) -> dict[int, Array]:
        """column → its categories, an array of integers in the dtype of the training frame."""
        stored = enumerate(self.model.get("cats", {}).get("enc", ()))
        return {column: each["values"] for column, each in stored if "offsets" not in each}

    @property
    def feature_names(self) -> tuple[str, ...]:
        return tuple(self.document.get("feature_names", ()))

    @property
    def n_features(self) -> int:
        return int(self.document["learner_model_param"]["num_feature"])

    @property
    def base(self) -> Array:
        """The margin of a row before any tree, f32[K]: base_score through the inverse of the link (ObjFunction::ProbToMargin). XGBoost
        3.1 has a base_score for each output."""
        score = np.atleast_1d(json.loads(self.document["learner_model_param"]["base_score"])).astype(np.float32)
        one = np.float32(1)
        with np.errstate(divide="ignore", invalid="ignore"):
            if self.objective in LOGIT:
                # Before 3.2 it rejects 0 and 1, which base_score is if all labels are, and does not cut.
                if since(3, 2, "xgboost"):
                    score = np.clip(score, np.float32(1e-6), one - np.float32(1e-6))
                score = -_log(one / score - one)
            elif self.objective in LOG:
                score = _log(score)
        return np.ascontiguousarray(np.broadcast_to(score, self.n_outputs))


def _log(x: Array) -> Array:
    """The float32 next to ln x, as the C library's logf gives it. numpy's differs from it by an ulp for one base score in ten."""
    return np.log(x.astype(np.float64)).astype(np.float32)


def read_model(m: Any) -> Learner:
    """The learner of a Booster."""
    return Learner(ubjson.loads(m.save_raw("ubj"))["learner"])


@record
class BoosterOutputs:
    """Builds the outputs of a booster from a float32 x: margins f32[N, K] and, if it has trees, leaves f32[N, T]."""

    learner: Learner
    rounds: tuple[int, int] | None = None
    """The rounds of trees that count, from the first to before the second; None: all."""
    in_place: bool = False
    """Whether margins are those of inplace_predict rather than of a DMatrix. With dart they differ before 3.4, see `_ensembles`."""

    @cached_property
    def _trees(self) -> tuple[TreeEnsemble, TreeEnsemble, PlaneTable]:
        return read_once(_ensembles, self.learner, self.rounds, self.in_place)

    @property
    def has_trees(self) -> bool:
        return self.learner.booster != "gblinear"

    def margin(self, x: Node) -> Node:
        if not self.has_trees:
            if self.rounds is not None and self.rounds[0]:
                raise Refusal("XGBoost computes gblinear with all of its rounds.", "Leave out iteration_range.")
            return _linear(self.learner, x)
        trees, _, planes = self._trees
        return trees(planes.behind(x))

    def raw_score(self, x: Node) -> Node:
        """`margin` where it is the result."""
        if not self.has_trees:
            return self.margin(x)
        _, trees, planes = self._trees
        return trees(planes.behind(x))

    def leaves(self, x: Node) -> Node:
        trees, _, planes = self._trees
        return t.cast(boosting.leaves(trees, planes.behind(x)), "f32")


def _linear(learner: Learner, x: Node) -> Node:
    """The margins of gblinear, f32[N, K] (GBLinear::Pred). A missing value adds nothing. Every output starts from the base score of the
    first output, as in XGBoost. It adds column by column in float32, and so does this. With a column of years, sums in another order had
    margins near 0 that differed by more than the contract allows in 3 of 100 rows."""
    weights = learner.model["weights"].reshape(-1, learner.n_outputs)
    present = t.where(t.isnan(x), 0.0, x)
    one = t.cast(t.equal(column := select_columns(present, [0]), column), "f32")
    terms = t.mul(
        t.reshape(t.concat([one, present]), N, len(weights), 1), np.concatenate([weights[-1:] + learner.base[0], weights[:-1]])
    )
    return t.sum_(terms, axis=1, ordered=True)


def _ensembles(
    learner: Learner, rounds: tuple[int, int] | None, in_place: bool
) -> tuple[TreeEnsemble, TreeEnsemble, PlaneTable]:
    """(the trees of some rounds (None: of all), with sums for the link; the same with sums that are results; the tests for sets of
    categories that they read as columns behind x). Raises Refusal if there are no trees. Sums are `exact` if XGBoost's order of additions
    shows in what becomes of them: a link may hide rounding errors that show in the sums.

    The trees of dart replace each other, so that large values cancel: in another order, or more exactly, sums differed from XGBoost's
    by 2e-5 of their size. Hence `exact`, and the very values that it adds: of a tree's values v and its weight w, v · w in float32. Before
    3.4, inplace_predict takes the base score b off a tree's prediction, which has begun with it, so that rounding leaves (v + b - b) · w.
    From 3.4 on, dart is a gbtree whose model has the weights.
    """
    booster = learner.document["gradient_booster"]
    model = learner.model
    documents, target = model["trees"], np.asarray(model["tree_info"], np.int32)
    weights = np.asarray(model.get("weight_drop", booster.get("weight_drop", ())), np.float32)
    weights = weights if weights.size else np.ones(len(documents), np.float32)
    if rounds is not None:
        part = slice(*(_end(model, count, learner.n_outputs) for count in rounds))
        documents, target, weights = documents[part], target[part], weights[part]
    if not documents:
        raise Refusal("it has no trees.", "Fit it with at least one round.")
    planes = PlaneTable(learner.n_features, sets_go_left=False)
    trees = [_tree(document, learner.n_outputs, planes) for document in documents]
    if trees[0].values.shape[1] > 1:
        target = np.zeros_like(target)
    if learner.booster != "dart" and (weights == 1).all():
        ensemble = join(trees, learner.base, target)
        in_sums = order_shows(ensemble)  # 0.07 s for 500 trees
        shown = _order_shows(ensemble, learner.objective, in_sums)
        for_link = with_order(ensemble, shown)
        return for_link, for_link if shown in (in_sums, 0.0) else with_order(ensemble, in_sums), planes
    begun = [
        learner.base[k : k + tree.values.shape[1]] if in_place and learner.booster == "dart" else np.float32(0)
        for k, tree in zip(target, trees, strict=True)
    ]
    trees = [replace(tree, values=(tree.values + b - b) * w) for tree, b, w in zip(trees, begun, weights, strict=True)]
    exact = replace(join(trees, learner.base, target), exact=True)
    return exact, exact, planes


def _order_shows(trees: TreeEnsemble, objective: str, in_sums: float | None) -> float | None:
    """Where `predict` must add in XGBoost's order, see `order_shows`. in_sums: where the order shows in the sums themselves."""
    if objective in IDENTITY:
        return in_sums
    if objective in LOGIT and trees.n_outputs > 1:
        return 0.0  # a label for each output: scans look for sums that nearly tie with others, not with 0
    if objective in (*LOGIT, *MULTICLASS) and in_sums is None:
        return None  # these links make errors no larger
    x = Input("margins", "f32", (N, trees.n_outputs))()
    # The class numbers of multi:softmax would show nothing but ties.
    graph = Graph((x,), {"predict": (link("multi:softprob" if objective in MULTICLASS else objective, x),)})
    return order_shows(trees, lambda margins: graph.evaluate(margins)["predict"][0])


def _end(model: dict[str, Any], rounds: int, n_outputs: int) -> int:
    """The number of trees in the first `rounds` rounds."""
    ends = model.get("iteration_indptr")
    if ends is not None:
        return int(ends[min(rounds, len(ends) - 1)])
    forest = int(model["gbtree_model_param"].get("num_parallel_tree", 1))
    return rounds * forest * n_outputs


def _tree(document: dict[str, Any], n_outputs: int, planes: PlaneTable) -> Tree:
    """One tree. Its tests for sets of categories are added to `planes`."""
    left, right = document["left_children"], document["right_children"]
    leaf = left < 0
    # XGBoost grows children side by side. Its prediction goes to left + 1, whatever the document gives as the right child.
    if np.any(right[~leaf] != left[~leaf] + 1):
        raise Refusal("a node has children that are not side by side.")
    condition = document["split_conditions"]
    feature = document["split_indices"].astype(np.int64)
    default_left = document["default_left"].astype(bool)
    categorical = document["split_type"].astype(bool) & ~leaf
    # x < c equals x <= (the largest float32 below c), except for c = -inf and c = NaN. A node that tests a set has no threshold:
    # up to XGBoost 3.0 its condition is NaN.
    cuts = condition[~leaf & ~categorical]
    if np.any(np.isneginf(cuts) | np.isnan(cuts)):
        raise Refusal("a node tests x < -inf or x < NaN.")
    with np.errstate(over="ignore", under="ignore"):
        threshold = np.nextafter(condition, np.float32(-np.inf))
    if categorical.any():
        starts, sizes = document["categories_segments"], document["categories_sizes"]
        for node, start, size in zip(document["categories_nodes"], starts, sizes, strict=True):
            categories = document["categories"][start : start + size]
            feature[node] = planes.add(int(feature[node]), categories, missing_left=bool(default_left[node]))
            threshold[node] = 0.5
    ids = np.arange(len(left))
    values, cover = _leaf_values(document, leaf, n_outputs), document.get("sum_hessian")
    cover = None if cover is None or len(cover) != len(left) else np.asarray(cover, np.float32)
    tree = Tree(np.where(leaf, -1, feature), threshold, left, right, default_left, values, ids, cover)
    return _reachable(tree) if int(document["tree_param"]["num_deleted"]) else tree


def _leaf_values(document: dict[str, Any], leaf: Array, n_outputs: int) -> Array:
    """The values of the leaves, f32[M, V]; rows of inner nodes mean nothing. XGBoost keeps the single value of a leaf in the field where
    an inner node has its threshold, and vectors in a field of their own."""
    if int(document["tree_param"]["size_leaf_vector"]) <= 1:
        return np.asarray(document["split_conditions"])[:, None]
    if "leaf_weights" in document:  # from 3.2 on, a leaf's right child is the number of its vector
        vectors = document["leaf_weights"].reshape(-1, n_outputs)
        return np.asarray(vectors[np.where(leaf, document["right_children"], 0)])
    return np.asarray(document["base_weights"].reshape(-1, n_outputs))


def _reachable(tree: Tree) -> Tree:
    """The tree without the nodes that XGBoost's pruning has cut off."""
    kept = np.zeros(len(tree.feature), bool)
    front = np.array([0])
    while len(front):
        kept[front] = True
        inner = front[tree.feature[front] >= 0]
        front = np.concatenate([tree.left[inner], tree.right[inner]])
    place = np.cumsum(kept) - 1
    left, right = (np.where(tree.feature >= 0, place[side], 0) for side in (tree.left, tree.right))
    ids = np.arange(len(kept))
    cover = None if tree.cover is None else tree.cover[kept]
    nodes = tree.feature[kept], tree.threshold[kept], left[kept], right[kept], tree.missing_left[kept]
    return Tree(*nodes, tree.values[kept], ids[kept], cover)


def link(objective: str, margin: Node) -> Node:
    """The output of `predict`, computed from the margins f32[N, K] (ObjFunction::PredTransform): f32[N, K], or f32[N] with the number of
    the class for multi:softmax. Raises Refusal for an unknown objective."""
    if objective in IDENTITY:
        return margin
    if objective in LOGIT:
        return Logistic()(t.maximum(margin, LEAST_LOGIT))
    if objective in LOG:
        return t.exp(margin)
    if objective == "multi:softprob":
        return Softmax()(margin)
    if objective == "multi:softmax":
        return t.cast(t.argmax(margin, 1), "f32")
    if objective == "binary:hinge":
        return t.cast(t.less(0.0, margin), "f32")
    raise Refusal(f"hbc does not know how its objective {objective!r} turns margins into predictions.")


def _checked(m: Any, learner: Learner, x: Node | Frame, *, allow_inf: bool, min_rows: int = 0) -> Node:
    """x as a float32 matrix, with the input checks of XGBoost. A float64 that is too large for float32 becomes infinite; a DMatrix
    rejects infinite values (`allow_inf=False`), inplace_predict accepts them. Where the source hands over a sparse matrix, 0 becomes
    NaN: the values that such a matrix leaves out are missing to XGBoost."""
    owner = public_name(type(m))
    categories = learner.categories
    note_input(Sparse(absent_is_missing=True) if is_alone() else Sparse(accepted=False))
    note_input(Sparse(csr_if_named=True), x)
    note_input(Frames(no_numbers=NO_NUMBERS, text_names=True), x)
    note_input(Arrays(plain_floats=True))
    note_dtypes_of_made_frames(x)
    codes = _codes(learner.integer_categories, x)
    note_names(x, learner.feature_names)
    matrix = with_codes(as_frame(x), categories, "f64", known_to=owner) if categories else integers_as_f32(x)
    for column, strings in categories.items():
        note_given(as_frame(x).select([column]), Column(categories_only=True, category_values=tuple(strings.tolist())))
    if categories and container_of(x) != "given":
        note_input(Frames(required=True, libraries=("pandas",)))
    if is_sparse(x):
        matrix = t.cast(matrix, "f32") if not matrix.type.is_float else matrix
        matrix = t.where(t.equal(matrix, 0.0), np.nan, matrix)
    limit = float("inf") if allow_inf or matrix.type.dtype != "f64" else FLOAT32_LIMIT
    checked = Check(owner, allow_nan=True, allow_inf=allow_inf, limit=limit, min_rows=min_rows)(matrix)
    note_codes(checked, x, codes, owner)
    return as_read(checked)


def _codes(categories: Mapping[int, Array], x: Node | Frame) -> dict[int, Column]:
    """Column of x → what a frame must hold there, for the columns of integer categories, whose places the trees read. Columns that no
    frame can give are left out: an array holds the places. Raises Refusal for other kinds of numbers, and for frames without categories."""
    found = {}
    for column, values in categories.items():
        if values.dtype.kind not in "iu":
            string_categories(values.tolist())  # whole floats: arrays hold them as they are
        if values.dtype.kind in "iu" and holds_categories(x, column):
            found[column] = Column(category_values=tuple(values.tolist()), category_dtype=str(values.dtype))
        else:
            note_numbers_for_categories(x)
    return found


def apply_outputs(outputs: BoosterOutputs, names: Any, x: Node, given: Node | Frame) -> dict[str, Node]:
    """{"apply": flat leaf numbers of x}; nothing without trees. XGBoost makes a DMatrix for it. If the booster knows names of features, a
    DMatrix must have them too; `given` says whether that is made of the model's own input."""
    if not outputs.has_trees:
        return {}
    leaves = flat(outputs.leaves(x))
    return {"apply": computed_of_names_only(leaves) if names and given_columns(given) else leaves}


def as_read(x: Node) -> Node:
    """x in the dtype that XGBoost reads from an array: float32."""
    return t.cast(x, "f32")


@record
class Estimator:
    """Builds the outputs of one of XGBoost's scikit-learn classes from x. Unlike a Booster, these classes have a value for missing ones
    (`missing`), and use only the rounds up to the best iteration after early stopping."""

    model: Any
    x: Node | Frame

    @cached_property
    def booster(self) -> BoosterOutputs:
        booster = self.model.get_booster()
        try:
            best = int(booster.best_iteration) + 1
        except AttributeError:
            best = None
        return BoosterOutputs(
            read_once(read_model, booster), asked_of(booster, booster.num_boosted_rounds(), best), in_place=True
        )

    def read(self, *, in_place: bool, min_rows: int = 0) -> Node:
        """The float32 matrix that the trees read, with NaN in place of `missing`. `in_place`: the method calls inplace_predict, which
        accepts infinite values. Otherwise it makes a DMatrix, which rejects them unless `missing` is infinite itself."""
        missing = np.float32(np.nan if self.model.missing is None else self.model.missing)
        learner = self.booster.learner
        if (learner.categories or learner.integer_categories) and not np.isnan(missing):
            raise Refusal(f"it has missing={self.model.missing} together with categories of a frame.", "Leave missing=nan.")
        allow_inf = in_place or bool(np.isinf(missing))
        x = _checked(self.model, learner, self.x, allow_inf=allow_inf, min_rows=min_rows)
        return x if np.isnan(missing) else t.where(t.equal(x, missing), np.float32(np.nan), x)

    def margin(self, min_rows: int = 0) -> Node:
        return self.booster.margin(self._read_in_place(min_rows))

    def _read_in_place(self, min_rows: int = 0) -> Node:
        return self.read(in_place=self.booster.has_trees, min_rows=min_rows)

    def output(self, min_rows: int = 0) -> Node:
        """The margins through the link, f32[N, K] or f32[N]. A regressor's `predict` returns them, a classifier makes labels from them."""
        return flat(link(self.booster.learner.objective, self.margin(min_rows)))

    def others(self) -> dict[str, Node]:
        """Two more methods: `raw_score` (`predict` with output_margin=True) and, if there are trees, `apply`."""
        names = self.model.get_booster().feature_names
        if names and not self.booster.has_trees:
            note_input(Frames(required=True), self.x)  # gblinear makes a DMatrix for every method
        raw = self.booster.raw_score(self._read_in_place())
        return {"raw_score": flat(raw), **apply_outputs(self.booster, names, self.read(in_place=False), self.x)}


@describes("xgboost.Booster")
def _booster_columns(m: Any) -> Described:
    return m.num_features(), m.feature_names


@converts("xgboost.Booster", frame=True)
def booster(m: Any, x: Node | Frame) -> Result:
    """`predict` of a DMatrix made from X, with all rounds: also with output_margin=True (`raw_score`) and pred_leaf=True (`apply`)."""
    outputs = BoosterOutputs(read_once(read_model, m), asked_of(m, m.num_boosted_rounds()))
    read = _checked(m, outputs.learner, x, allow_inf=False)
    predicted = flat(link(outputs.learner.objective, outputs.margin(read)))
    leaves = apply_outputs(outputs, m.feature_names, read, x)
    return {"predict": predicted, "raw_score": flat(outputs.raw_score(read)), **leaves}


@converts("xgboost.XGBModel", "xgboost.XGBRegressor", "xgboost.XGBRFRegressor", "xgboost.XGBRanker", frame=True)
def xgb_regressor(m: Any, x: Node | Frame) -> Result:
    estimator = Estimator(m, x)
    return {"predict": estimator.output(), **estimator.others()}


@converts("xgboost.XGBClassifier", "xgboost.XGBRFClassifier", frame=True)
def xgb_classifier(m: Any, x: Node | Frame) -> Result:
    estimator, n_classes = Estimator(m, x), int(m.n_classes_)
    output = estimator.output()
    columns = output.type.columns if len(output.type.shape) == 2 else 1
    # XGBoost 3.4 takes an array [0, 0] for zero rows, and numpy's argmax, which it calls for other than two classes, fails for it.
    labelled = estimator.output(min_rows=int(n_classes != 2 and since(3, 4, "xgboost")))
    if columns > 1 and n_classes != 2:
        predicted = t.argmax(labelled, 1)
    elif columns > 1:  # multilabel: each output is 0 or 1
        predicted = t.cast(t.less(0.5, labelled), "f64")
    elif m.objective == "multi:softmax":
        predicted = t.cast(labelled, "i32")
    else:
        predicted = t.cast(t.less(0.5, labelled), "i64")
    if m.objective == "multi:softmax":
        proba = Softmax()(estimator.margin(min_rows=1))  # XGBoost calls scipy's softmax here, which fails for zero rows
    elif columns > 1 and (n_classes == columns or n_classes == 2):
        proba = output
    elif columns == 1:
        column = t.reshape(output, "N", 1)
        proba = t.concat([t.sub(1.0, column), column])
    else:
        raise Refusal(f"it has {n_classes} classes but {columns} outputs.")
    return {"predict": predicted, "predict_proba": proba, **estimator.others()}


@returns_without_rows(
    "xgboost.Booster", "xgboost.XGBModel", "xgboost.XGBRegressor", "xgboost.XGBRFRegressor", "xgboost.XGBRanker"
)
def _no_predictions(m: Any) -> WithoutRows:
    shape = (0, 0) if since(3, 4, "xgboost") else (0,)
    return {"predict": ("<f4", shape), "raw_score": ("<f4", shape), "apply": ("<f4", shape)}


has_own_labels("xgboost.XGBClassifier", "xgboost.XGBRFClassifier")(lambda _: True)  # int32 with multi:softmax, otherwise int64


@returns_without_rows("xgboost.XGBClassifier", "xgboost.XGBRFClassifier")
def _no_classes(m: Any) -> WithoutRows:
    if since(3, 4, "xgboost"):  # its `predict` takes two dimensions for several labels
        return _no_predictions(m) | {"predict": ("<f8", (0, 0)), "predict_proba": ("<f4", (0, 0))}
    labels = "<i4" if m.objective == "multi:softmax" else "<i8"
    return _no_predictions(m) | {"predict": (labels, (0,)), "predict_proba": ("<f4", (0, 2))}
