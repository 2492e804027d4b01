"""XGBoost: every booster, objective, kind of split, `missing`, and shape of output."""

from __future__ import annotations

import functools

import numpy as np
import pandas as pd
import scipy.sparse
import xgboost as xgb
from sklearn.compose import make_column_transformer
from sklearn.feature_selection import SelectKBest
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler, OneHotEncoder

from estimators import boosted, case
from estimators.boosted import ROWS


def _margins(model, X):
    return model.predict(X, output_margin=True)


def _leaves(model, X):
    return model.predict(X, pred_leaf=True)


Case = functools.partial(case.Case, options={"raw_score": _margins})


def _settings(options):
    return {"n_estimators": 15, "max_depth": 4, "n_jobs": 1, **options}


def _unit(target):
    return 1 / (1 + np.exp(-target))


def _classifier(n=2, estimator=xgb.XGBClassifier, **options):
    X, target = boosted.data()
    return estimator(**_settings(options)).fit(X, boosted.classes(target, n)), X[:200]


def _regressor(goal=np.exp, estimator=xgb.XGBRegressor, **options):
    X, target = boosted.data()
    return estimator(**_settings(options)).fit(X, goal(target)), X[:200]


def _two(target):
    return np.stack([target, np.sin(target)], 1)


def _three_labels():
    X, target = boosted.data()
    Y = np.stack([target > 0, target > 1, np.sin(target) > 0], 1).astype(int)
    return xgb.XGBClassifier(**_settings({})).fit(X, Y), X[:200]


def _ranker(objective="rank:ndcg"):
    X, target = boosted.data()
    y = boosted.classes(target, 2 if objective == "rank:map" else 4)
    return xgb.XGBRanker(**_settings({"objective": objective})).fit(X, y, group=[60] * 10), X[:200]


def _missing(value, **options):
    X, target = boosted.data()
    X = np.where(np.isnan(X), value, X)
    return xgb.XGBRegressor(**_settings({"missing": value, **options})).fit(X, target), X[:200]


def _early_stopped(n=3, **options):
    X, target = boosted.data()
    y = boosted.classes(target, n)
    model = xgb.XGBClassifier(**_settings({"n_estimators": 100, "learning_rate": 0.5, "early_stopping_rounds": 3, **options}))
    model.fit(X[:400], y[:400], eval_set=[(X[400:], y[400:])], verbose=False)
    assert model.best_iteration + 1 < model.get_booster().num_boosted_rounds()
    return model, X[:200]


def _categorical(**options):
    rng = np.random.default_rng(1)
    X = np.stack([rng.integers(0, 40, ROWS), rng.integers(0, 4, ROWS), rng.normal(size=ROWS)], 1)
    target = np.isin(X[:, 0] % 7, [1, 4]) * 2.0 + (X[:, 1] == 2) + X[:, 2]
    X[rng.random(X.shape) < 0.05] = np.nan
    model = xgb.XGBRegressor(**_settings({"enable_categorical": True, "feature_types": ["c", "c", "q"], **options}))
    rows = X[:200].copy()
    # Not seen in training, fractional, negative, and beyond what a set can hold.
    rows[:16, 0] = [-1, -0.5, -0.0, 0.5, 0.99, 1.5, 39.9, 40, 41, 63, 64, 1e3, 2.0**24, 2.0**24 - 1, -1e10, 1e-40]
    return model.fit(X, target), rows


def _frame(**options):
    rng = np.random.default_rng(4)
    frame = pd.DataFrame(
        {"x": rng.normal(size=ROWS), "colour": rng.choice(list("abcdefgh"), ROWS), "n": rng.integers(0, 9, ROWS)}
    )
    frame["size"] = rng.choice(["small", "larger", "x"], ROWS)
    target = frame.colour.isin(["b", "e"]) * 2.0 + frame.x + (frame["size"] == "x") + frame.n / 9
    frame.loc[rng.random(ROWS) < 0.1, "colour"] = None
    frame["colour"], frame["size"] = frame.colour.astype("category"), frame["size"].astype("category")
    model = xgb.XGBRegressor(**_settings({"enable_categorical": True, **options})).fit(frame, target)
    rows = frame[:200].copy()
    rows["colour"] = pd.Categorical(rows.colour, categories=list("hgfedcba"))  # the same in another order
    return model, rows


def _pipeline(*steps):
    rng = np.random.default_rng(6)
    X = np.concatenate([rng.integers(0, 30, (ROWS, 2)), rng.normal(size=(ROWS, 2)).round(1)], 1)
    target = np.isin(X[:, 0] % 5, [1, 3]) + (X[:, 2] > 0.05) + 1.0 * (X[:, 3] == 0)
    return make_pipeline(*steps, xgb.XGBRegressor(**_settings({}))).fit(X, target), X[:200]


