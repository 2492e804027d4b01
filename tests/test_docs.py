"""The files that the documents name exist, and their examples run: of each page all blocks of Python in order, and the commands of hbc."""

from __future__ import annotations

import doctest
import importlib
import inspect
import json
import os
import pkgutil
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
import urllib.error
import urllib.request
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from installed import ABSENT, older
from ports import free_port

import hbc
from hbc.cli import main

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PATH = re.compile(r"`((?:hbc|tests|benchmarks|datasets|docs)/[\w./-]*)`")
LINK = re.compile(r"\]\((?!http|\d)([^)#]+)\)")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_paths_exist(document: Path) -> None:
    text = document.read_text()
    missing = [path for path in PATH.findall(text) if not (ROOT / path).exists()]
    missing += [link for link in LINK.findall(text) if not (document.parent / link).exists()]
    assert not missing


def blocks(document: Path, language: str) -> list[str]:
    """The examples of a document in a language. One whose first line begins with `# not run:` is shown, and not run."""
    return re.findall(rf"```{language}\n(.*?)```", document.read_text(), re.DOTALL)


def to_run(document: Path, language: str) -> list[str]:
    return [block for block in blocks(document, language) if not block.startswith("# not run:")]


RUN_ELSEWHERE = {"CONTRIBUTING.md": "test_the_example_of_a_converter"}
NOT_RUN = 8
"""The number of examples of the pages that are marked as not run. A higher one needs a reason: BentoML, Ray, Spark and Daft are not
installed here, and MLflow's server does not stop."""
NEEDS = {"mlflow.md": "mlflow"}
"""Page → the library without which its examples cannot run, beside TVM and scikit-learn."""

PAGES = [page for page in DOCUMENTS if page.name not in RUN_ELSEWHERE and to_run(page, "python")]


def run_page(page: Path) -> dict[str, object]:
    """Run the Python examples of a page in order. Returns their namespace."""
    names: dict[str, object] = {"__name__": page.stem}
    for number, block in enumerate(to_run(page, "python")):
        exec(compile(block, f"{page.name}, example {number + 1}", "exec"), names)
    return names


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working directory. The converters that examples register are forgotten afterwards."""
    from hbc.parser import registry

    monkeypatch.chdir(tmp_path)
    before = set(registry.CONVERTERS)
    yield tmp_path
    for name in set(registry.CONVERTERS) - before:
        if name.partition(".")[0] not in registry.MODULES:
            del registry.CONVERTERS[name]


@pytest.mark.every_case
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tvm")
    pytest.importorskip("sklearn")
    with warnings.catch_warnings():
        if page.name in NEEDS:
            warnings.simplefilter("ignore")  # such a library warns of its own code
            pytest.importorskip(NEEDS[page.name])
        names = run_page(page)
    for command in commands(page):
        with pytest.raises(SystemExit) as ended:
            main(command)
        assert ended.value.code == 0, command
    if page.name == "mlflow.md":
        assert repr(names["info"].signature.inputs) in page.read_text()  # type: ignore[attr-defined]


def test_the_example_of_a_converter(folder: Path) -> None:
    """What CONTRIBUTING.md shows has the bits and the dtypes of its source."""
    scaler = pytest.importorskip("sklearn.preprocessing").MaxAbsScaler
    (example,) = to_run(ROOT / "CONTRIBUTING.md", "python")
    kind = type("Scaler", (scaler,), {"__module__": "mypackage"})
    names = vars(importlib.import_module("hbc.parser.sklearn.preprocessing")).copy()
    exec(example.replace("sklearn.preprocessing.MaxAbsScaler", "mypackage.Scaler"), names)
    X = np.random.default_rng(0).normal(size=(50, 3))
    model = kind().fit(X)
    for data in (X, X.astype("float32"), (9 * X).astype("int64")):
        found, expected = hbc.convert(model, backend="numpy").transform(data), model.transform(data)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


def commands(page: Path) -> list[list[str]]:
    """The commands of hbc that a page runs, each as its arguments, without the file that a shell would write their output to."""
    lines = [line for block in to_run(page, "bash") for line in block.splitlines() if line.startswith("hbc ")]
    return [shlex.split(line.partition(" > ")[0], comments=True)[1:] for line in lines]


@pytest.mark.slow
@pytest.mark.every_case
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=lambda page: page.name)
def test_commands_in_processes_of_their_own(page: Path, folder: Path) -> None:
    """They import what they need themselves, which takes 3 s each. tests/cli/test_commands.py starts some in every run."""
    for library in ("tvm", "sklearn"):
        pytest.importorskip(library)
    run_page(page)
    for command in commands(page):
        done = subprocess.run([sys.executable, "-m", "hbc", *command], capture_output=True, text=True)
        assert done.returncode == 0, f"{command}: {done.stderr}"


@pytest.mark.filterwarnings("ignore")
def test_the_service_of_the_page_answers(folder: Path) -> None:
    """gunicorn is started as docs/deploying.md says, with FastAPI's app and two workers, and asked until it answers."""
    for library in ("tvm", "sklearn", "fastapi", "gunicorn"):
        pytest.importorskip(library)
    page = ROOT / "docs" / "deploying.md"
    names = run_page(page)
    (app,) = [block for block in blocks(page, "python") if block.startswith("# app.py\n")]
    (folder / "app.py").write_text(app)
    (command,) = re.findall(r"^    gunicorn (.*)$", page.read_text(), re.MULTILINE)
    port = free_port()
    options = [*shlex.split(command.replace("--workers 4", "--workers 2")), "--bind", f"127.0.0.1:{port}"]
    environment = {**os.environ, "HOME": str(folder), "PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)])}
    rows = [[0.5, 1, 2, 3, 4], [-0.5, 1, 2, 3, 4]]
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/predict", json.dumps(rows).encode(), {"Content-Type": "application/json"}
    )
    with subprocess.Popen([sys.executable, "-m", "gunicorn", *options], env=environment, stderr=subprocess.PIPE) as server:
        answer, deadline = None, time.monotonic() + 90
        while answer is None and server.poll() is None and time.monotonic() < deadline:
            try:
                answer = json.loads(urllib.request.urlopen(request, timeout=30).read())
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.1)
        server.terminate()
        said = server.communicate()[1].decode()
    assert answer is not None, said
    np.testing.assert_array_equal(answer, names["model"].predict_proba(np.array(rows, "f4")))  # type: ignore[attr-defined]


