"""What the cases of LightGBM and XGBoost share: rows with gaps, targets, and an objective of the caller's own."""

from __future__ import annotations

import numpy as np

ROWS = 600


def data(missing=0.1, zeros=0.1, seed=0):
    """(X f64[ROWS, 6], a target f64[ROWS] of which the first three columns decide). missing, zeros: the shares of NaN and of 0 in X."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(ROWS, 6))
    target = X[:, 0] + X[:, 1] * X[:, 2]
    X[rng.random(X.shape) < missing] = np.nan
    X[rng.random(X.shape) < zeros] = 0.0
    return X, target


def classes(target, n):
    """The target as n classes of equal size."""
    return np.digitize(target, np.quantile(target, np.arange(1, n) / n))


def squares(y, scores):
    """(gradient, hessian) of the squared error, as both libraries call an objective. scores [N], or [N, K] for K classes."""
    goal = y if scores.ndim == 1 else np.eye(scores.shape[1])[y.astype(int)]
    return scores - goal, np.ones_like(scores)
