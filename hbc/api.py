"""The functions of the public API. This file connects all rooms: parser → optimizer → compiler → CompiledModel."""

from __future__ import annotations

import operator
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hbc.arguments import require_function
from hbc.builder import Builder, checked_device, checked_target, positive, read
from hbc.compiler.base import (
    BackendName,
    CompileOptions,
    DeviceName,
    StrategyName,
    backend_name,
    is_available,
    known_backends,
    strategies_of,
)
from hbc.errors import Culprit, NotFittedError, UnsupportedOperatorError, shown
from hbc.hummingbird import answered
from hbc.ir.graph import Graph
from hbc.ir.lazy_graph import LazyGraph
from hbc.ir.signature import InputSpec, Kinds
from hbc.parser import files, registry
from hbc.parser.parse import Parsed, parse
from hbc.parser.rounds import checked
from hbc.process import cpus
from hbc.runtime import artifact
from hbc.runtime.input.intake import describe
from hbc.runtime.model import CompiledModel
from hbc.runtime.origin import new_origin
from hbc.tuning import choices
from hbc.tuning.choices import Choice, Tuned
from hbc.tuning.race import clock_of
from hbc.tuning.rows import rows_for
from hbc.tuning.search import Tuning, search


@answered
def convert(
    model: Any,
    backend: BackendName = "tvm",
    X: Any = None,
    device: DeviceName = "cpu",
    *,
    strategy: StrategyName = "auto",
    batch_size: int | None = None,
    threads: int | None = None,
    target: Mapping[str, Any] | None = None,
    warm_up: bool | str | Sequence[str] = False,
    iteration_range: tuple[int, int] | None = None,
) -> CompiledModel:
    """Compile a fitted model.

    Args:
        model: a fitted scikit-learn, LightGBM, XGBoost or CatBoost model (`hbc.supported_operators()` lists the classes), or an ONNX
            model as a ModelProto, its bytes, or the path of an .onnx file; or the path of LightGBM's or XGBoost's own format (.txt, .json,
            .ubj), which holds a Booster, or of CatBoost's (.cbm).
        backend: "tvm", "torch", "torchscript", "onnx" or "numpy" (`hbc.backends()` says which are installed).
        X: a sample of the input (array, list or frame, one row is enough), needed only if the model does not know the names or dtypes of
            its columns. Its values are not used, only its names and dtypes.
        device: "cpu", "cuda" (the first GPU) or "cuda:N".
        strategy: how tree ensembles run, one of `hbc.strategies(backend)`. If `hbc.tune` has measured such a model on this machine, "auto"
            is its choice, otherwise the fastest by estimates.
        batch_size: the rows of a call, a hint for "auto", and for products with one-hot codes. Without it, the choice suits calls of one
            row to 100,000.
        threads: the number of threads that share the rows of a call. None: the backend decides.
        target: a TVM target as a dict, such as `{"kind": "llvm", "mtriple": "aarch64-linux-gnu"}`, to compile for another machine.
        warm_up: True to compile all methods now, or the names of some. Otherwise each is compiled at its first call (or found in the
            cache on disk). It takes the dtypes of the sample, or float32 without one; `CompiledModel.warm_up` takes others.
        iteration_range: (first, end), the rounds of a model of LightGBM or XGBoost that count: (0, 50) is `num_iteration=50` of LightGBM,
            (10, 0) is `start_iteration=10`. By default those that the library itself uses.

    Returns:
        A CompiledModel with the methods of the model (`predict`, `transform`, …). They take what the model's methods take,
        [rows, n_features_in_], and return results of the same shapes and dtypes.

        The outputs of an ONNX model become methods. The label and the probabilities of a classifier are `predict` and `predict_proba`
        (a matrix, also for a ZipMap; `classes_` names its columns). A single output is `predict`, and also `transform` unless the graph
        says that it is a prediction. Any other output is a method of its own name. Values are those of ONNX Runtime for X cast to the
        dtypes that the graph declares.

    Raises:
        UnsupportedOperatorError: the model cannot be converted exactly, or the backend cannot run it. It lists every culprit.
        NotFittedError: the model, or an estimator inside it, is not fitted.
        InvalidInputError: the sample X does not fit the model, or a sample is needed.
        BackendUnavailableError: a library of the backend, or the device, is missing.
        ArtifactError: the file with the model cannot be read.
        FileNotFoundError: there is no such file.
        ValueError: an option has a value that is not allowed.

    Example:
        >>> model = hbc.convert(forest)
        >>> model.predict_proba(X).shape
        (200, 2)
        >>> bool((model.predict(X) == forest.predict(X)).all())
        True
    """
    model = _opened(model)  # before a backend that is not installed is complained of
    builder = builder_of(backend, device, strategy, batch_size, threads, target)
    return compiled(parsed(model, X, iteration_range), builder)._warmed(warm_up)


def builder_of(
    backend: Any, device: Any, strategy: Any = "auto", batch_size: Any = None, threads: Any = None, target: Any = None
) -> Builder:
    """The Builder for options of `hbc.convert`. Raises its errors for their values."""
    name = backend_name(backend)
    options = CompileOptions(
        checked_device(device), positive("threads", threads), checked_target(target, name), positive("batch_size", batch_size)
    )
    return Builder(name, options, _strategy(strategy, name))