def _encoded(density):
    """Columns encoded to a sparse matrix. The values that it leaves out, also zeros of the other columns, are missing to XGBoost."""
    return _pipeline(
        make_column_transformer(
            (OneHotEncoder(handle_unknown="ignore"), [0, 1]), ("passthrough", [2, 3]), sparse_threshold=density
        )
    )


def _sparse():
    X, target = boosted.data()
    X = scipy.sparse.csr_matrix(np.nan_to_num(X).round(0))
    X.data[:50] = 0  # stored zeros are zeros
    return xgb.XGBRegressor(**_settings({})).fit(X, target), X[:200]


def _custom(n=2):
    return _classifier(n, objective=boosted.squares)


def _booster(goal=np.exp, rounds=10, label=True, **parameters):
    X, target = boosted.data()
    data = xgb.DMatrix(X, goal(target) if label else None)
    if not label:
        data.set_float_info("label_lower_bound", np.exp(target))
        data.set_float_info("label_upper_bound", np.exp(target) * 2)
    return xgb.train({"max_depth": 4, "nthread": 1, **parameters}, data, rounds), X[:200]


def _early_stopped_booster():
    X, target = boosted.data()
    train, test = xgb.DMatrix(X[:400], target[:400]), xgb.DMatrix(X[400:], target[400:])
    model = xgb.train(
        {"eta": 0.9, "nthread": 1}, train, 50, evals=[(test, "test")], early_stopping_rounds=2, verbose_eval=False
    )
    assert model.best_iteration + 1 < model.num_boosted_rounds()
    return model, X[:200]


def _reloaded(fitted):
    model, X = fitted
    return xgb.Booster(model_file=model.save_raw("json")), X


def _pruned():
    """gamma with the updater `prune`: the document keeps the nodes that were cut off."""
    X, target = boosted.data()
    parameters = {"updater": "grow_colmaker,prune", "gamma": 3.0, "max_depth": 6, "nthread": 1}
    return xgb.train(parameters, xgb.DMatrix(X, target), 10), X[:200]


_BoosterCase = functools.partial(case.Case, convert_input=xgb.DMatrix, options={"raw_score": _margins, "apply": _leaves})

