"""XGBoost 2 and 3: XGBClassifier, XGBRegressor, XGBRanker, the random forests, and Booster.

Models are read from `save_raw("ubj")`, whose floats keep their bits. What a node decides follows XGBoost's
src/predictor/predict_fn.h, what is done with the sums src/objective/*, and what the classes return python-package/xgboost/sklearn.py.
All of XGBoost computes in float32: every input is cast to it first.
"""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from hbc.ir.graph import Node
from hbc.ir.types import Array
from hbc.ops import tensor as t
from hbc.ops.checks import Check
from hbc.ops.linear import Linear, Softmax
from hbc.ops.tree import Tree, TreeEnsemble, join
from hbc.parser import ubjson
from hbc.parser.boosting import PlaneTable, string_categories, with_codes
from hbc.parser.frame import Frame, Refusal, as_frame, as_matrix
from hbc.parser.once import read_once
from hbc.parser.registry import (
    Described,
    Result,
    WithoutRows,
    absent_values_are_missing,
    converts,
    describes,
    public_name,
    read_by,
    returns_without_rows,
)
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


def read_file(path: Path) -> Any:
    """The Booster in a JSON or UBJSON model (`save_model` of a Booster or of a scikit-learn class)."""
    import xgboost

    _require_vector_leaves(path.read_bytes(), tuple(map(int, xgboost.__version__.split(".")[:2])))
    return xgboost.Booster(model_file=path)


def _require_vector_leaves(data: bytes, installed: tuple[int, ...]) -> None:
    """XGBoost 3.1 and later keep vector leaves in a field of their own, and crash where an older version wrote the model without."""
    size = re.search(rb'size_leaf_vector(?:"\s*:\s*"|SL.{8})(\d+)', data, re.DOTALL)
    if installed >= (3, 1) and size is not None and int(size[1]) > 1 and b"leaf_weights" not in data:
        raise ValueError("it has trees with vector leaves from before XGBoost 3.1, which the installed version cannot read")


@dataclass(frozen=True)
class Learner:
    """The document of a model: its booster, the name of its objective, and the margin of a row without trees."""

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
        """The part with the trees, or with the weights of gblinear."""
        booster = self.document["gradient_booster"]
        return dict(booster["gbtree"]["model"] if self.booster == "dart" else booster["model"])

    @property
    def categories(self) -> dict[int, Array]:
        """The string categories of the columns of the training frame, which XGBoost 3.1 and later keep."""
        result = {}
        for column, stored in enumerate(self.model.get("cats", {}).get("enc", ())):
            if "offsets" not in stored:
                string_categories(stored["values"].tolist())
            elif len(stored["values"]):
                # A letter beyond ASCII has several bytes, of which XGBoost 3.2 counts one: its own table of categories is wrong then.
                if (stored["values"] < 0).any():
                    raise Refusal("a category is not ASCII, and XGBoost does not keep such categories whole.", "Rename them.")
                text, ends = stored["values"].astype(np.uint8).tobytes().decode(), stored["offsets"].tolist()
                result[column] = np.array([text[a:b] for a, b in itertools.pairwise(ends)], str)
        return result

    @property
    def n_features(self) -> int:
        return int(self.document["learner_model_param"]["num_feature"])

    @property
    def base(self) -> Array:
        """The margin that base_score stands for, f32[K] (ObjFunction::ProbToMargin); XGBoost 3.1 has one for every output."""
        score = np.atleast_1d(json.loads(self.document["learner_model_param"]["base_score"])).astype(np.float32)
        one = np.float32(1)
        with np.errstate(divide="ignore", invalid="ignore"):
            if self.objective in LOGIT:
                inside = np.clip(score, np.float32(1e-6), one - np.float32(1e-6))  # 0 and 1 where all labels are
                score = -np.log(one / inside - one)
            elif self.objective in LOG:
                score = np.log(score)
        return np.ascontiguousarray(np.broadcast_to(score, self.n_outputs))


def read_model(m: Any) -> Learner:
    return Learner(ubjson.loads(m.save_raw("ubj"))["learner"])


@dataclass(frozen=True)
class Machine:
    """What a booster computes of a float32 x: margins f32[N, K], and leaves f32[N, T] where there are trees.

    rounds: how many of its rounds count; None for all.
    """

    learner: Learner
    rounds: int | None = None

    @cached_property
    def _trees(self) -> tuple[TreeEnsemble, PlaneTable]:
        return _ensemble(self.learner, self.rounds)

    @property
    def has_trees(self) -> bool:
        return self.learner.booster != "gblinear"

    def margin(self, x: Node) -> Node:
        if not self.has_trees:
            return _linear(self.learner, x)
        trees, planes = self._trees
        return trees(planes.behind(x))

    def leaves(self, x: Node) -> Node:
        trees, planes = self._trees
        return t.cast(replace(trees, output="leaf")(planes.behind(x)), "f32")


