"""Rows as mixtures of components, topics or neighbours."""

from __future__ import annotations

import numpy as np
from sklearn.decomposition import NMF, LatentDirichletAllocation, MiniBatchNMF
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.manifold import LocallyLinearEmbedding
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler

from estimators.case import Case

RNG = np.random.default_rng(0)
PARTS = RNG.exponential(size=(3, 8)) * (RNG.random((3, 8)) < 0.6)
X = RNG.exponential(size=(150, 3)) @ PARTS + 0.05 * RNG.random((150, 8))
COUNTS = RNG.poisson(0.7, size=(150, 12)).astype(float)
POINTS = RNG.normal(size=(80, 3))
OTHERS = RNG.normal(size=(150, 3))
CLASSES = np.arange(150) % 3
TEXTS = [" ".join(RNG.choice([f"word{i}" for i in range(20)], 9)) for _ in range(150)]
MU = {"solver": "mu", "init": "random", "random_state": 0, "max_iter": 1000, "tol": 1e-3}
MINI = {"init": "random", "random_state": 0, "max_iter": 400}


def _factors(model, X=X, dtype=np.float64):
    return model.fit(X.astype(dtype)), X.astype(dtype)


def _topics(dtype=np.float64, **options):
    return LatentDirichletAllocation(4, random_state=0, max_iter=3, **options).fit(COUNTS.astype(dtype)), COUNTS


def _embedding(**options):
    return LocallyLinearEmbedding(n_neighbors=8, random_state=0, **options).fit(POINTS), OTHERS


CASES = [
    Case("NMF", lambda: _factors(NMF(3, max_iter=1000)), float32=False),
    Case("NMF fitted on float32", lambda: _factors(NMF(3, max_iter=1000), dtype=np.float32), float32=False),
    Case("NMF alpha_W, l1_ratio", lambda: _factors(NMF(4, alpha_W=0.02, l1_ratio=0.4, max_iter=1000)), float32=False),
    Case("NMF shuffle", lambda: _factors(NMF(3, shuffle=True, random_state=5, max_iter=1000)), float32=False),
    Case("NMF tol=0", lambda: _factors(NMF(3, tol=0, max_iter=30)), float32=False),
    Case("NMF mu", lambda: _factors(NMF(3, **MU)), float32=False),
    Case("NMF mu, float32", lambda: _factors(NMF(3, **MU), dtype=np.float32), float32=False),
    Case(
        "NMF mu, kullback-leibler, alpha_W",
        lambda: _factors(NMF(3, beta_loss=1, alpha_W=0.01, l1_ratio=0.5, **MU)),
        float32=False,
    ),
    Case("NMF mu, itakura-saito", lambda: _factors(NMF(3, beta_loss="itakura-saito", **MU), X + 0.1), float32=False),
    Case("NMF mu, beta_loss=0.5", lambda: _factors(NMF(3, beta_loss=0.5, alpha_W=0.01, **MU)), float32=False),
    Case("NMF mu, beta_loss=3", lambda: _factors(NMF(3, beta_loss=3, **MU)), float32=False),
    Case("MiniBatchNMF", lambda: _factors(MiniBatchNMF(3, **MINI))),
    Case("MiniBatchNMF of float32", lambda: (MiniBatchNMF(3, **MINI).fit(X), X.astype(np.float32))),
    Case("MiniBatchNMF kullback-leibler", lambda: _factors(MiniBatchNMF(3, beta_loss=1, alpha_W=0.01, l1_ratio=0.5, **MINI))),
    Case("MiniBatchNMF fresh_restarts", lambda: _factors(MiniBatchNMF(3, fresh_restarts=True, transform_max_iter=7, **MINI))),
    Case(
        "Pipeline with NMF between others",
        lambda: (
            make_pipeline(MinMaxScaler(clip=True), NMF(3, max_iter=1000), StandardScaler(), LogisticRegression()).fit(
                X, CLASSES
            ),
            X,
        ),
        float32=False,
    ),
    Case("NMF of texts", lambda: (make_pipeline(TfidfVectorizer(), NMF(3, max_iter=1000)).fit(TEXTS), TEXTS), float32=False),
    Case(
        "NMF mu of texts, beta_loss=1.5",
        lambda: (make_pipeline(TfidfVectorizer(), NMF(3, beta_loss=1.5, **MU)).fit(TEXTS), TEXTS),
    ),
    Case("LatentDirichletAllocation", lambda: _topics()),
    Case("LatentDirichletAllocation fitted on float32", lambda: _topics(np.float32)),
    Case(
        "LatentDirichletAllocation online",
        lambda: _topics(learning_method="online", doc_topic_prior=1e-7, mean_change_tol=1e-5),
    ),
    Case("LatentDirichletAllocation stopped", lambda: _topics(max_doc_update_iter=5, doc_topic_prior=0.9)),
    Case(
        "LatentDirichletAllocation of texts",
        lambda: (make_pipeline(CountVectorizer(), LatentDirichletAllocation(4, random_state=0, max_iter=2)).fit(TEXTS), TEXTS),
    ),
    Case("LocallyLinearEmbedding", lambda: _embedding()),
    Case(
        "LocallyLinearEmbedding modified, brute, 3 components, reg, of its own points",
        lambda: (_embedding(method="modified", n_components=3, reg=1e-2, neighbors_algorithm="brute")[0], POINTS),
    ),
]
