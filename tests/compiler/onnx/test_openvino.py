"""Plain .onnx files in OpenVINO, which has no operators of ai.onnx.ml. It computes float64 in float32, and everything in bfloat16 where the
processor has it (AVX512_BF16) unless it is told not to: MLPClassifier's probabilities were off by 0.003."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

openvino = pytest.importorskip("openvino", exc_type=ImportError)
pytest.importorskip("onnx")
pytest.importorskip("sklearn")

from sklearn.ensemble import GradientBoostingClassifier, HistGradientBoostingRegressor, RandomForestClassifier  # noqa: E402
from sklearn.linear_model import LogisticRegression  # noqa: E402
from sklearn.neural_network import MLPClassifier  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import StandardScaler  # noqa: E402

import hbc  # noqa: E402

X = np.random.default_rng(0).normal(size=(200, 5)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int) + (X[:, 1] > 0.5)
MODELS: dict[str, Any] = {
    "logistic": lambda: make_pipeline(StandardScaler(), LogisticRegression()).fit(X, Y),
    "forest": lambda: RandomForestClassifier(20, max_depth=6, random_state=0).fit(X, Y),
    "boosting": lambda: GradientBoostingClassifier(n_estimators=10, random_state=0).fit(X, Y),
    "histograms": lambda: HistGradientBoostingRegressor(max_iter=10).fit(X, X[:, 0] * X[:, 1]),
    "network": lambda: MLPClassifier((8,), max_iter=30, random_state=0).fit(X, Y),
}


@pytest.mark.parametrize("strategy", ["auto", "gemm", "tree_trav", "perf_tree_trav"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore:Stochastic Optimizer")
def test_plain_files(name: str, strategy: str, tmp_path: Path) -> None:
    model = MODELS[name]()
    hbc.convert(model, "onnx", strategy=strategy).export(tmp_path / "m.onnx", plain=True)
    compiled = openvino.Core().compile_model(str(tmp_path / "m.onnx"), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    for rows in (200, 1):
        found = compiled({"X": X[:rows]})
        for method in ("predict_proba", "predict"):
            if hasattr(model, method):
                np.testing.assert_allclose(found[method], getattr(model, method)(X[:rows]), rtol=1e-4, atol=1e-5)
