"""Curves of one variable: powers, quantiles, splines, isotonic regression."""

from __future__ import annotations

import numpy as np
from sklearn.ensemble import RandomForestClassifier
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, PowerTransformer, QuantileTransformer, SplineTransformer

from estimators.case import Case

RANDOM = np.random.default_rng(5)
X = RANDOM.normal(size=(400, 4)) * [1, 10, 1e-2, 100] + [0, 5, 0, 300]
X[:, 2] = np.round(X[:, 2], 2)  # repeated quantiles
POSITIVE = np.abs(X) + 0.01
GAPS = X.copy()
GAPS[::9, 1] = np.nan
INTEGERS = RANDOM.integers(0, 24, size=(400, 2))
WIDER = X[200:] * 1.5  # also beyond what was fitted on
NARROWER = X[:200] * 0.9 + 0.1 * X[:200].mean(axis=0)


def _fit(transformer, data=X, scored=None):
    return transformer.fit(data[:200]), data[200:] if scored is None else scored


def _labelled(model, data=X):
    return model.fit(data[:200], data[:200, 0] > np.median(data[:200, 0])), data[200:]


def _set(transformer, lambdas, data=X):
    transformer.fit(data[:200])
    transformer.lambdas_ = np.array(lambdas)
    return transformer, data[200:]


def _isotonic(dtype=np.float64, rows=200, **options):
    x = X[:rows, :1].astype(dtype)
    y = x[:, 0] + RANDOM.normal(size=len(x)).astype(dtype)
    return make_pipeline(IsotonicRegression(**options)).fit(x, y), X[200:, :1] * (
        0.5 if options.get("out_of_bounds") == "raise" else 1
    )


POWERS = [
    Case("PowerTransformer", lambda: _fit(PowerTransformer())),
    Case("PowerTransformer without standardize", lambda: _fit(PowerTransformer(standardize=False))),
    Case("PowerTransformer box-cox", lambda: _fit(PowerTransformer("box-cox"), POSITIVE)),
    Case(
        "PowerTransformer box-cox without standardize", lambda: _fit(PowerTransformer("box-cox", standardize=False), POSITIVE)
    ),
    Case("PowerTransformer with missing values", lambda: _fit(PowerTransformer(), GAPS)),
    Case("PowerTransformer of integers", lambda: _fit(PowerTransformer(), INTEGERS)),
    Case("PowerTransformer fitted on float32", lambda: (PowerTransformer().fit(X[:200].astype(np.float32)), X[200:])),
    Case("PowerTransformer at 0 and 2", lambda: _set(PowerTransformer(standardize=False), [0.0, 2.0, 1.0, -0.5])),
    Case(
        "PowerTransformer box-cox at 0",
        lambda: _set(PowerTransformer("box-cox", standardize=False), [0.0, 2.0, 1.0, -0.5], POSITIVE),
    ),
    Case(
        "PowerTransformer before LogisticRegression",
        lambda: _labelled(make_pipeline(PowerTransformer(), LogisticRegression())),
        rtol=2e-6,
        atol=2e-7,
        reason="of float32, the power is rounded to float32, where logarithms differ by an ulp, before float64 probabilities",
    ),
    Case("PowerTransformer before a forest", lambda: _labelled(make_pipeline(PowerTransformer(), RandomForestClassifier(3)))),
]

