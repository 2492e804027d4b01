"""Optimizer and compiler behind one door: Builder takes a model's graphs to executables and files, and reads saved models back."""

from __future__ import annotations

import io
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hbc.cache.folder import cache_folder
from hbc.cache.levels import LEVELS, own_levels
from hbc.cache.memory import MemoryStore
from hbc.cache.shelf import AnyStore, Shelf
from hbc.compiler.base import (
    EXPORTS,
    LOWERED_STRATEGIES,
    About,
    CompileOptions,
    Compiler,
    Executable,
    backend_name,
    is_available,
    load_compiler,
    recalls,
    require_numbers,
    strategies_of,
)
from hbc.errors import ArtifactError, UnsupportedOperatorError, shown
from hbc.ir.graph import Graph
from hbc.ir.lazy_graph import LazyGraph
from hbc.ir.signature import Limits
from hbc.kept import file_shelf, find, keep, keep_that_it_runs, known_to_run, made_by, shelf_of
from hbc.lazy import record
from hbc.runtime import artifact
from hbc.runtime.contents import Contents
from hbc.runtime.model import CompiledModel
from hbc.runtime.stored_code import StoredCode
from hbc.runtime.variant import Plan, Recalled

if TYPE_CHECKING:
    from hbc.assembly import Recipe
    from hbc.tuning import choices


