"""Programs written for Hummingbird: what hbc takes of them, and the errors that say the hbc way."""

from __future__ import annotations

import inspect
import zipfile
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import hbc
from hbc import hummingbird

X = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
MODEL = LogisticRegression().fit(X, X[:, 0] > 0)
GUIDE = Path(__file__).parents[2] / "docs" / "from-hummingbird.md"


@pytest.mark.parametrize("backend", ["pytorch", "torch.jit", "onnx", "tvm"])
def test_its_calls(backend: str) -> None:
    np.testing.assert_array_equal(hbc.convert(MODEL, backend, X, "cpu").predict(X), MODEL.predict(X))


def test_extra_config() -> None:
    config = {"tree_implementation": "gemm", "n_threads": 1, "test_input": X, "new_key": 2}
    for convert in (
        lambda: hbc.convert(MODEL, "numpy", extra_config=config),  # type: ignore[call-arg]
        lambda: hbc.convert(MODEL, "numpy", X, "cpu", config),  # type: ignore[misc]
    ):
        with pytest.raises(
            TypeError,
            match=r"tree_implementation: pass strategy=.*\n.*n_threads: pass threads=.*\n"
            r".*test_input: pass the sample.*\n.*new_key: hbc has no",
        ):
            convert()


def test_keywords_that_were_probably_meant() -> None:
    for function, option, message in (
        (hbc.convert, "devce", r"hbc\.convert has no argument 'devce' \(did you mean 'device'\?\); it has model, backend, X,"),
        (hbc.load, "bakend", r"hbc\.load has no argument 'bakend' \(did you mean 'backend'\?\)"),
        (hbc.tune, "row", r"hbc\.tune has no argument 'row' \(did you mean 'rows'\?\)"),
        (hbc.load, "colour", r"hbc\.load has no argument 'colour'; it has path, device, backend,"),
        (
            hbc.load,
            "digest",
            r"hbc\.load has no argument digest: hbc reads no file of Hummingbird, so convert the source again",
        ),
    ):
        with pytest.raises(TypeError, match=message):
            function(MODEL, **{option: 1})  # type: ignore[operator]


def test_test_input() -> None:
    with pytest.raises(TypeError, match="pass the sample as X="):
        hbc.convert(MODEL, "numpy", test_input=X)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match=r"backend: found ndarray, expected one of .*A sample of the input is passed as X="):
        hbc.convert(MODEL, X)  # type: ignore[arg-type]


def test_other_wrong_calls_have_pythons_own_errors() -> None:
    with pytest.raises(TypeError, match="takes from 1 to 4 positional arguments but 6 were given"):
        hbc.convert(MODEL, "numpy", X, "cpu", {}, 1)  # type: ignore[misc]
    assert list(inspect.signature(hbc.convert).parameters)[:4] == ["model", "backend", "X", "device"]


@pytest.mark.parametrize("name", hummingbird.NAMES)
def test_names_of_its_module(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"no attribute '{name}'\. \w+"):
        getattr(hbc, name)


def test_its_files(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as archive:
        archive.writestr("model_type.txt", "torch")
        archive.writestr("deploy_model.zip", b"a pickle")
    with pytest.raises(hbc.ArtifactError, match=r"a model saved by Hummingbird.*Convert the source model again"):
        hbc.load(tmp_path / "model.zip")


def test_the_guide_has_every_option() -> None:
    text = GUIDE.read_text()
    assert [key for key in (*hummingbird.OPTIONS, *hummingbird.NAMES) if key not in text] == []


@pytest.mark.parametrize(("name", "way"), [("to", 'device="cuda"'), ("model", "module is the nn.Module")])
def test_attributes_of_containers(name: str, way: str) -> None:
    with pytest.raises(AttributeError, match=f"no attribute '{name}'.*{way}"):
        getattr(hbc.convert(MODEL, "numpy"), name)
