"""Encoders of categories."""

from __future__ import annotations

import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    KBinsDiscretizer,
    LabelBinarizer,
    LabelEncoder,
    OneHotEncoder,
    OrdinalEncoder,
    StandardScaler,
    TargetEncoder,
)

from estimators.case import Case

RANDOM = np.random.default_rng(1)
ROWS = 300
CODES = RANDOM.integers(-2, 5, size=(ROWS, 3)).astype(np.float64)
CODES[:, 1] += 0.5  # exact in float32 too
GAPS = CODES.copy()
GAPS[RANDOM.random(GAPS.shape) < 0.2] = np.nan
RARE = RANDOM.geometric(0.4, size=(ROWS, 2)).astype(np.float64)
RARE_GAPS = np.where(RANDOM.random(RARE.shape) < 0.1, np.nan, RARE)
TEXTS = np.array(["red", "green", "blue", "äther", "", "a rather long one"], dtype=object)[
    RANDOM.integers(0, 6, size=(ROWS, 3))
]
TEXT_GAPS = TEXTS.copy()
TEXT_GAPS[RANDOM.random(TEXTS.shape) < 0.2] = None
TEXT_NANS = TEXT_GAPS.copy()
TEXT_NANS[RANDOM.random(TEXTS.shape) < 0.2] = np.nan
TEXT_NANS_ONLY = np.where(RANDOM.random(TEXTS.shape) < 0.2, np.nan, TEXTS)
RARE_TEXTS = np.array(list("abcdefghij"), dtype=object)[np.minimum(RARE.astype(int), 9)]
MIXED = pd.DataFrame(
    {
        "number": CODES[:, 0],
        "text": TEXTS[:, 0],
        "integer": RANDOM.integers(0, 4, ROWS),
        "other": TEXTS[:, 1],
        "flag": RANDOM.random(ROWS) < 0.5,
    }
)


def _fit(encoder, data):
    return encoder.fit(data), data


def _unseen(encoder, data, strange):
    """Scored on rows with categories that were not there when it was fitted."""
    scored = data[:200].copy()
    scored[::7, 0] = strange
    scored[::5, 1] = strange
    return encoder.fit(data), scored


def _dense(**options):
    return OneHotEncoder(sparse_output=False, **options)


def _coded(**options):
    return OrdinalEncoder(handle_unknown="use_encoded_value", **{"unknown_value": -1, **options})


def _float32():
    return OneHotEncoder(handle_unknown="ignore").fit((CODES + 0.1).astype(np.float32)), CODES + 0.1


def _mixed_model():
    frame = MIXED.copy()
    frame.loc[::9, "number"] = np.nan
    frame.loc[::8, "text"] = None
    model = make_pipeline(
        make_column_transformer(
            (make_pipeline(SimpleImputer(), StandardScaler()), ["number", "integer"]),
            (make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder(handle_unknown="ignore")), ["text", "other"]),
            (OrdinalEncoder(), ["flag"]),
        ),
        LogisticRegression(),
    )
    return model.fit(frame, RANDOM.random(ROWS) < 0.5), frame


