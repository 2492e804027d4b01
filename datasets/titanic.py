"""Titanic: a mixed frame with numbers, strings and missing values in both (1,309 passengers, OpenML 40945)."""

from __future__ import annotations

import sys

import numpy as np
import pandas as pd

COLUMNS = ["pclass", "sex", "age", "sibsp", "parch", "fare", "embarked"]


def load_titanic(download: bool = True) -> tuple[pd.DataFrame, pd.Series]:
    """(passengers [1309 × 7], whether they survived as the strings "0" and "1"). Generated where it cannot be downloaded."""
    if download:
        from sklearn.datasets import fetch_openml

        try:
            data = fetch_openml(data_id=40945, as_frame=True, parser="auto")
        except OSError as error:
            print(f"titanic: not downloaded ({error}); generating data of the same shape", file=sys.stderr)
        else:
            X = data.data[COLUMNS]
            texts = ["sex", "embarked"]
            return X.astype(dict.fromkeys(texts, object)), data.target.astype(str)
    return _generate()


def _generate(rows: int = 1309, seed: int = 0) -> tuple[pd.DataFrame, pd.Series]:
    rng = np.random.default_rng(seed)
    pclass = rng.choice([1, 2, 3], rows, p=[0.25, 0.21, 0.54])
    sex = rng.choice(["male", "female"], rows, p=[0.64, 0.36]).astype(object)
    age = np.where(rng.random(rows) < 0.2, np.nan, np.clip(rng.gamma(6.0, 5.0, rows), 0.2, 80.0).round(1))
    sibsp = rng.choice([0, 1, 2, 3, 4], rows, p=[0.68, 0.24, 0.04, 0.02, 0.02])
    parch = rng.choice([0, 1, 2, 3], rows, p=[0.77, 0.13, 0.09, 0.01])
    fare = (rng.lognormal(2.2, 0.7, rows) * (4 - pclass)).round(4)
    fare[rng.integers(rows)] = np.nan
    embarked = rng.choice(["S", "C", "Q"], rows, p=[0.70, 0.21, 0.09]).astype(object)
    embarked[rng.integers(rows, size=2)] = np.nan
    score = 2.4 * (sex == "female") - 0.9 * (pclass - 2) - 0.02 * (np.nan_to_num(age, nan=30) - 30) - 0.9
    survived = pd.Series((rng.random(rows) < 1 / (1 + np.exp(-score))).astype(int).astype(str), name="survived")
    columns = (pclass, sex, age, sibsp, parch, fare, embarked)
    return pd.DataFrame(dict(zip(COLUMNS, columns, strict=True))), survived
