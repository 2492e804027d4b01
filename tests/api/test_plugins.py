"""Plugins of third parties: converters by decorator (the example of docs/your-own.md, as printed) and by entry point, and backends."""

from __future__ import annotations

import importlib
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

import hbc
from hbc.ops import tensor as t
from hbc.parser import registry

X = np.random.default_rng(0).normal(size=(40, 3)) * 5
GUIDE = Path(__file__).parents[2] / "docs" / "your-own.md"

SCALER = """
import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin

class MyScaler(TransformerMixin, BaseEstimator):
    def fit(self, X, y=None):
        self.scale_ = np.std(X, axis=0)
        self.n_features_in_ = X.shape[1]
        return self

    def transform(self, X):
        return np.asarray(X, np.float64) / self.scale_
"""

BACKEND = """
from hbc.compiler.numpy import NumpyCompiler

class Compiler(NumpyCompiler):
    name = "tiny"

COMPILER = Compiler()
"""

MINIMAL = """
import numpy as np

class Executable:
    def __init__(self, graph):
        self.graph = graph

    def run(self, method, arrays):
        assert all(type(array) is np.ndarray for array in arrays)
        return self.graph.evaluate(*arrays, methods=[method])[method]

    def export(self, path):
        with open(path, "w") as file:
            file.write("exported")

class Compiler:
    name = "tiny"
    EXPORTS

    def supports(self, op):
        return op.level == "tensor"

    def choose_strategy(self, op, options):
        return "tree_trav", "it has no other"

    def compile(self, graph, options):
        return Executable(graph)

COMPILER = Compiler()
"""
"""A backend that imports nothing of hbc's, with the members that it must have and no others."""


