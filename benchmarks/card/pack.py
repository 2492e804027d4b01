"""The pack: models, rows, the answers of their source libraries, and compiled CUDA code, in a folder that another computer can read. That
one needs none of the source libraries. The folder also has what a computer without TVM needs to run hbc (`site`)."""

from __future__ import annotations

import hashlib
import json
import lzma
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import hbc
from benchmarks import report
from benchmarks.answers import check

Array = np.ndarray[Any, Any]
ROOT = Path(__file__).parents[2]
ARCHITECTURES = ("sm_80", "sm_90")
EXACT_ROWS, EMULATED_ROWS = 20_000, 512
"""Rows whose answers are compared on a card, and by the emulator."""
PART = 30 << 20
"""The bytes of a part of TVM's compiler: a call of the device tool carries 64 MiB with the repository."""


@dataclass(frozen=True)
class Case:
    """A model to carry. make: whether it is a quick run → (a fitted model, rows). timed: it is timed on the card; otherwise only its
    answers are compared. on_cpu: it is timed on 1 to 16 threads of the processor."""

    name: str
    make: Callable[[bool], tuple[Any, Any]]
    method: str = "predict_proba"
    timed: bool = False
    on_cpu: bool = False


def _point(**values: Any) -> Callable[[bool], tuple[Any, Any]]:
    """A model of benchmarks/scaling.py, whose cache it shares."""

    def make(quick: bool) -> tuple[Any, Any]:
        from benchmarks import scaling

        point = replace(scaling.BASE, **values)
        if quick:
            point = replace(point, rows=600, trees=min(point.trees, 3), depth=min(point.depth or 4, 4))
        found = scaling.prepare(point)
        return found.model, np.load(found.rows)

    return make


def _small(
    maker: Callable[[], Any], dtype: str = "f4", missing: bool = False, classes: int = 3
) -> Callable[[bool], tuple[Any, Any]]:
    def make(quick: bool) -> tuple[Any, Any]:
        random = np.random.default_rng(5)
        X = random.standard_normal((22_000, 12)).astype(dtype)
        y = np.digitize(X[:, 0] * X[:, 1] + X[:, 2], np.linspace(-1, 1, classes + 1)[1:-1])
        if missing:
            X[random.random(X.shape) < 0.1] = np.nan
        return maker().fit(X[:2000], y[:2000]), X[2000:]

    return make


def _text(quick: bool) -> tuple[Any, Any]:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    random = np.random.default_rng(5)
    words = np.array([f"{a}{b}{c}" for a in "bdfgklmnprst" for b in "aeiou" for c in ("", "n", "r", "ts", "ling")])
    texts = [" ".join(words[(random.zipf(1.3, 200) - 1) % len(words)]) for _ in range(300 if quick else 6000)]
    counts = np.array([text.count("ling") - text.count("ts") for text in texts])
    labels = counts > np.median(counts)
    half = len(texts) // 2
    return make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(texts[:half], labels[:half]), texts[half:]


