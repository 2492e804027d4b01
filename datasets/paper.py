"""The six data sets of the Hummingbird paper (OSDI'20, Table 6): downloaded and kept on disk, or generated with the same rows, columns,
types, balance of classes and missing values (none of the six has any)."""

from __future__ import annotations

import bz2
import hashlib
import os
import shutil
import sys
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Arrays = tuple[Floats, Floats]
AIRLINE = "http://kt.ijs.si/elena_ikonomovska/datasets/airline/airline_14col.data.bz2"


@dataclass(frozen=True)
class Table:
    """Rows float32 [rows, columns] and their labels. `generated`: they are a stand-in, and every result has to say so."""

    X: Floats
    y: Floats
    generated: bool


@dataclass(frozen=True)
class DataSet:
    """Rows and columns of the full data set; classes is 0 for regression. `download` gives (X float32, y), and `generate` so many rows of
    the stand-in."""

    rows: int
    columns: int
    classes: int
    download: Callable[[], Arrays]
    generate: Callable[[int, np.random.Generator], Arrays]


# --- downloads: each fetcher compares a checksum, but for airline, whose publisher has none ------------------------------


def _openml(data_id: int, columns: list[str] | None = None) -> Callable[[], Arrays]:
    def download() -> Arrays:
        from sklearn.datasets import fetch_openml

        X, y = fetch_openml(data_id=data_id, as_frame=True, return_X_y=True, parser="auto")
        return (X if columns is None else X[columns]).to_numpy(np.float32), y.to_numpy(np.float32)

    return download


def _catboost(name: str) -> Callable[[], Arrays]:
    """CatBoost's fetchers give two frames, whose first column is the class."""

    def download() -> Arrays:
        import catboost.datasets

        try:
            train, test = getattr(catboost.datasets, name)()
        except RuntimeError as error:  # what CatBoost makes of a network error and of a wrong checksum
            raise OSError(" ".join(map(str, error.args))) from error
        frames = (train,) if name == "epsilon" else (train, test)  # the paper's epsilon has 400,000 rows
        both = np.concatenate([frame.to_numpy(np.float32) for frame in frames])
        return both[:, 1:], (both[:, 0] > 0).astype(np.float32)

    return download


def _covtype() -> Arrays:
    from sklearn.datasets import fetch_covtype

    X, y = fetch_covtype(return_X_y=True)
    return X.astype(np.float32), (y - 1).astype(np.float32)


def _airline() -> Arrays:
    """Flights of 1987 to 2008: 13 columns, and whether the flight came late. The checksum of the first download is kept beside the file:
    another file is refused later."""
    import pandas as pd

    path = home() / "airline_14col.data.bz2"
    fetch(AIRLINE, path)
    names = (
        *("Year", "Month", "DayofMonth", "DayofWeek", "CRSDepTime", "CRSArrTime", "UniqueCarrier", "FlightNum"),
        *("ActualElapsedTime", "Origin", "Dest", "Distance", "Diverted", "ArrDelay"),
    )
    with bz2.open(path) as file:
        frame = pd.read_csv(file, names=names)
    for name in ("UniqueCarrier", "Origin", "Dest"):
        frame[name] = frame[name].astype("category").cat.codes
    late = (frame.pop("ArrDelay") > 0).to_numpy(np.float32)
    return frame.to_numpy(np.float32), late