@pytest.mark.every_case
@pytest.mark.skipif("sklearn" not in ABSENT and older("sklearn", 1, 9), reason="its models have other graphs")
def test_pictures_of_passes() -> None:
    """They show what the passes do now. Fitted numbers hang on the processor's BLAS, and are left out."""
    pytest.importorskip("tvm")
    pytest.importorskip("sklearn")
    passes = runpy.run_path(str(ROOT / "docs" / "passes.py"))

    def words(picture: str) -> list[str]:
        return [re.sub(r"-?\d+\.\d+", "#", text) for text in re.findall(r"<text[^>]*>(.*?)</text>", picture)]

    page = (ROOT / "docs" / "optimizer.md").read_text()
    for name in passes["MODELS"]:
        kept = passes["path"](name)
        assert f"(pictures/{kept.name})" in page
        assert words(kept.read_text()) == words(passes["picture"](name)), "run `python docs/passes.py`"
        assert {"before", "after"} <= set(words(kept.read_text()))


API = ROOT / "docs" / "api.md"
DOCUMENTED = re.findall(r"^\.\. auto\w+:: ([\w.]+)", API.read_text(), re.MULTILINE)
WITHOUT_EXAMPLES = {
    "hbc.CompiledModel",
    "hbc.runtime.across.Across",
    "hbc.tuning.search.Tuning",
    "hbc.runtime.origin.Info",
    "hbc.runtime.schema.Schema",
    "hbc.scoring.run.Summary",
    "hbc.scoring.job.Progress",
}
"""What docs/api.md shows without an example in its docstring; docs/quick-start.md, docs/artefacts.md, docs/records.md and
docs/scoring.md have some. An example of Across needs two GPUs: tests/compiler/tvm/run/test_cuda_across.py runs it on emulated ones."""


@pytest.mark.every_case
@pytest.mark.parametrize("name", DOCUMENTED)
def test_examples_of_docstrings(name: str, folder: Path) -> None:
    """They run with the data that docs/api.md shows."""
    pytest.importorskip("tvm")
    thing = pkgutil.resolve_name(name)
    runner, said = doctest.DocTestRunner(), list[str]()
    for test in doctest.DocTestFinder().find(thing, name, module=inspect.getmodule(thing), globs=run_page(API)):
        runner.run(test, out=said.append)
    assert runner.failures == 0, "".join(said)
    assert runner.tries or name in WITHOUT_EXAMPLES


def test_examples_that_are_not_run() -> None:
    marked = [
        block for page in DOCUMENTS for block in blocks(page, "python") + blocks(page, "bash") if block.startswith("# not run:")
    ]
    assert len(marked) == NOT_RUN
    assert all(len(block.splitlines()[0]) > len("# not run: ") for block in marked)


@pytest.fixture
def saved(folder: Path) -> Path:
    """The model that docs/artefacts.md saves, after all its examples ran."""
    pytest.importorskip("tvm")
    run_page(ROOT / "docs" / "artefacts.md")
    return folder / "model.hbc"


def test_examples_of_artefacts(saved: Path) -> None:
    info = hbc.load(saved, backend="numpy").info
    assert info.metadata["run"] == 17
    methods = str(info).splitlines()[1]
    assert methods.startswith("methods: ")
    assert f"    {methods}\n" in (ROOT / "docs" / "artefacts.md").read_text()


def test_signatures(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Signed with OpenSSF's model_signing, where it is installed. A byte that is changed is noticed."""
    scripts = sysconfig.get_path("scripts")  # where pip puts programs, also of an environment not active
    monkeypatch.setenv("PATH", os.pathsep.join([scripts, os.environ["PATH"]]))
    for program in ("openssl", "model_signing"):
        if shutil.which(program) is None:
            pytest.skip(f"no {program}")
    (commands,) = blocks(ROOT / "docs" / "artefacts.md", "bash")
    subprocess.run(["bash", "-e", "-c", commands], check=True)
    verify = commands.splitlines()[-1]  # has just passed
    data = saved.read_bytes()
    saved.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert subprocess.run(["bash", "-c", verify], capture_output=True).returncode != 0