def parsed(model: Any, X: Any = None, iteration_range: Any = None) -> Parsed:
    """The first half of `hbc.convert`, which needs no compiler. Raises its errors for the model and the sample."""
    rounds = checked(iteration_range)
    model = _opened(model)
    return parse(model, None if X is None or registry.items_of(model) else describe(X), rounds)


def compiled(parsed: Parsed, builder: Builder) -> CompiledModel:
    """The second half of `hbc.convert`. Raises its errors for what the backend cannot run."""
    main = main_variant(parsed)
    graphs = {kinds: LazyGraph.of(graph) for kinds, graph in parsed.variants.items()}
    builder, origin = builder.as_tuned(graphs[main]), new_origin(parsed.libraries)
    return CompiledModel(parsed.info, parsed.spec, graphs, builder, main, origin)._prepare()


def saved_input(path: str | os.PathLike[str]) -> tuple[InputSpec, Kinds]:
    """(the input of a saved model, the dtypes of its columns in the variant that is compiled first). Only the manifest is read. Raises
    ArtifactError for a file that is no saved model, FileNotFoundError if there is no file."""
    contents = read(Path(path), os.fspath(path))
    return contents.spec, contents.main


def manifest(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The manifest of a saved model (docs/artefacts.md), its SHA-256 as `digest`, and the `members` of the file with their sizes, unpacked
    and packed. Nothing else is read. Raises ArtifactError for a file that is no saved model, FileNotFoundError if there is no file."""
    return artifact.manifest(Path(path), os.fspath(path))


@answered
def tune(
    model: Any,
    rows: Iterable[int] = (1, 1_000, 100_000),
    X: Any = None,
    *,
    backend: BackendName = "tvm",
    device: DeviceName = "cpu",
    threads: int | None = None,
    target: Mapping[str, Any] | None = None,
    tell: Callable[[str], object] | None = None,
) -> Tuning:
    """Measure how a model runs fastest on this machine: the strategies of its tree ensembles, then threads and blocks of rows.

    The results of all candidates are compared: candidates that disagree are left out. The winner is faster than "auto" by more than noise,
    and slower for none of `rows`. If there is no such candidate, "auto" stays. For a known `batch_size`, the winner is the candidate that
    beats, at the nearest of `rows`, the "auto" that is told this number.

    The choice is kept in $HBC_CACHE, or `hbc` in $XDG_CACHE_HOME or ~/.cache. From then on, `hbc.convert` and `hbc.load` make the same
    choice for models of the same structure (which may differ in the values of leaves). With one thread, processor time is measured,
    otherwise elapsed time: then the machine should be idle.

    Args:
        model: a model that `hbc.convert` takes, or a CompiledModel.
        rows: the numbers of rows of the calls that matter.
        X: some of the data. Without it, rows are random, around the thresholds of the trees. A model of strings or frames needs it.
        backend: as in `hbc.convert`. A CompiledModel keeps its own options, and this and the next three are ignored.
        device: as in `hbc.convert`.
        threads: as in `hbc.convert`.
        target: as in `hbc.convert`.
        tell: a function that is called with what is done now, in a few words, to show progress.

    Returns:
        A Tuning, with the tuned model as `model` and the measured times in seconds.

    Raises:
        HbcError: the errors of `hbc.convert`.
        ValueError: `rows` are not positive integers.
        InvalidInputError: random rows do not suit the model.

    Example:
        >>> tuning = hbc.tune(forest, rows=(1, 100))
        >>> tuning.model.predict(X[:1]).shape
        (1,)
    """
    counts = _rows(rows)
    require_function("tell", tell)
    usual = model if isinstance(model, CompiledModel) else convert(model, backend, X, device, threads=threads, target=target)
    own, graph = usual._builder, usual.graph
    assert isinstance(own, Builder)
    builder = replace(own, strategy="auto", choice=None, note="")
    data = rows_for(usual, max(counts)) if X is None else X
    candidates, left_out = builder.candidates(graph, counts)
    on_cpu = builder.device == "cpu"
    schedules: list[dict[str, Any]] = [{"block": block} for block in builder.compiler.blocks if on_cpu]
    if builder.options.threads is None and on_cpu and cpus() > 1:
        schedules.append({"threads": 1})
    found = search(
        lambda choice: usual._with(replace(builder, choice=choice)),
        [Choice(name) for name in candidates],
        [Choice("auto", batch=count) for count in counts],
        lambda best: [replace(best, **schedule) for schedule in schedules],
        data,
        counts,
        clock_of(builder.device, builder.options.threads),
        tell,
    )
    note = f"hbc tune, {time.strftime('%Y-%m-%d')}: {found.summary()}"
    kept = Tuned(counts, found.overall, found.each, note)
    path = choices.keep(kept, graph, builder.backend, builder.options)
    chosen = usual._with(builder.chosen(kept))._prepare()
    return Tuning(chosen, counts, found.seconds, str(found.overall), {**left_out, **found.left_out}, path)


def backends() -> dict[str, bool]:
    """Backend → whether the libraries that it needs are installed. They are not imported.

    Example:
        >>> hbc.backends()["numpy"]
        True
    """
    return {name: is_available(name) for name in known_backends()}


def supported_operators() -> list[str]:
    """The public dotted names of all classes that convert, sorted; those of plugins too (the entry-point group `hbc.converters`).

    Example:
        >>> "sklearn.svm.SVC" in hbc.supported_operators()
        True
    """
    for library in registry.MODULES:
        registry.load_library(library)
    registry.load_plugins()
    return sorted(name for name in registry.CONVERTERS if not name.rpartition(".")[2].startswith("_"))


def strategies(backend: BackendName) -> tuple[str, ...]:
    """The strategies for tree ensembles that a backend knows; "auto" comes first.

    Raises:
        ValueError: the backend is unknown.
        BackendUnavailableError: its libraries are missing.

    Example:
        >>> hbc.strategies("numpy")[0]
        'auto'
    """
    return strategies_of(backend_name(backend))


def self_test(backend: str) -> None:
    """Compile and run a small graph, for `hbc doctor`. Raises the backend's own error, or RuntimeError for a wrong result."""
    from hbc.ir.graph import Input
    from hbc.ir.types import N
    from hbc.ops import tensor as t

    x = Input("X", "f32", (N, 2))()
    graph = Graph((x,), {"transform": (t.add(x, np.array([1, 2], np.float32)),)})
    builder = Builder(backend_name(backend), CompileOptions())
    (result,) = builder.compile(builder.plan(graph)).run("transform", [np.ones((3, 2), np.float32)])
    if not np.array_equal(result, np.array([[2, 3]] * 3, np.float32)):
        raise RuntimeError(f"it computes {np.asarray(result).tolist()} for 1 + [1, 2]")


def main_variant(parsed: Parsed) -> Kinds:
    """The variant to compile first: the one for the dtypes of the sample, or for float32 if there is no sample. If
    no variant is for exactly these dtypes, the one for the only dtype of the sample's numbers, or for float64."""
    variants, sample = list(parsed.variants), parsed.sample
    if sample is not None:
        for kinds in variants:
            if all(kind in (wanted, "unread") for kind, wanted in zip(kinds, sample.kinds, strict=True)):
                return kinds
        numbers = set(sample.kinds) - {"str"}
        wanted = next(iter(numbers)) if len(numbers) == 1 else "f64"
    else:
        wanted = "f32"
    return next((kinds for kinds in variants if set(kinds) - {"str", "unread"} <= {wanted}), variants[0])


# --- arguments ---------------------------------------------------------------------------------------------------------


def _rows(rows: Any) -> tuple[int, ...]:
    try:
        counts = sorted({operator.index(count) for count in rows})
    except TypeError:
        counts = []
    if not counts or counts[0] < 1:
        raise ValueError(
            f"rows: found {shown(rows)}, expected positive integers, such as (1, 1000, 100000). A sample of the input is passed as X=."
        )
    return tuple(counts)


def _strategy(strategy: Any, backend: str) -> str:
    known = strategies_of(backend)
    if not isinstance(strategy, str):
        raise ValueError(f"strategy: found {shown(strategy)}, expected one of {', '.join(known)}")
    if strategy not in known:
        raise ValueError(f"unknown strategy {strategy!r}; backend {backend!r} has {', '.join(known)}")
    return strategy


def _opened(model: Any) -> Any:
    """The model itself; for the bytes of an ONNX model, or the path of a file, the model read from it. Raises ArtifactError for a file
    that holds no fitted model, or a pickle (which the caller has to load); and what `_require_model` raises."""
    if isinstance(model, (bytes, bytearray, memoryview)):
        model = files.read_onnx(bytes(model))
    elif isinstance(model, (str, os.PathLike)):
        model = files.read_model(os.fsdecode(model))
    _require_model(model)
    return model


def _require_model(model: Any) -> None:
    """Raise NotFittedError for a class, and UnsupportedOperatorError for a compiled model, and for an object that is no model at all. These
    messages fit better than 'no converter is registered'."""
    if isinstance(model, type):
        raise NotFittedError(operator=f"{registry.public_name(model)} (a class, not an instance of it)")
    name = registry.public_name(type(model))
    if isinstance(model, CompiledModel):
        advice = "For another backend or device: model.save(path), then hbc.load(path, device, backend)."
        raise UnsupportedOperatorError(culprits=[Culprit(name, "model", "it is compiled already.", advice)])
    registry.load_converters(name)
    methods = ("fit", "predict", "transform", "SerializeToString")
    if name in registry.CONVERTERS or name in registry.DESCRIPTIONS or any(hasattr(model, method) for method in methods):
        return
    reason = "it is not a model: it has neither predict nor transform."
    culprit = Culprit(name, "model", reason, "Pass the fitted estimator itself.")
    raise UnsupportedOperatorError(culprits=[culprit])