@record
class Builder:
    """Optimizer and compiler, with the options of one model. It is pickled with the model, by its fields."""

    backend: str
    options: CompileOptions
    strategy: str = "auto"
    choice: choices.Choice | None = None
    """The choice of `hbc tune`. It takes the place of the strategy "auto" and of options that the caller left open."""
    note: str = ""
    code: AnyStore | None = None
    """The compiled code of a saved model, for this processor, which the caller trusts; or where the code for a file goes."""
    code_note: str = ""
    """What became of the compiled code in the saved model, in words; "" where there is none."""

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "code": None, "code_note": ""}  # what one process trusts, another does not

    @property
    def device(self) -> str:
        return self.options.device

    @property
    def compiler(self) -> Compiler:
        return load_compiler(self.backend)

    def settings(self) -> dict[str, Any]:
        options = self.options
        settings = {
            "backend": self.backend,
            "device": options.device,
            "strategy": self.strategy if self.choice is None else self.choice.strategy,
            "threads": options.threads,
            "batch_size": options.batch_size,
            "target": None if options.target is None else dict(options.target),
        }
        if self.choice is not None:
            from hbc.tuning.machine import this_machine

            settings["tuned"] = {**asdict(self.choice), "note": self.note, "machine": this_machine(options.device)}
        return settings

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Builder:
        name = str(settings["backend"])
        target, threads, batch = settings["target"], settings["threads"], settings["batch_size"]
        options = CompileOptions(
            checked_device(settings["device"]),
            positive("threads", threads),
            checked_target(target, name),
            positive("batch_size", batch),
        )
        if not isinstance(settings["strategy"], str):
            raise ValueError(f"strategy {settings['strategy']!r}")
        found = settings.get("tuned")
        if found is None:
            return cls(name, options, settings["strategy"])
        from hbc.tuning.choices import Choice
        from hbc.tuning.machine import this_machine

        numbers = {field: positive(field, found.get(field)) for field in ("threads", "block", "batch")}
        choice = Choice(settings["strategy"], **numbers)
        if found["machine"] != this_machine(options.device):  # a strategy carries over to other machines, a schedule does not
            choice = replace(choice, threads=None, block=None)
        return cls(name, options, "auto", choice, str(found["note"]))

    def chosen(self, found: choices.Tuned) -> Builder:
        """The builder with the choice of `hbc tune` for calls of `batch_size` rows."""
        builder = replace(self, choice=found.choice(self.options.batch_size), note=found.note)
        if self.code is None or builder._settings_of_code() == self._settings_of_code():
            return builder
        return replace(builder, code=None, code_note=f"not used: hbc tune chose {builder.choice} on this computer")

    def as_tuned(self, graph: LazyGraph) -> Builder:
        """The builder with the choice of `hbc tune`, if the strategy is "auto"
        and such a model was tuned on this machine. Otherwise itself, also where there is compiled code and no compiler to make other."""
        if self.strategy != "auto" or self.choice is not None or (self.code is not None and not is_available(self.backend)):
            return self
        folder = cache_folder()
        if folder is None or not folder.joinpath("tuned").is_dir():
            return self
        from hbc.tuning import choices

        found = choices.find(graph.graph, self.backend, self.options, strategies_of(self.backend))
        return self if found is None else self.chosen(found)

    @property
    def effective(self) -> CompileOptions:
        """The caller's options, and the choice of `hbc tune` for those that the caller left open."""
        return self.options if self.choice is None else self.choice.applied(self.options)

    def candidates(self, graph: Graph, rows: Sequence[int]) -> tuple[list[str], dict[str, str]]:
        """(the strategies to measure: "auto", and the strategies that are not hopeless
        by the estimates; strategy → the reason why it is left out, for the others)."""
        from hbc.optimizer.strategy import worth_measuring

        return worth_measuring(self.compiler, graph.nodes, self.options, rows, strategies_of(self.backend)[1:])

    def moved(self, backend: str | None, device: str | None) -> Builder:
        """The builder for another backend or device (None: the same). Options that only the old backend understands are dropped.

        So is a target that is a GPU, if a device is given: its code is for the computer that has the device.
        """
        options = self.options
        if device is not None:
            on_gpu = options.target is not None and options.target.get("kind") == "cuda"
            options = replace(options, device=checked_device(device), target=None if on_gpu else options.target)
        name = self.backend if backend is None else backend_name(backend)
        if name == self.backend:
            same = self._alike(options.device)
            return replace(self, options=options, choice=self.choice if same else None, note=self.note if same else "")
        strategy = self.strategy if self.strategy in ("auto", *LOWERED_STRATEGIES) else "auto"
        return Builder(name, replace(options, target=None), strategy)

    def _alike(self, device: str) -> bool:
        """Whether the choice of `hbc tune` also holds for another device: one GPU of a kind for another."""
        if self.choice is None or device == self.device:
            return True
        from hbc.tuning.machine import this_machine

        return this_machine(device) == this_machine(self.device)

    def for_cards(self, devices: Sequence[str]) -> list[Builder]:
        """Builders for GPUs that share the rows of a call. Raises ValueError for devices that are no different GPUs, and for a backend
        that may give a row other bits in another batch."""
        if not self.compiler.same_in_every_batch:
            raise ValueError(
                f"across: found the backend {self.backend!r}, which may give a row other bits in another batch. Backend 'tvm' does not."
            )
        builders = [self.moved(None, device) for device in devices] if isinstance(devices, Sequence) else []
        cards = {"cuda:0" if builder.device == "cuda" else builder.device for builder in builders}
        if not builders or len(cards) < len(builders) or "cpu" in cards:
            raise ValueError(f"across: found the devices {devices!r}, expected different GPUs, such as ['cuda:0', 'cuda:1']")
        return builders

    @property
    def recipe(self) -> Recipe:
        """The options, as the optimizer and the compiler take them."""
        strategy = self.strategy if self.choice is None else self.choice.strategy
        return _assembly().Recipe(self.compiler, self.effective, strategy, self.note)

    def load(self) -> None:
        _assembly()
        self.compiler  # noqa: B018

    def plan(self, graph: Graph) -> Plan:
        return _assembly().plan(self.recipe, graph)

    def runs(self, graph: LazyGraph) -> bool:
        shelves = list(self._shelves(graph))
        if any(known_to_run(shelf) for shelf in shelves):
            return True
        from hbc.optimizer.runnable import require_runnable

        try:
            require_runnable(graph.graph, *self.recipe[:3])
        except UnsupportedOperatorError:
            return False
        if shelves:
            keep_that_it_runs(shelves[-1])
        return True

    def compile(self, plan: Plan) -> Executable:
        return _assembly().compile_plan(self.recipe, plan)

    def row_test(self, graph: Graph, limits: Limits) -> Executable | None:
        return _assembly().row_test(self.recipe, graph, limits)

    def export(self, graph: Graph, path: str, about: About, methods: Sequence[str] | None, chosen: Mapping[str, Any]) -> None:
        suffix = Path(path).suffix.lower()
        own = suffix in self.compiler.exports
        if not own and suffix not in EXPORTS:
            kinds = ", ".join(sorted({*EXPORTS, *self.compiler.exports}))
            raise ValueError(
                f"{path}: cannot export {suffix or 'a file without a suffix'}; known are {kinds}. save() takes any name."
            )
        require_numbers(path, suffix, about.spec, about.kinds)
        writer = self if own else self.moved(EXPORTS[suffix], "cpu")
        _assembly().export(writer.recipe, graph, path, about, methods, chosen)

    def module(self, graph: Graph, about: About) -> Any:
        return _assembly().module(self.recipe, graph, about)

    def recall(self, graph: LazyGraph, compiled: Callable[[], Executable]) -> Recalled | None:
        for shelf in self._shelves(graph):
            found = find(shelf, self.backend, self.effective, compiled)
            if found is not None:
                return found
        return None

    def keep(self, graph: LazyGraph, plan: Plan, executable: Executable) -> None:
        shelves = list(self._shelves(graph))
        if shelves:
            keep(shelves[-1], plan.graph, plan.facts, executable)

    def _shelves(self, graph: LazyGraph) -> Iterator[Shelf]:
        """Where the code of a variant may be: in the saved model, if it is trusted, then in the cache on disk, if there is one. New code
        goes to the last. Nowhere if the backend's code cannot be kept."""
        if not recalls(self.backend):
            return
        if self.code is not None:
            yield file_shelf(self.code, graph, self._settings_of_code())
        if not self.options.elsewhere and (kept := shelf_of(graph, self.settings())):
            yield kept

    # --- compiled code in saved models ---------------------------------------------------------------------------------

    def _elsewhere(self) -> Builder:
        """The builder as other computers have it: with the strategy that `hbc tune` chose, without its threads and blocks of rows."""
        return self if self.choice is None else replace(self, choice=replace(self.choice, threads=None, block=None))

    def _settings_of_code(self) -> dict[str, Any]:
        """The settings that the compiled code in a saved model belongs to, as JSON."""
        options, choice = self._elsewhere().effective, self.choice
        return {
            "backend": self.backend,
            "device": options.device,
            "strategy": self.strategy if choice is None else choice.strategy,
            "threads": options.threads,
            "batch_size": options.batch_size,
        }

    def for_level(self, level: str) -> tuple[Builder, MemoryStore]:
        """(the builder of code for a level of processors, where this code goes). Raises ValueError for an unknown level, and for a
        backend, device or target whose code cannot be saved."""
        if level not in LEVELS:
            raise ValueError(f"code: found {level!r}, expected some of {', '.join(LEVELS)}")
        if not recalls(self.backend) or self.device != "cpu":
            raise ValueError(
                f"code: the model is for {self.backend!r} on {self.device!r}. Only code of 'tvm' on 'cpu' can be saved; "
                "convert or load the model for them."
            )
        if self.options.target is not None:
            raise ValueError(
                f"code: the model is for the target {self.options.target}. Convert it without a target, which {level} is too."
            )
        whole = self._elsewhere()
        _, options = self.compiler.for_file({"target": level}, whole.options)
        store = MemoryStore(made_by(self.backend))
        return replace(whole, options=replace(options, elsewhere=True), code=store), store

    def with_code(self, stored: StoredCode | None, trusted: bool) -> Builder:
        """The builder that uses the compiled code of a saved model, if the caller trusts it, this processor has a level of it, and the same
        versions made it. Otherwise one that compiles, and says why in `code_note`. Raises ArtifactError for damaged code."""
        if stored is None or not stored.levels:
            return self
        levels = ", ".join(stored.levels)
        if not trusted:
            return replace(self, code_note=f"for {levels}; not read, since hbc.load was not told to trust it")
        code, note = self._usable(stored)
        return replace(self, code=code, code_note=f"for {levels}; {note}")

    def _usable(self, stored: StoredCode) -> tuple[AnyStore | None, str]:
        """(the code for the best level that this processor has, or None; which one it is, or why there is none)."""
        if not recalls(self.backend) or self.device != "cpu":
            return None, f"not used by {self.backend} on {self.device}"
        own = own_levels()
        level = next((level for level in own if level in stored.levels), None)
        if level is None:
            return None, f"not used: this processor has {', '.join(own) or 'no level that is known'}"
        found, here = stored.of(level), made_by(self.backend)
        other = [name for name in {**here, **found.made_by} if here.get(name) != found.made_by.get(name)]
        if other:
            theirs, ours = (
                ", ".join(f"{name} {versions.get(name, 'none'):.40}" for name in other) for versions in (found.made_by, here)
            )
            return None, f"not used: it was made by {theirs}, and here is {ours}"
        return found, f"that for {level} is used"

    def restore(self, data: bytes) -> CompiledModel:
        return model_of(read(io.BytesIO(data), "pickled model"), self)


