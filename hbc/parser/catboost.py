"""Converters for CatBoost: CatBoostClassifier, CatBoostRegressor, CatBoostRanker and CatBoost, with numbers and categories.

Models are read from CatBoost's own JSON (`save_model(format="json")`). Numbers are compared as float32, by `x > border`
(catboost/libs/model/cpu/quantization.h). Leaves are added in float64. For categories see catboost_categories.py.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import is_, itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from hbc.ir.graph import Node
from hbc.ir.signature import FRAME_LIBRARIES, Arrays, Column, Frames, Sparse
from hbc.ir.types import Array
from hbc.lazy import cached_property, record
from hbc.ops import tensor as t
from hbc.ops.checks import Beside, Check
from hbc.ops.linear import Logistic, Softmax
from hbc.ops.tree import Tree, TreeEnsemble, join
from hbc.parser import boosting
from hbc.parser.boosting import PlaneTable, flat, integers_as_f32, staged
from hbc.parser.catboost_categories import CategoryColumns
from hbc.parser.frame import Frame, Refusal, as_frame
from hbc.parser.front_door import keeps_dtypes, note, note_input, note_names
from hbc.parser.once import read_once
from hbc.parser.registry import Described, Result, converts, describes, has_own_labels, public_name
from hbc.parser.sparsity import may_be_sparse

LOGISTIC = ("Logloss", "CrossEntropy", "Focal")
MULTI_LABEL = ("MultiLogloss", "MultiCrossEntropy")
"""Losses of a CatBoostClassifier with several labels, each of which a row may have or not."""
NO_NUMBERS = ("pandas.CategoricalDtype", "pandas.BooleanDtype with NA")
"""The dtypes of frames from which CatBoost reads no numbers."""

NAN_GOES_RIGHT = {"AsIs": False, "AsFalse": False, "AsTrue": True}


RANKING = (
    *("GroupQuantile", "LambdaMart", "PairLogit", "PairLogitPairwise", "QueryCrossEntropy", "QueryRMSE", "QuerySoftMax"),
    *("StochasticRank", "YetiRank", "YetiRankPairwise"),
)
"""Losses of a CatBoostRanker, whose `predict` returns the raw sums."""


def read_file(path: Path) -> Any:
    """The model in a file that CatBoost's `save_model` wrote. The file does not say which class wrote it. A model with classes becomes a
    CatBoostClassifier, one with a loss in RANKING a CatBoostRanker, and any other a CatBoostRegressor."""
    import catboost

    model = catboost.CatBoost().load_model(str(path))
    loss = str(model.get_params().get("loss_function")).split(":")[0]
    kind = "Classifier" if len(model.classes_) else "Ranker" if loss in RANKING else "Regressor"
    return getattr(catboost, f"CatBoost{kind}")().load_model(str(path))


def read_document(model: Any) -> dict[str, Any]:
    """The JSON document of a model. Raises Refusal if the model has features of text or embeddings, or if CatBoost cannot write it."""
    import catboost

    for kind in ("text", "embedding"):
        if getattr(model, f"get_{kind}_feature_indices")():
            raise Refusal(f"it has {kind} features.", "Turn them into numbers before, and fit it on these.")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.json"
        try:
            model.save_model(str(path), format="json")
        except catboost.CatBoostError as error:  # such as a leaf or a bias that is no finite number
            raise Refusal(f"CatBoost cannot write it as JSON, which hbc reads: {error}.") from error
        return dict(json.loads(path.read_text()))


def loss_of(document: dict[str, Any]) -> str:
    """The name of the loss without its parameters; "unknown" if the document does not say it."""
    information = document["model_info"].get("params", {})
    information = json.loads(information) if isinstance(information, str) else information
    return str(information.get("loss_function", {}).get("type", "unknown"))


@record
class CatBoostOutputs:
    """Builds the outputs of a model: the matrix that its trees read, the trees, and their raw sums. `given` is the model's input."""

    model: Any
    given: Node | Frame

    @cached_property
    def document(self) -> dict[str, Any]:
        return read_once(read_document, self.model)

    @cached_property
    def loss(self) -> str:
        return loss_of(self.document)

    @cached_property
    def bias(self) -> Array:
        return np.asarray(self.document["scale_and_bias"][1], np.float64)

    @cached_property
    def _categorical(self) -> list[int]:
        """The input columns that hold categories, in the order of CatBoost's own numbers for categorical features."""
        features = sorted(self.document["features_info"].get("categorical_features", []), key=itemgetter("feature_index"))
        return [feature["flat_feature_index"] for feature in features]

    @cached_property
    def _numeric(self) -> list[int]:
        return [i for i in range(len(as_frame(self.given))) if i not in self._categorical]

    def _note_names(self) -> None:
        """Note that frames must have the fitted names, as text. CatBoost numbers the columns of an array, and keeps no names then: its
        `feature_names_` are the same for a frame whose columns are named by these numbers."""
        features = self.document["features_info"]
        kept = [
            feature.get("feature_id")
            for kind in ("float_features", "categorical_features")
            for feature in features.get(kind, [])
        ]
        numbers = list(map(str, range(len(self.model.feature_names_))))
        numbered = any(kept) and self.model.feature_names_ == numbers
        note_input(Frames(text_names=True, tuples_as_text=True, numbered=numbered), self.given)
        note_names(self.given, self.model.feature_names_ if any(kept) else ())
        note_input(Arrays(tuples=False), self.given)

    @cached_property
    def _columns(self) -> dict[int, tuple[int, bool]]:
        """float feature → (its column in `_numbers`, whether NaN counts as greater than every border)."""
        place = {flat: i for i, flat in enumerate(self._numeric)}
        return {
            feature["feature_index"]: (place[feature["flat_feature_index"]], NAN_GOES_RIGHT[feature["nan_value_treatment"]])
            for feature in self.document["features_info"].get("float_features", [])
        }

    @cached_property
    def _numbers(self) -> Node | None:
        """The input columns that hold numbers, f32[N, F]; None if there are none."""
        if not self._categorical:
            self._note_names()
            note_input(Frames(libraries=FRAME_LIBRARIES, no_numbers=NO_NUMBERS), self.given)
            if keeps_dtypes(self.given) or any(may_be_sparse(node) for node in as_frame(self.given).blocks()):
                note_input(Sparse(matrices_only=True))
            return t.cast(integers_as_f32(self.given), "f32")
        return t.cast(integers_as_f32(as_frame(self.given).select(self._numeric)), "f32") if self._numeric else None

    @cached_property
    def _categories(self) -> CategoryColumns:
        frame = as_frame(self.given)
        self._note_names()
        note_input(Frames(libraries=FRAME_LIBRARIES, no_numbers=NO_NUMBERS), self.given)
        frame.need_strings(self._categorical)
        chosen = frame.select(self._categorical)
        note(chosen, Column(digits=True))
        texts = Check(public_name(type(self.model)), min_rows=0)(chosen.matrix(strings=True))
        return CategoryColumns(self.document, texts, self._numbers, len(self._numeric), self._columns)

    @cached_property
    def _planes(self) -> PlaneTable:
        """The tests of one-hot splits. It is filled while `ensemble` reads the trees."""
        return PlaneTable(len(self._numeric) + (self._categories.n_columns if self._categorical else 0), sets_go_left=False)

    @cached_property
    def x(self) -> Node:
        """The matrix that the trees read, f32[N, …]: the numbers, the columns of `CategoryColumns`, and the tests of one-hot splits."""
        self.ensemble  # noqa: B018  (it fills `_planes`)
        blocks = [] if self._numbers is None else [self._numbers]
        blocks += [self._categories.columns()] if self._categorical and self._categories.n_columns else []
        x = self._planes.behind(t.concat(blocks))
        # CatBoost looks at categories that no tree reads, and rejects missing ones.
        return Beside()(x, self._categories.hashes) if self._categorical and not self._categories.n_columns else x

    @cached_property
    def ensemble(self) -> TreeEnsemble:
        document = self.document
        dim = len(self.bias)
        if "oblivious_trees" in document:
            trees = [self._oblivious(tree, dim) for tree in document["oblivious_trees"]]
        else:
            leaf_first = self._orders[:1] != [False]
            trees = [self._nested(tree, dim, leaf_first) for tree in document["trees"]]
        if not trees:
            raise Refusal("it has no trees.", "Fit it with at least one iteration.")
        # Behind a bias, and for several labels, it is not the largest two sums or the sign of a sum of trees that decide, as scans expect.
        exact = hasattr(self.model, "predict_proba") and (bool(self.bias.any()) or self.loss in MULTI_LABEL)
        return replace(join(trees, np.zeros(dim)), exact=exact)

    @cached_property
    def _orders(self) -> list[bool]:
        """The values of `leaf_first` (see `_below`) that give the model's own lists of values and weights. Several, if the lists do not
        tell; one, if the order of leaves is the same either way."""
        found = {first: [leaf for tree in self.document["trees"] for leaf in _leaves(tree, first)] for first in (True, False)}
        if all(map(is_, *found.values())):
            return [True]
        own = {"value": self.model.get_leaf_values()}
        if len(self.bias) == 1:  # CatBoost 1.2 fails to list the weights of leaves of several values
            own["weight"] = self.model.get_leaf_weights()
        listed = {
            first: {name: _joined(leaf[name] for leaf in leaves if name in leaf) for name in own}
            for first, leaves in found.items()
        }
        return [first for first, lists in listed.items() if all(np.array_equal(own[name], lists[name]) for name in own)]

    def _split(self, split: dict[str, Any]) -> tuple[int, np.float32, bool]:
        """(the column that a split reads, its border, whether NaN goes left, to the small numbers). Raises Refusal for unknown splits."""
        match split["split_type"]:
            case "FloatFeature":
                column, nan_goes_right = self._columns[split["float_feature_index"]]
                border = np.float32(split["border"])
                if np.isnan(border):
                    raise Refusal("it has a border that is NaN.")
                return column, border, not nan_goes_right
            case "OneHotFeature":
                column, code = self._categories.test(split)
                return self._planes.add(column, np.array([code]), missing_left=True), np.float32(0.5), True
            case "OnlineCtr":
                return self._categories.statistic(split), np.float32(split["border"]), True
        raise Refusal(f"it splits by {split['split_type']}, which hbc does not know.", "Fit it on numbers and categories.")

    def _oblivious(self, tree: dict[str, Any], dim: int) -> Tree:
        """An oblivious tree: a perfect binary tree that makes the same split at all nodes of a level. The last split is at the root, so
        that leaves come in CatBoost's order: bit i of a leaf's number is the outcome of split i."""
        splits = [self._split(split) for split in reversed(tree["splits"] or [])]
        inner, leaves = 2 ** len(splits) - 1, 2 ** len(splits)
        level = np.repeat(np.arange(len(splits)), 2 ** np.arange(len(splits)))
        feature, threshold, missing_left = (np.array([split[k] for split in splits])[level] for k in range(3))
        node = np.arange(inner)
        values = np.asarray(tree["leaf_values"], np.float64).reshape(leaves, dim)
        return Tree(
            np.concatenate([feature.astype(np.int64), np.full(leaves, -1)]),
            np.concatenate([threshold.astype(np.float32), np.zeros(leaves, np.float32)]),
            np.concatenate([2 * node + 1, np.zeros(leaves, np.int64)]),
            np.concatenate([2 * node + 2, np.zeros(leaves, np.int64)]),
            np.concatenate([missing_left.astype(bool), np.zeros(leaves, bool)]),
            np.concatenate([np.zeros((inner, dim)), values]),
            np.arange(inner + leaves) - inner,
            _cover(tree.get("leaf_weights", ()), len(splits)),
        )

    def _nested(self, tree: dict[str, Any], dim: int, leaf_first: bool) -> Tree:
        """A tree grown with grow_policy Depthwise or Lossguide, whose document nests each node in its parent. `leaf_first`: `_below`."""
        feature: list[int] = []
        threshold: list[np.float32] = []
        missing_left: list[bool] = []
        values: list[Array] = []
        children: list[list[int]] = []
        weights: list[float] = []
        stack: list[tuple[dict[str, Any], int, int]] = [(tree, -1, 0)]
        while stack:
            node, parent, side = stack.pop()
            number = len(feature)
            if parent >= 0:
                children[parent][side] = number
            split = self._split(node["split"]) if "split" in node else (-1, np.float32(0), False)
            feature.append(split[0])
            threshold.append(split[1])
            missing_left.append(split[2])
            values.append(np.broadcast_to(np.asarray(node.get("value", 0.0), np.float64), dim))
            children.append([0, 0])
            if "split" in node:
                stack += [(node[side], number, SIDES.index(side)) for side in reversed(_below(node, leaf_first))]
            weights.append(node.get("weight", np.nan))
        sides = np.array(children)
        cover = np.array(weights, np.float64)
        leaf = np.array(feature) < 0
        for number in reversed(np.flatnonzero(~leaf)):
            cover[number] = cover[sides[number]].sum()
        return Tree(
            *(np.array(feature), np.array(threshold), sides[:, 0], sides[:, 1], np.array(missing_left, bool), np.array(values)),
            ids=np.cumsum(leaf) - 1,
            cover=None if np.isnan(cover).any() else cover,
        )

    @cached_property
    def raw(self) -> dict[str, Node]:
        """Raw sums by the prefix of method names. "": for all trees, f64[N, K], as with prediction_type="RawFormulaVal". "staged_":
        the sums after each tree, f64[N, T, K]."""
        return {"": self._scaled(self.ensemble(self.x)), "staged_": self._scaled(staged(self.ensemble, self.x))}

    def _scaled(self, scores: Node) -> Node:
        scale = float(self.document["scale_and_bias"][0])
        scores = scores if scale == 1 else t.mul(scores, scale)
        return t.add(scores, self.bias) if self.bias.any() else scores

    def others(self) -> dict[str, Node]:
        """`calc_leaf_indexes`. Nothing, if the order of the leaves is not known: all that could tell it is equal, such as values of 0."""
        if "trees" in self.document and len(self._orders) != 1:
            return {}
        return {"calc_leaf_indexes": boosting.leaves(replace(self.ensemble, exact=False), self.x)}


