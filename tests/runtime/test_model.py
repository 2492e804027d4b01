"""CompiledModel: the source's interface, and its promises about threads, processes, copies and memory."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import threading
import warnings
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import joblib
import numpy as np
import pandas as pd
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OrdinalEncoder, StandardScaler

import hbc
from hbc.compiler.base import CompileOptions
from hbc.compiler.numpy import NumpyCompiler, NumpyExecutable
from hbc.ir.graph import Graph, Input
from hbc.ir.lazy_graph import LazyGraph
from hbc.ir.signature import Column, InputSpec, ModelInfo
from hbc.ir.types import N
from hbc.ops import tensor as t
from hbc.runtime.calls import ArrayCall
from hbc.runtime.model import CompiledModel
from hbc.runtime.origin import new_origin

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3))
SUM = X.sum(axis=1)


def logistic(labels: Any) -> LogisticRegression:
    return LogisticRegression().fit(X, np.asarray(labels)[(SUM > 0).astype(int) + (SUM > 1)])


@pytest.fixture(scope="module")
def model():
    return logistic(["low", "middle", "high"])


@pytest.fixture(scope="module")
def compiled(model: Any):
    return hbc.convert(model, "numpy")


# --- the interface -----------------------------------------------------------------------------------------------------


def test_methods_and_attributes_are_the_sources(model: Any, compiled: Any) -> None:
    methods = {"predict", "predict_proba", "predict_log_proba", "decision_function"}
    assert set(compiled.methods) == methods
    assert methods <= set(dir(compiled))
    for absent in ("transform", "score_samples", "apply", "feature_names_in_", "n_outputs_"):
        assert not hasattr(compiled, absent)
    assert compiled.predict.__self__ is compiled
    assert compiled.predict.__name__ == "predict"
    assert compiled.n_features_in_ == 3
    assert isinstance(compiled, hbc.CompiledModel)
    assert (compiled.backend, compiled.device) == ("numpy", "cpu")
    assert isinstance(compiled.graph, Graph)
    np.testing.assert_array_equal(compiled.classes_, model.classes_)
    assert compiled.classes_.dtype == model.classes_.dtype


def test_a_transformer_has_transform_only() -> None:
    scaler = StandardScaler().fit(pd.DataFrame(X, columns=list("abc")))
    compiled = hbc.convert(scaler, "numpy")
    assert compiled.methods == ("transform",)
    assert not hasattr(compiled, "classes_")
    assert compiled.feature_names_in_.tolist() == ["a", "b", "c"]


@pytest.mark.parametrize("name", ["threads", "batch_size", "strategy", "target"])
def test_options_are_not_set_on_a_model(compiled: Any, name: str) -> None:
    """It had no effect, and nothing said so."""
    with pytest.raises(AttributeError, match=rf"{name}: a compiled model never changes\. .*hbc\.convert\(model, {name}=2\)"):
        setattr(compiled, name, 2)
    assert not hasattr(compiled, name)
    for known in ("backend", "device"):
        with pytest.raises(AttributeError, match=known):
            setattr(compiled, known, "cuda")
    compiled.note = "of the user"
    del compiled.note


def test_attributes_are_copies(model: Any) -> None:
    compiled = hbc.convert(model, "numpy")
    before = model.classes_.copy()
    compiled.classes_[:] = "x"
    np.testing.assert_array_equal(model.classes_, before)
    np.testing.assert_array_equal(compiled.predict(X), model.predict(X))


LABELS: dict[str, Any] = {
    "text": ["low", "middle", "high"],
    "text of other lengths": np.array(["a", "bbbb", "cc"], "<U9"),
    "objects": np.array(["x", "yy", "zzz"], object),
    "int64": [3, 1, 7],
    "int8": np.array([3, 1, 7], np.int8),
    "uint64": np.array([3, 1, 2**40], np.uint64),
    "float": [1.0, 2.0, 5.0],
    "bool": [False, True, True],
}


@pytest.mark.parametrize("name", LABELS)
def test_labels_have_the_sources_dtype(name: str) -> None:
    model = logistic(LABELS[name])
    compiled = hbc.convert(model, "numpy")
    expected, found = model.predict(X), compiled.predict(X)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)
    assert type(found[0]) is type(expected[0])


# --- memory ------------------------------------------------------------------------------------------------------------


def by_hand(*values: Any) -> CompiledModel:
    """A model whose `transform` returns these functions of its input [N, 2]."""
    from hbc.builder import Builder

    graphs = {}
    for kind in ("f32", "f64", "i64"):
        x = Input("X", kind, (N, 2))()  # type: ignore[arg-type]
        graphs[(kind, kind)] = LazyGraph.of(Graph((x,), {"transform": tuple(value(x) for value in values)}))
    info = ModelInfo("test.Model", {}, {})
    builder, spec = Builder("numpy", CompileOptions()), InputSpec((Column(),) * 2)
    return CompiledModel(info, spec, graphs, builder, ("f64", "f64"), new_origin({}))  # type: ignore[arg-type]


RETURNS: dict[str, Any] = {
    "the input itself": lambda x: x,
    "a view of the input": lambda x: t.reshape(x, "N", 2, 1),
    "something new": lambda x: t.add(x, x),
}


@pytest.mark.parametrize("name", RETURNS)
def test_results_share_no_memory(name: str) -> None:
    compiled = by_hand(RETURNS[name])
    for data in (np.ones((5, 2)), np.ones((5, 2), np.float32)):
        first, second = compiled.transform(data), compiled.transform(data)
        first[:] = 7
        assert (data == 1).all()
        assert (second != 7).all()
        assert not np.shares_memory(first, second)


def test_several_results_are_a_list() -> None:
    results = by_hand(lambda x: x, lambda x: t.neg(x)).transform([[1.0, 2.0]])
    assert [result.tolist() for result in results] == [[[1, 2]], [[-1, -2]]]


def test_read_only_results_are_copied() -> None:
    class Executable(NumpyExecutable):
        constant = np.broadcast_to(np.float64(1), (3, 2))

        def run(self, method: str, arrays: Any) -> Any:
            return [self.constant]

    compiled = by_hand(lambda x: x)
    compiled.variants[("f64", "f64")].ready.run = Executable(compiled.graph).run
    result = compiled.transform(np.ones((3, 2)))
    result[0, 0] = 5
    assert Executable.constant[1, 0] == 1


# --- laziness, threads, processes, copies ------------------------------------------------------------------------------


def built(compiled: CompiledModel) -> set[str]:
    return {kinds[0] for kinds, variant in compiled.variants.items() if variant.is_built}


def test_one_variant_is_compiled_at_convert(model: Any) -> None:
    assert built(hbc.convert(model, "numpy")) == {"f32"}
    assert built(hbc.convert(model, "numpy", X)) == {"f64"}
    assert built(hbc.convert(model, "numpy", X.astype(int))) == {"i64"}
    compiled = hbc.convert(model, "numpy")
    compiled.predict(X)
    assert built(compiled) == {"f32", "f64"}


def optimized(compiled: CompiledModel) -> set[str]:
    return {kinds[0] for kinds, variant in compiled.variants.items() if variant._plan is not None}


def test_one_variant_is_optimized_at_convert_and_at_load(model: Any, tmp_path: Path) -> None:
    """The others are when they are needed: 12 to 28 ms each for 500 trees."""
    converted = hbc.convert(model, "numpy")
    converted.save(tmp_path / "model.hbc")
    for compiled in (converted, hbc.load(tmp_path / "model.hbc")):
        assert optimized(compiled) == {"f32"}
        np.testing.assert_array_equal(compiled.predict(X), model.predict(X))
        assert built(compiled) == optimized(compiled) == {"f32", "f64"}


def test_errors_of_every_variant_come_at_convert(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def supports(self: Any, op: Any) -> bool:
        return not (isinstance(op, t.Cast) and op.dtype == "f64")  # only float32 and int64 input is cast

    monkeypatch.setattr(NumpyCompiler, "supports", supports)
    with pytest.raises(hbc.UnsupportedOperatorError, match="Cast"):
        hbc.convert(model, "numpy", X)


def test_errors_of_every_variant_come_at_convert_also_with_a_cache(
    model: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The first conversion fails after its main variant was compiled and kept. That the cache has it proves nothing of the others."""
    pytest.importorskip("tvm")
    from hbc.compiler.tvm.compiler import TvmCompiler

    supports = TvmCompiler.supports
    monkeypatch.setenv("HBC_CACHE", str(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(TvmCompiler, "supports", lambda self, op: supports(self, op) and not isinstance(op, t.Cast))
        for _ in range(2):
            with pytest.raises(hbc.UnsupportedOperatorError, match="Cast"):
                hbc.convert(model, "tvm", X)
    np.testing.assert_array_equal(hbc.convert(model, "tvm", X).predict(X.astype(int)), model.predict(X.astype(int)))
    assert optimized(hbc.convert(model, "tvm", X)) == set()


def test_what_only_the_optimizer_can_tell_is_optimized_at_convert(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """For example trees that are small enough for a strategy only without the branches that no row reaches."""

    def refuse(*_: Any) -> None:
        raise hbc.UnsupportedOperatorError(culprits=[])

    monkeypatch.setattr("hbc.optimizer.runnable.require_runnable", refuse)
    assert optimized(hbc.convert(model, "numpy")) == {"f32", "f64", "i64"}


def test_threads_build_a_variant_once(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = hbc.convert(model, "numpy")
    count = []
    compile_ = NumpyCompiler.compile
    monkeypatch.setattr(NumpyCompiler, "compile", lambda *args: count.append(1) or compile_(*args))
    expected, results, barrier = model.predict_proba(X), [], threading.Barrier(8)

    def work() -> None:
        barrier.wait()
        results.append(compiled.predict_proba(X))

    workers = [threading.Thread(target=work) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(count) == 1
    for result in results:
        np.testing.assert_allclose(result, expected)


COPIES: dict[str, Any] = {
    "pickle": lambda m: pickle.loads(pickle.dumps(m)),
    "pickle protocol 2": lambda m: pickle.loads(pickle.dumps(m, 2)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle of a deep copy": lambda m: pickle.loads(pickle.dumps(copy.deepcopy(m))),
    "pickle twice": lambda m: pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(m)))),
}


@pytest.mark.parametrize("name", COPIES)
def test_copies(model: Any, compiled: Any, name: str) -> None:
    other = COPIES[name](compiled)
    assert other is not compiled
    assert (other.backend, other.device, other.methods) == (compiled.backend, compiled.device, compiled.methods)
    assert list(other.variants) == list(compiled.variants)
    for data in (X, X.astype(np.float32), X.astype(int)):
        np.testing.assert_array_equal(other.predict_proba(data), compiled.predict_proba(data))
    assert other.predict(X).dtype == model.predict(X).dtype
    other.classes_[:] = "x" if name != "copy" else other.classes_
    np.testing.assert_array_equal(compiled.classes_, model.classes_)


def test_a_pickle_keeps_the_options() -> None:
    forest = RandomForestClassifier(3, max_depth=2, random_state=0).fit(X, SUM > 0)
    compiled = hbc.convert(forest, "numpy", strategy="gemm", batch_size=10, threads=2)
    other = pickle.loads(pickle.dumps(compiled))
    assert other._builder == compiled._builder
    assert other._builder.settings()["strategy"] == "gemm"
    np.testing.assert_array_equal(other.predict(X), forest.predict(X))


def predict_in_worker(compiled: Any, data: Any) -> Any:
    return compiled.predict(data)


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_worker_processes(model: Any, compiled: Any, method: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of fork in a process with threads
        with multiprocessing.get_context(method).Pool(1) as pool:
            # The limit is for a worker that hangs: to import everything takes minutes on a machine that others use.
            found = pool.apply_async(predict_in_worker, (compiled, X)).get(timeout=900)
    np.testing.assert_array_equal(found, model.predict(X))


def test_joblib_workers(model: Any, compiled: Any) -> None:
    blocks = joblib.Parallel(n_jobs=2)(joblib.delayed(predict_in_worker)(compiled, part) for part in np.array_split(X, 2))
    np.testing.assert_array_equal(np.concatenate(blocks), model.predict(X))


def test_the_usual_matrix_takes_the_short_way(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a first call a well-formed row goes straight to the executable: benchmarks/ has the time this takes."""
    compiled = hbc.convert(model, "tvm")
    row = np.ascontiguousarray(X[:1])
    expected = compiled.decision_function(row)
    monkeypatch.delattr(ArrayCall, "__call__")
    np.testing.assert_array_equal(compiled.decision_function(row), expected)


# --- what it says about itself -----------------------------------------------------------------------------------------


def test_explain_and_repr(model: Any, compiled: Any) -> None:
    text = compiled.explain()
    for part in ("sklearn.linear_model.LogisticRegression", "numpy on cpu", "3 columns", "RemoveChecks", "fired", "ms"):
        assert part in text
    assert "rejected: NaN in any column (sklearn.linear_model.LogisticRegression)" in text
    assert "f64: " in text
    assert "Linear(" in text
    assert repr(compiled) == (
        "<CompiledModel of sklearn.linear_model.LogisticRegression for numpy on cpu: " + ", ".join(compiled.methods) + ">"
    )


def test_explain_says_the_strategy_of_trees_and_why() -> None:
    forest = RandomForestClassifier(3, max_depth=2, random_state=0).fit(X, SUM > 0)
    chosen = hbc.convert(forest, "numpy", strategy="gemm").explain()
    assert "TreeEnsemble of 3 trees" in chosen
    assert "gemm (asked for by the caller)" in chosen
    assert "numpy evaluates the operator itself" in hbc.convert(forest, "numpy").explain()


def test_html_is_escaped() -> None:
    frame = pd.DataFrame({"<script>": ["<b>", "c"], "&amp": [1.0, 2.0]})
    columns = ColumnTransformer([("s", OrdinalEncoder(), ["<script>"]), ("n", "passthrough", ["&amp"])])
    model = make_pipeline(columns, LogisticRegression()).fit(frame, ["<i>", "k"])
    html = hbc.convert(model, "numpy")._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert "&amp;amp" in html
    assert "LogisticRegression" in html or "Pipeline" in html


def test_graphs_are_drawn(model: Any, compiled: Any) -> None:
    page = compiled.explain(html=True)
    as_parsed, as_compiled = page.split("<svg ")[1:]
    assert page.startswith("<!doctype html>")
    assert ">Linear</text>" in as_parsed
    assert all(f">{method}</text>" in as_parsed and f">{method}</text>" in as_compiled for method in compiled.methods)
    assert ElementTree.fromstring("<svg " + as_parsed.partition("</svg>")[0] + "</svg>").findall("{*}path")


def test_launches_are_counted() -> None:
    names = np.where(SUM > 0, "yes", "no")
    tree = hbc.convert(make_pipeline(StandardScaler(), LogisticRegression()).fit(X, names), "tvm")
    assert "predict: 1 function on the device, 1 operator on the host" in tree.explain()
    assert "predict_proba: 1 function on the device\n" in tree.explain()


def test_sparse_columns_and_names_are_explained() -> None:
    frame = pd.DataFrame({f"c{i}": [str(i), "x"] for i in range(20)} | {"unused": [1, 2]})
    model = ColumnTransformer([("s", OrdinalEncoder(), [f"c{i}" for i in range(20)])]).fit(frame)
    text = hbc.convert(model, "numpy").explain()
    assert "matched by name in any order" in text
    assert "strings in column 0 ('c0')" in text
    assert "… 9 more" in text
