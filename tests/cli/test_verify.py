"""`hbc verify` and `hbc predict`, as a user types them. The oracle is the source library."""

from __future__ import annotations

import io
import json
import pickle
import re
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.compose import ColumnTransformer, make_column_transformer
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier

import hbc
from hbc.cli import main
from hbc.cli.comparison import Comparison, compare
from hbc.cli.verify import _cells

pandas = pytest.importorskip("pandas")


def run(*arguments: object, status: int = 0) -> tuple[str, str]:
    """(stdout, stderr) of a command that ends with this status."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        main(list(map(str, arguments)))
    assert ended.value.code == status, out.getvalue() + err.getvalue()
    return out.getvalue(), err.getvalue()


def saved(model: Any, folder: Path, name: str = "model") -> Path:
    """The model in a pickle, and compiled in a .hbc file beside it, without its suffix."""
    path = folder / name
    path.with_suffix(".pkl").write_bytes(pickle.dumps(model))
    run("convert", path.with_suffix(".pkl"), "--trust", "-o", path.with_suffix(".hbc"), "--backend", "numpy", "--quiet")
    return path


@pytest.fixture(scope="module")
def frame() -> Any:
    X, y = load_breast_cancer(return_X_y=True, as_frame=True)
    return X.iloc[:, :4].assign(city=np.where(y, "Bern", "Graz"), kind=np.where(y, "a", "b"))


@pytest.fixture(scope="module")
def pipeline(frame: Any) -> Any:
    X = frame.drop(columns="kind")
    encode = make_column_transformer((OneHotEncoder(), ["city"]), remainder=StandardScaler())
    return make_pipeline(encode, LogisticRegression(max_iter=1000)).fit(X, frame["kind"])


@pytest.mark.every_case
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_pipeline_on_a_frame_with_strings_and_the_target(frame: Any, pipeline: Any, tmp_path: Path, suffix: str) -> None:
    path, rows = saved(pipeline, tmp_path), tmp_path / f"rows{suffix}"
    frame.to_csv(rows, index=False) if suffix == ".csv" else frame.to_parquet(rows)
    arguments = ("verify", path.with_suffix(".pkl"), path.with_suffix(".hbc"), rows, "--trust")
    said, _ = run(*arguments, "--report", tmp_path / "report.md")
    assert "all 4 methods agree on 569 rows (rtol 1e-05, atol 1e-06" in said
    report = (tmp_path / "report.md").read_text()
    assert "| predict_proba | yes |" in report
    assert "- source: sklearn.pipeline.Pipeline" in report
    assert "\npredict agrees on 569 rows" in run(*arguments, "--methods", "predict")[0]
    found = json.loads(run(*arguments, "--json", "--methods", "predict, predict_proba")[0])
    assert [each["method"] for each in found["methods"]] == ["predict", "predict_proba"]
    X = frame.drop(columns="kind")
    expected, compiled = pipeline.predict_proba(X), hbc.load(path.with_suffix(".hbc")).predict_proba(X)
    assert found["methods"][1]["absolute"] == np.abs(compiled - expected).max()
    assert found["methods"][1]["values"] == expected.size
    assert found["agrees"]


def test_another_model_is_found_out(tmp_path: Path) -> None:
    X, y = load_breast_cancer(return_X_y=True)
    np.save(tmp_path / "X.npy", X)
    first = RandomForestClassifier(5, random_state=0).fit(X, y)
    second = RandomForestClassifier(5, random_state=1).fit(X, y)
    path, other = saved(first, tmp_path, "first"), saved(second, tmp_path, "second")
    report = tmp_path / "report.json"
    arguments = (path.with_suffix(".pkl"), other.with_suffix(".hbc"), tmp_path / "X.npy", "--trust")
    said, _ = run("verify", *arguments, "--methods", "predict,predict_proba", "--report", report, status=1)
    assert "2 of 2 methods DIFFER" in said
    labels, numbers = json.loads(report.read_text())["methods"]
    wrong = first.predict(X) != second.predict(X)
    assert (labels["beyond"], labels["first_row"]) == (wrong.sum(), np.flatnonzero(wrong)[0])
    assert f"predict: the first difference beyond the tolerance is in row {labels['first_row']}" in said
    differences = np.abs(first.predict_proba(X) - second.predict_proba(X))
    assert numbers["absolute"] == pytest.approx(differences.max())
    assert numbers["beyond"] == (differences > 1e-6).sum()
    assert run("verify", *arguments, "--quiet", status=1) == ("", "")


@pytest.mark.every_case
@pytest.mark.parametrize("name", ["model.txt", "model.json"])
def test_boosters(tmp_path: Path, name: str) -> None:
    """All their methods: two are options of `predict` in the source."""
    X, y = load_breast_cancer(return_X_y=True)
    if name == "model.txt":
        booster = pytest.importorskip("lightgbm").LGBMClassifier(n_estimators=5, verbose=-1).fit(X, y).booster_
    else:
        booster = pytest.importorskip("xgboost").XGBClassifier(n_estimators=5).fit(X, y).get_booster()
    booster.save_model(tmp_path / name)
    np.save(tmp_path / "X.npy", X)
    run("convert", tmp_path / name, "-o", tmp_path / "m.hbc", "--backend", "numpy")
    found = json.loads(run("verify", tmp_path / name, tmp_path / "m.hbc", tmp_path / "X.npy", "--json")[0])
    assert {each["method"] for each in found["methods"]} == {"predict", "raw_score", "apply"}
    assert found["agrees"]


def test_wrappers_of_boosters(tmp_path: Path) -> None:
    lightgbm = pytest.importorskip("lightgbm")
    X, y = load_breast_cancer(return_X_y=True)
    path = saved(lightgbm.LGBMClassifier(n_estimators=5, verbose=-1).fit(X, y), tmp_path)
    np.save(tmp_path / "X.npy", X)
    arguments = (path.with_suffix(".pkl"), path.with_suffix(".hbc"), tmp_path / "X.npy", "--trust", "--json")
    found = {each["method"]: each for each in json.loads(run("verify", *arguments)[0])["methods"]}
    assert {"predict", "predict_proba", "raw_score", "apply"} <= set(found)
    assert found["predict"]["labels"]
    assert not found["raw_score"]["labels"]


def test_onnx_models(tmp_path: Path) -> None:
    """ONNX Runtime is their source. A ZipMap gives dicts."""
    pytest.importorskip("onnxruntime")
    to_onnx = pytest.importorskip("skl2onnx").to_onnx
    X, y = load_breast_cancer(return_X_y=True)
    np.save(tmp_path / "X.npy", X)
    fitted = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y)
    for zipped in (True, False):
        options = {LogisticRegression: {"zipmap": zipped}}
        (tmp_path / "m.onnx").write_bytes(to_onnx(fitted, X[:1].astype("f4"), options=options).SerializeToString())
        run("convert", tmp_path / "m.onnx", "-o", tmp_path / "m.hbc", "--backend", "numpy")
        arguments = (tmp_path / "m.onnx", tmp_path / "m.hbc", tmp_path / "X.npy", "--json")
        found = {each["method"]: each["values"] for each in json.loads(run("verify", *arguments)[0])["methods"]}
        assert found == {"predict": len(X), "predict_proba": 2 * len(X)}


def test_onnx_models_of_several_inputs(tmp_path: Path, frame: Any, pipeline: Any) -> None:
    """An input for each column is found by name, in any order; inputs of several columns take them in their order."""
    pytest.importorskip("onnxruntime")
    to_onnx = pytest.importorskip("skl2onnx").to_onnx
    from skl2onnx.common.data_types import FloatTensorType, StringTensorType

    X = frame.drop(columns="kind").rename(columns=lambda name: name.replace(" ", "_"))  # names that ONNX allows
    kinds = [(name, StringTensorType([None, 1]) if name == "city" else FloatTensorType([None, 1])) for name in X.columns]
    options = {LogisticRegression: {"zipmap": False}}
    fitted = clone(pipeline).fit(X, frame["kind"])
    columns = to_onnx(fitted, initial_types=kinds, options=options)
    numbers, y = X.drop(columns="city").to_numpy(), frame["kind"]
    halves = make_pipeline(
        make_column_transformer((StandardScaler(), [0]), (StandardScaler(), slice(1, 4))), LogisticRegression()
    ).fit(numbers, y)
    parts = [("first", FloatTensorType([None, 1])), ("rest", FloatTensorType([None, 3]))]
    X[["city", *X.columns[:4]]].to_parquet(tmp_path / "columns.parquet")
    np.save(tmp_path / "parts.npy", numbers)
    for name, proto in (("columns.parquet", columns), ("parts.npy", to_onnx(halves, initial_types=parts, options=options))):
        (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
        run("convert", tmp_path / "m.onnx", "-o", tmp_path / "m.hbc", "--backend", "numpy")
        said = json.loads(run("verify", tmp_path / "m.onnx", tmp_path / "m.hbc", tmp_path / name, "--json")[0])
        assert {each["method"]: each["values"] for each in said["methods"]} == {"predict": len(X), "predict_proba": 2 * len(X)}
        assert said["agrees"]


def test_models_that_verify_cannot_take(pipeline: Any, frame: Any, tmp_path: Path) -> None:
    path, rows = saved(pipeline, tmp_path), tmp_path / "rows.csv"
    frame.to_csv(rows, index=False)
    source, compiled = path.with_suffix(".pkl"), path.with_suffix(".hbc")
    for arguments, message in {
        (source, source, rows): "model.pkl: found no model saved by hbc",
        (compiled, compiled, rows): "model.hbc: found a model saved by hbc, expected the fitted model",
        (source, compiled, tmp_path): "found a directory",
        (source, compiled, tmp_path / "none.csv"): "none.csv: no such file",
        (source, compiled, rows, "--methods", "apply"): "--methods: found 'apply', expected some of",
        (source, compiled, rows, "--report", "x.html"): "expected .json or .md",
        (source, compiled, rows, "--report", tmp_path / "none" / "x.md"): "no such folder",
    }.items():
        assert message in run("verify", *arguments, "--trust", status=1)[1]
    for option in ("--rtol", "--atol"):
        assert "greater than or equal to 0" in run("verify", source, compiled, rows, option, "-1", status=2)[1]


def test_data_that_do_not_fit(tmp_path: Path) -> None:
    """A model without names cannot tell the target from its columns; what the source rejects is no traceback."""
    X, y = load_breast_cancer(return_X_y=True, as_frame=True)
    path, rows = (
        saved(make_pipeline(StandardScaler(), LogisticRegression()).fit(X.to_numpy() / 1e3, y), tmp_path),
        tmp_path / "X.csv",
    )
    arguments = ("verify", path.with_suffix(".pkl"), path.with_suffix(".hbc"), rows, "--trust")
    X.assign(y=y).to_csv(rows, index=False)
    assert "X.csv: found 31 columns, expected 30. The model knows no names" in run(*arguments, status=1)[1]
    X.iloc[:, 0] = np.nan
    X.to_csv(rows, index=False)
    assert "the source library rejects the data (ValueError: Input X contains NaN." in run(*arguments, status=1)[1]


def test_the_source_names_the_columns_that_the_data_lack(tmp_path: Path) -> None:
    """scikit-learn does so in the lines after the first one of its message."""
    X, y = load_breast_cancer(return_X_y=True, as_frame=True)
    path, rows = saved(LogisticRegression().fit(X / 1e3, y), tmp_path), tmp_path / "X.csv"
    X.drop(columns="mean area").to_csv(rows, index=False)
    said = run("verify", path.with_suffix(".pkl"), path.with_suffix(".hbc"), rows, "--trust", status=1)[1]
    assert "yet now missing: - mean area" in said


NAN, INF = float("nan"), float("inf")


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("source", "compiled", "beyond", "absolute"),
    [
        ([1.0, NAN, INF], [1.0, NAN, INF], 0, 0.0),
        ([1.0, 2.0], [1.0 + 1e-5, 2.0 + 1e-3], 1, 1e-3),
        ([1.0, 2.0], [1.0, NAN], 1, INF),
        ([1.0, INF], [1.0, 2.0], 1, INF),
        (["a", NAN], ["a", NAN], 0, None),
        (["a", "b"], ["a", "c"], 1, None),
        ([1.0, 2.0], [[1.0], [2.0]], 2, None),
    ],
)
def test_comparison(source: list[Any], compiled: list[Any], beyond: int, absolute: float | None) -> None:
    wanted, found = (np.array(each, object if isinstance(source[0], str) else float) for each in (source, compiled))
    result = compare("predict", lambda X: wanted, lambda X: found, None, 1e-5, 1e-6, False)
    assert result.beyond == beyond
    assert result.agrees == (beyond == 0)
    assert result.absolute == (None if absolute is None else pytest.approx(absolute))


# --- predict -------------------------------------------------------------------------------------------------------------


@pytest.mark.every_case
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_predict_writes_labels_and_probabilities(frame: Any, pipeline: Any, tmp_path: Path, suffix: str) -> None:
    path, rows, output = saved(pipeline, tmp_path), tmp_path / "rows.parquet", tmp_path / f"out{suffix}"
    frame.to_parquet(rows)
    said, _ = run("predict", path.with_suffix(".hbc"), rows, "-o", output, "--methods", "predict,predict_proba")
    assert said.startswith(f"{output}: 569 rows, predict, predict_proba_a, predict_proba_b, ")
    found = pandas.read_csv(output) if suffix == ".csv" else pandas.read_parquet(output)
    X = frame.drop(columns="kind")
    assert list(found["predict"]) == list(pipeline.predict(X))
    np.testing.assert_allclose(found[["predict_proba_a", "predict_proba_b"]], pipeline.predict_proba(X), rtol=1e-7, atol=1e-12)
    printed, _ = run("predict", path.with_suffix(".hbc"), rows)
    assert printed.split() == ["predict", *pipeline.predict(X)]


def test_predict_of_arrays(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(20, 3))
    fitted = LinearRegression().fit(X, X @ np.array([[1.0, 2.0], [0.0, 1.0], [3.0, 1.0]]))
    path, output = saved(fitted, tmp_path), tmp_path / "out.npy"
    np.save(tmp_path / "X.npy", X)
    pandas.DataFrame(X, columns=["u", "v", "w"]).to_csv(tmp_path / "X.csv", index=False)
    for name in ("X.npy", "X.csv"):
        run("predict", path.with_suffix(".hbc"), tmp_path / name, "-o", output, "--quiet")
        np.testing.assert_allclose(np.load(output), fitted.predict(X), rtol=1e-9)
    for arguments, message in {
        (path.with_suffix(".pkl"), tmp_path / "X.npy"): "found no model saved by hbc",
        (path.with_suffix(".hbc"), tmp_path / "X.npy", "-o", tmp_path / "X.npy"): "found the file that is read (X.npy)",
        (path.with_suffix(".hbc"), tmp_path / "X.npy", "-o", "x.txt"): "found the suffix '.txt'",
        (path.with_suffix(".hbc"), tmp_path / "X.npy", "--methods", "apply"): "found 'apply', expected some of predict",
    }.items():
        assert message in run("predict", *arguments, status=1)[1]


def test_a_first_line_without_names_is_no_row_that_gets_lost(tmp_path: Path) -> None:
    """Numbers that rise may be names. The same holds for `hbc score`."""
    X = np.random.default_rng(0).normal(size=(5, 3))
    model, data = saved(LinearRegression().fit(X, X[:, 0]), tmp_path).with_suffix(".hbc"), tmp_path / "X.csv"
    for header, ok in {
        "0,1,2": True,
        "7,3,5": False,
        "1,0,1": False,
        "3,5,7": True,
        "x,,NA": True,
        "400.5,401,401.5": True,
        "a,2.5,1.5": True,
        "0.5,2,1": False,
        ",2.5,7": False,
        "5,,3": False,
    }.items():
        data.write_text("\n".join([header, *(",".join(map(str, row)) for row in X)]))
        wrong = "" if ok else "in the first line, expected the names of the columns"
        assert wrong in run("predict", model, data, status=0 if ok else 1)[1]
        if ok:
            assert hbc.score(str(model), str(data), str(tmp_path / "out.csv")).rows == 5
        else:
            with pytest.raises(hbc.InvalidInputError, match=wrong):
                hbc.score(str(model), str(data), str(tmp_path / "out.csv"))
    data.write_text("a;b;c\n1;2;3\n")
    assert "X.csv: found ';' between the columns, expected commas" in run("predict", model, data, status=1)[1]


def test_a_first_line_of_categories_is_no_row_that_gets_lost(tmp_path: Path) -> None:
    """The model knows the texts of its second column, and no names."""
    X = np.array([[2.5, "Ulm"], [0.5, "Bonn"], [1.5, "Kiel"], [3.5, "Ulm"]], object)
    steps = ColumnTransformer([("number", "passthrough", [0]), ("town", OneHotEncoder(), [1])])
    fitted = make_pipeline(steps, LinearRegression()).fit(X, [1.0, 2.0, 3.0, 4.0])
    model, data = tmp_path / "model.hbc", tmp_path / "X.csv"
    hbc.convert(fitted, backend="numpy", X=X).save(model)
    for header, ok in {"0,1": True, "n,town": True, "2,Ulm": False, "2.5,town": False, ",Bonn": False, "n,Ulm": True}.items():
        data.write_text("\n".join([header, *(",".join(map(str, row)) for row in X)]))
        wrong = "" if ok else "in the first line, expected the names of the columns"
        assert wrong in run("predict", model, data, status=0 if ok else 1)[1]
        if ok:
            assert hbc.score(str(model), str(data), str(tmp_path / "out.csv"), restart=True).rows == 4
        else:
            with pytest.raises(hbc.InvalidInputError, match=wrong):
                hbc.score(str(model), str(data), str(tmp_path / "out.csv"), restart=True)


@pytest.mark.parametrize("library", ["lightgbm", "xgboost"])
def test_predict_and_score_make_categories_of_csv(tmp_path: Path, library: str) -> None:
    """CSV has no categories. The error told to make them with pandas, which a command line has not."""
    module = pytest.importorskip(library)
    rng = np.random.default_rng(0)
    X = pandas.DataFrame({"town": rng.choice(["Ulm", "Bonn", "Kiel"], 200), "size": rng.choice([1, 2, 5], 200)}).astype(
        "category"
    )
    y = (X.town == "Ulm") * 1.0 + (X["size"] == 2) * 0.5
    made = {
        "lightgbm": lambda: module.LGBMRegressor(n_estimators=3, min_child_samples=2, min_data_per_group=1, verbose=-1),
        "xgboost": lambda: module.XGBRegressor(n_estimators=3, enable_categorical=True),
    }
    fitted = made[library]().fit(X, y)
    model = tmp_path / "model.hbc"
    hbc.convert(fitted, backend="numpy", X=X[:5]).save(model)
    X.loc[3, "size"], X.loc[4, "town"] = None, None
    for data in (tmp_path / "X.csv", tmp_path / "X.parquet"):
        (X.to_csv if data.suffix == ".csv" else X.to_parquet)(data, index=False)
        run("predict", model, data, "-o", tmp_path / "out.npy", "--quiet")
        np.testing.assert_allclose(np.load(tmp_path / "out.npy"), fitted.predict(X), rtol=1e-6)
        hbc.score(model, data, tmp_path / "out.csv", restart=True)
        np.testing.assert_allclose(pandas.read_csv(tmp_path / "out.csv")["predict"], fitted.predict(X), rtol=1e-6)
    for column, text, message in (
        ("town", "1", "found numbers, expected text"),
        ("size", "much", "found text, expected numbers"),
    ):
        pandas.DataFrame({"town": ["Ulm"], "size": ["1"]}).assign(**{column: [text]}).to_csv(tmp_path / "X.csv", index=False)
        said = run("predict", model, tmp_path / "X.csv", status=1)[1]
        assert f"X.csv, column '{column}': {message}, as the categories are. `hbc score` reads" in said


def test_predict_finds_the_columns_of_lightgbm_by_name(tmp_path: Path) -> None:
    """LightGBM itself takes them by their position. `hbc score` finds them by name too."""
    lightgbm = pytest.importorskip("lightgbm")
    X = pandas.DataFrame(np.random.default_rng(0).normal(size=(50, 2)), columns=["a", "b"])
    fitted = lightgbm.LGBMRegressor(n_estimators=3, min_child_samples=2, verbose=-1).fit(X, X.a)
    path, data = saved(fitted, tmp_path).with_suffix(".hbc"), tmp_path / "X.parquet"
    X[["b", "a"]].assign(target=1.0).to_parquet(data)
    run("predict", path, data, "-o", tmp_path / "out.parquet")
    np.testing.assert_allclose(pandas.read_parquet(tmp_path / "out.parquet").predict, fitted.predict(X), rtol=1e-9)
    X[["a"]].to_parquet(data)
    assert (
        "found 1 column, expected 2. Name the columns of the model in the file: a, b."
        in run("predict", path, data, status=1)[1]
    )


def test_columns_of_results_have_the_names_of_arrow(tmp_path: Path) -> None:
    """Each target of `predict` was named by the list of its classes, and as many leaves or pairs as there are classes by these."""
    X = np.random.default_rng(0).normal(size=(60, 2))
    y = np.array(["a", "b", "c"])[np.arange(60) % 3]
    np.save(tmp_path / "X.npy", X)
    several = MultiOutputClassifier(DecisionTreeClassifier(max_depth=2)).fit(X, np.stack([y, y[::-1]], axis=1))
    pairs = SVC(decision_function_shape="ovo").fit(X, y)
    for source, methods in ((several, ["predict", "predict_proba"]), (pairs, ["predict", "decision_function"])):
        path = saved(source, tmp_path).with_suffix(".hbc")
        run("predict", path, tmp_path / "X.npy", "-o", tmp_path / "out.csv", "--methods", ",".join(methods))
        assert pandas.read_csv(tmp_path / "out.csv").columns.tolist() == hbc.load(path).arrow(methods).schema.names


def test_rows_through_pipes(pipeline: Any, frame: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first bytes of standard input tell its format."""
    path, X = saved(pipeline, tmp_path).with_suffix(".hbc"), frame.drop(columns="kind")
    parquet = io.BytesIO()
    X.to_parquet(parquet)
    for data in (X.to_csv(index=False).encode(), parquet.getvalue()):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
        said, _ = run("predict", path, "-", "-o", "-")
        assert said.split() == ["predict", *pipeline.predict(X)]
    numbers = LinearRegression().fit(X.iloc[:, :2].to_numpy(), X.iloc[:, 2])
    npy = io.BytesIO()
    np.save(npy, X.iloc[:, :2].to_numpy())
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(npy.getvalue())))
    said, _ = run("predict", saved(numbers, tmp_path, "numbers").with_suffix(".hbc"), "-")
    np.testing.assert_allclose(np.array(said.split()[1:], float), numbers.predict(X.iloc[:, :2].to_numpy()), rtol=1e-9)