QUANTILES = [
    Case(name, make, rtol=0.0, atol=0.0)
    for name, make in (
        ("QuantileTransformer", lambda: _fit(QuantileTransformer(n_quantiles=50), scored=WIDER)),
        ("QuantileTransformer with missing values", lambda: _fit(QuantileTransformer(n_quantiles=50), GAPS)),
        ("QuantileTransformer of integers", lambda: _fit(QuantileTransformer(n_quantiles=100), INTEGERS)),
        (
            "QuantileTransformer fitted on float32",
            lambda: (QuantileTransformer(n_quantiles=20).fit(X.astype(np.float32)), X[200:]),
        ),
        ("QuantileTransformer of one quantile", lambda: _fit(QuantileTransformer(n_quantiles=1))),
        (
            "QuantileTransformer behind a sparse OneHotEncoder",
            lambda: _fit(make_pipeline(OneHotEncoder(), QuantileTransformer(n_quantiles=10)), INTEGERS, INTEGERS),
        ),
    )
] + [
    Case(
        "QuantileTransformer normal",
        lambda: _fit(QuantileTransformer(n_quantiles=50, output_distribution="normal"), scored=WIDER),
    ),
    Case(
        "QuantileTransformer normal, fitted on float32",
        lambda: (QuantileTransformer(n_quantiles=9, output_distribution="normal").fit(GAPS.astype(np.float32)), GAPS),
    ),
    Case(
        "QuantileTransformer before LogisticRegression",
        lambda: _labelled(
            make_pipeline(QuantileTransformer(n_quantiles=30, output_distribution="normal"), LogisticRegression())
        ),
    ),
]

SPLINES = (
    [
        Case(
            f"SplineTransformer {extrapolation} of degree {degree}",
            lambda e=extrapolation, d=degree: _fit(
                SplineTransformer(7, d, extrapolation=e), scored=NARROWER if e == "error" else WIDER
            ),
        )
        for extrapolation in ("error", "constant", "linear", "continue", "periodic")
        for degree in (0, 1, 3)
        if (extrapolation, degree) != ("constant", 0)
    ]
    + [
        Case("SplineTransformer constant of degree 0", lambda: _fit(SplineTransformer(4, 0), scored=X[:200])),
        Case(
            "SplineTransformer at quantiles, without bias",
            lambda: _fit(SplineTransformer(5, 2, knots="quantile", include_bias=False)),
        ),
        Case(
            "SplineTransformer with given knots",
            lambda: _fit(
                SplineTransformer(knots=np.array([[0, 0.0], [6, 7], [12, 13], [20, 23]]), extrapolation="linear"), INTEGERS
            ),
        ),
        Case(
            "SplineTransformer of the hours of a day",
            lambda: _fit(SplineTransformer(knots=np.linspace([0, 0], [24, 24], 7), extrapolation="periodic"), INTEGERS * 1.5),
        ),
    ]
    + [
        Case(
            f"SplineTransformer with missing values, {extrapolation}",
            lambda e=extrapolation: _fit(SplineTransformer(4, extrapolation=e, handle_missing="zeros"), GAPS),
        )
        for extrapolation in ("constant", "linear", "continue", "periodic")
    ]
    + [
        Case(
            f"SplineTransformer sparse, {extrapolation}",
            lambda e=extrapolation: _fit(SplineTransformer(4, extrapolation=e, sparse_output=True), scored=WIDER),
            stored_zeros=False,  # the source stores the zeros of its polynomials
            float32=extrapolation
            not in ("constant", "linear"),  # the source raises an error if float32 cannot hold its lower bound
        )
        for extrapolation in ("constant", "linear", "continue", "periodic")
    ]
)

ISOTONIC = [
    Case("IsotonicRegression", lambda: _isotonic(), sample=True),
    Case("IsotonicRegression clip", lambda: _isotonic(out_of_bounds="clip"), sample=True),
    Case("IsotonicRegression raise", lambda: _isotonic(out_of_bounds="raise"), sample=True),
    Case("IsotonicRegression clip, float32", lambda: _isotonic(np.float32, out_of_bounds="clip"), sample=True),
    Case("IsotonicRegression decreasing, float32", lambda: _isotonic(np.float32, increasing=False), sample=True),
    Case("IsotonicRegression of one point", lambda: _isotonic(rows=1, out_of_bounds="clip"), sample=True),
    Case(
        "IsotonicRegression of a vector",
        lambda: (IsotonicRegression(out_of_bounds="clip").fit(INTEGERS[:, 0], X[:, 0]), INTEGERS[:, 0]),
    ),
]

CASES = [*POWERS, *QUANTILES, *SPLINES, *ISOTONIC]
