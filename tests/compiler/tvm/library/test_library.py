"""Libraries that stand alone compute what the model computes, bit for bit, and say what they are."""

from __future__ import annotations

import os
import pickle
import threading
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pytest
from exported_library import HOST_TARGET, Exported, is_x86_64
from installed import older
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.ensemble import HistGradientBoostingClassifier, IsolationForest, RandomForestClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression, MultiTaskElasticNet
from sklearn.naive_bayes import CategoricalNB
from sklearn.neighbors import NearestNeighbors
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, MinMaxScaler, OneHotEncoder, PolynomialFeatures, StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeRegressor

import hbc
from hbc import CompiledModel
from hbc.compiler.tvm.library import export

rng = np.random.default_rng(0)
X = rng.normal(size=(400, 6))
Y = (X[:, 0] * X[:, 1] + X[:, 2] > 0).astype(int)
Y3 = np.array(["low", "mid", "high"], object)[np.digitize(X[:, 0] + X[:, 1] ** 2, [0, 1])]
MODELS: dict[str, Any] = {
    "forest of strings": lambda: RandomForestClassifier(12, random_state=0).fit(X.astype(np.float32), Y3),
    "histogram boosting": lambda: HistGradientBoostingClassifier(max_iter=4).fit(X, Y3),
    "scaler and logistic": lambda: make_pipeline(StandardScaler(), LogisticRegression()).fit(X, Y),
    "PCA": lambda: PCA(3).fit(X),
    "several targets": lambda: LinearRegression().fit(X, X[:, :2] @ rng.normal(size=(2, 3))),
    "arrays of 1024 bytes": lambda: MultiTaskElasticNet(alpha=0.01).fit(X[:, :5], X[:, :3] + X[:, 3:]),
    "SVC": lambda: SVC().fit(X, Y3),
    "KMeans": lambda: KMeans(4, n_init=1, random_state=0).fit(X),
    "IsolationForest": lambda: IsolationForest(n_estimators=10, random_state=0).fit(X),
    "neighbours": lambda: NearestNeighbors(n_neighbors=3).fit(X),
    "polynomial": lambda: make_pipeline(MinMaxScaler(), PolynomialFeatures(2), LinearRegression()).fit(X, X[:, 0] * X[:, 1]),
}
OPTIONS: dict[str, dict[str, Any]] = {"KMeans": {"dtype": "float64"}}
"""Options of `export`. KMeans.predict takes the dtype of the centres only."""
ROWS = (1, 5, 64, 333)

pytestmark = pytest.mark.skipif(not is_x86_64() or os.uname().sysname != "Linux", reason="made for Linux on x86-64")


@pytest.fixture(scope="module", params=MODELS)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[CompiledModel, Exported]:
    model = hbc.convert(MODELS[request.param](), target=HOST_TARGET, threads=1)
    path = tmp_path_factory.mktemp("library") / "model.so"
    model.export(path, **OPTIONS.get(request.param, {}))
    return model, Exported(path)


def test_same_bits_as_the_model(exported: tuple[CompiledModel, Exported]) -> None:
    model, library = exported
    assert list(library.about["methods"]) == list(model.methods)
    labels = np.array([library.text("class_name", i) for i in range(library.number("classes"))], object)
    for method in model.methods:
        for rows in ROWS:
            given = library.inputs(X[:rows])[0]  # the first columns, for models of fewer
            expected = getattr(model, method)(given)
            if method.startswith("staged_"):
                expected = np.stack(list(expected), axis=1)
            found = library(method, given)
            if library.about["methods"][method][0]["is_class"]:
                found = [labels[found[0]]]
            for one, other in zip(expected if isinstance(expected, (list, tuple)) else [expected], found, strict=True):
                np.testing.assert_array_equal(other.astype(one.dtype), one, strict=True)