SIDES = ("left", "right")


def _joined(values: Iterable[Any]) -> Array:
    """Numbers and lists of numbers, one behind the other, as f64."""
    return np.array(list(values), np.float64).ravel()


def _below(node: dict[str, Any], leaf_first: bool) -> tuple[str, ...]:
    """The children of a node in the order in which CatBoost numbers the leaves of a nested tree: from left to right, but (`leaf_first`) a
    leaf before those that are below its sibling, unless the model was loaded from JSON."""
    return SIDES[::-1] if leaf_first and "split" in node["left"] and "split" not in node["right"] else SIDES


def _leaves(tree: dict[str, Any], leaf_first: bool) -> list[dict[str, Any]]:
    """The leaves of a nested tree in that order."""
    found, stack = [], [tree]
    while stack:
        node = stack.pop()
        if "split" in node:
            stack += [node[side] for side in reversed(_below(node, leaf_first))]
        else:
            found.append(node)
    return found


@describes("catboost.CatBoost", "catboost.CatBoostClassifier", "catboost.CatBoostRegressor", "catboost.CatBoostRanker")
def _columns(m: Any) -> Described:
    names = m.feature_names_
    return (
        (None, None) if names is None else (len(names), None if names == [str(i) for i in range(len(names))] else tuple(names))
    )