def _linear(learner: Learner, x: Node) -> Node:
    """GBLinear::Pred: a missing value adds nothing, and every output starts from the first one's base score."""
    weights = learner.model["weights"].reshape(-1, learner.n_outputs)
    present = t.where(t.isnan(x), 0.0, x)
    return Linear(weights[:-1], weights[-1] + learner.base[0])(present)


def _ensemble(learner: Learner, rounds: int | None) -> tuple[TreeEnsemble, PlaneTable]:
    booster = learner.document["gradient_booster"]
    model = learner.model
    documents, target = model["trees"], np.asarray(model["tree_info"], np.int32)
    weights = np.asarray(booster.get("weight_drop", np.ones(len(documents))), np.float32)
    if rounds is not None:
        end = _end(model, rounds, learner.n_outputs)
        documents, target, weights = documents[:end], target[:end], weights[:end]
    if not documents:
        raise Refusal("it has no trees.", "Fit it with at least one round.")
    planes = PlaneTable(learner.n_features, sets_go_left=False)
    trees = [_tree(document, weight, learner.n_outputs, planes) for document, weight in zip(documents, weights, strict=True)]
    if trees[0].values.shape[1] > 1:
        target = np.zeros_like(target)
    return join(trees, learner.base, target), planes


def _end(model: dict[str, Any], rounds: int, n_outputs: int) -> int:
    """The number of trees in the first rounds."""
    ends = model.get("iteration_indptr")
    if ends is not None:
        return int(ends[min(rounds, len(ends) - 1)])
    forest = int(model["gbtree_model_param"].get("num_parallel_tree", 1))
    return rounds * forest * n_outputs


def _tree(document: dict[str, Any], weight: np.float32, n_outputs: int, planes: PlaneTable) -> Tree:
    left, right = document["left_children"], document["right_children"]
    leaf = left < 0
    if np.any(right[~leaf] != left[~leaf] + 1):  # all that XGBoost grows; it takes left + 1 whatever the document says
        raise Refusal("a node has children that are not side by side.")
    condition = document["split_conditions"]
    feature = document["split_indices"].astype(np.int64)
    default_left = document["default_left"].astype(bool)
    categorical = document["split_type"].astype(bool) & ~leaf
    # x < c is x <= the float before c; nothing is below -inf. A set has no threshold: until 3.0 NaN stands there.
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
    values = _leaf_values(document, leaf, n_outputs) * weight
    ids = np.arange(len(left))
    tree = Tree(np.where(leaf, -1, feature), threshold, left, right, default_left, values, ids)
    return _reachable(tree) if int(document["tree_param"]["num_deleted"]) else tree


def _leaf_values(document: dict[str, Any], leaf: Array, n_outputs: int) -> Array:
    """f32[M, V]: a leaf's value stands where an inner node has its threshold; vectors stand apart."""
    if int(document["tree_param"]["size_leaf_vector"]) <= 1:
        return np.asarray(document["split_conditions"])[:, None]
    if "leaf_weights" in document:  # from 3.1 on, a leaf's right child is the number of its vector
        vectors = document["leaf_weights"].reshape(-1, n_outputs)
        return np.asarray(vectors[np.where(leaf, document["right_children"], 0)])
    return np.asarray(document["base_weights"].reshape(-1, n_outputs))


def _reachable(tree: Tree) -> Tree:
    """The tree without the nodes that pruning has cut off."""
    kept = np.zeros(len(tree.feature), bool)
    front = np.array([0])
    while len(front):
        kept[front] = True
        inner = front[tree.feature[front] >= 0]
        front = np.concatenate([tree.left[inner], tree.right[inner]])
    place = np.cumsum(kept) - 1
    left, right = (np.where(tree.feature >= 0, place[side], 0) for side in (tree.left, tree.right))
    ids = np.arange(len(kept))
    return Tree(
        tree.feature[kept], tree.threshold[kept], left[kept], right[kept], tree.missing_left[kept], tree.values[kept], ids[kept]
    )


def link(objective: str, margin: Node) -> Node:
    """ObjFunction::PredTransform: f32[N, K] of margins to what `predict` returns, f32[N, K], or [N] for the class of multi:softmax."""
    if objective in IDENTITY:
        return margin
    if objective in LOGIT:
        return t.sigmoid(margin)
    if objective in LOG:
        return t.exp(margin)
    if objective == "multi:softprob":
        return Softmax()(margin)
    if objective == "multi:softmax":
        return t.cast(t.argmax(margin, 1), "f32")
    if objective == "binary:hinge":
        return t.cast(t.less(0.0, margin), "f32")
    raise Refusal(f"hbc does not know what its objective {objective!r} makes of margins.")


def flat(value: Node) -> Node:
    """One column as a vector: the shape of everything XGBoost returns for one output."""
    return t.reshape(value, "N") if value.type.shape[1:] == (1,) else value


