"""LightGBM: every boosting type, objective, kind of split and kind of missing value."""

from __future__ import annotations

import functools

import lightgbm as lgb
import numpy as np
import pandas as pd

from estimators import boosted, case
from estimators.boosted import ROWS


def _leaves(model, X):
    """A Booster divides by 0 where there are no rows."""
    if isinstance(model, lgb.Booster) and not len(X):
        return model.predict(np.zeros((1, model.num_feature())), pred_leaf=True)[:0]
    return model.predict(X, pred_leaf=True)


Case = functools.partial(case.Case, options={"apply": _leaves, "raw_score": lambda model, X: model.predict(X, raw_score=True)})


def _settings(options):
    return {"n_estimators": 20, "num_leaves": 8, "n_jobs": 1, "verbose": -1, **options}


def _positive(target):
    return np.exp(target / target.std() / 2)


def _classifier(n=2, labels=None, missing=0.1, **options):
    X, target = boosted.data(missing)
    y = boosted.classes(target, n)
    y = y if labels is None else np.asarray(labels)[y]
    return lgb.LGBMClassifier(**_settings(options)).fit(X, y), X[:200]


def _regressor(positive=True, missing=0.1, estimator=lgb.LGBMRegressor, **options):
    X, target = boosted.data(missing)
    return estimator(**_settings(options)).fit(X, _positive(target) if positive else target), X[:200]


def _unit_regressor(**options):
    X, target = boosted.data()
    return lgb.LGBMRegressor(**_settings(options)).fit(X, 1 / (1 + np.exp(-target))), X[:200]


def _ranker(**options):
    X, target = boosted.data()
    return lgb.LGBMRanker(**_settings(options)).fit(X, boosted.classes(target, 4), group=[60] * 10), X[:200]


def _booster(n=0, rounds=15, label=None, missing=0.1, **options):
    X, target = boosted.data(missing)
    y = target if n == 0 else boosted.classes(target, n)
    parameters = {"num_leaves": 8, "verbose": -1, "num_threads": 1, **options}
    return lgb.train(parameters, lgb.Dataset(X, y if label is None else label(target)), rounds), X[:200]


def _early_stopped():
    X, target = boosted.data()
    y = boosted.classes(target, 3)
    model = lgb.LGBMClassifier(**_settings({"n_estimators": 200, "learning_rate": 0.5}))
    model.fit(X[:400], y[:400], eval_X=X[400:], eval_y=y[400:], callbacks=[lgb.early_stopping(3, verbose=False)])
    assert model.best_iteration_ < 200
    return model, X[:200]


def _custom(n=2, **options):
    return _classifier(n, objective=boosted.squares, **options)


def _categorical(estimator=lgb.LGBMRegressor, **options):
    rng = np.random.default_rng(1)
    X = np.stack([rng.integers(0, 40, ROWS), rng.integers(0, 4, ROWS), rng.integers(0, 90, ROWS)], 1).astype(float)
    X = np.concatenate([X, rng.normal(size=(ROWS, 2))], 1)
    target = np.isin(X[:, 0] % 7, [1, 4]) * 2.0 + (X[:, 1] == 2) + np.isin(X[:, 2] % 5, [0, 3]) + X[:, 3]
    y = boosted.classes(target, 3) if estimator is lgb.LGBMClassifier else target
    X[rng.random(X.shape) < 0.05] = np.nan
    model = estimator(**_settings({"min_child_samples": 5, **options})).fit(X, y, categorical_feature=[0, 1, 2])
    rows = X[:200].copy()
    # Not seen in training, fractional, negative, and beyond the bits of any set.
    rows[:20, 0] = [
        -1,
        -0.5,
        -0.0,
        0.5,
        0.99,
        1.5,
        39.9,
        40,
        41,
        63,
        64,
        95.5,
        96,
        1e3,
        2.0**31,
        -(2.0**31),
        1e10,
        -1e10,
        2**24,
        1e-40,
    ]
    return model, rows


def _one_class():
    X, _ = boosted.data()
    return lgb.LGBMClassifier(**_settings({})).fit(X, np.ones(ROWS, int)), X[:50]