CASES = [
    Case("XGBClassifier binary", _classifier),
    Case("XGBClassifier multi", lambda: _classifier(3)),
    Case("XGBClassifier multi:softmax", lambda: _classifier(3, objective="multi:softmax")),
    Case("XGBClassifier multi:softprob of two", lambda: _classifier(objective="multi:softprob", num_class=2)),
    Case("XGBClassifier binary:logitraw", lambda: _classifier(objective="binary:logitraw")),
    Case("XGBClassifier binary:hinge", lambda: _classifier(objective="binary:hinge")),
    Case("XGBClassifier custom objective", _custom),
    Case("XGBClassifier three labels", _three_labels),
    Case("XGBClassifier base_score", lambda: _classifier(base_score=0.2)),
    Case("XGBClassifier one tree", lambda: _classifier(n_estimators=1)),
    Case("XGBClassifier dart", lambda: _classifier(3, booster="dart", rate_drop=0.5)),
    Case("XGBClassifier forest boosted", lambda: _classifier(3, num_parallel_tree=3, subsample=0.7)),
    Case("XGBClassifier early stopping", _early_stopped),
    Case("XGBClassifier early stopping binary", lambda: _early_stopped(2, num_parallel_tree=2, subsample=0.7)),
    Case(
        "XGBClassifier gblinear", lambda: _classifier(3, booster="gblinear"), methods=("predict", "predict_proba", "raw_score")
    ),
    Case("XGBRFClassifier", lambda: _classifier(3, estimator=xgb.XGBRFClassifier)),
    Case("XGBRFClassifier binary", lambda: _classifier(estimator=xgb.XGBRFClassifier)),
    Case("XGBRFRegressor", lambda: _regressor(estimator=xgb.XGBRFRegressor)),
    *[
        Case(f"XGBRegressor {objective}", functools.partial(_regressor, objective=objective))
        for objective in (
            "reg:squarederror",
            "reg:squaredlogerror",
            "reg:absoluteerror",
            "reg:pseudohubererror",
            "reg:gamma",
            "reg:tweedie",
            "count:poisson",
            "survival:cox",
        )
    ],
    Case("XGBRegressor reg:logistic", lambda: _regressor(_unit, objective="reg:logistic")),
    Case("XGBRegressor reg:quantileerror", lambda: _regressor(objective="reg:quantileerror", quantile_alpha=0.3)),
    Case("XGBRegressor quantiles", lambda: _regressor(objective="reg:quantileerror", quantile_alpha=[0.1, 0.5, 0.9])),
    Case("XGBRegressor base_score", lambda: _regressor(base_score=12.5)),
    Case("XGBRegressor base_score poisson", lambda: _regressor(base_score=2.5, objective="count:poisson")),
    Case("XGBRegressor dart", lambda: _regressor(booster="dart", rate_drop=0.5)),
    Case("XGBRegressor dart normalized", lambda: _regressor(booster="dart", rate_drop=0.5, normalize_type="forest")),
    Case("XGBRegressor gblinear", lambda: _regressor(booster="gblinear"), methods=("predict", "raw_score")),
    Case("XGBRegressor two outputs", lambda: _regressor(_two)),
    Case("XGBRegressor multi_output_tree", lambda: _regressor(_two, multi_strategy="multi_output_tree")),
    Case("XGBRegressor gblinear two outputs", lambda: _regressor(_two, booster="gblinear"), methods=("predict", "raw_score")),
    Case("XGBRegressor exact", lambda: _regressor(tree_method="exact")),
    Case("XGBRegressor approx", lambda: _regressor(tree_method="approx")),
    Case("XGBRegressor lossguide", lambda: _regressor(grow_policy="lossguide", max_leaves=9, max_depth=0)),
    Case("XGBRegressor single leaves", lambda: _regressor(max_depth=4, gamma=1e9)),
    Case("XGBRegressor missing=0", lambda: _missing(0.0)),
    Case("XGBRegressor missing=-999", lambda: _missing(-999.0)),
    Case("XGBRegressor missing=inf", lambda: _missing(np.inf)),
    Case("XGBRegressor missing=0.1", lambda: _missing(0.1)),
    Case("XGBRegressor missing=0 gblinear", lambda: _missing(0.0, booster="gblinear"), methods=("predict", "raw_score")),
    Case("XGBRegressor categorical", lambda: _categorical(max_cat_to_onehot=1)),
    Case("XGBRegressor categorical one-hot", lambda: _categorical(max_cat_to_onehot=100)),
    Case("XGBRegressor frame with categories", _frame),
    Case("XGBRegressor frame with categories dart", lambda: _frame(booster="dart", max_cat_to_onehot=1)),
    Case("XGBRegressor sparse matrix", _sparse),
    Case("XGBRegressor behind OneHotEncoder", lambda: _pipeline(OneHotEncoder(handle_unknown="ignore"))),
    Case(
        "XGBRegressor behind sparse selection",
        lambda: _pipeline(OneHotEncoder(handle_unknown="ignore"), SelectKBest(k=5), MaxAbsScaler()),
    ),
    Case(
        "XGBRegressor behind dense OneHotEncoder",
        lambda: _pipeline(OneHotEncoder(handle_unknown="ignore", sparse_output=False)),
    ),
    Case("XGBRegressor behind sparse ColumnTransformer", lambda: _encoded(1.0)),
    Case("XGBRegressor behind dense ColumnTransformer", lambda: _encoded(0.0)),
    Case("XGBModel", lambda: _regressor(estimator=xgb.XGBModel)),
    Case("XGBRanker rank:ndcg", _ranker),
    Case("XGBRanker rank:map", lambda: _ranker("rank:map")),
    Case("XGBRanker rank:pairwise", lambda: _ranker("rank:pairwise")),
    _BoosterCase("XGBoost Booster regression", _booster),
    _BoosterCase(
        "XGBoost Booster binary:logistic", lambda: _booster(lambda y: boosted.classes(y, 2), objective="binary:logistic")
    ),
    _BoosterCase(
        "XGBoost Booster multi:softmax",
        lambda: _booster(lambda y: boosted.classes(y, 3), objective="multi:softmax", num_class=3),
    ),
    _BoosterCase(
        "XGBoost Booster multi:softprob",
        lambda: _booster(lambda y: boosted.classes(y, 3), objective="multi:softprob", num_class=3),
    ),
    _BoosterCase("XGBoost Booster survival:aft", lambda: _booster(label=False, objective="survival:aft")),
    _BoosterCase("XGBoost Booster gblinear", lambda: _booster(booster="gblinear"), methods=("predict", "raw_score")),
    _BoosterCase("XGBoost Booster early stopping", _early_stopped_booster),
    _BoosterCase("XGBoost Booster from a document", lambda: _reloaded(_booster())),
    _BoosterCase("XGBoost Booster pruned", _pruned),
]
