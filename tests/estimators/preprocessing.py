"""Scalers, discretizers, polynomials, functions, and encoders of categories."""

from __future__ import annotations

import functools

import numpy as np
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    Binarizer,
    FunctionTransformer,
    KBinsDiscretizer,
    MaxAbsScaler,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    PolynomialFeatures,
    RobustScaler,
    StandardScaler,
)

from estimators.case import Case

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(400, 5)) * [1, 10, 1e-3, 1e4, 1] + [0, 5, 0, 1e4, 0]
X[:, 4] = 3.0  # a constant column: scales of zero
X[::50] = 0.0
POSITIVE = np.abs(X)
INTEGERS = RANDOM.integers(-5, 9, size=(400, 4))
GAPS = X.copy()
GAPS[::9, 1] = np.nan


def _fit(transformer, data=X):
    return transformer.fit(data[:200]), data[200:]


def _float32(transformer):
    """Fitted on float32 data, scored on float64 (and float32)."""
    return transformer.fit(X[:200].astype(np.float32)), X[200:]


def _bits(name, make):
    """Elementwise maps are the source's to the last bit."""
    return Case(name, make, rtol=0.0, atol=0.0)


SCALERS = [
    _bits("StandardScaler", lambda: _fit(StandardScaler())),
    _bits("StandardScaler without mean", lambda: _fit(StandardScaler(with_mean=False))),
    _bits("StandardScaler without std", lambda: _fit(StandardScaler(with_std=False))),
    _bits("StandardScaler without either", lambda: _fit(StandardScaler(with_mean=False, with_std=False))),
    _bits("StandardScaler of missing values", lambda: _fit(StandardScaler(), GAPS)),
    _bits("StandardScaler of integers", lambda: _fit(StandardScaler(), INTEGERS)),
    _bits("StandardScaler fitted on float32", lambda: _float32(StandardScaler())),
    _bits("MinMaxScaler", lambda: _fit(MinMaxScaler())),
    _bits("MinMaxScaler clip", lambda: _fit(MinMaxScaler(feature_range=(-1, 2), clip=True), GAPS)),
    _bits("MinMaxScaler of integers", lambda: _fit(MinMaxScaler(), INTEGERS)),
    _bits("MinMaxScaler fitted on float32", lambda: _float32(MinMaxScaler(feature_range=(-0.3, 0.1), clip=True))),
    _bits("MaxAbsScaler", lambda: _fit(MaxAbsScaler())),
    _bits("MaxAbsScaler clip", lambda: _fit(MaxAbsScaler(clip=True), GAPS)),
    _bits("MaxAbsScaler fitted on float32", lambda: _float32(MaxAbsScaler())),
    _bits("RobustScaler", lambda: _fit(RobustScaler())),
    _bits("RobustScaler without centering", lambda: _fit(RobustScaler(with_centering=False, quantile_range=(10, 80)))),
    _bits("RobustScaler without scaling", lambda: _fit(RobustScaler(with_scaling=False))),
    _bits("RobustScaler unit variance", lambda: _fit(RobustScaler(unit_variance=True), GAPS)),
    _bits("RobustScaler fitted on float32", lambda: _float32(RobustScaler())),
    _bits("RobustScaler of integers", lambda: _fit(RobustScaler(), INTEGERS)),
    Case("Normalizer l1", lambda: _fit(Normalizer("l1"))),
    Case("Normalizer l2", lambda: _fit(Normalizer("l2"))),
    Case("Normalizer max", lambda: _fit(Normalizer("max"))),
    Case("Normalizer of integers", lambda: _fit(Normalizer("l2"), INTEGERS)),
    Case("Normalizer of tiny rows", lambda: _fit(Normalizer("max"), X * 1e-19)),
    _bits("Binarizer", lambda: _fit(Binarizer())),
    _bits("Binarizer threshold", lambda: _fit(Binarizer(threshold=0.1))),
    _bits("Binarizer numpy threshold", lambda: _fit(Binarizer(threshold=np.float64(0.1)), np.round(X, 1))),
    _bits("Binarizer of integers", lambda: _fit(Binarizer(threshold=1.5), INTEGERS)),
    _bits("scalers in a row", lambda: _fit(make_pipeline(StandardScaler(), MinMaxScaler(), MaxAbsScaler(), RobustScaler()))),
]