@pytest.fixture
def mypackage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed package `mypackage` with MyScaler; `entry_points` writes what it registers."""
    monkeypatch.syspath_prepend(str(tmp_path))
    package, information = tmp_path / "mypackage", tmp_path / "mypackage-1.0.dist-info"
    package.mkdir()
    information.mkdir()
    (package / "__init__.py").write_text(SCALER)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: mypackage\nVersion: 1.0\n")
    importlib.invalidate_caches()
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "mypackage"]:
        del sys.modules[name]
    registry.CONVERTERS.pop("mypackage.MyScaler", None)


def entry_points(folder: Path, text: str) -> None:
    (folder / "mypackage-1.0.dist-info" / "entry_points.txt").write_text(text)
    importlib.invalidate_caches()


def guide_example() -> str:
    return GUIDE.read_text().partition("## An estimator")[2].partition("```python\n")[2].partition("```")[0]


def fitted() -> tuple[object, object]:
    from mypackage import MyScaler  # type: ignore[import-not-found]

    scaler = MyScaler().fit(X)
    return scaler, make_pipeline(scaler, LogisticRegression()).fit(X, X[:, 0] > 0)


@pytest.mark.parametrize("backend", hbc.backends())
def test_the_guides_example_works_as_printed(mypackage: Path, backend: str) -> None:
    exec(guide_example(), {"hbc": hbc})
    scaler, pipeline = fitted()
    for x in (X, X.astype(np.float32), X.astype(np.int64)):
        expected = scaler.transform(x)  # type: ignore[attr-defined]
        found = hbc.convert(scaler, backend).transform(x)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
        found = hbc.convert(pipeline, backend).predict_proba(x)
        np.testing.assert_allclose(found, pipeline.predict_proba(x), rtol=1e-6)  # type: ignore[attr-defined]


def test_an_unregistered_class_says_what_to_register(mypackage: Path) -> None:
    _, pipeline = fitted()
    with pytest.raises(
        hbc.UnsupportedOperatorError, match=r"model\.steps\[0\] 'myscaler'.*@hbc\.converts\(\"mypackage\.MyScaler\"\)"
    ):
        hbc.convert(pipeline, "numpy")


def test_a_pipeline_without_a_method_is_refused(mypackage: Path) -> None:
    """A Pipeline has no `apply`, the only method that this converter gives."""
    hbc.converts("mypackage.MyScaler")(lambda model, x: {"apply": x})
    scaler, _ = fitted()
    assert hbc.convert(scaler, "numpy").methods == ("apply",)
    with pytest.raises(hbc.UnsupportedOperatorError, match="Pipeline at model: its last step computes apply only"):
        hbc.convert(make_pipeline(scaler), "numpy")


def test_entry_points(mypackage: Path) -> None:
    """An installed package adds a converter and a backend, whose name may be written in any case."""
    (mypackage / "mypackage" / "converters.py").write_text("import hbc\n" + guide_example())
    (mypackage / "mypackage" / "backend.py").write_text(BACKEND)
    entry_points(mypackage, "[hbc.converters]\nmine = mypackage.converters\n[hbc.backends]\nTiny = mypackage.backend\n")
    _, pipeline = fitted()
    assert hbc.backends()["tiny"]
    assert "mypackage.MyScaler" in hbc.supported_operators()
    model = hbc.convert(pipeline, "TINY")
    assert model.backend == "tiny"
    model.save(mypackage / "model.hbc")
    expected = pipeline.predict_proba(X)  # type: ignore[attr-defined]
    for again in (model, hbc.load(mypackage / "model.hbc"), pickle.loads(pickle.dumps(model))):
        np.testing.assert_allclose(again.predict_proba(X), expected, rtol=1e-12)


def test_a_backend_with_the_required_members_alone(mypackage: Path) -> None:
    """The others have defaults: strings and sparse results, handles, tuning and files work; a target has no meaning to it."""
    (mypackage / "mypackage" / "backend.py").write_text(MINIMAL.replace("EXPORTS", 'exports = (".tiny",)'))
    entry_points(mypackage, "[hbc.backends]\ntiny = mypackage.backend\n")
    y = np.array(["no", "yes"])[(X[:, 0] > 0).astype(int)]
    forest = RandomForestClassifier(3, max_depth=3, random_state=0).fit(X, y)
    model = hbc.convert(forest, "tiny")
    np.testing.assert_array_equal(model.predict(X), forest.predict(X))
    handle = model.bind("predict_proba", np.float64)
    for _ in range(3):
        np.testing.assert_allclose(handle(X), forest.predict_proba(X), rtol=1e-12)
    words = np.array([["a"], ["b"], ["a"]], object)
    for encoder in (OneHotEncoder(), OneHotEncoder(sparse_output=False), OrdinalEncoder()):
        found, expected = hbc.convert(encoder.fit(words), "tiny").transform(words), encoder.transform(words)
        assert type(found) is type(expected)
        np.testing.assert_array_equal(getattr(found, "toarray", found.copy)(), getattr(expected, "toarray", expected.copy)())
    assert set(hbc.tune(forest, rows=(1,), backend="tiny").seconds) >= {"auto", "gemm", "perf_tree_trav"}
    model = hbc.convert(StandardScaler().fit(X), "tiny")
    model.export(mypackage / "model.tiny")
    assert (mypackage / "model.tiny").read_text() == "exported"
    with pytest.raises(ValueError, match=r"cannot export \.txt; known are .*\.tiny\."):
        model.export(mypackage / "model.txt")
    with pytest.raises(ValueError, match="backend 'tiny' takes no target"):
        hbc.convert(forest, "tiny", target={"kind": "llvm"})


def test_a_backend_without_a_required_member(mypackage: Path) -> None:
    (mypackage / "mypackage" / "backend.py").write_text("class Compiler:\n    name = 'tiny'\nCOMPILER = Compiler()")
    (mypackage / "mypackage" / "empty.py").write_text("")
    entry_points(mypackage, "[hbc.backends]\ntiny = mypackage.backend\nempty = mypackage.empty\n")
    with pytest.raises(
        hbc.BackendUnavailableError, match=r"mypackage\.backend\.Compiler has no choose_strategy, compile, supports"
    ):
        hbc.strategies("tiny")
    with pytest.raises(hbc.BackendUnavailableError, match="no attribute 'COMPILER'"):
        hbc.strategies("empty")


def test_broken_entry_points_name_themselves(mypackage: Path) -> None:
    """A broken entry point warns, and does no harm to models that do not need it."""
    entry_points(mypackage, "[hbc.converters]\nmine = mypackage.nowhere\n[hbc.backends]\nmine = mypackage.nowhere\n")
    linear = LogisticRegression().fit(X, X[:, 0] > 0)
    assert hbc.convert(linear, "numpy").predict(X).shape == (40,)
    with pytest.raises(
        hbc.BackendUnavailableError, match=r"backend 'mine' is not available: No module named 'mypackage\.nowhere'"
    ):
        hbc.convert(linear, "mine")
    scaler, _ = fitted()
    with (
        pytest.warns(RuntimeWarning, match=r"'mine' = 'mypackage\.nowhere'.*cannot be loaded"),
        pytest.raises(hbc.UnsupportedOperatorError, match="no converter is registered"),
    ):
        hbc.convert(scaler, "numpy")


@pytest.mark.parametrize(
    ("converter", "error", "message"),
    [
        (lambda m, x: None, TypeError, "mypackage.MyScaler at model returned NoneType for 'transform', expected a Node"),
        (lambda m, x: np.zeros(3), TypeError, "returned ndarray"),
        (lambda m, x: {"two words": x}, TypeError, "'two words'"),
        (lambda m, x: {"_hidden": x}, TypeError, "'_hidden'"),
        (lambda m, x: {"save": x}, ValueError, "found the methods save"),
        (lambda m, x: t.div(x, m.scale_), TypeError, "is not exact in i64, the dtype of the other operand: cast that first"),
    ],
)
def test_what_a_converter_may_return(
    mypackage: Path, converter: registry.Converter, error: type[Exception], message: str
) -> None:
    hbc.converts("mypackage.MyScaler")(converter)
    with pytest.raises(error, match=message):
        hbc.convert(fitted()[0], "numpy")


@pytest.mark.parametrize("names", [(StandardScaler,), ("MyScaler",), (lambda m, x: x,)])
def test_what_is_no_name_of_a_class(names: tuple[Any, ...]) -> None:
    """Registered under it, a converter would never be found."""
    with pytest.raises(TypeError, match="expected public dotted names of classes"):
        hbc.converts(*names)


def test_a_converter_of_the_caller_stays(mypackage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where hbc's own converters of the library are imported after it."""
    text = 'import hbc\nhbc.converts("mypackage.MyScaler")(lambda m, x: None)\n'
    (mypackage / "own_converters.py").write_text(text)
    monkeypatch.setitem(registry.MODULES, "mypackage", "own_converters")
    registry.load_library.cache_clear()
    hbc.converts("mypackage.MyScaler")(lambda m, x: t.cast(x, "f64"))
    np.testing.assert_array_equal(hbc.convert(fitted()[0], "numpy").transform(X), X)
    del sys.modules["own_converters"]


