"""libsvm's machines: kernels, class labels, votes, probabilities."""

from __future__ import annotations

import numpy as np
from scipy import sparse
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris, make_classification
from sklearn.preprocessing import scale
from sklearn.svm import SVC, SVR, NuSVC, NuSVR, OneClassSVM

from estimators.case import Case


def _iris(model, names=None, load=load_iris, convert=np.asarray):
    X, y = load(return_X_y=True)
    X = scale(X)[:, :8]
    if names is not None:
        y = np.asarray(names)[y]
    return model.fit(convert(X[::2]), y[::2]), X[-200:]


def _many(model):
    X, y = make_classification(300, 6, n_informative=5, n_redundant=1, n_classes=6, n_clusters_per_class=1, random_state=0)
    return model.fit(X[:150], y[:150] * 2 - 3), X[150:]


def _regression(model):
    X, y = load_diabetes(return_X_y=True)
    return model.fit(X[:100], y[:100] / 50), X[100:300]


def _novelty(model):
    X, _ = load_iris(return_X_y=True)
    return model.fit(X[:50]), X


FLOWERS = ["setosa", "versicolor", "virginica"]
KERNELS = {
    "linear": {},
    "poly": {"degree": 3, "coef0": 0.5},
    "rbf": {"gamma": "scale"},
    "sigmoid": {"gamma": 0.1, "coef0": -0.2},
}

CASES = [
    *(
        Case(f"SVC {kernel}", lambda kernel=kernel, options=options: _iris(SVC(kernel=kernel, **options)))
        for kernel, options in KERNELS.items()
    ),
    Case("SVC ovo, strings", lambda: _iris(SVC(decision_function_shape="ovo", gamma="auto"), FLOWERS)),
    Case("SVC break_ties", lambda: _many(SVC(break_ties=True, class_weight="balanced"))),
    Case("SVC poly of even degree, many classes", lambda: _many(SVC(kernel="poly", degree=4, gamma=0.3))),
    Case("SVC two classes, strings", lambda: _iris(SVC(C=10.0), ["malignant", "benign"], load_breast_cancer)),
    Case("SVC fitted on a sparse matrix", lambda: _iris(SVC(), convert=sparse.csr_array)),
    Case("SVC probability", lambda: _iris(SVC(probability=True, random_state=0))),
    Case("SVC probability, many classes", lambda: _many(SVC(probability=True, random_state=0, decision_function_shape="ovo"))),
    Case("SVC probability, two classes", lambda: _iris(SVC(probability=True, random_state=0), load=load_breast_cancer)),
    Case("NuSVC", lambda: _iris(NuSVC(nu=0.2, gamma=0.1), FLOWERS)),
    Case("NuSVC two classes, probability", lambda: _iris(NuSVC(probability=True, random_state=1), load=load_breast_cancer)),
    *(
        Case(f"SVR {kernel}", lambda kernel=kernel, options=options: _regression(SVR(kernel=kernel, **options)))
        for kernel, options in KERNELS.items()
    ),
    Case("NuSVR", lambda: _regression(NuSVR(nu=0.3, C=10.0))),
    Case("OneClassSVM", lambda: _novelty(OneClassSVM(nu=0.1, gamma=0.2))),
    Case("OneClassSVM linear", lambda: _novelty(OneClassSVM(nu=0.3, kernel="linear"))),
]