@pytest.fixture(scope="module")
def boosted(tmp_path_factory: pytest.TempPathFactory) -> tuple[CompiledModel, Path]:
    lightgbm = pytest.importorskip("lightgbm")
    frame = pd.DataFrame(X, columns=[f'x{i} */ "quoted"' if i == 3 else f"größe {i}" for i in range(6)])
    trained = lightgbm.train(
        {"objective": "binary", "verbose": -1, "num_leaves": 15}, lightgbm.Dataset(frame.to_numpy(), Y), 30
    )
    model = hbc.convert(trained, target=HOST_TARGET, threads=1)
    path = tmp_path_factory.mktemp("library") / "boosted.so"
    model.export(path, methods="predict", name="credit_2", header=path.with_suffix(".h"))
    return model, path


def test_a_name_is_part_of_all_functions(boosted: tuple[CompiledModel, Path]) -> None:
    model, path = boosted
    library = Exported(path, "hbc_credit_2")
    np.testing.assert_array_equal(library("predict", X)[0], model.predict(X.astype(np.float32)))
    assert list(library.about["methods"]) == ["predict"]
    assert "int hbc_credit_2_predict(const float *X, int64_t rows, double *out);" in path.with_suffix(".h").read_text()
    with pytest.raises(AttributeError):
        Exported(path)


def test_facts(tmp_path: Path) -> None:
    names = ["age", 'a "quoted" one', "größe */ x", "d", "e", "f"]
    labels = np.array(["nö", "*/", "ja"], object)[np.digitize(X[:, 0], [0, 1])]
    fitted = make_pipeline(StandardScaler(), LogisticRegression()).fit(pd.DataFrame(X, columns=names), labels)
    path, header = tmp_path / "m.so", tmp_path / "m.h"
    hbc.convert(fitted).export(path, header=header, dtype="float64", methods=["predict", "predict_proba"])
    library = Exported(path)
    assert library.about["feature_names"] == names
    assert library.about["classes"] == ["*/", "ja", "nö"]
    assert library.about["hbc"] == hbc.__version__
    assert library.about["model"].endswith("Pipeline")
    assert library.about["inputs"] == [{"name": "X", "dtype": "float64", "columns": list(range(6))}]
    assert library.about["methods"]["predict"] == [{"name": "out", "dtype": "int64", "shape": [], "is_class": True}]
    assert library.about["methods"]["predict_proba"] == [{"name": "out", "dtype": "float64", "shape": [3], "is_class": False}]
    assert (library.number("columns"), library.number("classes")) == (6, 3)
    assert [library.text("feature_name", i) for i in (-1, *range(7))] == ["", *names, ""]
    assert [library.text("class_name", i) for i in (-1, *range(4), 2**40)] == ["", "*/", "ja", "nö", "", ""]
    assert "NaN" in library.text("message", 1)
    assert library.text("message", 6) == ""
    text = header.read_text()
    assert text.count("/*") == text.count("*/")
    assert text.isascii()
    assert "#define HBC_COLUMNS 6\n" in text


def test_numeric_labels_are_returned_themselves(tmp_path: Path) -> None:
    model = hbc.convert(LogisticRegression().fit(X, Y * 5 - 2), target=HOST_TARGET)
    model.export(tmp_path / "m.so")
    library = Exported(tmp_path / "m.so")
    assert set(library("predict", X)[0]) == {-2, 3}
    assert library.about["classes"] == [-2, 3]
    assert [library.text("class_name", i) for i in range(2)] == ["-2", "3"]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_dtypes(dtype: str, tmp_path: Path) -> None:
    model = hbc.convert(make_pipeline(StandardScaler(), LogisticRegression()).fit(X, Y), target=HOST_TARGET, threads=1)
    model.export(tmp_path / "m.so", dtype=dtype, methods="predict_proba")
    library = Exported(tmp_path / "m.so")
    given = (X * 10).astype(dtype)
    np.testing.assert_array_equal(library("predict_proba", given)[0], model.predict_proba(given), strict=True)


