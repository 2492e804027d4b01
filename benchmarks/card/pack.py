"""The pack: models, rows, the answers of their source libraries, and compiled CUDA code, in a folder that another computer can read. That
one needs none of the source libraries. The folder also has what a computer without TVM needs to run hbc (`site`)."""

from __future__ import annotations

import hashlib
import io
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
from benchmarks.card.devices import Emulated
from hbc.ir.store import write_atomically

Array = np.ndarray[Any, Any]
ROOT = Path(__file__).parents[2]
ARCHITECTURES = ("sm_80", "sm_90")
EXACT_ROWS, EMULATED_ROWS = 20_000, 512
"""Rows whose answers are compared on a card, and by the emulator."""
CARRIED, MARGIN = 64 << 20, 2 << 20
"""The bytes that a call of the device tool carries with the repository, and those that are left free for the names of files."""
PIECE = 8 << 20
"""The bytes of a piece of TVM's compiler."""


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
        Case(
            "network of 100 × 100",
            _small(_sklearn("MLPClassifier", "neural_network", hidden_layer_sizes=(100, 100))),
            timed=True,
        ),
        Case("SVC, 2 classes", _small(_sklearn("SVC", "svm"), classes=2), "decision_function", timed=True),
        Case("5 neighbours of 2,000", _small(_sklearn("KNeighborsClassifier", "neighbors"), "f8"), timed=True),
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
    data: str
    """The name of the file of its rows."""

    @property
    def file(self) -> Path:
        return self.folder / "models" / f"{_plain(self.name)}.hbc"

    @property
    def answers(self) -> Array:
        return np.load(self.file.with_suffix(".npy"))

    @property
    def rows(self) -> Any:
        """The rows as hbc takes them: an array, a list of texts or a frame."""
        place = self.folder / "models" / self.data
        if place.suffix == ".npy":
            return np.load(place)
        found = json.loads(place.read_text())
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
    """Makes a pack, or adds to it what it does not have yet. Returns name → strategy → what the emulator's answers are worth. A strategy
    that the emulator finds wrong is in the pack too, and is wrong on the card then, or the emulator is. quick: small models, code for one
    architecture, and of models that are not timed the fastest strategy alone."""
    (folder / "models").mkdir(parents=True, exist_ok=True)
    (folder / "code").mkdir(exist_ok=True)
    facts: dict[str, Any] = {}
    found: dict[str, Any] = {}
    for name, case in CASES.items():
        done = folder / "models" / f"{_plain(name)}.done.json"
        if name in names and not done.exists():
            say(f"{name}: training and answers")
            _write(done, json.dumps(_pack(folder, case, quick, say)).encode())
        if done.exists():
            facts[name], found[name] = json.loads(done.read_text())
    digest = hashlib.sha256("".join(path.name + _digest(path) for path in sorted((folder / "models").iterdir())).encode())
    text = json.dumps({"digest": digest.hexdigest(), "models": facts}, indent=1)
    (folder / "pack.json").write_text(text)
    return {name: found[name] for name in names}


def _write(path: Path, data: bytes) -> None:
    """Writes a file whole or not at all: a run that was killed goes on with the files that it finds."""
    write_atomically(path, lambda file: file.write(data))


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _pack(folder: Path, case: Case, quick: bool, say: Callable[[str], None]) -> tuple[dict[str, Any], dict[str, Any]]:
    model, rows = case.make(quick)
    rows = rows[: 64 if quick else EXACT_ROWS] if not isinstance(rows, dict) else rows
    packed = Packed(folder, case.name, case.method, case.timed, case.on_cpu, {}, 0, _keep(folder, rows))
    sample = packed.rows
    np.save(packed.file.with_suffix(".npy"), np.asarray(getattr(model, case.method)(sample)))
    compiled = hbc.convert(model, "tvm", X=sample[:1])
    compiled.save(packed.file, compress=True)
    limits = _limits(compiled, case.method)
    if quick and not case.timed:
        best = max(limits, key=lambda strategy: limits[strategy] or 0.0)
        limits = {best: limits[best]}
    packed = replace(packed, limits=limits, features=rows.shape[1] if isinstance(rows, np.ndarray) else 0)
    judged = {}
    for strategy in limits:
        architectures = ARCHITECTURES[-1:] if quick else ARCHITECTURES
        say(f"{case.name}, {strategy}: emulated, and compiled for {', '.join(architectures)}")
        judged[strategy] = _rehearsed(packed, strategy, architectures)
    kept = {name: getattr(packed, name) for name in ("method", "timed", "on_cpu", "limits", "features", "data")}
    return kept, judged


def _keep(folder: Path, rows: Any) -> str:
    """Puts rows into the pack, once where several models have the same. Returns the name of their file."""
    if isinstance(rows, np.ndarray):
        file = io.BytesIO()
        np.save(file, rows)
        content, suffix = file.getvalue(), "npy"
    else:
        content, suffix = json.dumps(rows).encode(), "json"
    name = f"rows-{hashlib.sha256(content).hexdigest()[:16]}.{suffix}"
    (folder / "models" / name).write_bytes(content)
    return name


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
    """What the emulator says of a strategy's answers. Its code goes into the pack, also that for rows on the card."""
    from hbc.compiler.tvm.run.targets import nvcc

    rows, emulated = packed.rows[:EMULATED_ROWS], Emulated()
    with emulated.running():
        call = getattr(packed.model("tvm", "cuda", strategy), packed.method)
        found = call(rows)
        if isinstance(rows, np.ndarray):
            call(emulated.there(rows))
    for source in {launch.source for launch in emulated.card.launches} if shutil.which("nvcc") else ():
        for arch in architectures:
            place = code_of(packed.folder, source, arch)
            if not place.exists():
                _write(place, nvcc(source, arch))
    return check(found, packed.answers[: len(rows)])


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


