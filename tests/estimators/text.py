"""Vectorizers of text, of dicts and of sets."""

from __future__ import annotations

import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction import DictVectorizer, FeatureHasher
from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer, TfidfTransformer, TfidfVectorizer
from sklearn.feature_selection import SelectKBest, chi2
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.naive_bayes import BernoulliNB, MultinomialNB
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import MultiLabelBinarizer, OneHotEncoder, StandardScaler

from estimators.case import Case

RANDOM = np.random.default_rng(5)
WORDS = "the Über café naïve fox jumps over a lazy dog and run runs running snow-man x_y 1x Zürich ﬁne İI ß e\u0301te 東京 \x00"
ENDS = ["", "!", "  \t\n end", ".", "\u2003wide "]
DOCUMENTS = [" ".join(RANDOM.choice(WORDS.split(" "), RANDOM.integers(0, 12))) + RANDOM.choice(ENDS) for _ in range(150)]
DOCUMENTS += ["", " ", "unseen terms alone", "A" * 300]
CLASSES = RANDOM.integers(0, 3, len(DOCUMENTS))
ARRAY = np.array(DOCUMENTS, dtype=object)
FRAME = pd.DataFrame(
    {"text": DOCUMENTS, "number": RANDOM.normal(size=len(DOCUMENTS)), "city": RANDOM.choice(["a", "b"], len(DOCUMENTS))}
)
COUNTS = RANDOM.poisson(0.7, size=(200, 6)).astype(np.float64)
COUNTS[3] = 0
DICTS = [
    {"a": 1.5, "b": "x", "c": ["p", "q"]},
    {"a": 2, "b": "y", "z": 3},
    {},
    {"c": ["p", "p"], "a": 0, "b": 7, "a=b": True},
] * 20
PAIRS = [[("a", 1.5), ("b", "x")], [], [("a", 0), ("é", -2.25), ("a", 1)], [("b=x", 1.0)]] * 20

SETS = [("red", "ü", 3), {3.0, 2.5}, [], ["red", "red"], np.array([2.5, 3]), (True,), frozenset(["ü", 1])] * 20


def _documents(model, data=DOCUMENTS):
    return model.fit(data, CLASSES[: len(data)]), data


def _text(name, model):
    return Case(name, lambda: _documents(model))


TEXT = [
    _text("CountVectorizer", CountVectorizer()),
    _text(
        "CountVectorizer binary of pairs without stop words",
        CountVectorizer(binary=True, ngram_range=(1, 3), stop_words="english"),
    ),
    _text(
        "CountVectorizer of trigrams, float32", CountVectorizer(dtype=np.float32, ngram_range=(2, 3), stop_words=["fox", "the"])
    ),
    _text("CountVectorizer of a group", CountVectorizer(token_pattern=r"(\w)\w+", lowercase=False, max_df=0.6, min_df=2)),
    _text("CountVectorizer of characters", CountVectorizer(analyzer="char", ngram_range=(1, 3), strip_accents="unicode")),
    _text("CountVectorizer of longer characters", CountVectorizer(analyzer="char", ngram_range=(3, 4), strip_accents="ascii")),
    _text("CountVectorizer within words", CountVectorizer(analyzer="char_wb", ngram_range=(2, 6), dtype=np.uint8)),
    _text(
        "CountVectorizer of a vocabulary", CountVectorizer(vocabulary=["fox", "dog", "the lazy", "naïve"], ngram_range=(1, 2))
    ),
    Case("CountVectorizer of an array", lambda: _documents(CountVectorizer(), ARRAY)),
    Case("CountVectorizer of a series", lambda: _documents(CountVectorizer(), FRAME["text"])),
    _text("TfidfVectorizer", TfidfVectorizer()),
    _text("TfidfVectorizer sublinear, l1", TfidfVectorizer(sublinear_tf=True, norm="l1", smooth_idf=False, max_features=12)),
    _text("TfidfVectorizer plain, float32", TfidfVectorizer(use_idf=False, norm=None, dtype=np.float32)),
    _text("TfidfVectorizer float32", TfidfVectorizer(dtype=np.float32, sublinear_tf=True)),
    _text("HashingVectorizer", HashingVectorizer()),
    _text("HashingVectorizer of few columns", HashingVectorizer(n_features=16, ngram_range=(1, 2), norm="l1")),
    _text("HashingVectorizer binary", HashingVectorizer(n_features=8, norm=None, binary=True)),
    _text("HashingVectorizer of counts", HashingVectorizer(n_features=9, norm=None, alternate_sign=False, dtype=np.int64)),
    _text("CountVectorizer and TfidfTransformer", make_pipeline(CountVectorizer(), TfidfTransformer())),
    _text(
        "TfidfVectorizer and others",
        make_union(TfidfVectorizer(), HashingVectorizer(n_features=8), CountVectorizer(analyzer="char")),
    ),
]

