"""`python -m benchmarks.text`: documents and dicts end to end. Vectorizers and hashers are measured alone and in front of models,
scikit-learn's and hbc's in one process, on one core, in turns, after their answers were compared."""

from __future__ import annotations

import argparse
import fnmatch
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.decomposition import LatentDirichletAllocation, TruncatedSVD
from sklearn.feature_extraction import DictVectorizer, FeatureHasher
from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import MultinomialNB
from sklearn.pipeline import make_pipeline

import hbc
from benchmarks import machine, report
from benchmarks.pairs import OURS, SOURCE, compare, table, versions
from benchmarks.run import RESULTS
from benchmarks.trees import CACHE
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


def run(name: str, texts: list[str], dicts: list[dict[str, float]], rounds: int, budget: float) -> dict[str, Any]:
    model, X = MODELS[name](), dicts if name in ("DictVectorizer", "FeatureHasher") else texts
    model.fit(X[:TRAINED], np.arange(TRAINED) % 4)
    method = "predict_proba" if hasattr(model, "predict_proba") else "transform"
    compiled = hbc.convert(model, "tvm", threads=1)
    calls = {SOURCE: getattr(model, method), OURS: getattr(compiled, method)}
    engines = compare(calls, X[TRAINED : TRAINED + SCORED], BATCHES, rounds, budget)
    engines[SOURCE]["versions"] = versions(("hbc", "apache-tvm", "scikit-learn"))
    return {"engines": engines}


def markdown(results: dict[str, Any]) -> str:
    return f"{report.heading(results, 'Text', LEGEND)}\n\n{table(results, 'model')}\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 1 if hbc was not exact anywhere."""
    options = _parser().parse_args(arguments)
    described, core = machine.describe(), max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    out = options.out or (CACHE if options.only else RESULTS) / "text.json"
    settings = {"rounds": options.rounds, "budget": options.budget, "threads": 1, "cores": [core], "batches": BATCHES}
    results: dict[str, Any] = {"machine": described, "settings": {**settings, "size": {"name": "full"}}, "workloads": {}}
    texts, rng = load_newsgroups(), np.random.default_rng(0)
    dicts = [{f"name {i}": float(i) for i in rng.integers(1, 200, 20)} for _ in range(TRAINED + SCORED)]
    for name in MODELS:
        if not options.only or any(fnmatch.fnmatchcase(name, pattern) for pattern in options.only):
            results["workloads"][name] = run(name, texts, dicts, options.rounds, options.budget)
            print(f"{time.strftime('%H:%M:%S')} {name}", file=sys.stderr, flush=True)
    report.finish(results, out, markdown)
    return 1 if report.failures(results) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.text", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="MODEL", help="names or wildcards")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--budget", type=float, default=0.3, help="seconds of a measurement")
    parser.add_argument("--out", type=Path, help="the JSON file; the table goes beside it")
    return parser


if __name__ == "__main__":
    machine.with_one_thread("benchmarks.text")
    sys.exit(main())