def _cover(weights: Sequence[float], depth: int) -> Array | None:
    """The weight of the training data at each node of a perfect tree, level after level, from that at its leaves. None: not known."""
    leaves = np.asarray(weights, np.float64)
    if len(leaves) != 2**depth:
        return None
    return np.concatenate([leaves.reshape(2**level, -1).sum(axis=1) for level in range(depth + 1)])


@converts("catboost.CatBoost", "catboost.CatBoostRanker", frame=True)
def catboost_model(m: Any, x: Node | Frame) -> Result:
    """`predict` returns the raw sums, whatever the loss."""
    model = CatBoostOutputs(m, x)
    return {**{f"{prefix}predict": flat(raw) for prefix, raw in model.raw.items()}, **model.others()}


@converts("catboost.CatBoostRegressor", frame=True)
def catboost_regressor(m: Any, x: Node | Frame) -> Result:
    """The kind of `predict` is CatBoost's own choice. It looks at the parameters of the object, and `load_model(blob=…)` and
    `load_model(stream=…)` leave them as they were: a Poisson model that was loaded so predicts raw sums."""
    model = CatBoostOutputs(m, x)
    raw, stages = model.raw.values()
    outputs = {"staged_predict": flat(stages), **model.others()}  # raw sums, also where `predict` applies a link to them
    match m._get_default_prediction_type():
        case "RawFormulaVal":
            return {"predict": flat(raw), **outputs}
        case "Exponent" if raw.type.columns == 1:
            return {"predict": flat(t.exp(raw)), **outputs}
        case "RMSEWithUncertainty" if raw.type.columns == 2:
            # The second output is exp(2 · the logarithm of a standard deviation), a variance.
            mean, log_deviation = (t.take(raw, np.array([k]), axis=1) for k in (0, 1))
            return {"predict": t.concat([mean, t.exp(t.mul(log_deviation, 2.0))]), **outputs}
        case kind:
            raise Refusal(f"hbc does not know how CatBoost turns {raw.type.columns} raw values into {kind!r}.")