BINS = [
    _bits(f"KBinsDiscretizer {encode} {strategy}", lambda e=encode, s=strategy: _fit(KBinsDiscretizer(4, encode=e, strategy=s)))
    for encode in ("onehot", "onehot-dense", "ordinal")
    for strategy in ("uniform", "quantile", "kmeans")
] + [
    _bits("KBinsDiscretizer float32", lambda: _fit(KBinsDiscretizer(3, dtype=np.float32, encode="onehot-dense"))),
    _bits("KBinsDiscretizer float64", lambda: _fit(KBinsDiscretizer(3, dtype=np.float64, encode="ordinal"))),
    _bits("KBinsDiscretizer of integers", lambda: _fit(KBinsDiscretizer([2, 3, 4, 5], encode="ordinal"), INTEGERS)),
    _bits("KBinsDiscretizer fitted on float32", lambda: _float32(KBinsDiscretizer(5, encode="ordinal", strategy="uniform"))),
    _bits("KBinsDiscretizer on its own edges", lambda: _fit(KBinsDiscretizer(4, encode="ordinal"), np.round(X, 1))),
]

POLYNOMIALS = [
    _bits("PolynomialFeatures", lambda: _fit(PolynomialFeatures())),
    _bits("PolynomialFeatures degree 3", lambda: _fit(PolynomialFeatures(3, include_bias=False))),
    _bits("PolynomialFeatures degrees 2 to 4", lambda: _fit(PolynomialFeatures((2, 4)), INTEGERS)),
    _bits("PolynomialFeatures interactions", lambda: _fit(PolynomialFeatures(3, interaction_only=True, order="F"))),
    _bits("PolynomialFeatures beyond the columns", lambda: _fit(PolynomialFeatures(7, interaction_only=True))),
    _bits("PolynomialFeatures degree 1", lambda: _fit(PolynomialFeatures(1, include_bias=False))),
    _bits("PolynomialFeatures degree 0", lambda: _fit(PolynomialFeatures(0))),
]

FUNCTIONS = [
    Case(f"FunctionTransformer {function.__name__}", lambda f=function: _fit(FunctionTransformer(f), POSITIVE))
    for function in (np.log1p, np.sqrt, np.log, np.tanh, np.absolute, np.fabs, np.square, np.floor, np.negative, np.positive)
] + [
    Case("FunctionTransformer exp", lambda: _fit(FunctionTransformer(np.exp), X / 1e4)),
    Case("FunctionTransformer expm1", lambda: _fit(FunctionTransformer(np.expm1), X / 1e4)),
    Case("FunctionTransformer isnan", lambda: _fit(FunctionTransformer(np.isnan), GAPS)),
    Case("FunctionTransformer identity", lambda: _fit(FunctionTransformer(), GAPS)),
    Case("FunctionTransformer validate", lambda: _fit(FunctionTransformer(validate=True))),
    Case("FunctionTransformer of integers", lambda: _fit(FunctionTransformer(np.log1p), np.abs(INTEGERS))),
    Case("FunctionTransformer square of integers", lambda: _fit(FunctionTransformer(np.square), INTEGERS)),
    Case("FunctionTransformer floor of integers", lambda: _fit(FunctionTransformer(np.floor), INTEGERS)),
    Case(
        "FunctionTransformer inverse and names",
        lambda: _fit(FunctionTransformer(np.log1p, np.expm1, feature_names_out="one-to-one"), POSITIVE),
    ),
]


def _cyclic(x, period=24.0):
    return np.column_stack([np.sin(2 * np.pi * x[:, 0] / period), np.cos(2 * np.pi * x[:, 0] / period), x[:, 1] % period])


def _ratios(x):
    return np.hstack([x[:, [0]] / (x[:, [1]] + 1), x[:, 1:3] - x[:, 2:4], np.abs(x).sum(axis=1, keepdims=True)])


def _guarded(x, low=0.0):
    if not isinstance(x, np.ndarray):
        raise TypeError
    return np.where(x > low, np.log1p(np.maximum(x, low)), -((-x) ** 2))


