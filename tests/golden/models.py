"""Which models have golden programs, for which processors and by which strategies: together they reach every kernel of the TVM backend."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from estimators import all_cases
from lightgbm import LGBMClassifier, LGBMRegressor
from onnx import TensorProto, helper
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import ExtraTreesRegressor, RandomForestClassifier, RandomForestRegressor, StackingClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.neighbors import KNeighborsRegressor
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    KBinsDiscretizer,
    MinMaxScaler,
    OneHotEncoder,
    PolynomialFeatures,
    QuantileTransformer,
    StandardScaler,
)
from sklearn.tree import DecisionTreeClassifier

X86 = {"kind": "llvm", "mtriple": "x86_64-linux-gnu"}

TARGETS: dict[str, dict[str, Any]] = {
    "haswell": {**X86, "mcpu": "haswell"},
    "znver4": {**X86, "mcpu": "znver4"},
    "avx512": {**X86, "mcpu": "icelake-server"},
    "znver5": {**X86, "mcpu": "znver5"},
    "neon": {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-n1"},
    "generic": {**X86, "mcpu": "x86-64"},
    "sm_90": {"kind": "cuda", "arch": "sm_90"},
}
"""The processors: AVX2; AVX-512 in two halves, and whole; one that walks quickly; ARM; no vectors but SSE2; a GPU."""


@dataclass(frozen=True)
class Golden:
    """One model. `make` returns the fitted model and some of its input. Every target is rendered with every strategy."""

    name: str
    make: Callable[[], tuple[Any, Any]]
    targets: tuple[str, ...] = ("haswell",)
    strategies: tuple[str, ...] = ("auto",)
    batch_size: int | None = None
    sample: bool = False


def _steps(columns: int, rows: int = 800, most: int = 500) -> tuple[Any, Any]:
    """Data whose sums are exact in float64, so that every computer fits the same model."""
    rng = np.random.default_rng(0)
    X = rng.integers(-most, most, size=(rows, columns)) / 8
    y = X[:, 0] + X[:, 1] * np.sign(X[:, 2])
    return X, y


@functools.cache  # 150 trees of 300 columns take 6 s
def _lightgbm(leaves: int, trees: int, columns: int = 8) -> tuple[Any, Any]:
    X, y = _steps(columns)
    model = LGBMRegressor(n_estimators=trees, num_leaves=leaves, min_child_samples=2, n_jobs=1, verbose=-1)
    return model.fit(X, y), X[:100]


def _classes(classes: int) -> tuple[Any, Any]:
    X, y = _steps(8)
    label = np.digitize(y, np.quantile(y, np.arange(1, classes) / classes))
    return LGBMClassifier(n_estimators=30, num_leaves=16, n_jobs=1, verbose=-1).fit(X, label), X[:100]


def _forest(depth: int | None, classes: int, trees: int = 12) -> tuple[Any, Any]:
    X, y = _steps(8)
    if not classes:
        return RandomForestRegressor(trees, max_depth=depth, random_state=0).fit(X, y), X[:100]
    label = np.digitize(y, np.quantile(y, np.arange(1, classes) / classes))
    return RandomForestClassifier(trees, max_depth=depth, random_state=0).fit(X, label), X[:100]


def _behind_scaler() -> tuple[Any, Any]:
    X, y = _steps(8)
    forest = RandomForestClassifier(12, max_depth=6, random_state=0)
    return make_pipeline(SimpleImputer(strategy="median"), MinMaxScaler(), forest).fit(X, y > 0), X[:100]


def _beside_categories() -> tuple[Any, Any]:
    X, y = _steps(8)
    X[:, 6:] = np.abs(X[:, 6:]) // 15
    columns = ColumnTransformer([("numbers", MinMaxScaler(), [0, 1, 2]), ("categories", OneHotEncoder(), [6, 7])])
    return make_pipeline(columns, RandomForestClassifier(12, max_depth=6, random_state=0)).fit(X, y > 0), X[:100]


def _turns() -> tuple[Any, Any]:
    """A forest whose columns have 6,000 thresholds and more, and NaN that go both ways."""
    X, y = _steps(8, rows=3000, most=2**20)
    X[::7, 3] = np.nan
    return RandomForestRegressor(40, random_state=0).fit(X, y), X[:100]


def _large_trees() -> tuple[Any, Any]:
    X, y = _steps(8)
    return ExtraTreesRegressor(400, random_state=0).fit(X, y), X[:100]


def _one_hot_sums() -> tuple[Any, Any]:
    X, y = _steps(8)
    model = MLPClassifier((64,), max_iter=3, random_state=0)
    return make_pipeline(KBinsDiscretizer(6), model).fit(X, y > 0), X[:100]


def _network(activation: str) -> tuple[Any, Any]:
    """A network that computes in float32."""
    X, y = (each.astype(np.float32) for each in _steps(8))
    return MLPRegressor(hidden_layer_sizes=(8,), activation=activation, max_iter=2, random_state=0).fit(X, y), X[:100]


def _probabilities_before_a_tree() -> tuple[Any, Any]:
    """A tree compares a logistic function, so that it is computed to the last bit, by the C library."""
    X, y = _steps(3)
    member = LogisticRegression().fit(X, y > 0)
    member.coef_, member.intercept_ = np.array([[0.5, -0.25, 1.0]]), np.array([0.125])
    stack = StackingClassifier([("a", member)], DecisionTreeClassifier(max_depth=2, random_state=0), cv="prefit").fit(X, y > 0)
    stack.final_estimator_.fit(np.arange(32)[:, None] / 32, np.arange(32) // 8 % 2)
    return stack, X[:100]


def _normal_quantiles() -> tuple[Any, Any]:
    """Trees compare products of the quantiles, so these are computed to the last bit, by the C library."""
    X, y = _steps(8)
    quantiles = QuantileTransformer(n_quantiles=50, output_distribution="normal")
    trees = RandomForestClassifier(12, max_depth=4, random_state=0)
    return make_pipeline(quantiles, PolynomialFeatures(), trees).fit(X, y > 0), X[:100]


def _scaled_powers() -> tuple[Any, Any]:
    X, _ = _steps(8)
    return make_pipeline(MinMaxScaler((1, 2)), FunctionTransformer(lambda x: x**1.7)).fit(X), X[:100]


def _operators_of_onnx() -> tuple[Any, Any]:
    """Operators that models of the other libraries do not have."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, width]) for name, width in (("x", 8), ("y", 1)))
    nodes = [
        helper.make_node("Sigmoid", ["x"], ["probabilities"]),
        helper.make_node("ReduceMin", ["probabilities"], ["y"], axes=[1]),
    ]
    graph = helper.make_graph(nodes, "operators", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    return model, _steps(8)[0][:100].astype(np.float32)


def _bins(bins: int) -> tuple[Any, Any]:
    X, _ = _steps(4)
    model = KBinsDiscretizer(bins, encode="ordinal", strategy="uniform", subsample=None)
    return model.fit(X), X[:100]


def _neighbours(neighbours: int) -> tuple[Any, Any]:
    X, y = _steps(6)
    return KNeighborsRegressor(neighbours, algorithm="brute").fit(X, y), X[:100]


def _linear(columns: int) -> tuple[Any, Any]:
    X, y = _steps(columns)
    return make_pipeline(StandardScaler(), LinearRegression()).fit(X, y), X[:100]


EVERY = ("haswell", "znver4", "avx512", "generic", "sm_90")
CPUS = ("haswell", "avx512", "generic")


def _shallow() -> tuple[Any, Any]:
    X, y = _steps(8)
    return LGBMRegressor(n_estimators=40, max_depth=6, min_child_samples=2, n_jobs=1, verbose=-1).fit(X, y), X[:100]


TREES = (
    Golden("trees of 31 leaves", lambda: _lightgbm(31, 40), EVERY, ("walk", "scan")),
    Golden("trees of 255 leaves", lambda: _lightgbm(255, 6), CPUS, ("walk", "scan")),
    Golden("trees of 700 leaves", lambda: _lightgbm(700, 3), ("haswell", "avx512"), ("scan", "ranges")),
    Golden("trees of 4 leaves", lambda: _lightgbm(4, 60), (*CPUS, "neon"), ("walk", "scan")),
    Golden("trees of depth 6", _shallow, ("sm_90",), ("levels",)),
    Golden("forest of vectors in levels", lambda: _forest(6, 3), ("sm_90",), ("levels",)),
    Golden("linked trees of 31 leaves", lambda: _lightgbm(31, 10), ("sm_90",), ("links", "far_links")),
    Golden("forest in wide levels", lambda: _forest(8, 0), ("sm_90",), ("wide_levels",)),
    Golden("forest of vectors in wide levels", lambda: _forest(6, 3), ("sm_90",), ("wide_levels",)),
    Golden("forest of two classes in levels", lambda: _forest(8, 2), ("sm_90",), ("levels", "wide_levels")),
    Golden("forest on tensor cores", lambda: _forest(4, 3), ("sm_90",), ("int8_gemm",)),
    Golden("forest of forks", lambda: _forest(None, 2), ("sm_90",), ("wide_links",)),
    Golden("five classes of linked trees", lambda: _classes(5), ("sm_90",), ("links",)),
    Golden("forest of ten vectors in levels", lambda: _forest(5, 10), ("sm_90",), ("levels",)),
    Golden("one tree", lambda: _lightgbm(31, 1), EVERY, ("auto", "select", "scan")),
    Golden("trees for one row", lambda: _lightgbm(31, 40), ("haswell",), ("auto", "gemm"), batch_size=1),
    Golden(
        "trees by the paper's strategies",
        lambda: _lightgbm(8, 5),
        ("haswell", "sm_90"),
        ("gemm", "tree_trav", "perf_tree_trav"),
    ),
    Golden("trees of 300 columns", lambda: _lightgbm(31, 20, columns=300), ("haswell",), ("walk", "scan")),
    Golden("trees of more than 256 planes", lambda: _lightgbm(31, 150, columns=300), ("avx512",), ("scan",)),
    Golden("patches of 300 columns", lambda: _lightgbm(31, 150, columns=300), ("avx512",), ("patches",)),
    Golden("classes, a tree each", lambda: _classes(4), CPUS, ("walk", "scan")),
    Golden("thirty classes", lambda: _classes(30), ("haswell", "avx512"), ("scan",)),
    Golden("two classes", lambda: _classes(2), (*CPUS, "sm_90"), ("auto",)),
    Golden("forest of vectors", lambda: _forest(6, 5), EVERY, ("walk", "scan")),
    Golden("forest of two classes", lambda: _forest(8, 2), ("haswell", "avx512"), ("walk", "scan")),
    Golden("forest behind an imputer and a scaler", _behind_scaler, ("haswell",)),
    Golden("forest behind a scaler and one-hot codes", _beside_categories, ("haswell", "sm_90"), ("auto",)),
    Golden("forest of unlimited depth", lambda: _forest(None, 0), CPUS, ("walk", "scan", "patches")),
    Golden("forest of limited depth", lambda: _forest(12, 0, trees=30), ("znver5",), ("patches",)),
    Golden("forest in turns", _turns, ("haswell", "znver4"), ("scan",)),
    Golden("trees of 64 columns", lambda: _lightgbm(31, 40, columns=64), ("znver4",), ("scan",)),
    Golden("trees in passes", _large_trees, ("haswell",), ("walk",)),
)
"""Ensembles of their own, of a size and shape that the table's do not have."""

OTHERS = (
    Golden("bins of six codes in front of a network", _one_hot_sums, ("haswell", "avx512")),
    Golden("network of tanh in float32", lambda: _network("tanh"), ("avx512",)),
    Golden("network of sigmoids in float32", lambda: _network("logistic"), ("avx512", "haswell", "sm_90")),
    Golden("operators of ONNX", _operators_of_onnx, (*CPUS, "sm_90")),
    Golden("products of normal quantiles in front of trees", _normal_quantiles),
    Golden("a logistic function in front of a tree", _probabilities_before_a_tree),
    Golden("powers behind a scaler", _scaled_powers, ("avx512", "haswell")),
    Golden("60 bins", lambda: _bins(60), ("haswell", "avx512")),
    Golden("1,000 bins", lambda: _bins(1000), ("avx512",)),
    Golden("15 neighbours", lambda: _neighbours(15), ("haswell", "avx512")),
    Golden("100 neighbours", lambda: _neighbours(100), ("haswell",)),
    Golden("scaled linear regression of 40 columns", lambda: _linear(40), ("haswell", "avx512")),
)
"""Other models of their own, whose kernels the table's do not need."""

FROM_TABLE: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "LGBMClassifier categorical": (CPUS, ("walk", "scan")),
    "LGBMRegressor linear_tree": (("haswell",), ("walk", "scan")),
    "XGBClassifier multi": (("haswell", "sm_90"), ("walk", "scan")),
    "XGBRegressor categorical": (("haswell", "sm_90"), ("walk", "scan")),
    "HistGradientBoostingClassifier missing, 4 classes": (("haswell", "avx512"), ("walk", "scan")),
    "HistGradientBoostingRegressor categories": (("haswell",), ("walk", "scan")),
    "IsolationForest auto": (("haswell",), ("auto",)),
    "GradientBoostingClassifier 3 classes": (("haswell",), ("walk", "scan")),
    "RandomTreesEmbedding": (("haswell",), ("auto",)),
    "AdaBoostClassifier 4 string classes": (("haswell",), ("auto",)),
    "CatBoostClassifier: statistics of categories, of pairs of them, and of them and splits": (("haswell",), ("auto",)),
    "ModelProto: random forest of 3 classes, ZipMap": (("haswell",), ("auto",)),
    "ColumnTransformer frame with strings and missing values": (("haswell",), ("auto",)),
    "XGBRegressor behind sparse ColumnTransformer": (("haswell",), ("auto",)),
    "PowerTransformer": (CPUS, ("auto",)),
    "MultinomialNB": (("haswell",), ("auto",)),
    "DecisionTreeClassifier 4 string classes": (("haswell",), ("auto",)),
    "QuantileTransformer": (("haswell",), ("auto",)),
    "SplineTransformer constant of degree 3": (("haswell",), ("auto",)),
    "KBinsDiscretizer onehot-dense quantile": (("haswell",), ("auto",)),
    "OneHotEncoder dense": (("haswell", "sm_90"), ("auto",)),
    "OneHotEncoder of mixed columns": (("haswell",), ("auto",)),
    "OrdinalEncoder": (("haswell",), ("auto",)),
    "KNeighborsClassifier brute, ties, 4": (CPUS, ("auto",)),
    "KNeighborsClassifier kd_tree, ties, 9": (("haswell",), ("auto",)),
    "KNNImputer distance": (("haswell",), ("auto",)),
    "RadiusNeighborsClassifier brute, distance": (("haswell",), ("auto",)),
    "RadiusNeighborsTransformer distance, auto": (("haswell",), ("auto",)),
    "KNeighborsClassifier brute, minkowski 1.5, weights": (("haswell",), ("auto",)),
    "KNeighborsClassifier brute, canberra": (("haswell",), ("auto",)),
    "SVC poly": (("avx512",), ("auto",)),
    "ModelProto: SVC with probabilities": (("haswell",), ("auto",)),
    "TargetEncoder of three classes": (("avx512", "haswell"), ("auto",)),
    "Nystroem chi2": (("haswell",), ("auto",)),
    "LocalOutlierFactor": (("haswell",), ("auto",)),
    "SVC probability, many classes": (("haswell", "avx512", "sm_90"), ("auto",)),
    "MLPClassifier tanh": (CPUS, ("auto",)),
    "GaussianMixture full": (("haswell",), ("auto",)),
    "GaussianProcessRegressor ExpSineSquared": (("haswell", "avx512"), ("auto",)),
    "FunctionTransformer cyclic": (CPUS, ("auto",)),
    "FunctionTransformer powers": (CPUS, ("auto",)),
    "FunctionTransformer log10 and log2": (CPUS, ("auto",)),
    "Normalizer l2": (("haswell", "sm_90"), ("auto",)),
    "PolynomialFeatures": (("haswell",), ("auto",)),
    "LogisticRegression of text": (("haswell",), ("auto",)),
    "StandardScaler fitted on float32": (("haswell",), ("auto",)),
    "BernoulliRBM": (CPUS, ("auto",)),
    "PCA float32": (("haswell", "avx512"), ("auto",)),
    "SimpleImputer median indicator": (("haswell",), ("auto",)),
    "NMF": (("haswell",), ("auto",)),
}
"""Case of the table → targets and strategies."""


def golden_models() -> list[Golden]:
    """Every model with golden programs, in a fixed order."""
    table = {case.name: case for case in all_cases()}
    found = [*TREES, *OTHERS]
    for name, (targets, strategies) in FROM_TABLE.items():
        case = table[name]
        found.append(Golden(name, case.make, targets, strategies, sample=case.sample))
    return found