def test_a_file_that_is_no_array(pipeline: Any, tmp_path: Path) -> None:
    (tmp_path / "rows.npy").write_text("hello")
    said = run("predict", saved(pipeline, tmp_path).with_suffix(".hbc"), tmp_path / "rows.npy", status=1)[1]
    assert "found a file of another format, expected an array that numpy.save wrote" in said


def test_numbers_without_pandas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A .npy file is read and written. What needs pandas is named: a file, or standard output."""
    X = np.arange(12.0).reshape(6, 2)
    source = LinearRegression().fit(X, X[:, 0])
    path, rows = saved(source, tmp_path).with_suffix(".hbc"), tmp_path / "rows.npy"
    np.save(rows, X)
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    monkeypatch.setitem(sys.modules, "pandas", None)
    run("predict", path, rows, "-o", tmp_path / "out.npy")
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), source.predict(X), rtol=1e-9, atol=1e-9)
    missing = (
        r": found no pandas on this computer, expected it, for CSV and Parquet\. Install it with: pip install 'hbc\[frames\]'\."
    )
    assert re.fullmatch(
        rf"hbc: standard output{missing} Or write a \.npy file: --output FILE\.\n", run("predict", path, rows, status=1)[1]
    )
    assert re.fullmatch(rf"hbc: \S+rows\.csv{missing}\n", run("predict", path, tmp_path / "rows.csv", status=1)[1])


@pytest.mark.parametrize(("compiled", "told"), [(0.001, "30.0 times"), (0.1, "0.3 times"), (0.75, "0.04 times")])
def test_how_much_slower_a_model_is(compiled: float, told: str) -> None:
    """It was "0.0 times" for the backend numpy."""
    assert _cells(Comparison("predict", True, 1, 0, False, 0.0, 0.0, None, 0.03, compiled))[-1] == told