LAMBDAS = [
    Case(f"FunctionTransformer {name}", lambda f=function, k=arguments, d=data: _fit(FunctionTransformer(f, kw_args=k), d))
    for name, function, arguments, data in (
        ("lambda", lambda x: 2 * x + 1, None, X),
        ("lambda of integers", lambda x: 2 * x + 1, None, INTEGERS),
        ("lambda of integers, divided", lambda x: (x - 3) / 2 + x**2, None, INTEGERS),
        ("clip", np.clip, {"a_min": -0.5, "a_max": 2}, GAPS),
        ("partial clip", functools.partial(np.clip, min=1.0, max=None), None, X),
        ("array constant", lambda x: (x - np.arange(5.0)) * np.float32(0.3), None, X),
        ("cyclic", _cyclic, {"period": 7}, X),
        ("ratios", _ratios, None, X),
        ("where", _guarded, {"low": 0.1}, X),
        ("powers", lambda x: x**3 + x**0.5 - 1 / x, None, POSITIVE + 1),
        ("log10 and log2", lambda x: np.log10(x + 1.0) - np.log2(x + 1.0), None, POSITIVE),
        ("comparison", lambda x: (x >= 0) & ~np.isnan(x) | (x < -5), None, GAPS),
        ("rounded", lambda x: np.ceil(x) + np.trunc(x / 3) + np.sign(x), None, GAPS),
        ("fmax", lambda x: np.fmax(x, 0), None, GAPS),
        ("as float32", lambda x: (x > 0).astype(np.float32), None, X),
    )
]


def _before_a_model(*steps, data=X):
    """A pipeline in which the steps compute numbers that the final classifier or forest rejects."""
    model = make_pipeline(*steps)
    return model.fit(data[:200], RANDOM.random(200) < 0.5), data[200:]


CHAINS = [
    Case(
        f"{name} before LogisticRegression",
        lambda f=function, d=data: _before_a_model(f, LogisticRegression(), data=d),
        rtol=1e-5,
        atol=1e-6,
        reason="float32 logarithms and exponentials differ by an ulp between libraries, and the source goes on in float64",
    )
    for name, function, data in (
        ("log1p", FunctionTransformer(np.log1p), POSITIVE),
        ("exp", FunctionTransformer(np.exp), X / 1e5),
    )
] + [
    Case(
        "sqrt before LogisticRegression",
        lambda: _before_a_model(FunctionTransformer(np.sqrt), LogisticRegression(), data=POSITIVE),
    ),
    Case(
        "PolynomialFeatures before LogisticRegression",
        lambda: _before_a_model(PolynomialFeatures(), LogisticRegression(), data=X / 1e5),
    ),
    # A threshold of the forest can be one ulp from a logarithm, so logarithms must be numpy's own on every backend.
    *[
        Case(
            f"{function.__name__} before a forest",
            lambda f=function: _before_a_model(
                MaxAbsScaler(), FunctionTransformer(f), RandomForestClassifier(20, random_state=0), data=POSITIVE
            ),
        )
        for function in (np.log1p, np.exp, np.expm1, np.tanh)
    ],
    _bits(
        "log1p before KBinsDiscretizer",
        lambda: _fit(make_pipeline(FunctionTransformer(np.log1p), KBinsDiscretizer(20)), POSITIVE),
    ),
    *[
        _bits(
            f"{type(scaler).__name__} of a sparse matrix of OneHotEncoder's, times its reciprocal scale",
            lambda s=scaler: _fit(
                make_pipeline(
                    ColumnTransformer([("x", "passthrough", [0, 1, 2]), ("c", OneHotEncoder(), [3])], sparse_threshold=1), s
                ),
                np.column_stack([X[:, :3], np.arange(len(X)) % 7]),
            ),
        )
        for scaler in (StandardScaler(with_mean=False), MaxAbsScaler(), RobustScaler(with_centering=False))
    ],
    Case(
        "StandardScaler before a forest, whose limit is on scaled numbers",
        lambda: _before_a_model(StandardScaler(), RandomForestClassifier(5, random_state=0), data=X * 1e30),
    ),
    Case(
        "MinMaxScaler clip before a forest, which never sees large numbers",
        lambda: _before_a_model(MinMaxScaler(clip=True), RandomForestClassifier(5, random_state=0)),
    ),
    Case(
        "RobustScaler before LogisticRegression, small scales make infinity",
        lambda: _before_a_model(RobustScaler(), LogisticRegression(), data=X * 1e-20),
    ),
    Case("log1p and StandardScaler", lambda: _fit(make_pipeline(FunctionTransformer(np.log1p), StandardScaler()), POSITIVE)),
    Case(
        "SimpleImputer before a forest",
        lambda: _before_a_model(SimpleImputer(), RandomForestClassifier(5, max_depth=4), data=GAPS),
    ),
    Case("KBinsDiscretizer before LogisticRegression", lambda: _before_a_model(KBinsDiscretizer(3), LogisticRegression())),
]

CASES = [*CHAINS, *SCALERS, *BINS, *POLYNOMIALS, *FUNCTIONS, *LAMBDAS]