def test_methods_share_the_tables_of_trees(tmp_path: Path) -> None:
    """Also where one reads other arrays than the other: `apply` needs no values of leaves, and sums need no numbers of leaves."""
    lightgbm = pytest.importorskip("lightgbm")
    if older("lightgbm", 4, 7):
        pytest.skip("LightGBM has decision_function since 4.7")
    source = lightgbm.LGBMClassifier(n_estimators=400, min_child_samples=1, verbose=-1).fit(X, Y)
    model, sizes, X32 = hbc.convert(source), dict[int, int](), X.astype(np.float32)
    for methods in (["decision_function"], ["decision_function", "apply"]):
        model.export(tmp_path / "m.so", methods=methods)
        sizes[len(methods)] = (tmp_path / "m.so").stat().st_size
    library = Exported(tmp_path / "m.so")
    np.testing.assert_array_equal(library("apply", X32)[0], source.predict(X32, pred_leaf=True))
    np.testing.assert_allclose(library("decision_function", X32)[0], source.predict(X32, raw_score=True), rtol=1e-9)
    assert sizes[2] - sizes[1] < 400 * 30 * 3, "the splits are there twice"


def test_the_path_chooses_the_format(tmp_path: Path) -> None:
    """An object file and an archive have the same code as the library."""
    model = hbc.convert(LogisticRegression().fit(X, Y))
    for suffix in (".so", ".o", ".a"):
        model.export(tmp_path / f"m{suffix}", methods="predict_proba")
    assert (tmp_path / "m.so").read_bytes()[16] == 3
    assert (tmp_path / "m.o").read_bytes()[16] == 1
    assert (tmp_path / "m.o").read_bytes() in (tmp_path / "m.a").read_bytes()


def test_equal_models_give_equal_bytes(tmp_path: Path) -> None:
    model = hbc.convert(LogisticRegression().fit(X, Y))
    model.export(tmp_path / "one.o")
    pickle.loads(pickle.dumps(model)).export(tmp_path / "two.o")
    assert (tmp_path / "one.o").read_bytes() == (tmp_path / "two.o").read_bytes()


# --- hostile input ---------------------------------------------------------------------------------------------------------

OK, REJECTED, TOO_FEW, NULL, MEMORY, PROCESSOR = range(6)


