"""Compares leaves: random models of every library, rows at their thresholds, the leaf numbers of the source, and those of a backend.

`python tests/parser/leaf_sweep.py` prints the figures. test_leaf_sweep.py runs a sample, and in the slow tier all of it.
"""

from __future__ import annotations

import copy
import functools
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import lightgbm as lgb
import numpy as np
import xgboost as xgb
from sklearn.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    IsolationForest,
    RandomForestClassifier,
    RandomForestRegressor,
)

from hbc.builder import Builder
from hbc.compiler.base import CompileOptions
from hbc.ir.graph import Graph, Node
from hbc.ops.tree import TreeEnsemble
from hbc.parser.lightgbm import read_model
from hbc.parser.parse import parse

FEATURES = 6
WINDOW = float(np.float32(1e-35))  # LightGBM takes every |x| <= WINDOW for 0
LARGEST = float(np.finfo(np.float32).max)
EXTREMES = [
    0.0,
    -0.0,
    5e-324,
    -5e-324,
    1e-310,
    1e-45,
    -1e-45,
    1e-40,
    -1e-40,
    1.17549435e-38,
    -1.17549435e-38,
    LARGEST,
    -LARGEST,
]
ODD_THRESHOLDS = [
    0.0,
    -0.0,
    1e-40,
    -1e-40,
    WINDOW,
    -WINDOW,
    float(np.nextafter(WINDOW, 1)),
    float(np.nextafter(-WINDOW, -1)),
    2e-35,
    1.0,
    5e-324,
]
BEYOND = [np.nan, np.nan, np.nan, np.inf, -np.inf, 1e39, -1e39, 1e300, -1e300]
CATEGORIES = [-1, -3, -0.5, -0.999, 0.5, 2.5, 39.99, 2.0**24 - 1, 2.0**24, 2.0**31 - 1, 2.0**31, -(2.0**31), 1e10, -1e10, 1e300]
DTYPES = {"f64": np.float64, "f32": np.float32, "i64": np.int64}


@dataclass(frozen=True)
class Subject:
    """A fitted model, the thresholds of each of its columns, and a function that gives the source's leaf numbers [N, T], also for inf."""

    name: str
    model: Any
    thresholds: list[Any]
    leaves: Callable[[Any], Any]
    categorical: tuple[int, ...] = ()
    finite: tuple[int, ...] = ()
    """Columns with infinite values that the source rejects. In them it also takes integers beyond 2^53 for their neighbours in the same
    batch: its OrdinalEncoder calls numpy.isin of int64, which compares in float64."""

    def rows(self, rng: np.random.Generator, dtype: str, count: int) -> Any:
        """Rows of values at thresholds, one ulp of float64 or float32 beside them, special numbers, all kinds of categories, and
        integers."""
        columns = []
        for column, cuts in enumerate(self.thresholds):
            cuts = np.unique(np.append(np.asarray(cuts, np.float64), 1.0))
            with np.errstate(over="ignore", under="ignore"):
                single = cuts.astype(np.float32)
                near = [np.nextafter(single, np.float32(side)).astype(np.float64) for side in (-np.inf, np.inf)]
            around = [cuts, np.nextafter(cuts, np.inf), np.nextafter(cuts, -np.inf), single.astype(np.float64), *near]
            pools = [np.concatenate(around), EXTREMES + BEYOND, rng.integers(-3, 70, 40)]
            chances = [0.8, 0.15, 0.05]
            if column in self.categorical:
                pools += [rng.integers(0, 320, 60), CATEGORIES]
                chances = [0.1, 0.1, 0.3, 0.4, 0.1]
            which = rng.choice(len(pools), count, p=chances)
            columns.append(np.choose(which, [rng.choice(pool, count) for pool in pools]))
        X = np.stack(columns, axis=1)
        X[:, self.finite] = np.where(np.abs(X[:, self.finite]) > LARGEST, 3.0, X[:, self.finite])
        if dtype == "i64":
            largest = np.where(np.isin(np.arange(len(self.thresholds)), self.finite), 2.0**52, 2.0**60)
            return np.nan_to_num(X, nan=7).clip(-largest, largest).astype(np.int64) + rng.integers(-1, 2, X.shape)
        with np.errstate(over="ignore", under="ignore"):
            return X.astype(DTYPES[dtype])