# --- a library from outside --------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:'future.no_silent_downcasting'")  # the encoders' own use of pandas
@pytest.mark.parametrize("backend", hbc.backends())
def test_the_guides_converter_of_category_encoders(backend: str) -> None:
    """As printed: known, unknown and missing categories, beside numbers, alone and in a pipeline."""
    encoders = pytest.importorskip("category_encoders")
    pd = pytest.importorskip("pandas")
    name = "category_encoders.TargetEncoder"
    example = GUIDE.read_text().partition("## Columns of several dtypes")[2].partition("```python\n")[2].partition("```")[0]
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"city": rng.choice(["Rome", "Oslo", "Łódź"], 90), "size": rng.normal(size=90), "kind": rng.choice(["a", "b"], 90)}
    )
    y = (frame["size"] + (frame["city"] == "Oslo") > 0.4).astype(int)
    unseen = frame.assign(city=["Rome", "Atlantis", None] * 30)
    try:
        exec(example, {})
        for options in ({}, {"handle_unknown": "return_nan", "handle_missing": "return_nan"}):
            encoder = encoders.TargetEncoder(cols=["city", "kind"], **options).fit(frame, y)
            compiled = hbc.convert(encoder, backend)
            for data in (frame, unseen):
                np.testing.assert_array_equal(compiled.transform(data), encoder.transform(data).to_numpy(np.float64))
        pipeline = make_pipeline(encoders.TargetEncoder(cols=["city", "kind"]), LogisticRegression()).fit(frame, y)
        for data in (frame, unseen):
            np.testing.assert_allclose(
                hbc.convert(pipeline, backend).predict_proba(data), pipeline.predict_proba(data), rtol=1e-9
            )
        strict = encoders.TargetEncoder(cols=["city"], handle_unknown="error").fit(frame[["city"]], y)
        with pytest.raises(hbc.UnsupportedOperatorError, match="raises an error"):
            hbc.convert(strict, backend)
    finally:
        registry.CONVERTERS.pop(name, None)