def _single_leaves():
    X, target = boosted.data()
    return lgb.LGBMRegressor(**_settings({"min_child_samples": ROWS})).fit(X, target), X[:50]


def _windowed():
    """Thresholds at ±1e-35, and values around them."""
    rng = np.random.default_rng(2)
    X = rng.choice([-1.0, -1e-30, -1e-36, 0.0, 1e-36, 1e-30, 1.0, np.nan], (ROWS, 3))
    target = (X[:, 0] > 0) * 1.0 + (X[:, 1] < 0) - (X[:, 2] == 0)
    return lgb.LGBMRegressor(**_settings({"zero_as_missing": True})).fit(X, target), X[:200]


def _frame(kind="strings"):
    rng = np.random.default_rng(4)
    frame = pd.DataFrame(
        {"x": rng.normal(size=ROWS), "colour": rng.choice(list("abcdefgh"), ROWS), "n": rng.integers(0, 9, ROWS)}
    )
    frame["size"] = rng.choice(["small", "größer", "x"], ROWS)
    target = frame.colour.isin(["b", "e"]) * 2.0 + frame.x + (frame["size"] == "x") + frame.n / 9
    if kind != "codes":
        frame.loc[rng.random(ROWS) < 0.1, "colour"] = None
    if kind == "codes":
        frame["colour"], frame["size"] = frame.colour.astype("category").cat.codes, frame["size"].astype("category").cat.codes
    frame["colour"] = frame.colour.astype("category")
    frame["size"] = pd.Categorical(frame["size"], ordered=kind == "ordered")
    model = lgb.LGBMRegressor(**_settings({"min_child_samples": 5})).fit(frame, target)
    rows = frame[:200].copy()
    if kind == "strings":  # not seen in training, other categories, and in another order
        rows["colour"] = pd.Categorical(["z", "h", *rows.colour[2:]], categories=list("zhgfedcba"))
    return model, rows


def _large_integers(frame):
    """Integers that float32 does not hold: in an array LightGBM rounds them, in a frame it does not."""
    rng = np.random.default_rng(5)
    X = 1_700_000_000 + rng.integers(0, 300, (ROWS, 2))
    target = np.sin(X[:, 0] / 10) + X[:, 1] % 7
    X = pd.DataFrame(X, columns=["a", "b"]) if frame else X
    return lgb.LGBMRegressor(**_settings({"min_child_samples": 5})).fit(X.astype(float), target), X[:200]