ONE_HOT = [
    Case("OneHotEncoder", lambda: _fit(OneHotEncoder(), CODES)),
    Case("OneHotEncoder dense", lambda: _fit(_dense(), CODES)),
    Case("OneHotEncoder float32", lambda: _fit(_dense(dtype=np.float32), CODES)),
    Case("OneHotEncoder int", lambda: _fit(_dense(dtype=int), CODES)),
    Case("OneHotEncoder bool", lambda: _fit(_dense(dtype=bool), CODES)),
    Case("OneHotEncoder of integers", lambda: _fit(OneHotEncoder(), CODES.astype(np.int64))),
    Case("OneHotEncoder of bool", lambda: _fit(OneHotEncoder(), CODES > 0)),
    Case("OneHotEncoder fitted on float32", _float32),
    Case("OneHotEncoder drop first", lambda: _fit(OneHotEncoder(drop="first"), CODES)),
    Case("OneHotEncoder drop if_binary", lambda: _fit(OneHotEncoder(drop="if_binary"), np.hstack([CODES > 1, CODES]))),
    Case("OneHotEncoder drop chosen", lambda: _fit(OneHotEncoder(drop=[1.0, 0.5, -2.0]), CODES)),
    Case("OneHotEncoder drop NaN", lambda: _fit(OneHotEncoder(drop=[np.nan, 0.5, np.nan]), GAPS)),
    Case("OneHotEncoder of missing values", lambda: _fit(OneHotEncoder(), GAPS)),
    Case("OneHotEncoder ignores the unknown", lambda: _unseen(OneHotEncoder(handle_unknown="ignore"), GAPS, 77.0)),
    Case("OneHotEncoder ignores unknown NaN", lambda: _unseen(OneHotEncoder(handle_unknown="ignore"), CODES, np.nan)),
    Case("OneHotEncoder ignore and drop", lambda: _unseen(OneHotEncoder(handle_unknown="ignore", drop="first"), CODES, 77.0)),
    Case("OneHotEncoder min_frequency", lambda: _fit(OneHotEncoder(min_frequency=20), RARE)),
    Case("OneHotEncoder min_frequency as a part", lambda: _fit(OneHotEncoder(min_frequency=0.1), RARE_GAPS)),
    Case("OneHotEncoder max_categories", lambda: _fit(OneHotEncoder(max_categories=3), RARE)),
    Case("OneHotEncoder max_categories 1", lambda: _fit(OneHotEncoder(max_categories=1), RARE)),
    Case("OneHotEncoder rare and drop", lambda: _fit(OneHotEncoder(min_frequency=20, drop="first"), RARE)),
    Case("OneHotEncoder categories given", lambda: _fit(OneHotEncoder(categories=[np.arange(-3.0, 6)] * 2), RARE[:, :2] % 4)),
    Case("OneHotEncoder of strings", lambda: _fit(OneHotEncoder(), TEXTS)),
    Case("OneHotEncoder of fixed-width strings", lambda: _fit(OneHotEncoder(), TEXTS.astype(str))),
    Case("OneHotEncoder of None", lambda: _fit(OneHotEncoder(), TEXT_GAPS)),
    Case("OneHotEncoder of None and NaN", lambda: _fit(OneHotEncoder(), TEXT_NANS)),
    Case("OneHotEncoder drop None", lambda: _fit(OneHotEncoder(drop=[None, "red", "blue"]), TEXT_GAPS)),
    Case("OneHotEncoder ignores unknown strings", lambda: _unseen(OneHotEncoder(handle_unknown="ignore"), TEXTS, "purple")),
    Case("OneHotEncoder ignores unknown None", lambda: _unseen(OneHotEncoder(handle_unknown="ignore"), TEXTS, None)),
    Case("OneHotEncoder rare strings", lambda: _fit(OneHotEncoder(max_categories=4, drop="first"), RARE_TEXTS)),
    Case(
        "OneHotEncoder unsorted strings",
        lambda: _fit(OneHotEncoder(categories=[["red", "", "green", "a rather long one", "blue", "äther", "none"]] * 3), TEXTS),
    ),
    Case("OneHotEncoder of numbers and NaN as objects", lambda: _fit(OneHotEncoder(), GAPS.astype(object))),
    Case("OneHotEncoder of mixed columns", lambda: _fit(OneHotEncoder(), MIXED)),
    Case("OneHotEncoder of mixed columns, rare", lambda: _fit(OneHotEncoder(max_categories=3, drop="if_binary"), MIXED)),
] + [
    Case(
        f"OneHotEncoder {handle} of {kind}",
        lambda h=handle, d=data, s=strange: _unseen(OneHotEncoder(handle_unknown=h, min_frequency=20), d, s),
    )
    for handle in ("ignore", "infrequent_if_exist", "warn")
    for kind, data, strange in (("numbers", RARE, 77.0), ("numbers and NaN", RARE_GAPS, 77.0), ("strings", RARE_TEXTS, "zz"))
]

ORDINAL = [
    Case("OrdinalEncoder", lambda: _fit(OrdinalEncoder(), CODES)),
    Case("OrdinalEncoder int", lambda: _fit(OrdinalEncoder(dtype=np.int32), CODES)),
    Case("OrdinalEncoder float32 of integers", lambda: _fit(OrdinalEncoder(dtype=np.float32), CODES.astype(np.int64))),
    Case("OrdinalEncoder of missing values", lambda: _fit(OrdinalEncoder(), GAPS)),
    Case("OrdinalEncoder encoded_missing_value", lambda: _fit(OrdinalEncoder(encoded_missing_value=-9, dtype=int), GAPS)),
    Case("OrdinalEncoder unknown", lambda: _unseen(_coded(), CODES, 77.0)),
    Case("OrdinalEncoder unknown NaN", lambda: _unseen(_coded(), CODES, np.nan)),
    Case("OrdinalEncoder unknown as NaN", lambda: _unseen(_coded(unknown_value=np.nan), GAPS, 77.0)),
    Case("OrdinalEncoder unknown and missing", lambda: _unseen(_coded(unknown_value=-5, encoded_missing_value=-2), GAPS, 77.0)),
    Case("OrdinalEncoder rare", lambda: _unseen(_coded(min_frequency=20), RARE, 77.0)),
    Case(
        "OrdinalEncoder rare and missing", lambda: _unseen(_coded(max_categories=3, encoded_missing_value=-2), RARE_GAPS, 77.0)
    ),
    Case("OrdinalEncoder of strings", lambda: _fit(OrdinalEncoder(), TEXTS)),
    Case("OrdinalEncoder of None", lambda: _fit(OrdinalEncoder(), TEXT_GAPS)),
    Case("OrdinalEncoder of None and NaN", lambda: _fit(OrdinalEncoder(encoded_missing_value=-2), TEXT_NANS)),
    Case("OrdinalEncoder unknown strings", lambda: _unseen(_coded(), TEXT_NANS, "purple")),
    Case("OrdinalEncoder rare strings", lambda: _unseen(_coded(max_categories=4), RARE_TEXTS, "zz")),
    Case(
        "OrdinalEncoder unsorted strings",
        lambda: _fit(OrdinalEncoder(categories=[["red", "", "green", "a rather long one", "blue", "äther"]] * 3), TEXTS),
    ),
    Case(
        "OrdinalEncoder of numbers and NaN as objects",
        lambda: _fit(OrdinalEncoder(), GAPS.astype(object)),
    ),
    Case("OrdinalEncoder of mixed columns", lambda: _fit(OrdinalEncoder(), MIXED)),
]