@pytest.fixture(scope="module")
def linear(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    path = tmp_path_factory.mktemp("library") / "linear.so"
    hbc.convert(make_pipeline(StandardScaler(), LogisticRegression()).fit(X, Y)).export(path)
    return Exported(path)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("rows", [1, 300])
def test_numbers_that_the_source_rejects(linear: Exported, value: float, rows: int) -> None:
    given = X[:rows].astype(np.float32)
    given[rows // 2, 3] = value
    assert linear.call("predict_proba", [given], rows, linear.results("predict_proba", rows)) == REJECTED
    assert linear.call("predict", [X[:rows].astype(np.float32)], rows, linear.results("predict", rows)) == OK


def test_a_constant_model_tests_what_it_does_not_read(tmp_path: Path) -> None:
    model = hbc.convert(DecisionTreeRegressor().fit(X, np.full(len(X), 3.5)))
    model.export(tmp_path / "model.so")
    library, given = Exported(tmp_path / "model.so"), X[:20].astype(np.float32)
    for value, result in ((0.0, 0), (np.nan, 0), (np.inf, 1)):
        given[19, 5] = value
        for method in model.methods:
            assert library.call(method, [given], 20, library.results(method, 20)) == result


def test_large_numbers_are_accepted(tmp_path: Path) -> None:
    """The sum of their squares is infinite, so that they are looked at one by one."""
    model = hbc.convert(LogisticRegression().fit(X, Y), target=HOST_TARGET)
    model.export(tmp_path / "m.so", methods="predict_proba")
    library = Exported(tmp_path / "m.so")
    given = np.full((3, 6), 3e37, np.float32)
    np.testing.assert_array_equal(library("predict_proba", given)[0], model.predict_proba(given))
    given[2, 2] = np.nan
    assert library.call("predict_proba", [given], 3, library.results("predict_proba", 3)) == REJECTED


def test_missing_values_only_where_the_source_takes_them(tmp_path: Path) -> None:
    from sklearn.compose import make_column_transformer
    from sklearn.impute import SimpleImputer

    columns = make_column_transformer((SimpleImputer(), [0, 1]), (StandardScaler(), [4]))
    fitted = make_pipeline(columns, LogisticRegression()).fit(X, Y)
    model = hbc.convert(fitted, target=HOST_TARGET)
    model.export(tmp_path / "m.so", methods="predict_proba")
    library = Exported(tmp_path / "m.so")
    given = library.inputs(X)[0]
    place = library.about["inputs"][0]["columns"].index
    given[7, place(1)] = np.nan
    whole = X.astype(np.float32)
    whole[7, 1] = np.nan
    results = library.results("predict_proba", 400)
    assert library.call("predict_proba", [given], 400, results) == OK
    np.testing.assert_array_equal(results[0], model.predict_proba(whole))
    given[399, place(0)] = np.inf
    assert library.call("predict_proba", [given], 400, results) == REJECTED


@pytest.mark.parametrize("function", [np.log1p, np.sqrt])
def test_numbers_that_are_rejected_inside_of_the_model(function: Any, tmp_path: Path) -> None:
    """The logarithm of a negative number is NaN, which the next step rejects."""
    given = np.abs(X) / 4
    fitted = make_pipeline(FunctionTransformer(function), StandardScaler(), LogisticRegression()).fit(given, Y)
    model = hbc.convert(fitted, target=HOST_TARGET, threads=1)
    model.export(tmp_path / "m.so", methods="predict_proba")
    library = Exported(tmp_path / "m.so")
    taken = given.astype(np.float32)
    np.testing.assert_array_equal(library("predict_proba", taken)[0], model.predict_proba(taken))
    for value, code in ((-3, REJECTED), (np.nan, REJECTED), (np.inf, REJECTED), (1e10, OK)):
        taken[7, 2] = value
        assert library.call("predict_proba", [taken], 400, library.results("predict_proba", 400)) == code


def test_rows_and_pointers(linear: Exported) -> None:
    given, results = X[:5].astype(np.float32), linear.results("predict_proba", 5)
    workspace = np.zeros(linear.number("predict_proba_workspace"), np.uint8)
    for extra in (None, workspace):
        assert linear.call("predict_proba", [given], -1, results, extra) == TOO_FEW
        assert linear.call("predict_proba", [given], 0, results, extra) == TOO_FEW  # scikit-learn rejects it
        assert linear.call("predict_proba", [None], 5, results, extra) == NULL
        assert linear.call("predict_proba", [given], 5, [None], extra) == NULL
        assert (results[0] == 7).all()
    assert linear.call("predict_proba", [given], 5, results, 0) == NULL


def test_no_rows_where_the_source_takes_none(boosted: tuple[CompiledModel, Path]) -> None:
    library = Exported(boosted[1], "hbc_credit_2")
    assert library.call("predict", [None], 0, [None]) == OK
    assert library.call("predict", [None], -(2**63), [None]) == TOO_FEW


def test_memory_that_begins_anywhere(linear: Exported) -> None:
    """Arrays are aligned to their elements only, the workspace to nothing. Nothing beyond the results is written."""
    size = linear.number("predict_proba_workspace")
    given = X[:50].astype(np.float32)
    expected = linear("predict_proba", given)[0]
    for shift in range(0, 64, 4):
        memory = np.full(size + 128, 7, np.uint8)
        source = np.empty(given.nbytes + 64, np.uint8)[shift : shift + given.nbytes].view(np.float32).reshape(given.shape)
        source[...] = given
        out = np.full(102, 7.0)
        workspace = memory[shift + 1 : shift + 1 + size]
        assert linear.call("predict_proba", [source], 50, [out[1:-1]], workspace) == OK
        np.testing.assert_array_equal(out[1:-1].reshape(50, 2), expected)
        assert out[0] == out[-1] == 7
        assert (memory[: shift + 1] == 7).all()
        assert (memory[shift + 1 + size :] == 7).all()


def test_threads_share_a_library(boosted: tuple[CompiledModel, Path]) -> None:
    """Each row alone: how many rows a call has decides whether trees are walked or scanned, which may differ in the last bits."""
    library = Exported(boosted[1], "hbc_credit_2")
    given = X.astype(np.float32)
    expected = np.concatenate([library("predict", given[i : i + 1])[0] for i in range(400)])
    wrong: list[int] = []

    def work(seed: int) -> None:
        pick = np.random.default_rng(seed)
        for _ in range(50):
            start = int(pick.integers(0, 390))
            end = start + int(pick.integers(1, 10))
            results = library.results("predict", end - start)
            code = library.call("predict", [given[start:end]], end - start, results)
            if code or not np.array_equal(results[0], expected[start:end]):
                wrong.append(code)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_processor_that_lacks_instructions(tmp_path: Path) -> None:
    """It is told so, where the code would end the process."""
    cpu = Path("/proc/cpuinfo").read_text()
    if "amx_fp16" in cpu or "avx512_bf16" in cpu:
        pytest.skip("this processor has what the library asks for")
    model = hbc.convert(LogisticRegression().fit(X, Y))
    model.export(tmp_path / "m.so", target="x86-64-v4" if "avx512f" not in cpu else {"kind": "llvm", "mcpu": "bdver1"})
    library = Exported(tmp_path / "m.so")
    given, results = X.astype(np.float32), library.results("predict_proba", 400)
    assert library.call("predict_proba", [given], 400, results) == PROCESSOR
    assert library.call("predict_proba", [given], 400, results) == PROCESSOR
    assert (results[0] == 7).all()
    assert library.about["processor"].startswith(("x86-64-v4", "bdver1"))


def test_pointers_of_32_bits(tmp_path: Path) -> None:
    """Where pointers have 32 bits, so have the sizes that malloc takes."""
    model = hbc.convert(LogisticRegression().fit(X, Y))
    for triple, size in (("i586-linux-gnu", "i32"), ("loongarch32-linux-gnu", "i32"), ("riscv64-linux-gnu", "i64")):
        with mock.patch.object(export, "object_of", wraps=export.object_of) as compiled:
            model.export(tmp_path / "m.o", target={"kind": "llvm", "mtriple": triple})
        assert f"declare ptr @malloc({size})" in compiled.call_args[0][0]


# --- what is refused -------------------------------------------------------------------------------------------------------


def test_options_that_make_no_sense(tmp_path: Path) -> None:
    model = hbc.convert(LogisticRegression().fit(X, Y))
    for options, message in (
        ({"name": "a-b"}, r"name: found 'a-b', expected letters, digits and _"),
        ({"name": ""}, r"name: found ''"),
        ({"target": "pentium"}, r"target: found 'pentium', expected one of 'x86-64-v2'"),
        ({"target": 3}, r"target: found 3"),
        ({"target": {"kind": "c"}}, r"target: found kind 'c'"),
        (
            {"target": {"kind": "llvm", "mtriple": "riscv64-unknown-linux-gnu"}},
            r"links libraries for Linux on x86-64 and aarch64",
        ),
        ({"target": {"kind": "llvm", "mtriple": "thumbv7em-none-eabihf"}}, r"links libraries for Linux on x86-64 and aarch64"),
        ({"colour": 1}, r"unknown option colour; \.so files take methods, dtype, target, name, header"),
        ({"header": tmp_path / "nowhere" / "m.h"}, r"no such folder"),
    ):
        with pytest.raises((ValueError, hbc.HbcError), match=message):
            model.export(tmp_path / "m.so", **options)  # type: ignore[arg-type]
    for triple in ("thumbv7em-none-eabihf", "armv7a-linux-gnueabihf"):
        with pytest.raises(ValueError, match=r"none for 32-bit ARM"):
            model.export(tmp_path / "m.o", target={"kind": "llvm", "mtriple": triple})
    assert not list(tmp_path.iterdir())


def test_models_that_take_strings_name_their_columns(tmp_path: Path) -> None:
    frame = pd.DataFrame({"age": X[:, 0], "city": np.where(Y, "Oslo", "Bonn")})
    fitted = OneHotEncoder().fit(frame[["city"]])
    with pytest.raises(ValueError, match=r"takes strings \(column 0 \('city'\)\).*\.onnx.*OrdinalEncoder"):
        hbc.convert(fitted).export(tmp_path / "m.so")
    assert not list(tmp_path.iterdir())


def test_methods_that_no_compiled_code_tests(tmp_path: Path) -> None:
    fitted = make_pipeline(MinMaxScaler(), CategoricalNB()).fit(np.abs(X).round(), Y)
    with pytest.raises(ValueError, match=r"rejects input by numbers that are computed inside the model \(.*CategoricalNB"):
        hbc.convert(fitted).export(tmp_path / "m.so")