CASES = [
    Case("LGBMClassifier binary", _classifier),
    Case("LGBMClassifier binary no missing", lambda: _classifier(missing=0.0)),
    Case("LGBMClassifier sigmoid", lambda: _classifier(sigmoid=1.7)),
    Case("LGBMClassifier string labels", lambda: _classifier(labels=["no", "yes"])),
    Case("LGBMClassifier integer labels", lambda: _classifier(3, labels=[-5, 7, 1000])),
    Case("LGBMClassifier float labels", lambda: _classifier(3, labels=[1.0, 2.0, 7.0])),
    Case("LGBMClassifier boolean labels", lambda: _classifier(labels=[False, True])),
    Case("LGBMClassifier multiclass", lambda: _classifier(3)),
    Case("LGBMClassifier multiclassova", lambda: _classifier(4, objective="multiclassova", sigmoid=0.7)),
    Case("LGBMClassifier two classes multiclass", lambda: _classifier(objective="multiclass", num_class=2)),
    Case("LGBMClassifier cross_entropy", lambda: _classifier(objective="cross_entropy")),
    Case("LGBMClassifier custom objective", _custom),
    Case("LGBMClassifier custom objective multiclass", lambda: _custom(3, num_class=3)),
    Case("LGBMClassifier dart", lambda: _classifier(boosting_type="dart", drop_rate=0.5)),
    Case("LGBMClassifier rf", lambda: _classifier(boosting_type="rf", subsample=0.6, subsample_freq=1)),
    Case("LGBMClassifier rf multiclass", lambda: _classifier(3, boosting_type="rf", subsample=0.6, subsample_freq=1)),
    Case("LGBMClassifier goss", lambda: _classifier(data_sample_strategy="goss")),
    Case("LGBMClassifier extra trees", lambda: _classifier(extra_trees=True)),
    Case("LGBMClassifier is_unbalance", lambda: _classifier(is_unbalance=True)),
    Case("LGBMClassifier early stopping", _early_stopped),
    Case("LGBMClassifier zero_as_missing", lambda: _classifier(zero_as_missing=True)),
    Case("LGBMClassifier use_missing=False", lambda: _classifier(use_missing=False)),
    Case("LGBMClassifier linear_tree", lambda: _classifier(3, linear_tree=True)),
    Case("LGBMClassifier categorical", lambda: _categorical(lgb.LGBMClassifier)),
    Case("LGBMClassifier one class", _one_class),
    *[
        Case(f"LGBMRegressor {objective}", lambda objective=objective: _regressor(objective=objective))
        for objective in ["regression", "regression_l1", "huber", "fair", "poisson", "quantile", "mape", "gamma", "tweedie"]
    ],
    *[
        Case(f"LGBMRegressor {objective} reg_sqrt", lambda objective=objective: _regressor(objective=objective, reg_sqrt=True))
        for objective in ["regression", "regression_l1", "huber", "fair", "poisson", "quantile", "mape"]
    ],
    Case("LGBMRegressor reg_sqrt negative", lambda: _regressor(positive=False, reg_sqrt=True)),
    Case("LGBMRegressor cross_entropy", lambda: _unit_regressor(objective="cross_entropy")),
    Case("LGBMRegressor cross_entropy_lambda", lambda: _unit_regressor(objective="cross_entropy_lambda")),
    Case("LGBMRegressor dart", lambda: _regressor(boosting_type="dart", drop_rate=0.5)),
    Case("LGBMRegressor rf", lambda: _regressor(boosting_type="rf", subsample=0.6, subsample_freq=1)),
    Case("LGBMRegressor zero_as_missing", lambda: _regressor(zero_as_missing=True)),
    Case("LGBMRegressor zero_as_missing window", _windowed),
    Case("LGBMRegressor linear_tree", lambda: _regressor(linear_tree=True)),
    Case("LGBMRegressor linear_tree no missing", lambda: _regressor(linear_tree=True, missing=0.0)),
    Case("LGBMRegressor linear_tree dart", lambda: _regressor(linear_tree=True, boosting_type="dart")),
    Case("LGBMRegressor categorical", _categorical),
    Case("LGBMRegressor categorical one-hot", lambda: _categorical(max_cat_to_onehot=100)),
    Case("LGBMRegressor categorical linear_tree", lambda: _categorical(linear_tree=True)),
    Case("LGBMRegressor frame with categories", _frame),
    Case("LGBMRegressor frame with integer categories", lambda: _frame("codes")),
    Case("LGBMRegressor frame with an ordered category", lambda: _frame("ordered"), sample=True),
    Case("LGBMRegressor large integers", lambda: _large_integers(False)),
    Case("LGBMRegressor large integers in a frame", lambda: _large_integers(True)),
    Case("LGBMRegressor single leaves", _single_leaves),
    Case("LGBMModel poisson", lambda: _regressor(estimator=lgb.LGBMModel, objective="poisson")),
    Case("LGBMRanker lambdarank", _ranker),
    Case("LGBMRanker rank_xendcg", lambda: _ranker(objective="rank_xendcg")),
    Case("LightGBM Booster regression", _booster),
    Case("LightGBM Booster binary", lambda: _booster(2, objective="binary")),
    Case("LightGBM Booster multiclass", lambda: _booster(3, objective="multiclass", num_class=3)),
    Case("LightGBM Booster rf", lambda: _booster(2, objective="binary", boosting="rf", bagging_freq=1, bagging_fraction=0.5)),
    Case("LightGBM Booster best_iteration", lambda: _best_iteration()),
    Case("LightGBM Booster from a file", lambda: _reloaded(_booster(2, objective="binary", zero_as_missing=True))),
]


def _best_iteration():
    model, X = _booster()
    model.best_iteration = 7
    return model, X


def _reloaded(fitted):
    model, X = fitted
    return lgb.Booster(model_str=model.model_to_string()), X