def _frame(quick: bool) -> tuple[Any, Any]:
    import pandas as pd
    from lightgbm import LGBMClassifier
    from sklearn.compose import make_column_transformer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    random, rows = np.random.default_rng(5), 600 if quick else 40_000
    numbers = {f"n{i}": random.standard_normal(rows) for i in range(8)}
    strings = {f"s{i}": random.choice([f"value {j}" for j in range(20)], rows) for i in range(4)}
    frame, y = pd.DataFrame({**numbers, **strings}), numbers["n0"] + (strings["s0"] == "value 3") > 0
    parts = make_column_transformer((StandardScaler(), list(numbers)), (OneHotEncoder(sparse_output=False), list(strings)))
    model = make_pipeline(parts, LGBMClassifier(n_estimators=5 if quick else 200, verbose=-1)).fit(
        frame[: rows // 2], y[: rows // 2]
    )
    return model, {name: column.tolist() for name, column in frame[rows // 2 :].items()}


def _boosted(library: str, **options: Any) -> Callable[[], Any]:
    def make() -> Any:
        if library == "lightgbm":
            from lightgbm import LGBMClassifier

            return LGBMClassifier(n_estimators=10, verbose=-1, **options)
        from xgboost import XGBClassifier

        return XGBClassifier(n_estimators=10, **options)

    return make


def _sklearn(name: str, module: str, **options: Any) -> Callable[[], Any]:
    def make() -> Any:
        import importlib

        return getattr(importlib.import_module(f"sklearn.{module}"), name)(**options)

    return make


def _scaled() -> Any:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression())


CASES = {
    case.name: case
    for case in (
        Case("lightgbm 500 × depth 8", _point(leaves=None, depth=8), timed=True, on_cpu=True),
        Case("lightgbm 3 classes, missing values", _small(_boosted("lightgbm"), missing=True)),
        Case("xgboost 3 classes, missing values", _small(_boosted("xgboost", max_depth=6), missing=True)),
        Case("forest of 3 classes", _small(_sklearn("RandomForestClassifier", "ensemble", n_estimators=20, max_depth=8))),
        Case("GradientBoosting, float64", _small(_sklearn("GradientBoostingClassifier", "ensemble", n_estimators=10), "f8")),
        Case(
            "HistGradientBoosting", _small(_sklearn("HistGradientBoostingClassifier", "ensemble", max_iter=10), "f8", True, 2)
        ),
        Case("scaler → logistic regression", _small(_scaled)),
        *(
            Case(f"xgboost 500 × depth {depth}", _point(library="xgboost", leaves=None, depth=depth), timed=True)
            for depth in (2, 4, 6, 8, 10, 12)
        ),
        Case("forest 100 × unlimited depth", _point(library="sklearn", trees=100, leaves=None), timed=True, on_cpu=True),
        *(
            Case(f"lightgbm {trees} × 31 leaves", _point(trees=trees), timed=True, on_cpu=trees == 500)
            for trees in (10, 100, 500, 1000, 5000)
        ),
        Case("texts: tf-idf → logistic regression", _text, on_cpu=True),
        Case("frame: strings and numbers → lightgbm", _frame, on_cpu=True),
    )
}
QUICK = ("lightgbm 500 × depth 8", "forest of 3 classes", "scaler → logistic regression", "texts: tf-idf → logistic regression")


@dataclass(frozen=True)
class Packed:
    """A model in a pack. limits: strategy → rows a second of an H200 by the counts of docs/gpu.md; {"auto": None} without trees."""

    folder: Path
    name: str
    method: str
    timed: bool
    on_cpu: bool
    limits: Mapping[str, float | None]
    features: int

    @property
    def file(self) -> Path:
        return self.folder / "models" / f"{_plain(self.name)}.hbc"

    @property
    def answers(self) -> Array:
        return np.load(self.file.with_suffix(".npy"))

    @property
    def rows(self) -> Any:
        """The rows as hbc takes them: an array, a list of texts or a frame."""
        if (array := self.file.with_suffix(".rows.npy")).exists():
            return np.load(array)
        found = json.loads(self.file.with_suffix(".json").read_text())
        if isinstance(found, list):
            return found
        import pandas as pd

        return pd.DataFrame(found)

    def model(self, backend: str, device: str, strategy: str = "auto", threads: int | None = None) -> Any:
        """The model as hbc loads it, with other options than those it was saved with."""
        from hbc.api import builder_of
        from hbc.builder import model_of, read

        return model_of(read(self.file, self.name), builder_of(backend, device, strategy, threads=threads))


def _plain(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name)


def read(folder: Path) -> tuple[str, dict[str, Packed]]:
    """(the digest of a pack, its models by name). Raises ValueError where there is none."""
    if not (folder / "pack.json").exists():
        raise ValueError(f"{folder} has no pack; make one with --prepare")
    found = json.loads((folder / "pack.json").read_text())
    return found["digest"], {name: Packed(folder, name, **facts) for name, facts in found["models"].items()}


def make(folder: Path, names: list[str], quick: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Makes a pack, or what an earlier try left out of it. Returns name → strategy → what the emulator's answers are worth. A strategy
    that the emulator finds wrong is in the pack too, and is wrong on the card then, or the emulator is."""
    (folder / "models").mkdir(parents=True, exist_ok=True)
    (folder / "code").mkdir(exist_ok=True)
    facts: dict[str, Any] = {}
    found: dict[str, Any] = {}
    for name in names:
        case = CASES[name]
        done = folder / "models" / f"{_plain(name)}.done.json"
        if not done.exists():
            say(f"{name}: training and answers")
            facts[name], found[name] = _pack(folder, case, quick, say)
            done.write_text(json.dumps([facts[name], found[name]]))
        facts[name], found[name] = json.loads(done.read_text())
    digest = hashlib.sha256("".join(path.name + _digest(path) for path in sorted((folder / "models").iterdir())).encode())
    text = json.dumps({"digest": digest.hexdigest(), "models": facts}, indent=1)
    (folder / "pack.json").write_text(text)
    return found


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _pack(folder: Path, case: Case, quick: bool, say: Callable[[str], None]) -> tuple[dict[str, Any], dict[str, Any]]:
    model, rows = case.make(quick)
    rows = rows[: 64 if quick else EXACT_ROWS] if not isinstance(rows, dict) else rows
    packed = Packed(folder, case.name, case.method, case.timed, case.on_cpu, {}, 0)
    if isinstance(rows, np.ndarray):
        np.save(packed.file.with_suffix(".rows.npy"), rows)
    else:
        packed.file.with_suffix(".json").write_text(json.dumps(rows))
    sample = packed.rows
    np.save(packed.file.with_suffix(".npy"), np.asarray(getattr(model, case.method)(sample)))
    compiled = hbc.convert(model, "tvm", X=sample[:1])
    compiled.save(packed.file)
    limits = _limits(compiled, case.method)
    packed = replace(packed, limits=limits, features=rows.shape[1] if isinstance(rows, np.ndarray) else 0)
    judged = {}
    for strategy in limits:
        architectures = ARCHITECTURES[-1:] if quick else ARCHITECTURES
        say(f"{case.name}, {strategy}: emulated, and compiled for {', '.join(architectures)}")
        judged[strategy] = _rehearsed(packed, strategy, architectures)
    kept = {name: getattr(packed, name) for name in ("method", "timed", "on_cpu", "limits", "features")}
    return kept, judged


def _limits(compiled: Any, method: str) -> dict[str, float | None]:
    """The strategies that the trees of a method may have on a GPU → rows a second of an H200, counted and not measured."""
    from hbc.compiler.tvm.trees.gpu.choice import H200, cycles
    from hbc.ops.tree import TreeEnsemble

    graph = compiled.variants[compiled._main].graph.select(method)
    trees = {node.op: cycles(node.op) for node in graph.nodes if isinstance(node.op, TreeEnsemble)}
    if not trees:
        return {"auto": None}
    names = set.intersection(*(set(each) for each in trees.values()))
    return {name: H200 / sum(each[name] for each in trees.values()) for name in sorted(names)}


def _rehearsed(packed: Packed, strategy: str, architectures: Sequence[str]) -> dict[str, Any]:
    """What the emulator says of a strategy's answers. Its code goes into the pack."""
    from hbc.compiler.tvm.run.targets import nvcc

    rows = packed.rows[:EMULATED_ROWS]
    with emulator().emulated() as card:
        found = getattr(packed.model("tvm", "cuda", strategy), packed.method)(rows)
    for source in {launch.source for launch in card.launches} if shutil.which("nvcc") else ():
        for arch in architectures:
            place = code_of(packed.folder, source, arch)
            if not place.exists():
                place.write_bytes(nvcc(source, arch))
    return check(found, packed.answers[: len(rows)])


def emulator() -> Any:
    """The emulator of the tests."""
    tests = str(ROOT / "tests")
    if tests not in sys.path:
        sys.path.append(tests)
    import cuda_on_cpu

    return cuda_on_cpu


def code_of(folder: Path, source: str, arch: str) -> Path:
    return folder / "code" / f"{hashlib.sha256(source.encode()).hexdigest()[:32]}-{arch}.fatbin"


@contextmanager
def with_code(folder: Path) -> Iterator[dict[str, int]]:
    """In this context, code of the pack is taken instead of calling nvcc. Yields how much was found there and how much was compiled."""
    from hbc.compiler.tvm.run import targets

    counts, nvcc = {"found": 0, "compiled": 0}, targets.nvcc

    def found(code: str, arch: str) -> bytes:
        place = code_of(folder, code, arch)
        counts["found" if place.exists() else "compiled"] += 1
        return place.read_bytes() if place.exists() else nvcc(code, arch)

    with mock.patch.object(targets, "nvcc", found):
        yield counts


# --- what a computer without TVM needs ---------------------------------------------------------------------------------


def add_site(folder: Path, say: Callable[[str], None]) -> list[Path]:
    """Puts TVM and tvm_ffi (for Python 3.12) beside the pack, in parts that two calls of the device tool carry. Returns the parts."""
    import tvm

    parts = [folder.with_name(f"{folder.name}-tvm-{number}") for number in (0, 1)]
    if all((part / "complete").exists() for part in parts):
        return parts
    package = Path(tvm.__file__).parent
    for part in parts:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
    say("TVM's compiler is compressed (some minutes)")
    packed = lzma.compress((package / "lib" / "libtvm_compiler.so").read_bytes(), preset=6)
    for part, start in zip(parts, (0, PART), strict=True):
        (part / "compiler.xz").write_bytes(packed[start : start + PART if start == 0 else None])
    with zipfile.ZipFile(parts[1] / "site.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(package.rglob("*")):
            useful = path.suffix == ".py" or (".so" in path.suffixes and path.name != "libtvm_compiler.so")
            if useful and "__pycache__" not in path.parts:
                archive.write(path, Path("tvm") / path.relative_to(package))
        for about in package.parent.glob("apache_tvm-*.dist-info"):
            archive.write(about / "METADATA", f"{about.name}/METADATA")
    import tvm_ffi

    wheel = [
        "--python-version",
        "3.12",
        "--implementation",
        "cp",
        "--only-binary=:all:",
        "--no-deps",
        "-q",
        "-d",
        str(parts[1]),
    ]
    platforms = [word for number in (28, 24, 17) for word in ("--platform", f"manylinux_2_{number}_x86_64")]
    subprocess.run(
        [sys.executable, "-m", "pip", "download", *wheel, *platforms, f"apache-tvm-ffi=={tvm_ffi.__version__}"], check=True
    )
    for part in parts:
        (part / "complete").touch()
    return parts


UNPACK = """mkdir -p /tmp/site && cat {0}/compiler.xz >> /tmp/compiler.xz"""
START = """cat {1}/compiler.xz >> /tmp/compiler.xz && python3 -m zipfile -e {1}/site.zip /tmp/site && \
python3 -m zipfile -e {1}/apache_tvm_ffi-*.whl /tmp/site && xz -dc /tmp/compiler.xz > /tmp/site/tvm/lib/libtvm_compiler.so && \
export PYTHONPATH=/tmp/site:$PWD && nvidia-smi && \
python3 -m benchmarks gpu --pack {2} --minutes {minutes:g} --out $OUT/gpu.json.gz"""


def calls(folder: Path, parts: list[Path], minutes: float) -> str:
    """What to ask of the device tool: two calls, the second within 30 seconds of the first one's end."""
    places = [str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path) for path in (*parts, folder)]
    sizes = [sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) >> 20 for path in (*parts, folder)]
    resume = places[2] + "/gpu.json.gz"
    return "\n".join(
        [
            f"1. carry: {places[0]} ({sizes[0]} MiB); command: {UNPACK.format(*places)}",
            f"2. carry: {places[1]}, {places[2]} ({sizes[1] + sizes[2]} MiB); timeout_s: {int(minutes * 60 + 110)}; command:",
            START.format(*places, minutes=minutes),
            f"To go on after it was stopped: put the gpu.json.gz that came back at {resume}, and make both calls again (or only "
            "the last line of 2., while the machine is warm).",
        ]
    )


CACHE = report.CACHE / "gpu"