def add_site(folder: Path, say: Callable[[str], None]) -> Path:
    """Puts TVM and tvm_ffi (for Python 3.12) into a folder beside the pack, the compiler in pieces. Returns the folder."""
    import tvm
    import tvm_ffi

    site = folder.with_name(f"{folder.name}-site")
    if (site / "complete").exists():
        return site
    package = Path(tvm.__file__).parent
    shutil.rmtree(site, ignore_errors=True)
    site.mkdir(parents=True)
    say("TVM's compiler is compressed (some minutes)")
    packed = lzma.compress((package / "lib" / "libtvm_compiler.so").read_bytes(), preset=6)
    for number, start in enumerate(range(0, len(packed), PIECE)):
        (site / f"compiler.xz.{number:02}").write_bytes(packed[start : start + PIECE])
    with zipfile.ZipFile(site / "tvm.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(package.rglob("*")):
            useful = path.suffix == ".py" or (".so" in path.suffixes and path.name != "libtvm_compiler.so")
            if useful and "__pycache__" not in path.parts:
                archive.write(path, Path("tvm") / path.relative_to(package))
        for about in package.parent.glob("apache_tvm-*.dist-info"):
            archive.write(about / "METADATA", f"{about.name}/METADATA")
    wheel = ["--python-version", "3.12", "--implementation", "cp", "--only-binary=:all:", "--no-deps", "-q", "-d", str(site)]
    platforms = [word for number in (28, 24, 17) for word in ("--platform", f"manylinux_2_{number}_x86_64")]
    subprocess.run(
        [sys.executable, "-m", "pip", "download", *wheel, *platforms, f"apache-tvm-ffi=={tvm_ffi.__version__}"], check=True
    )
    (site / "complete").touch()
    return site


def split(sizes: Mapping[str, int], room: int) -> list[list[str]]:
    """Names of files in groups of at most `room` bytes. The large files are placed first, each in the first group that has room for it.
    Raises ValueError for a file that no group has room for."""
    groups: list[list[str]] = []
    for name in sorted(sizes, key=lambda name: -sizes[name]):
        if sizes[name] > room:
            raise ValueError(f"{name} has {sizes[name]:,} bytes, and a call of the device tool has room for {room:,}")
        fits = (group for group in groups if sum(map(sizes.__getitem__, group)) + sizes[name] <= room)
        if (group := next(fits, None)) is None:
            groups.append(group := [])
        group.append(name)
    return groups


def room_of_a_call() -> int:
    """The bytes that a call of the device tool can carry beside the repository."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    return CARRIED - MARGIN - sum(path.lstat().st_size for name in names if name and (path := ROOT / name).exists())


def parcels(folder: Path, site: Path, room: int) -> list[Path]:
    """Folders beside the pack, one for each call of the device tool, of at most `room` bytes. Together they have the pack's files as
    `pack`, and those of the site as `site`. Their files are links, and take no space."""
    files = {
        f"{base}/{path.relative_to(place)}": path
        for base, place in (("site", site), ("pack", folder))
        for path in sorted(place.rglob("*"))
        if path.is_file()
    }
    home = folder.with_name(f"{folder.name}-parcels")
    shutil.rmtree(home, ignore_errors=True)
    groups = split({name: path.stat().st_size for name, path in files.items()}, room)
    for number, names in enumerate(groups, 1):
        for name in names:
            place = home / str(number) / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.hardlink_to(files[name])
    return [home / str(number) for number in range(1, len(groups) + 1)]


KEEP = "mkdir -p /tmp/gpu && cp -r {parcel}/. /tmp/gpu/"
UNPACK = """cd /tmp/gpu/site && python3 -m zipfile -e tvm.zip . && python3 -m zipfile -e apache_tvm_ffi-*.whl . && \
cat compiler.xz.* | python3 -c "import lzma, shutil, sys; shutil.copyfileobj(lzma.open(sys.stdin.buffer), sys.stdout.buffer)" \
> tvm/lib/libtvm_compiler.so && cd - && nvidia-smi"""
START = """export PYTHONPATH=/tmp/gpu/site:$PWD; python3 -m benchmarks gpu --pack /tmp/gpu/pack --minutes {minutes:g} \
--out $OUT/gpu.json.gz; code=$?; cp $OUT/gpu.json.gz /tmp/gpu/pack/; exit $code"""


def calls(folder: Path, site: Path, minutes: float, room: int) -> str:
    """What to ask of the device tool: calls that each carry a parcel of at most `room` bytes, and the last of which measures. A machine is
    held for 30 seconds after a call."""
    lines = []
    found = parcels(folder, site, room)
    for number, parcel in enumerate(found, 1):
        size = sum(file.stat().st_size for file in parcel.rglob("*") if file.is_file()) / 2**20
        place = parcel.relative_to(ROOT) if parcel.is_relative_to(ROOT) else parcel
        keep = KEEP.format(parcel=place)
        if number < len(found):
            lines.append(f"{number}. carry: {place} ({size:.1f} MiB); command: {keep}")
        else:
            lines.append(f"{number}. carry: {place} ({size:.1f} MiB); timeout_s: {int(minutes * 60 + 110)}; command:")
            lines.append(f"{keep} && {UNPACK} && {{ {START.format(minutes=minutes)}; }}")
    return "\n".join(
        [
            *lines,
            "Each call begins within 30 seconds of the end of the one before.",
            f"To go on while the machine is warm, with the same timeout_s: {START.format(minutes=minutes)}",
            f"To go on later: put the gpu.json.gz that came back into {folder}, and begin with --prepare again.",
        ]
    )


CACHE = report.CACHE / "gpu"