def _assembly() -> Any:
    """The module that imports the optimizer (0.1 s), which models of the cache on disk do without."""
    import hbc.assembly

    return hbc.assembly


# --- saved models ------------------------------------------------------------------------------------------------------


def model_of(contents: Contents, builder: Builder) -> CompiledModel:
    return CompiledModel(contents.info, contents.spec, contents.graphs, builder, contents.main, contents.origin)


def read(file: Any, name: str) -> Contents:
    return artifact.read(file, name, _sound)


def _sound(read: Callable[[], Graph]) -> Graph:
    """The graph that `read` returns, after a check of its indices. The operators that it names are imported first. Raises ArtifactError."""
    from hbc.ir.soundness import require_sound
    from hbc.ops import import_all
    from hbc.parser import registry

    import_all()
    try:
        graph = read()
    except ArtifactError:
        if not registry.load_plugins():  # an operator of a third party, perhaps
            raise
        graph = read()
    require_sound(graph)
    return graph


# --- options -----------------------------------------------------------------------------------------------------------


def checked_device(device: Any) -> str:
    if not isinstance(device, str) or not re.fullmatch(r"cpu|cuda(:\d+)?", device.lower()):
        found = repr(device) if isinstance(device, str) else shown(device)
        raise ValueError(f"unknown device {found}; known are 'cpu', 'cuda' and 'cuda:N'")
    return device.lower()


def positive(name: str, value: Any) -> int | None:
    if value is None:
        return None
    try:
        number = operator.index(value)
    except TypeError:
        number = 0
    if isinstance(value, bool) or number < 1:
        raise ValueError(f"{name} must be a positive integer or None, found {shown(value)}")
    return number


def checked_target(target: Any, backend: str) -> dict[str, Any] | None:
    if target is None:
        return None
    if not isinstance(target, Mapping):
        raise ValueError(
            f"target must be a dict such as {{'kind': 'llvm', 'mtriple': 'aarch64-linux-gnu'}}, found {shown(target)}"
        )
    if not load_compiler(backend).takes_target:
        raise ValueError(f"backend {backend!r} takes no target: it compiles for this machine only. Backend 'tvm' takes one.")
    return dict(target)