CHAINS = [
    Case(
        "imputed numbers and encoded",
        lambda: _fit(make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder()), GAPS),
    ),
    Case(
        "imputed strings and encoded",
        lambda: _fit(make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder()), TEXT_NANS_ONLY),
    ),
    Case("binned and encoded", lambda: _fit(make_pipeline(KBinsDiscretizer(3, encode="ordinal"), OneHotEncoder()), CODES)),
    Case("encoded twice", lambda: _fit(make_pipeline(OrdinalEncoder(), OneHotEncoder()), TEXTS)),
    Case("encoded and scaled", lambda: _fit(make_pipeline(_dense(handle_unknown="ignore"), StandardScaler()), TEXTS)),
    Case("imputed and encoded mixed columns", _mixed_model),
]

LABELS = [
    Case("LabelEncoder of strings", lambda: _fit(LabelEncoder(), TEXTS[:, 0])),
    Case("LabelEncoder of integers", lambda: _fit(LabelEncoder(), CODES[:, 0].astype(np.int64))),
    Case("LabelEncoder of bool", lambda: _fit(LabelEncoder(), CODES[:, 0] > 0)),
]

LABELS += [
    Case("LabelBinarizer of strings", lambda: _fit(LabelBinarizer(), TEXTS[:, 0])),
    Case("LabelBinarizer of integers", lambda: _fit(LabelBinarizer(neg_label=-2, pos_label=3), CODES[:, 0].astype(np.int64))),
    Case("LabelBinarizer sparse", lambda: _fit(LabelBinarizer(pos_label=7, sparse_output=True), CODES[:, 0].astype(np.int64))),
    Case("LabelBinarizer of bool", lambda: _fit(LabelBinarizer(neg_label=-1, pos_label=0), CODES[:, 0] > 0)),
    Case("LabelBinarizer of two strings", lambda: _fit(LabelBinarizer(), np.where(CODES[:, 0] > 0, "yes", "no"))),
    Case("LabelBinarizer of one class", lambda: _fit(LabelBinarizer(neg_label=-1), np.ones(ROWS, np.int64))),
    Case("LabelBinarizer of unknown labels", lambda: (LabelBinarizer().fit([3, 1, 0]), CODES[:, 0].astype(np.int64))),
]


def _targeted(data, target, scored=None, **options):
    return TargetEncoder(**options).fit(data, target), data if scored is None else scored


NUMBER = RANDOM.normal(size=ROWS) + CODES[:, 0]
CLASS = np.array(["a", "b", "c"])[np.clip(CODES[:, 0] + RANDOM.integers(0, 2, ROWS), 0, 2).astype(int)]
STRANGE = np.where(RANDOM.random(CODES.shape) < 0.1, 77.0, CODES)

TARGET = [
    Case("TargetEncoder of a number", lambda: _targeted(CODES, NUMBER)),
    Case("TargetEncoder of two classes", lambda: _targeted(TEXTS, CLASS == "a", smooth=3.0)),
    Case("TargetEncoder of three classes", lambda: _targeted(GAPS, CLASS)),
    Case("TargetEncoder of three classes, strings", lambda: _targeted(TEXT_NANS, CLASS, smooth=0.0)),
    Case("TargetEncoder of the unknown", lambda: _targeted(CODES, NUMBER, STRANGE)),
    Case("TargetEncoder of the unknown, three classes", lambda: _targeted(CODES, CLASS, STRANGE)),
    Case("TargetEncoder of unknown strings", lambda: _targeted(TEXTS, NUMBER, np.where(TEXTS == "red", "purple", TEXTS))),
    Case("TargetEncoder of mixed columns", lambda: _targeted(MIXED, CLASS)),
    Case("TargetEncoder of mixed columns, a number", lambda: _targeted(MIXED, NUMBER)),
    Case(
        "TargetEncoder with given categories",
        lambda: _targeted(CODES.astype(np.int64), NUMBER, categories=[np.arange(-3, 6)] * 3, target_type="continuous"),
    ),
]

CASES = [*ONE_HOT, *ORDINAL, *CHAINS, *LABELS, *TARGET]