def training_data(
    rng: np.random.Generator, classes: int, missing: float, categorical: tuple[int, ...], rows: int
) -> tuple[Any, Any]:
    """Columns of every scale: ties, subnormals, huge numbers, zeros of both signs, float64 values beside float32 ones."""
    X = rng.normal(size=(rows, FEATURES))
    X[:, 1] = np.round(X[:, 1], 1)
    X[:, 2] *= 1e-38
    X[:, 3] *= 1e37
    X[:, 4] = rng.choice([0.0, -0.0, 1e-45, -1e-45, 1e-35, -1e-35, 1.0, -2.0], rows)
    X[:, 5] = X[:, 5].astype(np.float32) + rng.choice([0, 1e-9, -1e-9], rows)
    for column in categorical:
        X[:, column] = rng.integers(0, [7, 40, 250][column % 3], rows)
    scaled = X / np.abs(X).max(axis=0)
    score = np.sin(9 * scaled) @ rng.normal(size=FEATURES) + rng.normal(size=rows) / 3
    X[rng.random(X.shape) < missing] = np.nan
    return X, np.digitize(score, np.quantile(score, np.arange(1, classes) / classes)) if classes else score


def by_column(features: Any, thresholds: Any) -> list[Any]:
    return [np.asarray(thresholds)[np.asarray(features) == column] for column in range(FEATURES)]


# --- LightGBM ----------------------------------------------------------------------------------------------------------

LIGHTGBM: dict[str, dict[str, Any]] = {
    "NaN": {"num_leaves": 31},
    "no NaN, deep": {"num_leaves": 255, "min_data_in_leaf": 1, "missing": 0.0},
    "missing None": {"num_leaves": 63, "use_missing": False},
    "missing Zero": {"num_leaves": 31, "zero_as_missing": True},
    "any threshold, missing type and side": {"num_leaves": 63, "scrambled": True},
    "any, stumps": {"num_leaves": 3, "scrambled": True},
    "category sets": {"categorical": (0, 1, 5), "min_data_per_group": 2, "cat_smooth": 1, "num_leaves": 63},
    "categories one-hot": {"categorical": (1, 4), "max_cat_to_onehot": 1000, "num_leaves": 40},
    "3 classes, extra trees": {"objective": "multiclass", "num_class": 3, "classes": 3, "extra_trees": True, "num_leaves": 31},
    "linear leaves, dart": {"linear_tree": True, "boosting": "dart", "num_leaves": 15, "scrambled": False},
}