def fetch(url: str, path: Path, sha256: str | None = None) -> None:
    """Download a file unless it is there, and compare its checksum: with `sha256`, or else with that of its first download, which is kept
    beside it. Raises ValueError for another one, OSError if it cannot be had."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f"{path.name}.unfinished")
        with urllib.request.urlopen(url, timeout=60) as source, open(unfinished, "wb") as file:
            shutil.copyfileobj(source, file)
        unfinished.replace(path)
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    noted = path.with_name(f"{path.name}.sha256")
    wanted = sha256 or (noted.read_text().strip() if noted.exists() else found)
    if found != wanted:
        raise ValueError(f"{path}: found the checksum {found}, expected {wanted}; delete the file to download it again")
    noted.write_text(f"{found}\n")


# --- stand-ins ---------------------------------------------------------------------------------------------------------


def _score(X: Floats, used: npt.NDArray[np.int_], random: np.random.Generator, outputs: int = 1) -> Floats:
    """Scores [rows, outputs] with interactions of columns, and as much noise: trees find no pure leaves, and grow as deep as they may."""
    part = X[:, used].astype(np.float32)
    part = (part - part.mean(axis=0)) / (part.std(axis=0) + 1e-6)
    hidden = np.sin(part @ random.normal(size=(len(used), 24)).astype(np.float32) / 2)
    score = hidden @ random.normal(size=(24, outputs)).astype(np.float32)
    return (score / score.std() + random.normal(size=score.shape)).astype(np.float32)


def _share(score: Floats, share: float) -> Floats:
    """1 for so large a share of the rows with the highest scores."""
    count = min(len(score) - 1, max(1, round(share * len(score))))
    y = np.zeros(len(score), np.float32)
    y[np.argpartition(-score[:, 0], count)[:count]] = 1
    return y


def _some_fraud(rows: int, random: np.random.Generator) -> Arrays:
    """28 principal components, ever smaller, with heavy tails; 492 of 284,807 are frauds."""
    X = random.standard_t(5, (rows, 28)).astype(np.float32) * np.linspace(2, 0.3, 28, dtype=np.float32)
    return X, _share(_score(X, np.arange(12), random), 492 / 284_807)


def _some_epsilon(rows: int, random: np.random.Generator) -> Arrays:
    """2,000 columns, rows of length 1, as many of either class."""
    X = random.standard_normal((rows, 2000), np.float32)
    y = _share(_score(X, np.arange(0, 2000, 50), random), 0.5)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    return X, y


def _some_year(rows: int, random: np.random.Generator) -> Arrays:
    """12 means and 78 covariances of timbres; years 1922 to 2011, most of them late."""
    X = np.hstack([random.normal(0, 20, (rows, 12)), random.standard_t(4, (rows, 78)) * 300]).astype(np.float32)
    score = _score(X, np.arange(0, 90, 5), random)[:, 0]
    return X, np.round(2011 - np.minimum(np.exp(2.2 + 0.55 * score), 89)).astype(np.float32)


def _some_covtype(rows: int, random: np.random.Generator) -> Arrays:
    """10 integers, one of 4 areas, one of 40 soils; seven classes as uneven as the real ones."""
    means, spreads = (2959, 156, 14, 269, 46, 2350, 212, 223, 143, 1980), (280, 112, 7, 213, 58, 1559, 27, 20, 38, 1324)
    numbers = np.round(np.abs(random.normal(means, spreads, (rows, 10))))
    areas, soils = random.choice(4, rows, p=(0.45, 0.05, 0.436, 0.064)), (40 * random.random(rows) ** 1.5).astype(int)
    X = np.hstack([numbers, np.eye(4)[areas], np.eye(40)[soils]]).astype(np.float32)
    score = _score(X, np.array([0, 1, 2, 3, 5, 9, 10, 12, 14, 20]), random)[:, 0]
    shares = np.array((211_840, 283_301, 35_754, 2_747, 9_493, 17_367, 20_510)) / 581_012
    y = np.searchsorted(np.quantile(score, np.cumsum(shares)[:-1]), score)
    y[: 7 * min(10, rows // 70)] = np.repeat(np.arange(7), min(10, rows // 70))  # every class, in small samples too
    return X, y.astype(np.float32)


def _some_higgs(rows: int, random: np.random.Generator) -> Arrays:
    """21 measurements, four of them in three steps, and 7 computed ones; 53 % are signals."""
    X = random.normal(size=(rows, 28)).astype(np.float32)
    X[:, [0, 3, 5, 9, 13, 17]] = np.exp(0.5 * X[:, [0, 3, 5, 9, 13, 17]])
    X[:, 21:] = np.abs(0.9 + 0.4 * X[:, 21:])
    for column, step in ((8, 1.0865), (12, 1.1073), (16, 1.0965), (20, 1.5511)):
        X[:, column] = step * random.integers(0, 3, rows)
    return X, _share(_score(X, np.arange(28), random), 0.53)


def _some_airline(rows: int, random: np.random.Generator) -> Arrays:
    """13 integers: dates, times, a carrier of 29, airports of 340, distances; half of the flights come late."""
    spans = (
        (1987, 2009),
        (1, 13),
        (1, 32),
        (1, 8),
        (0, 2360),
        (0, 2400),
        (0, 29),
        (1, 7500),
        (30, 600),
        (0, 340),
        (0, 340),
        (30, 2600),
    )
    X = np.column_stack([random.integers(*span, rows) for span in spans] + [random.random(rows) < 0.002]).astype(np.float32)
    return X, _share(_score(X, np.arange(12), random), 0.48)


PAPER = {
    "fraud": DataSet(284_807, 28, 2, _openml(1597, [f"V{i}" for i in range(1, 29)]), _some_fraud),
    "epsilon": DataSet(400_000, 2000, 2, _catboost("epsilon"), _some_epsilon),
    "year": DataSet(515_345, 90, 0, _openml(44027), _some_year),
    "covtype": DataSet(581_012, 54, 7, _covtype, _some_covtype),
    "higgs": DataSet(11_000_000, 28, 2, _catboost("higgs"), _some_higgs),
    "airline": DataSet(115_069_017, 13, 2, _airline, _some_airline),
}


def home() -> Path:
    """The folder of downloads: `hbc` in scikit-learn's folder of data ($SCIKIT_LEARN_DATA)."""
    from sklearn.datasets import get_data_home

    return Path(get_data_home()) / "hbc"


def load_paper(name: str, rows: int | None = None, download: bool = True, seed: int = 0) -> Table:
    """A data set: at most `rows` rows, chosen at random. Kept on disk once it is downloaded. Generated, with a note on stderr, where it
    cannot be downloaded. Raises ValueError if what was downloaded has another shape."""
    data = PAPER[name]
    count, random = min(rows or data.rows, data.rows), np.random.default_rng(seed)
    if download:
        try:
            X, y = _kept(name, data)
        except (OSError, ImportError) as error:
            print(f"{name}: not downloaded ({error}); generating data of the same shape", file=sys.stderr)
        else:
            chosen = np.sort(random.permutation(len(X))[:count])
            return Table(np.ascontiguousarray(X[chosen]), y[chosen], generated=False)
    X, y = data.generate(count, random)
    return Table(X, y, generated=True)


def _kept(name: str, data: DataSet) -> Arrays:
    """The whole data set from the disk, or downloaded and put there; not read into memory at once."""
    folder = home() / name
    if not folder.exists():
        X, y = data.download()
        if X.shape != (data.rows, data.columns) or y.shape != (data.rows,):
            raise ValueError(f"{name}: downloaded {X.shape} and {y.shape}, expected {data.rows} rows of {data.columns} columns")
        unfinished = folder.with_name(f"{name}.unfinished-{os.getpid()}")
        unfinished.mkdir(parents=True)
        np.save(unfinished / "X.npy", X)
        np.save(unfinished / "y.npy", y)
        unfinished.rename(folder)
    return np.load(folder / "X.npy", mmap_mode="r"), np.load(folder / "y.npy")
