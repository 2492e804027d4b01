"""Documents and dicts end to end: vectorizers and hashers are measured alone and in front of models,
scikit-learn's and hbc's in one process, on one core, in turns, after their answers were compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.decomposition import LatentDirichletAllocation, TruncatedSVD
from sklearn.feature_extraction import DictVectorizer, FeatureHasher
from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import MultinomialNB
from sklearn.pipeline import make_pipeline

import hbc
from benchmarks import report
from benchmarks.report import MAIN, SOURCE
from benchmarks.session import Run, versions
from benchmarks.side_by_side import cut, in_turns
from datasets import load_newsgroups

TRAINED, SCORED = 3000, 3000
BATCHES = (1, 100, SCORED)
MODELS: dict[str, Callable[[], Any]] = {
    "CountVectorizer": CountVectorizer,
    "CountVectorizer, pairs of words": lambda: CountVectorizer(ngram_range=(1, 2)),
    "CountVectorizer, 2-3 characters": lambda: CountVectorizer(analyzer="char", ngram_range=(2, 3)),
    "CountVectorizer, 2-4 characters within words": lambda: CountVectorizer(analyzer="char_wb", ngram_range=(2, 4)),
    "TfidfVectorizer": TfidfVectorizer,
    "TfidfVectorizer, stop words, accents, sublinear": lambda: TfidfVectorizer(
        stop_words="english", strip_accents="unicode", sublinear_tf=True
    ),
    "HashingVectorizer": HashingVectorizer,
    "Tfidf → LogisticRegression": lambda: make_pipeline(TfidfVectorizer(), LogisticRegression()),
    "Count → MultinomialNB": lambda: make_pipeline(CountVectorizer(), MultinomialNB()),
    "Hashing → LogisticRegression": lambda: make_pipeline(HashingVectorizer(n_features=2**18), LogisticRegression()),
    "Tfidf → SVD → LogisticRegression": lambda: make_pipeline(TfidfVectorizer(), TruncatedSVD(50), LogisticRegression()),
    "Count → LatentDirichletAllocation": lambda: make_pipeline(
        CountVectorizer(max_features=5000), LatentDirichletAllocation(10, max_iter=1, random_state=0)
    ),
    "DictVectorizer": DictVectorizer,
    "FeatureHasher": lambda: FeatureHasher(1024),
}
LEGEND = (
    "Messages of 20 newsgroups or generated ones (150 words in the median; one of 300 words has a letter beyond ASCII); dicts of 20 "
    "numbers. µs a document of a whole call, list in, sparse matrix or probabilities out: median over the rounds of a round's median call."
)


OPTIONS: dict[str, dict[str, Any]] = {}


def run(run: Run) -> None:
    trained, scored = (500, 300) if run.quick else (TRAINED, SCORED)
    batches = (*BATCHES[:-1], scored)
    run.settings["batches"] = batches
    rounds, budget = run.given("rounds", 3, 1), run.given("budget", 0.3, 0.02)
    run.on_one_core()
    texts, rng = load_newsgroups(), np.random.default_rng(0)
    dicts = [{f"name {i}": float(i) for i in rng.integers(1, 200, 20)} for _ in range(trained + scored)]
    for name in run.steps(run.asked(MODELS, ("CountVectorizer", "Tfidf → LogisticRegression", "DictVectorizer"))):
        model, X = MODELS[name](), dicts if name in ("DictVectorizer", "FeatureHasher") else texts
        model.fit(X[:trained], np.arange(trained) % 4)
        method = "predict_proba" if hasattr(model, "predict_proba") else "transform"
        calls = {SOURCE: getattr(model, method), MAIN: getattr(hbc.convert(model, "tvm", threads=1), method)}
        some = X[trained : trained + scored]
        engines = in_turns(calls, SOURCE, {rows: cut(some, rows) for rows in batches}, [some], rounds, budget)
        engines[SOURCE]["versions"] = versions(("hbc", "apache-tvm", "scikit-learn"))
        run.results["workloads"][name] = {"engines": engines}


def markdown(results: dict[str, Any]) -> str:
    return f"{report.heading(results, 'Text', LEGEND)}\n\n{report.pairs(results, 'model')}\n"
