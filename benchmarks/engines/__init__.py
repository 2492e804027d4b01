"""The engines, one module each. `load(task)` reads the model's file, and `build(model, task)` returns the call that is timed.

Every engine runs in a process of its own, in the environment that its libraries need, so that engines do not disturb each other."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """The task of an engine. `folder`: the folder of a workload (benchmarks/trained.py). `option`: the part of the engine's name behind the
    colon. `method`: the method to call; for trees, and in most engines, predict_proba."""

    library: str
    folder: str
    features: int
    dtype: str
    threads: int
    option: str
    method: str = "predict_proba"


@dataclass(frozen=True)
class Engine:
    """A module of this package, its environment (benchmarks/peers; "main" is hbc's own), and the distributions whose versions are
    reported."""

    name: str
    environment: str
    distributions: tuple[str, ...]

    @property
    def module(self) -> str:
        return self.name.partition(":")[0]

    @property
    def option(self) -> str:
        return self.name.partition(":")[2]

    @property
    def is_peer(self) -> bool:
        return self.module != "hbc"


EngineFilter = Callable[[str], bool]
"""Whether an engine of that name is meant."""

DISTRIBUTIONS = {"tvm": "apache-tvm", "torch": "torch", "torchscript": "torch", "onnx": "onnxruntime", "numpy": "numpy"}

PEERS = (
    Engine("native", "main", ("lightgbm", "xgboost-cpu", "scikit-learn")),
    Engine("onnxruntime", "onnxruntime", ("onnxruntime", "skl2onnx", "onnxmltools")),
    Engine("daal4py", "daal4py", ("scikit-learn-intelex", "daal")),
    Engine("lleaves", "lleaves", ("lleaves", "llvmlite")),
    Engine("treelite", "treelite", ("treelite",)),
    Engine("tl2cgen", "treelite", ("tl2cgen", "treelite")),
    Engine("ydf", "ydf", ("ydf",)),
    Engine("hummingbird:torch", "hummingbird", ("hummingbird-ml", "torch")),
    Engine("hummingbird:torch.jit", "hummingbird", ("hummingbird-ml", "torch")),
)


def hbc_engine(option: str) -> Engine:
    """hbc on a backend ("tvm"), with a strategy for trees ("tvm:walk"), or for another processor ("tvm:auto:haswell")."""
    return Engine(f"hbc:{option}", "main", ("hbc", DISTRIBUTIONS.get(option.partition(":")[0], "numpy")))


DEFAULT = (*(hbc_engine(backend) for backend in ("tvm", "torch", "torchscript", "onnx")), *PEERS)


def every_strategy() -> tuple[Engine, ...]:
    """hbc with each strategy of each backend. They run only if they are named."""
    import hbc

    known = [(backend, hbc.strategies(backend)) for backend, available in hbc.backends().items() if available]
    return tuple(hbc_engine(f"{backend}:{strategy}") for backend, names in known for strategy in names if strategy != "auto")


def matching(patterns: Sequence[str]) -> tuple[Engine, ...]:
    """The engines that any of the patterns (shell wildcards) names. Strategies must be named, `hbc:tvm:walk` or `hbc:tvm:*`, and so
    must processors, in full: `hbc:tvm:auto:haswell`."""
    for_processors = [hbc_engine(pattern[len("hbc:") :]) for pattern in patterns if PROCESSOR.fullmatch(pattern)]
    everything = (*DEFAULT, *every_strategy(), hbc_engine("numpy"), *for_processors)

    def named(engine: Engine, pattern: str) -> bool:
        return fnmatch.fnmatchcase(engine.name, pattern) and engine.name.count(":") <= max(1, pattern.count(":"))

    return tuple(engine for engine in everything if any(named(engine, pattern) for pattern in patterns))


PROCESSOR = re.compile(r"hbc:tvm:\w+:[\w-]+")