@has_own_labels("catboost.CatBoostClassifier")
def _has_several_labels(m: Any) -> bool:
    """Whether `predict` returns 0 or 1 for each label, which no label in `classes_` is."""
    return loss_of(read_once(read_document, m)) in MULTI_LABEL


@converts("catboost.CatBoostClassifier", frame=True)
def catboost_classifier(m: Any, x: Node | Frame) -> Result:
    model = CatBoostOutputs(m, x)
    outputs = {f"{prefix}{method}": out for prefix, raw in model.raw.items() for method, out in _classes(m, model, raw).items()}
    return {**outputs, **model.others()}


def _classes(m: Any, model: CatBoostOutputs, raw: Node) -> dict[str, Node]:
    """Labels, probabilities and logarithms of probabilities from raw sums f64[N, …, K], by method. Raises Refusal for other losses."""
    axis = len(raw.type.shape) - 1
    if model.loss in LOGISTIC:
        predicted = _labels(m, t.cast(t.less(_cut(model), flat(raw)), "i64"))
        positive = Logistic()(raw)
        proba = t.concat([t.sub(1.0, positive), positive], axis)
        log_proba = _log_logistic(t.concat([t.neg(raw), raw], axis))
    elif model.loss in MULTI_LABEL:
        # 1 for each label that a row has, and 0 for the others, whatever the names of the labels are.
        predicted, proba, log_proba = t.cast(t.less(_cut(model), raw), "i64"), Logistic()(raw), _log_logistic(raw)
    elif model.loss in ("MultiClass", "MultiClassOneVsAll"):
        # CatBoost returns the labels of several classes as a matrix of one column.
        predicted = _labels(m, t.reshape(t.argmax(raw, axis), *raw.type.shape[:-1], 1))
        if model.loss == "MultiClass":
            shifted = t.sub(raw, t.max_(raw, axis, keepdims=True))
            log_proba = t.sub(shifted, t.log(t.sum_(t.exp(shifted), axis, keepdims=True)))
            # CatBoost's e^x is 0 where it would be subnormal.
            proba = t.where(t.less_equal(shifted, float(np.log(np.finfo(np.float64).tiny))), 0.0, Softmax()(raw))
        else:
            proba, log_proba = Logistic()(raw), _log_logistic(raw)
    else:
        raise Refusal(f"hbc does not know how its loss {model.loss!r} turns raw values into predictions.")
    return {"predict": predicted, "predict_proba": proba, "predict_log_proba": log_proba}


def _cut(model: CatBoostOutputs) -> float:
    """The raw sum above which a row has a label: that of the model's threshold of probabilities, which is 0.5 unless somebody set it."""
    threshold = model.document["model_info"].get("binclass_probability_threshold")
    share = 0.5 if threshold is None else float(threshold)
    return math.log(share / (1 - share)) if 0 < share < 1 else math.copysign(math.inf, share - 0.5)


def _labels(m: Any, index: Node) -> Node:
    classes = np.asarray(m.classes_)
    return t.take(classes.astype(str) if classes.dtype.kind == "O" else classes, index, axis=0)


def _log_logistic(x: Node) -> Node:
    """-ln(1 + e^-x), as CatBoost computes it: -inf where e^-x overflows, and 0 where 1 + e^-x is 1."""
    return t.neg(t.log(t.add(t.exp(t.neg(x)), 1.0)))