def _checked(m: Any, learner: Learner, x: Node | Frame, *, allow_inf: bool, min_rows: int = 0) -> Node:
    """x as a float32: what does not fit into it becomes infinite, which a DMatrix rejects and inplace_predict accepts."""
    owner = public_name(type(m))
    categories = learner.categories
    absent_values_are_missing()
    read_by("xgboost", x)
    matrix = with_codes(as_frame(x), categories, "f64", known_to=owner) if categories else as_matrix(x)
    if is_sparse(x):
        matrix = t.cast(matrix, "f32") if not matrix.type.is_float else matrix
        matrix = t.where(t.equal(matrix, 0.0), np.nan, matrix)
    limit = float("inf") if allow_inf or matrix.type.dtype != "f64" else LARGEST
    return as_read(Check(owner, allow_nan=True, allow_inf=allow_inf, limit=limit, min_rows=min_rows)(matrix))


def as_read(x: Node) -> Node:
    """x as XGBoost takes an array."""
    return t.cast(x, "f32")


LARGEST = float(np.nextafter(2.0**128 - 2.0**103, 0))
"""The largest double that rounds to a finite float32."""


@dataclass(frozen=True)
class Estimator:
    """One of the scikit-learn classes over x: with its `missing`, and the best iteration of early stopping."""

    model: Any
    x: Node | Frame

    @cached_property
    def machine(self) -> Machine:
        booster = self.model.get_booster()
        try:
            rounds = int(booster.best_iteration) + 1
        except AttributeError:
            rounds = None
        return Machine(read_once(read_model, booster), rounds)

    def read(self, *, in_place: bool, min_rows: int = 0) -> Node:
        """What the trees see. A DMatrix (not `in_place`) rejects infinite values, unless they are the missing ones."""
        missing = np.float32(np.nan if self.model.missing is None else self.model.missing)
        learner = self.machine.learner
        if learner.categories and not np.isnan(missing):
            raise Refusal(f"missing={self.model.missing} beside string categories.", "Leave missing=nan.")
        allow_inf = in_place or bool(np.isinf(missing))
        x = _checked(self.model, learner, self.x, allow_inf=allow_inf, min_rows=min_rows)
        return x if np.isnan(missing) else t.where(t.equal(x, missing), np.float32(np.nan), x)

    def margin(self, min_rows: int = 0) -> Node:
        return self.machine.margin(self.read(in_place=self.machine.has_trees, min_rows=min_rows))

    def output(self) -> Node:
        """What the class's own `predict` starts from, and a regressor's returns."""
        return flat(link(self.machine.learner.objective, self.margin()))

    def others(self) -> dict[str, Node]:
        """What `predict` returns with output_margin=True; and `apply`."""
        leaves = {"apply": flat(self.machine.leaves(self.read(in_place=False)))} if self.machine.has_trees else {}
        return {"raw_score": flat(self.margin()), **leaves}


@describes("xgboost.Booster")
def _booster_columns(m: Any) -> Described:
    return m.num_features(), m.feature_names


@converts("xgboost.Booster", frame=True)
def booster(m: Any, x: Node | Frame) -> Result:
    """`predict` of a DMatrix made of X: all rounds; also with output_margin=True, and with pred_leaf=True."""
    machine = Machine(read_once(read_model, m))
    x = _checked(m, machine.learner, x, allow_inf=False)
    margin = machine.margin(x)
    leaves = {"apply": flat(machine.leaves(x))} if machine.has_trees else {}
    return {"predict": flat(link(machine.learner.objective, margin)), "raw_score": flat(margin), **leaves}


@converts("xgboost.XGBModel", "xgboost.XGBRegressor", "xgboost.XGBRFRegressor", "xgboost.XGBRanker", frame=True)
def xgb_regressor(m: Any, x: Node | Frame) -> Result:
    estimator = Estimator(m, x)
    return {"predict": estimator.output(), **estimator.others()}


@converts("xgboost.XGBClassifier", "xgboost.XGBRFClassifier", frame=True)
def xgb_classifier(m: Any, x: Node | Frame) -> Result:
    estimator, n_classes = Estimator(m, x), int(m.n_classes_)
    output = estimator.output()
    columns = output.type.columns if len(output.type.shape) == 2 else 1
    if columns > 1 and n_classes != 2:
        predicted = t.argmax(output, 1)
    elif columns > 1:  # of several labels, each 0 or 1
        predicted = t.cast(t.less(0.5, output), "f64")
    elif m.objective == "multi:softmax":
        predicted = t.cast(output, "i32")
    else:
        predicted = t.cast(t.less(0.5, output), "i64")
    if m.objective == "multi:softmax":
        proba = Softmax()(estimator.margin(min_rows=1))  # scipy's softmax fails without rows
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
    return {"predict": ("<f4", (0,)), "raw_score": ("<f4", (0,)), "apply": ("<f4", (0,))}


@returns_without_rows("xgboost.XGBClassifier", "xgboost.XGBRFClassifier")
def _no_classes(m: Any) -> WithoutRows:
    return {"predict": ("<i8", (0,)), "predict_proba": ("<f4", (0, 2)), "raw_score": ("<f4", (0,)), "apply": ("<f4", (0,))}