MODELS = [
    _text("LogisticRegression of text", make_pipeline(TfidfVectorizer(ngram_range=(1, 2)), LogisticRegression())),
    _text("Ridge of text", make_pipeline(TfidfVectorizer(dtype=np.float32), Ridge())),
    _text("MultinomialNB of text", make_pipeline(CountVectorizer(), TfidfTransformer(sublinear_tf=True), MultinomialNB())),
    _text("BernoulliNB of text", make_pipeline(CountVectorizer(binary=True), BernoulliNB())),
    _text(
        "RandomForestClassifier of text",
        make_pipeline(HashingVectorizer(n_features=64), RandomForestClassifier(4, random_state=0)),
    ),
    _text("SelectKBest of text", make_pipeline(CountVectorizer(), SelectKBest(chi2, k=7), LogisticRegression())),
    Case(
        "ColumnTransformer of text and numbers",
        lambda: _documents(
            make_pipeline(
                make_column_transformer(
                    (TfidfVectorizer(), "text"), (StandardScaler(), ["number"]), (OneHotEncoder(), ["city"])
                ),
                LogisticRegression(),
            ),
            FRAME,
        ),
        sample=True,
    ),
    Case(
        "ColumnTransformer of text alone",
        lambda: _documents(
            make_column_transformer((TfidfVectorizer(), "text"), (CountVectorizer(analyzer="char"), "city")), FRAME
        ),
        sample=True,
    ),
]

WEIGHTS = [
    Case("TfidfTransformer", lambda: (TfidfTransformer().fit(COUNTS), COUNTS)),
    Case("TfidfTransformer sublinear, l1", lambda: (TfidfTransformer(norm="l1", sublinear_tf=True).fit(COUNTS), COUNTS)),
    Case("TfidfTransformer without norm", lambda: (TfidfTransformer(norm=None, smooth_idf=False).fit(COUNTS + 1), COUNTS)),
]

OBJECTS = [
    Case("DictVectorizer", lambda: (DictVectorizer().fit(DICTS[:2]), DICTS)),
    Case("DictVectorizer dense", lambda: (DictVectorizer(sparse=False, dtype=np.float32, sort=False).fit(DICTS), DICTS)),
    Case(
        "DictVectorizer and a model",
        lambda: (make_pipeline(DictVectorizer(separator="/"), Ridge()).fit(DICTS, range(80)), DICTS),
    ),
    Case(
        "FeatureHasher of dicts", lambda: (FeatureHasher(16).fit(), [{"a": 1.5, "b": "x"}, {}, {"é": -2, "n": 0, "b=x": 1}] * 9)
    ),
    Case("FeatureHasher of pairs", lambda: (FeatureHasher(8, input_type="pair", dtype=np.float32).fit(), PAIRS)),
    Case(
        "FeatureHasher of strings",
        lambda: (FeatureHasher(4, input_type="string", alternate_sign=False).fit(), [["a", "b"], [], ["a", "a", "ü"]] * 9),
    ),
    Case(
        "MultiLabelBinarizer of labels of several types",
        lambda: (MultiLabelBinarizer(classes=["ü", 3, 2.5, "red", 1]).fit([]), SETS),
    ),
    Case(
        "MultiLabelBinarizer, sparse",
        lambda: (MultiLabelBinarizer(sparse_output=True).fit([(1, 3), {2}]), [[1], (3, 2, 2), {}] * 9),
    ),
]

CASES = [*TEXT, *MODELS, *WEIGHTS, *OBJECTS]