def lightgbm_subject(name: str, seed: int, trees: int) -> Subject:
    options = dict(LIGHTGBM[name])
    rng = np.random.default_rng(seed)
    categorical, classes = options.pop("categorical", ()), options.pop("classes", 0)
    X, y = training_data(rng, classes, options.pop("missing", 0.1), categorical, 2000)
    if options.get("linear_tree"):
        X[:, 3] /= 1e37  # LightGBM fits them in float32
    scrambled = options.pop("scrambled", False)
    parameters = {
        "verbose": -1,
        "num_threads": 1,
        "min_data_in_leaf": 3,
        "seed": seed,
        "bagging_freq": 1,
        "bagging_fraction": 0.7,
    }
    data = lgb.Dataset(X, y, categorical_feature=list(categorical), params={"max_bin": int(rng.choice([15, 63, 255, 1000]))})
    booster = lgb.train({**parameters, **options}, data, trees // max(classes, 1))
    if scrambled:
        booster = lgb.Booster(model_str=scrambled_lightgbm(booster.model_to_string(), rng))
    model = read_model(booster)
    thresholds = model.numbers("threshold").copy()
    thresholds[model.integers("decision_type") & 1 > 0] = 3.0  # a node that tests a category set has the number of the set here

    def leaves(X: Any) -> Any:
        return booster.predict(X, pred_leaf=True, num_threads=1)

    return Subject(name, booster, by_column(model.integers("split_feature"), thresholds), leaves, categorical)


def scrambled_lightgbm(text: str, rng: np.random.Generator) -> str:
    """The same model file with thresholds in and around the zero window, and with any missing type and default side at any node."""
    lines = []
    for line in text.splitlines():
        key, _, value = line.partition("=")
        if key == "threshold":
            value = " ".join(repr(float(rng.choice(ODD_THRESHOLDS))) if rng.random() < 0.4 else old for old in value.split())
        if key == "decision_type":
            value = " ".join(str(2 * rng.integers(0, 2) + 4 * rng.integers(0, 3)) for _ in value.split())
        lines.append(f"{key}={value}" if key in ("threshold", "decision_type") else line)
    # The sizes of the blocks are wrong now. Without them LightGBM reads one block after the other.
    return "\n".join(line for line in lines if not line.startswith("tree_sizes")) + "\n"


# --- XGBoost -----------------------------------------------------------------------------------------------------------

XGBOOST: dict[str, dict[str, Any]] = {
    "hist": {"max_depth": 6},
    "exact": {"tree_method": "exact", "max_depth": 8, "missing": 0.0},
    "deep": {"max_depth": 16, "min_child_weight": 0},
    "lossguide": {"grow_policy": "lossguide", "max_leaves": 255, "max_depth": 0, "min_child_weight": 0},
    "any threshold and default": {"max_depth": 8, "scrambled": True},
    "any, stumps": {"max_depth": 1, "scrambled": True},
    "category sets": {"categorical": (0, 1, 5), "max_cat_to_onehot": 1, "max_depth": 8},
    "categories one-hot": {"categorical": (1, 4), "max_cat_to_onehot": 1000, "max_depth": 6},
    "3 classes of forests": {
        "objective": "multi:softprob",
        "num_class": 3,
        "classes": 3,
        "num_parallel_tree": 2,
        "subsample": 0.5,
    },
}


def xgboost_trees(document: dict[str, Any]) -> list[dict[str, Any]]:
    return document["learner"]["gradient_booster"]["model"]["trees"]


def xgboost_subject(name: str, seed: int, trees: int) -> Subject:
    options = dict(XGBOOST[name])
    rng = np.random.default_rng(seed)
    categorical, classes = options.pop("categorical", ()), options.pop("classes", 0)
    X, y = training_data(rng, classes, options.pop("missing", 0.1), categorical, 2000)
    kinds = ["c" if column in categorical else "q" for column in range(FEATURES)]
    scrambled = options.pop("scrambled", False)
    data = xgb.DMatrix(X, y, feature_types=kinds, enable_categorical=True)
    rounds = trees // (max(classes, 1) * options.get("num_parallel_tree", 1))
    booster = xgb.train({"nthread": 1, "seed": seed, "eta": 0.1, "base_score": 0.5, **options}, data, rounds)
    if scrambled:
        booster = scrambled_xgboost(booster, rng)
    document = json.loads(booster.save_raw("json"))
    features = np.concatenate([tree["split_indices"] for tree in xgboost_trees(document)])
    thresholds = np.concatenate([tree["split_conditions"] for tree in xgboost_trees(document)])
    told = numbered_xgboost(document)

    def leaves(X: Any) -> Any:
        """The leaf numbers by inplace_predict, one tree at a time, from trees whose leaves hold their own numbers. (A DMatrix, which
        pred_leaf needs, rejects infinite values.)"""
        with np.errstate(over="ignore", under="ignore"):
            infinite = np.isinf(X.astype(np.float32)).any(axis=1)
        result = np.empty((len(X), len(xgboost_trees(document))))
        if not infinite.all():
            part = xgb.DMatrix(X[~infinite], feature_types=kinds, enable_categorical=True, nthread=1)
            result[~infinite] = booster.predict(part, pred_leaf=True).reshape(-1, result.shape[1])
        if infinite.any():
            for tree in range(result.shape[1]):
                result[infinite, tree] = told.inplace_predict(
                    X[infinite], iteration_range=(tree, tree + 1), predict_type="margin"
                )
        return result.astype(np.int64)

    return Subject(name, booster, by_column(features, thresholds), leaves, categorical)


def scrambled_xgboost(booster: xgb.Booster, rng: np.random.Generator) -> xgb.Booster:
    """The same model with thresholds at and around zero, and any default side at any node."""
    document = json.loads(booster.save_raw("json"))
    for tree in xgboost_trees(document):
        for node in np.flatnonzero(np.array(tree["left_children"]) >= 0):
            tree["default_left"][node] = int(rng.integers(0, 2))
            if rng.random() < 0.4:
                tree["split_conditions"][node] = float(np.float32(rng.choice([*ODD_THRESHOLDS, LARGEST, -LARGEST])))
    return booster_of(document)


def booster_of(document: dict[str, Any]) -> xgb.Booster:
    """The booster of a model in JSON, on one thread."""
    booster = xgb.Booster(model_file=bytearray(json.dumps(document), "utf-8"))
    booster.set_param({"nthread": 1})
    return booster


def numbered_xgboost(document: dict[str, Any]) -> Any:
    """The same trees as a regression with one output, whose leaves hold their own numbers."""
    document = copy.deepcopy(document)
    for tree in xgboost_trees(document):
        left = np.array(tree["left_children"])
        tree["split_conditions"] = np.where(left < 0, np.arange(len(left)), tree["split_conditions"]).tolist()
    learner = document["learner"]
    learner["learner_model_param"].update(base_score="0E0", num_class="0", num_target="1")
    learner["objective"] = {"name": "reg:squarederror", "reg_loss_param": {"scale_pos_weight": "1"}}
    model = learner["gradient_booster"]["model"]
    count = len(model["trees"])
    model["gbtree_model_param"]["num_parallel_tree"] = "1"
    model.update(tree_info=[0] * count, iteration_indptr=list(range(count + 1)))
    return booster_of(document)


# --- scikit-learn ------------------------------------------------------------------------------------------------------

FORESTS: dict[str, tuple[Callable[..., Any], int]] = {
    "RandomForestClassifier": (lambda n, s: RandomForestClassifier(n, random_state=s), 3),
    "RandomForestRegressor": (lambda n, s: RandomForestRegressor(n, random_state=s, max_leaf_nodes=60), 0),
    "ExtraTreesClassifier": (lambda n, s: ExtraTreesClassifier(n, random_state=s, max_depth=8, bootstrap=True), 2),
    "ExtraTreesRegressor": (lambda n, s: ExtraTreesRegressor(n, random_state=s, min_samples_leaf=3), 0),
    "GradientBoostingClassifier": (
        lambda n, s: GradientBoostingClassifier(n_estimators=n // 3, max_depth=5, random_state=s),
        3,
    ),
    "GradientBoostingRegressor": (lambda n, s: GradientBoostingRegressor(n_estimators=n, max_leaf_nodes=31, random_state=s), 0),
    "IsolationForest": (lambda n, s: IsolationForest(n_estimators=n, max_features=0.7, random_state=s), 0),
}
HISTOGRAMS: dict[str, tuple[dict[str, Any], int, tuple[int, ...]]] = {
    "HistGradientBoostingRegressor": ({"max_leaf_nodes": 31}, 0, ()),
    "HistGradientBoostingClassifier": ({"max_leaf_nodes": 63, "min_samples_leaf": 2}, 3, ()),
    "HistGradientBoostingRegressor, categories": ({"max_leaf_nodes": 31, "min_samples_leaf": 3}, 0, (0, 1, 5)),
    "HistGradientBoostingRegressor, deep": (
        {"max_leaf_nodes": None, "min_samples_leaf": 1, "max_depth": 14, "max_bins": 40},
        0,
        (),
    ),
    "HistGradientBoostingClassifier, shallow": ({"max_depth": 4, "max_bins": 40}, 3, ()),
}


def forest_subject(name: str, seed: int, trees: int) -> Subject:
    make, classes = FORESTS[name]
    rng = np.random.default_rng(seed)
    X, y = training_data(rng, classes, 0.1 * (seed % 2 and "Gradient" not in name), (), 1000)
    model = make(trees, seed).fit(X, y)
    members = [member.tree_ for member in np.ravel(model.estimators_)]
    columns = getattr(model, "estimators_features_", [np.arange(FEATURES)] * len(members))
    inner = [tree.feature >= 0 for tree in members]
    features = np.concatenate([own[tree.feature[i]] for tree, own, i in zip(members, columns, inner, strict=True)])
    thresholds = np.concatenate([tree.threshold[i] for tree, i in zip(members, inner, strict=True)])

    def leaves(X: Any) -> Any:
        """The leaf numbers of the trees, without the input check of `apply`. (Infinite values pass it in IsolationForest only, but all
        trees can take them.)"""
        with np.errstate(over="ignore", under="ignore"):
            X = X.astype(np.float32)
        return np.stack([tree.apply(X[:, own]) for tree, own in zip(members, columns, strict=True)], axis=1)

    return Subject(name, model, by_column(features, thresholds), leaves)


def histogram_subject(name: str, seed: int, trees: int) -> Subject:
    options, classes, categorical = HISTOGRAMS[name]
    rng = np.random.default_rng(seed)
    X, y = training_data(rng, classes, 0.1 * (seed % 2), categorical, 2000)
    cls = HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor
    own = {"categorical_features": list(categorical) or None, "early_stopping": False, "random_state": seed}
    model = cls(max_iter=trees // max(classes, 1), **own, **options).fit(X, y)
    predictors = [predictor for stage in model._predictors for predictor in stage]
    nodes = np.concatenate([predictor.nodes for predictor in predictors])
    nodes = nodes[(nodes["is_leaf"] == 0) & (nodes["is_categorical"] == 0)]
    order = np.arange(FEATURES)
    if categorical:  # these columns come first
        order = np.concatenate([np.flatnonzero(model.is_categorical_), np.flatnonzero(~model.is_categorical_)])
    told = copy.deepcopy(predictors)
    for predictor in told:
        predictor.nodes["value"] = np.arange(len(predictor.nodes))
    bitsets, places = model._bin_mapper.make_known_categories_bitsets()

    def leaves(X: Any) -> Any:
        """The leaf numbers, one tree at a time, from trees whose leaves hold their own numbers: the class has no `apply`."""
        X = model._preprocess_X(X, reset=False)
        return np.stack([tree.predict(X, bitsets, places, 1) for tree in told], axis=1).astype(np.int64)

    return Subject(
        name, model, by_column(order[nodes["feature_idx"]], nodes["num_threshold"]), leaves, categorical, categorical
    )


LIBRARIES: dict[str, tuple[Callable[[str, int, int], Subject], tuple[str, ...]]] = {
    "LightGBM": (lightgbm_subject, tuple(LIGHTGBM)),
    "XGBoost": (xgboost_subject, tuple(XGBOOST)),
    "scikit-learn": (forest_subject, tuple(FORESTS)),
    "HistGradientBoosting": (histogram_subject, tuple(HISTOGRAMS)),
}


@functools.lru_cache(maxsize=4)
def subject(library: str, name: str, seed: int, trees: int) -> Subject:
    make, _ = LIBRARIES[library]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fitting is not tested
        return make(name, seed, trees)


# --- what a backend makes of them ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Figures:
    """How many (row, tree) pairs were compared, and how many differ. If sums are compared, a row that differs counts with all its trees."""

    pairs: int = 0
    differing: int = 0

    def __add__(self, other: Figures) -> Figures:
        return Figures(self.pairs + other.pairs, self.differing + other.differing)


def trees_of(graph: Graph) -> Node:
    graph = graph.select("apply") if "apply" in graph.outputs else graph
    return next(node for node in graph.nodes if isinstance(node.op, TreeEnsemble))


def telling(op: TreeEnsemble, rng: np.random.Generator) -> tuple[TreeEnsemble, Any]:
    """(the same trees with other leaf values, a table from (tree, leaf id) to the number of the leaf). One wrong leaf then changes a sum
    by at least 0.7 / (the number of leaves of its tree)."""
    values = np.empty(op.values.shape)
    place = np.full((op.n_trees, int(op.leaf_ids.max()) + 1), -1)
    for tree, root in enumerate(op.roots):
        front, numbers = np.array([root]), []
        while len(front):
            at_leaf = op.feature[front] < 0
            numbers += op.left[front[at_leaf]].tolist()
            front = front[~at_leaf]
            front = np.concatenate([op.left[front], op.right[front]])
        place[tree, op.leaf_ids[numbers]] = numbers
        order = np.argsort(rng.random((len(numbers), values.shape[1])), axis=0)
        values[numbers] = (order + 0.3 * rng.random(order.shape)) / len(numbers)
    return replace(op, values=values, base=np.zeros(op.n_outputs), exact=False, output="sum"), place


def executable(graph: Graph, backend: str, strategy: str) -> Any:
    name, _, device = backend.partition(":")  # "tvm:cuda": in cuda_on_cpu.emulated()
    builder = Builder(name, CompileOptions(threads=1, device=device or "cpu"), strategy)
    return builder.compile(builder.plan(graph))


BATCHES = (1, 2, 3, 5, 8, 15, 16, 17, 63, 64, 65, 127, 129)


def run(ready: Any, method: str, X: Any, batches: tuple[int, ...]) -> Any:
    """The output of a method for X, computed in pieces of these sizes, and then the rest at once."""
    parts, start = [], 0
    for size in batches:
        if start + 2 * size < len(X):
            parts.append(ready.run(method, [X[start : start + size]])[0])
            start += size
    return np.concatenate([*parts, ready.run(method, [X[start:]])[0]])


def compare(
    what: Subject, backend: str, strategy: str, output: str, seed: int, count: int, deepest: int | None = None
) -> Figures:
    """Compares `count` rows of every dtype with the source, by the leaves of a backend or by its sums. deepest: deeper trees are left
    out, for a strategy that does not take them."""
    rng = np.random.default_rng(seed)
    figures = Figures()
    for kinds, graph in parse(what.model).variants.items():
        node = trees_of(graph)
        assert isinstance(node.op, TreeEnsemble)
        chosen = np.flatnonzero(node.op.depths <= (node.op.depths.max() if deepest is None else deepest))
        if not len(chosen):
            continue
        op, place = telling(replace(node.op, roots=node.op.roots[chosen], target=node.op.target[chosen]), rng)
        value = (replace(op, output="leaf") if output == "leaf" else op)(*node.inputs)
        ready = executable(Graph(graph.inputs, {output: (value,)}).verify(), backend, strategy)
        X = what.rows(rng, kinds[0], count)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the source's own, for values beyond float32
            expected = what.leaves(X)[:, chosen]
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            found = run(ready, output, X, BATCHES)
        if output == "leaf":
            differing = int((found != expected).sum())
        else:
            numbers = place[np.arange(op.n_trees)[None], expected]
            assert (numbers >= 0).all()
            total = np.zeros((count, op.n_outputs))
            for tree, target in enumerate(op.target):
                values = op.values[numbers[:, tree]]
                total[:, target : target + values.shape[1]] += values
            differing = op.n_trees * int((np.abs(found - total) > 1e-8 * op.n_trees).any(axis=1).sum())
        figures += Figures(expected.size, differing)
    return figures


WAYS = (
    ("numpy", "auto", "leaf"),
    ("tvm", "walk", "leaf"),
    ("tvm", "walk", "sum"),
    ("tvm", "scan", "sum"),
    ("tvm", "patches", "leaf"),
    ("tvm", "patches", "sum"),
    ("tvm", "ranges", "leaf"),
    ("tvm", "ranges", "sum"),
    ("torch", "auto", "leaf"),
    ("onnx", "auto", "leaf"),
)


def sweep(
    library: str, way: tuple[str, str, str], trees: int, rows: int, seeds: Iterable[int]
) -> Iterator[tuple[str, int, Figures]]:
    """`rows` rows of each dtype for every kind of model and seed."""
    _, names = LIBRARIES[library]
    for seed in seeds:
        for name in names:
            yield name, seed, compare(subject(library, name, seed, trees), *way, seed, rows)


if __name__ == "__main__":
    chosen = sys.argv[1:]
    for library in LIBRARIES:
        for way in WAYS:
            if chosen and library not in chosen and way[0] not in chosen:
                continue
            start, total = time.perf_counter(), Figures()
            large = way[0] in ("numpy", "tvm")
            for name, seed, figures in sweep(library, way, 120, 10_000 if large else 1_000, range(2)):
                total += figures
                if figures.differing:
                    print(f"    {name}, seed {seed}: {figures.differing:,} of {figures.pairs:,} differ", flush=True)
            seconds = time.perf_counter() - start
            print(
                f"{library:<22}{' '.join(way):<16}{total.pairs:>13,} pairs, {total.differing} differ  ({seconds:.0f} s)",
                flush=True,
            )
