"""Trees on 64-bit ARM: an emulator runs exported libraries, whose kernels look up bytes with NEON. The oracle is the source library."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
pytest.importorskip("sklearn")
from sklearn.ensemble import ExtraTreesClassifier, HistGradientBoostingClassifier, RandomForestRegressor
from sklearn.tree import DecisionTreeClassifier

import hbc

COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"]
ROWS = (1, 2, 5, 7, 17, 40, 64, 100, 230, 700)
MAIN = """
#include <stdio.h>
#include <stdlib.h>
#include "model.h"

int main(int count, char **arguments) {  // the numbers of rows: of each, the first ones of the file are scored
    FILE *input = fopen("X.bin", "rb"), *output = fopen("found.bin", "wb");
    static float X[700 * HBC_COLUMNS];
    static TYPE out[700 * WIDTH];
    if (fread(X, sizeof X, 1, input) != 1) return 99;
    for (int i = 1; i < count; i++) {
        long rows = atol(arguments[i]);
        int code = METHOD(X, rows, out);
        if (code != HBC_OK) return code;
        fwrite(out, sizeof *out, rows * WIDTH, output);
    }
    return fclose(output);
}
"""
rng = np.random.default_rng(0)


def case(model: Any, method: str, columns: int, missing: bool = False) -> Any:
    """(a fitted model, its method, 700 rows of float32 for it)."""
    X = rng.normal(size=(2000, columns)).astype(np.float32).round(2)
    if missing:
        X[rng.random(X.shape) < 0.1] = np.nan
    target = np.nan_to_num(X[:, 0] * X[:, 1] + X[:, 2]) + rng.normal(size=2000)
    labels = target if "Regressor" in type(model).__name__ else np.digitize(target, [-0.7, 0.7])
    return model.fit(X, labels), method, X[:700]


def xgboosted() -> Any:
    return pytest.importorskip("xgboost").XGBRegressor(n_estimators=70, max_depth=6)


CASES = {
    "leaf tables of 16 bytes": lambda: case(HistGradientBoostingClassifier(max_iter=30, max_leaf_nodes=15), "predict_proba", 7),
    "leaf tables of 32 bytes": lambda: case(HistGradientBoostingClassifier(max_iter=30), "predict_proba", 28, missing=True),
    "leaf tables of 64 bytes": lambda: case(xgboosted(), "predict", 12, missing=True),
    "leaves that are gathered": lambda: case(RandomForestRegressor(70, max_leaf_nodes=60, random_state=0), "predict", 12),
    "ranks of 60 columns, in two ways": lambda: case(
        HistGradientBoostingClassifier(max_iter=40, max_features=0.2, random_state=0), "predict_proba", 60
    ),
    "several values in a leaf": lambda: case(ExtraTreesClassifier(70, max_depth=5, random_state=0), "predict_proba", 20),
    "leaf numbers": lambda: case(RandomForestRegressor(66, max_depth=5, random_state=0), "apply", 20),
    "one tree": lambda: case(DecisionTreeClassifier(max_leaf_nodes=200, random_state=0), "predict_proba", 28),
}


@pytest.mark.parametrize("name", CASES)
def test_trees_on_arm(name: str, tmp_path: Path) -> None:
    missing = [program for program in (COMPILER, EMULATOR[0]) if shutil.which(program) is None]
    if missing:
        pytest.skip(f"no {', '.join(missing)}")
    model, method, X = CASES[name]()
    expected = getattr(model, method)(X)
    expected = expected.reshape(len(X), -1)
    hbc.convert(model, "tvm").export(tmp_path / "libmodel.so", methods=[method], target="aarch64", header=tmp_path / "model.h")
    kind = {"f4": "float", "f8": "double", "i8": "int64_t"}[expected.dtype.str[1:]]
    facts = f"#define METHOD hbc_{method}\n#define WIDTH {expected.shape[1]}\n#define TYPE {kind}\n"
    (tmp_path / "main.c").write_text("#include <stdint.h>\n" + facts + MAIN)
    X.tofile(tmp_path / "X.bin")
    command = [COMPILER, "-O1", "main.c", "-o", "main", "-L.", "-lmodel", "-Wl,-rpath,."]
    subprocess.run(command, cwd=tmp_path, check=True)
    subprocess.run([*EMULATOR, "./main", *map(str, ROWS)], cwd=tmp_path, check=True)
    found = np.fromfile(tmp_path / "found.bin", expected.dtype).reshape(-1, expected.shape[1])
    wanted = np.concatenate([expected[:rows] for rows in ROWS])
    tolerance = {"float": 1e-5, "double": 1e-10, "int64_t": 0}[kind]
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance / 10)
