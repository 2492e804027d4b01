"""A booster of LightGBM, XGBoost or CatBoost converts without hbc's importing scikit-learn. (LightGBM and XGBoost import it themselves.)"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hbc

LOAD = {
    "lightgbm": "import lightgbm; model = lightgbm.Booster(model_file=sys.argv[1])",
    "xgboost": "import xgboost; model = xgboost.Booster(model_file=sys.argv[1])",
    "catboost": "import catboost; model = catboost.CatBoost().load_model(sys.argv[1])",
}
CONVERT = """
before = set(sys.modules)
import hbc, numpy as np
hbc.convert(model, "numpy").predict(np.zeros((2, 4)))
new = set(sys.modules) - before
print(*sorted(name for name in new if name == "sklearn" or name.startswith("hbc.parser.sklearn")))
"""


@pytest.mark.parametrize("library", LOAD)
def test_a_booster_converts_without_scikit_learn(library: str, tmp_path: Path) -> None:
    pytest.importorskip(library)
    X = np.random.default_rng(0).normal(size=(200, 4))
    path = str(tmp_path / ("model.ubj" if library == "xgboost" else "model.txt"))
    if library == "lightgbm":
        import lightgbm

        lightgbm.train({"objective": "regression", "verbose": -1}, lightgbm.Dataset(X, X[:, 0]), 3).save_model(path)
    elif library == "xgboost":
        import xgboost

        xgboost.train({}, xgboost.DMatrix(X, X[:, 0]), 3).save_model(path)
    else:
        import catboost

        model = catboost.CatBoost({"iterations": 3, "verbose": 0, "loss_function": "RMSE", "allow_writing_files": False})
        model.fit(X, X[:, 0]).save_model(path)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", f"import sys; {LOAD[library]}\n{CONVERT}", path],
        env={"PYTHONPATH": str(Path(hbc.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stderr
    assert done.stdout.strip() == ""
