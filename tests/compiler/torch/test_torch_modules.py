"""A model as a module of PyTorch: `CompiledModel.module` with its gradients, and files of TorchScript and torch.export."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

from sklearn.compose import make_column_transformer  # noqa: E402
from sklearn.decomposition import PCA  # noqa: E402
from sklearn.ensemble import RandomForestClassifier  # noqa: E402
from sklearn.impute import SimpleImputer  # noqa: E402
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge  # noqa: E402
from sklearn.neighbors import KNeighborsClassifier  # noqa: E402
from sklearn.neural_network import MLPClassifier, MLPRegressor  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import PolynomialFeatures, StandardScaler  # noqa: E402
from sklearn.svm import SVR  # noqa: E402

import hbc  # noqa: E402

X = np.random.default_rng(0).normal(size=(80, 4))
Y = (X[:, 0] > 0).astype(int) + (X[:, 1] > 0.5)
Z = X @ [1.0, -2.0, 0.5, 0.0] + X[:, 0] ** 2

SMOOTH: dict[str, Callable[[], Any]] = {
    "scaler": lambda: StandardScaler().fit(X),
    "linear": lambda: Ridge().fit(X, Z),
    "two classes": lambda: LogisticRegression().fit(X, Y > 0),
    "three classes": lambda: LogisticRegression().fit(X, Y),
    "pipeline": lambda: make_pipeline(StandardScaler(), PCA(3), PolynomialFeatures(2), LogisticRegression()).fit(X, Y),
    "imputer": lambda: make_pipeline(SimpleImputer(), LinearRegression()).fit(X, Z),
    "tanh": lambda: MLPClassifier((8,), activation="tanh", max_iter=20, random_state=0).fit(X, Y),
    "logistic": lambda: MLPClassifier((6, 5), activation="logistic", max_iter=20, random_state=0).fit(X, Y > 0),
    "relu": lambda: MLPRegressor(hidden_layer_sizes=(8,), max_iter=20, random_state=0).fit(X, Z),
    "kernel": lambda: SVR().fit(X, Z),
}
OTHERS: dict[str, Callable[[], Any]] = {
    "forest": lambda: RandomForestClassifier(5, max_depth=4, random_state=0).fit(X, Y),
    "seven classes": lambda: RandomForestClassifier(5, max_depth=4, random_state=0).fit(X, np.arange(80) % 7),
    "words": lambda: LogisticRegression().fit(X, np.array(["a", "b", "c"])[Y]),
}

pytestmark = pytest.mark.filterwarnings("ignore:Stochastic Optimizer")


def main_result(compiled: Any, data: Any) -> Any:
    return next(getattr(compiled, name)(data) for name in ("predict_proba", "transform", "predict") if name in compiled.methods)


@pytest.mark.parametrize("name", SMOOTH)
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    compiled = hbc.convert(SMOOTH[name](), "torch", X)
    module = compiled.module
    assert torch.autograd.gradcheck(module, (torch.tensor(X[:5], requires_grad=True),), eps=1e-6, atol=1e-5)
    many = torch.tensor(np.random.default_rng(1).normal(size=(4000, 4)))  # for many rows some operators are computed on bits
    step = torch.tensor(np.random.default_rng(2).normal(size=many.shape)) * 1e-6
    x = many.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(module(x).sum(), x)
    with torch.no_grad():
        difference = (module(many + step) - module(many - step)).sum() / 2
    torch.testing.assert_close((gradient * step).sum(), difference, rtol=1e-4, atol=1e-9)


def test_the_module_is_the_callers_own() -> None:
    compiled = hbc.convert(SMOOTH["three classes"](), "torch", X)
    module, before = compiled.module, compiled.predict_proba(X)
    assert isinstance(module, torch.nn.Module)
    assert compiled.module is module
    np.testing.assert_array_equal(module(torch.tensor(X)).numpy(), before)
    np.testing.assert_array_equal(module.predict(torch.tensor(X)).numpy(), compiled.predict(X))
    for buffer in module.buffers():
        if buffer.is_floating_point():
            buffer.requires_grad_()
    optimizer = torch.optim.SGD([buffer for buffer in module.buffers() if buffer.requires_grad], lr=0.1)
    optimizer.zero_grad()
    module(torch.tensor(X))[:, 0].sum().backward()
    optimizer.step()
    assert np.abs(module(torch.tensor(X)).detach().numpy() - before).max() > 1e-3
    module.to("meta")
    np.testing.assert_array_equal(compiled.predict_proba(X), before)
    for other in (pickle.loads(pickle.dumps(compiled)), copy.deepcopy(compiled)):
        np.testing.assert_array_equal(other.module(torch.tensor(X)).numpy(), before)
    assert hbc.convert(SMOOTH["linear"](), "torch").module(torch.tensor(X, dtype=torch.float32)).shape == (80,)


def test_models_without_a_module() -> None:
    for backend in ("numpy", *(name for name in ("tvm", "onnx") if hbc.backends()[name])):
        with pytest.raises(ValueError, match=f"backend '{backend}' has no nn.Module. Convert the model with backend='torch'"):
            hbc.convert(SMOOTH["linear"](), backend).module  # noqa: B018
    with pytest.warns(UserWarning, match="module leaves out methods: predict returns strings"):
        module = hbc.convert(OTHERS["words"](), "torch", X).module
    assert module(torch.tensor(X)).shape == (80, 3)
    assert not hasattr(module, "predict")


@pytest.mark.filterwarnings("ignore:.torch.jit.load. is deprecated")
@pytest.mark.parametrize("name", [*SMOOTH, "forest"])
def test_torchscript_can_be_called(name: str, tmp_path: Path) -> None:
    compiled = hbc.convert({**SMOOTH, **OTHERS}[name](), "numpy", X)
    compiled.export(tmp_path / "m.pt")
    loaded = torch.jit.load(tmp_path / "m.pt")
    for rows in (80, 1):
        found = loaded(torch.tensor(X[:rows])).numpy()
        np.testing.assert_allclose(found, main_result(compiled, X[:rows]), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", [*SMOOTH, "forest"])
def test_torch_export(name: str, tmp_path: Path) -> None:
    """For any number of rows, also more than are computed on bits."""
    compiled = hbc.convert({**SMOOTH, **OTHERS}[name](), "torch", X)
    compiled.export(tmp_path / "m.pt2")
    loaded = torch.export.load(tmp_path / "m.pt2").module()
    for rows in (2000, 80, 1):
        data = np.resize(X, (rows, 4))
        found = loaded(torch.tensor(data)).numpy()
        np.testing.assert_allclose(found, main_result(compiled, data), rtol=1e-9, atol=1e-12)


def test_a_file_of_torch_export_holds_one_method(tmp_path: Path) -> None:
    compiled = hbc.convert(SMOOTH["three classes"](), "numpy")
    compiled.export(tmp_path / "m.pt2", methods="predict", dtype="float32")
    found = torch.export.load(tmp_path / "m.pt2").module()(torch.tensor(X, dtype=torch.float32))
    np.testing.assert_array_equal(found.numpy(), compiled.predict(X.astype(np.float32)))
    with pytest.raises(ValueError, match=r"methods: found predict, predict_proba, expected one"):
        compiled.export(tmp_path / "two.pt2", methods=["predict", "predict_proba"])
    neighbours = hbc.convert(KNeighborsClassifier(3).fit(X, Y), "numpy")
    with pytest.raises(
        hbc.ArtifactError, match=r"two\.pt2: found a part whose steps depend on the values of the rows: Smallest, .*\.pt or"
    ):
        neighbours.export(tmp_path / "two.pt2")
    assert [path.name for path in tmp_path.iterdir()] == ["m.pt2"]


@pytest.mark.filterwarnings("ignore:.torch.jit.load. is deprecated")
@pytest.mark.parametrize("strategy", ["walk", "scan"])
def test_another_dtype_is_refused(strategy: str, tmp_path: Path) -> None:
    """float64 numbers given to a forest of float32 go other ways than scikit-learn's, which rounds them first."""
    X = np.random.default_rng(0).normal(size=(50, 3)).astype("f4")
    compiled = hbc.convert(RandomForestClassifier(5, random_state=0).fit(X, X[:, 0] > 0), "torch", X, strategy=strategy)
    compiled.export(tmp_path / "model.pt")
    compiled.export(tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2")
    assert "complex" not in str(program.graph)  # though the two values of a leaf are looked up as a complex number elsewhere
    for rows in (50, 1):
        np.testing.assert_array_equal(program.module()(torch.tensor(X[:rows])), compiled.predict_proba(X[:rows]))
    with pytest.raises(
        hbc.InvalidInputError, match=r"found a tensor of torch\.float64, expected a tensor of torch\.float32.*to\(torch"
    ):
        compiled.module(torch.tensor(X, dtype=torch.float64))
    with pytest.raises(torch.jit.Error, match=r"expected a tensor of torch\.float32"):
        torch.jit.load(tmp_path / "model.pt").predict(torch.tensor(X, dtype=torch.float64))
    with pytest.raises(RuntimeError, match="dtype"):
        torch.export.load(tmp_path / "model.pt2").module()(torch.tensor(X, dtype=torch.float64))


@pytest.mark.filterwarnings("ignore:.torch.jit.load. is deprecated")
def test_columns_that_are_not_read_are_left_out(tmp_path: Path) -> None:
    """A matrix with all columns is refused: its first ones would be taken for those that the model reads."""
    X = np.random.default_rng(0).normal(size=(50, 9)).astype("f4")
    model = make_pipeline(make_column_transformer((StandardScaler(), [0, 8])), LogisticRegression()).fit(X, X[:, 8] > 0)
    compiled = hbc.convert(model, "torch", X)
    compiled.export(tmp_path / "model.pt")
    compiled.export(tmp_path / "model.pt2")
    loaded = torch.jit.load(tmp_path / "model.pt")
    whole, read = torch.tensor(X), torch.tensor(X[:, [0, 8]])
    for module in (compiled.module, loaded, torch.export.load(tmp_path / "model.pt2").module()):
        np.testing.assert_allclose(module(read), model.predict_proba(X), rtol=1e-5, atol=1e-6)
    with pytest.raises(hbc.InvalidInputError, match="a matrix of 2 columns, those that the model reads"):
        compiled.module(whole)
    with pytest.raises(torch.jit.Error, match=r"a matrix of 2 columns, those that the model reads: 0, 8 \(the first is 0\)"):
        loaded.predict(whole)
    with pytest.raises((AssertionError, RuntimeError), match="2"):
        torch.export.load(tmp_path / "model.pt2").module()(whole)
