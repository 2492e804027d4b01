"""The six data sets of the Hummingbird paper (OSDI'20, Table 6): downloaded, or generated in the same shape."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Arrays = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]


@dataclass(frozen=True)
class DataSet:
    """Rows and columns of the full data set; classes is 0 for regression. `download` gives (X float32, y)."""

    rows: int
    columns: int
    classes: int
    download: Callable[[], Arrays]


def _openml(data_id: int) -> Callable[[], Arrays]:
    def download() -> Arrays:
        from sklearn.datasets import fetch_openml

        X, y = fetch_openml(data_id=data_id, as_frame=False, return_X_y=True, parser="auto")
        return X.astype(np.float32), np.unique(y, return_inverse=True)[1].astype(np.float32) if y.dtype.kind in "OU" else y

    return download


def _covtype() -> Arrays:
    from sklearn.datasets import fetch_covtype

    X, y = fetch_covtype(return_X_y=True)
    return X.astype(np.float32), (y - 1).astype(np.float32)


PAPER = {
    "fraud": DataSet(284_807, 28, 2, _openml(1597)),
    "epsilon": DataSet(400_000, 2000, 2, _openml(45575)),
    "year": DataSet(515_345, 90, 0, _openml(44027)),
    "covtype": DataSet(581_012, 54, 7, _covtype),
    "higgs": DataSet(11_000_000, 28, 2, _openml(45570)),
    "airline": DataSet(115_000_000, 13, 2, _openml(1169)),
}


def load_paper(name: str, rows: int | None = None, download: bool = True, seed: int = 0) -> Arrays:
    """(X float32 [rows, columns], y). At most `rows` rows; generated, with a note on stderr, where nothing can be downloaded."""
    data = PAPER[name]
    if download:
        try:
            X, y = data.download()
            return X[:rows], y[:rows]
        except OSError as error:
            print(f"{name}: not downloaded ({error}); generating data of the same shape", file=sys.stderr)
    return _generate(data, min(rows or data.rows, data.rows), seed)


def _generate(data: DataSet, rows: int, seed: int) -> Arrays:
    """Gaussian features and a target with interactions, so that fitted trees use many features and grow as deep as real ones."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((rows, data.columns), dtype=np.float32)
    weights = rng.standard_normal((data.columns, max(data.classes, 1)), dtype=np.float32)
    score = X @ weights + np.abs(X[:, :1]) * np.sqrt(data.columns) + np.sin(3 * X[:, -1:]) * X[:, :1]
    score += rng.gumbel(size=score.shape).astype(np.float32) * score.std() * 0.3
    target = (
        score[:, 0] if data.classes == 0 else score.argmax(axis=1) if data.classes > 2 else score[:, 0] > np.median(score[:, 0])
    )
    return X, target.astype(np.float32)
