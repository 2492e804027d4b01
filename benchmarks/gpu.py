"""Models on a GPU: their answers on the card, then the times of every strategy, PyTorch's beside them, and the processor with 1 to 16
threads. `--prepare` makes the pack that a card is given; `--emulate` rehearses everything without a card."""

from __future__ import annotations

import functools
import math
import os
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import report
from benchmarks.answers import check
from benchmarks.card import pack
from benchmarks.card.devices import Card, Emulated
from benchmarks.card.pack import Packed
from benchmarks.report import figure, microseconds
from benchmarks.session import Run
from benchmarks.timing import measure

OPTIONS: dict[str, dict[str, Any]] = {
    "--pack": {"type": Path, "help": "the folder with the models, by default in benchmarks/.cache"},
    "--prepare": {"action": "store_true", "help": "make the pack, and print how the device tool is called; measure nothing"},
    "--emulate": {"action": "store_true", "help": "run on the emulator of the tests: answers are compared, times say nothing"},
    "--again": {"action": "store_true", "help": "measure again what an earlier run of this pack has measured"},
}
BATCHES = (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000)
TORCH = ("gemm", "tree_trav", "perf_tree_trav")
"""Hummingbird's strategies, by hbc's torch backend."""
THREADS = (1, 2, 4, 8, 16)
CPU_ROWS = 200_000
GEMM_ROWS = 100_000
"""The most rows that PyTorch's strategies are given: their intermediates are as wide as all trees."""


def run(run: Run) -> None:
    folder = (run.options.pack or (report.CACHE / "gpu-quick" if run.quick else pack.CACHE)).resolve()
    if run.options.prepare or run.options.emulate:
        judged = pack.make(folder, run.asked(pack.CASES, pack.QUICK), run.quick, run.say)
        if run.options.prepare and not run.options.emulate:
            run.results["workloads"] |= {f"emulated: {name}": {"engines": _judged(found)} for name, found in judged.items()}
            print(pack.calls(folder, pack.add_site(folder, run.say), run.options.minutes or 8, pack.room_of_a_call()))
            return
    digest, models = pack.read(folder)
    card = Emulated() if run.options.emulate else Card()
    steps = _steps(models, run.asked(models) if run.options.only else list(models))
    run.results |= {"pack": digest, "card": card.describe()}
    for place in () if run.options.again else (folder / "gpu.json.gz", run.path):
        run.results["workloads"] |= _found(place, run.results, steps)
    budget = run.given("budget", 0.1, 0.001)
    with pack.with_code(folder) as counts:
        for name in run.steps([step for step in steps if step not in run.results["workloads"]]):
            run.say(name)
            started = time.perf_counter()
            with card.running():
                run.results["workloads"][name] = steps[name](card, budget, run.quick)
            run.results["workloads"][name]["seconds"] = round(time.perf_counter() - started, 1)
            run.results["code"] = dict(counts)
    picture(run.results, run.path.with_name("gpu.svg"))


def _found(place: Path, results: dict[str, Any], steps: dict[str, Any]) -> dict[str, Any]:
    """What an earlier run of the same pack on the same kind of card has measured."""
    if not place.exists():
        return {}
    found = report.read(place)
    same = all(found.get(key) == results[key] for key in ("pack", "card"))
    return {name: value for name, value in found["workloads"].items() if same and name in steps}


def _judged(found: dict[str, Any]) -> dict[str, Any]:
    return {
        f"hbc:tvm:{strategy}": {"status": answers["verdict"], "answers": answers, "convert_s": math.nan}
        for strategy, answers in found.items()
    }


Step = Callable[[Card, float, bool], dict[str, Any]]


def _steps(models: dict[str, Packed], names: list[str]) -> dict[str, Step]:
    """The steps in the order of their worth: all answers, the first model's times, then the others', the processor."""
    chosen = [models[name] for name in names]
    timed, on_cpu = [model for model in chosen if model.timed], [model for model in chosen if model.on_cpu]
    found: dict[str, Step] = {f"answers: {model.name}": _on(answers, model) for model in chosen}
    for model in timed[:1]:
        found[f"times: {model.name}"] = _on(times, model)
        found[f"torch: {model.name}"] = _on(torch_times, model)
    found |= {f"cpu: {model.name}": _on(cpu_times, model) for model in on_cpu[:1]}
    found |= {f"times: {model.name}": _on(times, model) for model in timed[1:]}
    found |= {f"torch: {model.name}": _on(torch_times, model) for model in timed[1:]}
    return found | {f"cpu: {model.name}": _on(cpu_times, model) for model in on_cpu[1:]}


def _on(step: Callable[[Packed, Card, float, bool], dict[str, Any]], model: Packed) -> Step:
    return lambda card, budget, quick: {"model": model.name, "engines": step(model, card, budget, quick)}


def _tried(make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `make` returns, or how it failed: one engine must not end a run that a card is held for."""
    try:
        return make()
    except Exception as error:
        return {
            "status": "failed",
            "reason": f"{type(error).__name__}: {error}"[:400],
            "traceback": traceback.format_exc()[-2000:],
        }


def answers(model: Packed, card: Card, budget: float, quick: bool) -> dict[str, Any]:
    """Every strategy's answers for rows of the host (all, few, one), and for rows on the card."""

    def judged(strategy: str) -> dict[str, Any]:
        started = time.perf_counter()
        call = getattr(model.model("tvm", "cuda", strategy), model.method)
        rows = model.rows[:500] if card.emulated else model.rows
        expected = model.answers[: len(rows)]
        found = call(rows)
        result = {"convert_s": time.perf_counter() - started, "answers": check(found, expected)}
        result["status"] = result["answers"]["verdict"]
        for few in (1, 33):
            if not np.array_equal(call(rows[:few]), found[:few]):
                result |= {"status": "failed", "reason": f"{few} rows have other bits than all rows"}
        if isinstance(rows, np.ndarray):
            there = card.back(call(card.there(rows)))
            if not np.array_equal(there, found, equal_nan=found.dtype.kind == "f"):
                result |= {"status": "failed", "reason": "rows on the card have other bits than rows of the host"}
        return result

    return {f"hbc:tvm:{strategy}": _tried(functools.partial(judged, strategy)) for strategy in model.limits}


def times(model: Packed, card: Card, budget: float, quick: bool) -> dict[str, Any]:
    """Every strategy's times: on the card alone, with rows that lie there, with rows of the host; and the copy of the rows alone."""
    rows = model.rows
    many = np.resize(rows, (card.most_rows, rows.shape[1]))
    there = card.there(many)
    batches = [batch for batch in BATCHES if batch <= card.most_rows]
    found: dict[str, Any] = {}
    for strategy in model.limits:

        def timed(strategy: str = strategy) -> dict[str, Any]:
            started = time.perf_counter()
            compiled = model.model("tvm", "cuda", strategy)
            call = getattr(compiled, model.method)
            answer = check(call(rows[:500]), model.answers[:500])
            facts = {"status": answer["verdict"], "answers": answer, "convert_s": time.perf_counter() - started}

            def resident(X: Any) -> None:
                call(X)
                card.wait()

            ways: dict[str, Callable[[int], dict[str, float]]] = {
                "kernel": lambda n: card.kernel(call, _first(card, there, many, n), budget),
                "resident": lambda n: measure(resident, [_first(card, there, many, n)], budget),
                "host": lambda n: measure(call, [many[:n]], budget),
            }
            measured = {way: {str(n): [take(n)] for n in batches} for way, take in ways.items()}
            return facts | {"by_way": measured}

        engine = _tried(timed)
        if "by_way" not in engine:
            found[f"hbc:tvm:{strategy}"] = engine
        for way, taken in engine.pop("by_way", {}).items():
            found[f"hbc:tvm:{strategy}, {way}"] = {**engine, "times_us": taken, "limit": model.limits[strategy]}

    def copied() -> dict[str, Any]:
        taken = {str(n): [measure(card.copy_alone(n, rows.shape[1]), [None], budget)] for n in batches}
        return {"status": "exact", "times_us": taken}

    return found | {"copy alone": _tried(copied)}


def _first(card: Card, there: Any, many: Any, rows: int) -> Any:
    """The first rows, on the card."""
    return card.there(many[:rows]) if card.emulated else there[:rows]


def torch_times(model: Packed, card: Card, budget: float, quick: bool) -> dict[str, Any]:
    """Hummingbird's strategies for trees in PyTorch, or a model without trees, with rows that lie on the card."""
    rows = model.rows
    many = np.resize(rows, (min(GEMM_ROWS, card.most_rows), rows.shape[1]))
    there = card.torch.from_numpy(many).to(card.device)
    batches = [batch for batch in BATCHES if batch <= len(many)]

    def timed(strategy: str) -> dict[str, Any]:
        started = time.perf_counter()
        call = card.module(model.model("torch", "cpu", strategy), model.method)
        some = card.torch.from_numpy(rows[:500]).to(card.device)
        answer = check(call(some).cpu().numpy(), model.answers[:500])
        facts = {"status": answer["verdict"], "answers": answer, "convert_s": time.perf_counter() - started}

        def once(X: Any) -> None:
            call(X)
            if not card.emulated:
                card.wait()

        taken: dict[str, Any] = {}
        for n in batches:
            try:
                taken[str(n)] = [measure(once, [there[:n]], budget)]
            except RuntimeError as error:  # no memory: larger batches have none either
                facts["reason"] = f"{n:,} rows: {error}"[:200]
                break
        return facts | {"times_us": taken}

    strategies = ("auto",) if set(model.limits) == {"auto"} else TORCH
    return {f"torch {strategy}": _tried(functools.partial(timed, strategy)) for strategy in strategies}


def cpu_times(model: Packed, card: Card, budget: float, quick: bool) -> dict[str, Any]:
    """hbc on the processor of this computer, by the number of threads."""
    rows = model.rows
    if isinstance(rows, np.ndarray) and not quick:
        rows = np.resize(rows, (CPU_ROWS, rows.shape[1]))
    cores = len(os.sched_getaffinity(0))

    def timed(threads: int) -> dict[str, Any]:
        started = time.perf_counter()
        call = getattr(model.model("tvm", "cpu", threads=threads), model.method)
        expected = model.answers
        answer = check(call(model.rows), expected)
        facts = {"status": answer["verdict"], "answers": answer, "convert_s": time.perf_counter() - started}
        return facts | {"threads": threads, "times_us": {str(len(rows)): [measure(call, [rows], 5 * budget)]}}

    asked = [threads for threads in THREADS if threads <= cores]
    return {f"hbc:tvm, {n} thread{'s' * (n > 1)}": _tried(functools.partial(timed, n)) for n in asked}


# --- tables and pictures -----------------------------------------------------------------------------------------------

LEGEND = (
    "*Answers*: of every strategy against the source library's, for rows of the host (all, 33, one) and rows on the card, which must have "
    "the same bits. *Times*: million rows a second. kernel: between two events on the card; resident: the whole call with rows there; "
    "host: the whole call with rows in memory. Limit: the kernel by the counts of docs/gpu.md, for an H200. Copy alone: the rows from "
    "pinned memory to the card."
)


def markdown(results: dict[str, Any]) -> str:
    card = results.get("card", {})
    emulated = card.get("name") == "emulator"
    parts = [
        report.heading(results, f"GPU: {card.get('name', 'none')}", LEGEND),
        ", ".join(f"{k} {v}" for k, v in card.items()),
    ]
    if emulated:
        parts.append("**The emulator ran this on a processor. The times say nothing.**")
    if results.get("not_begun"):
        parts.append(f"Not begun: {', '.join(results['not_begun'])}")
    failed = report.failures(results)
    parts.append(
        "## Answers\n\n" + "\n".join([*_answers(results), *(["", *(f"* {line}" for line in failed)] if failed else [])])
    )
    for name, workload in results["workloads"].items():
        kind, _, model = name.partition(": ")
        if kind in ("times", "torch"):
            parts.append(f"## {model}{', PyTorch' if kind == 'torch' else ''}\n\n" + "\n".join(_rates(workload)))
        elif kind == "cpu":
            parts.append(f"## Processor: {model}\n\n" + "\n".join(_threads(workload)))
    return "\n\n".join(parts) + "\n"


def _answers(results: dict[str, Any]) -> list[str]:
    lines = ["| model | strategy | answers | largest difference | converted in s |", "|" + "---|" * 5]
    for name, workload in results["workloads"].items():
        kind, _, model = name.partition(": ")
        for engine, found in workload["engines"].items() if kind in ("answers", "emulated") else ():
            difference = found.get("answers", {}).get("largest_difference")
            cells = [
                model,
                engine.rpartition(":")[2],
                found.get("reason", found["status"]),
                "–" if difference is None else f"{difference:.0e}",
            ]
            lines.append(f"| {' | '.join(cells)} | {figure(found.get('convert_s'))} |")
    return lines


def _rates(workload: dict[str, Any]) -> list[str]:
    """A table of million rows a second, by engine and rows of a call."""
    engines = workload["engines"]
    batches = sorted({int(rows) for found in engines.values() for rows in found.get("times_us", {})})
    heads = [f"{rows:,} row{'s' * (rows > 1)}" for rows in batches]
    lines = [f"| | {' | '.join(heads)} | limit | answers |", "|" + "---|" * (3 + len(batches))]
    for name, found in engines.items():
        taken = [microseconds(found, rows) for rows in batches]
        cells = ["–" if each is None else figure(rows / each) for rows, each in zip(batches, taken, strict=True)]
        limit = found.get("limit")
        lines.append(
            f"| {name} | {' | '.join(cells)} | {figure(None if limit is None else limit / 1e6)} | {found.get('reason', found['status'])} |"
        )
    return lines


def _threads(workload: dict[str, Any]) -> list[str]:
    lines = ["| threads | rows | µs a row | speed of one thread | answers |", "|" + "---|" * 5]
    one = None
    for found in workload["engines"].values():
        if "times_us" not in found:
            lines.append(f"| | | | | {found.get('reason', found['status'])} |")
            continue
        ((rows, _),) = found["times_us"].items()
        taken = microseconds(found, rows)
        assert taken is not None
        one = one or taken
        lines.append(
            f"| {found['threads']} | {int(rows):,} | {figure(taken / int(rows))} | {report.times(one / taken)} | {found['status']} |"
        )
    return lines


def picture(results: dict[str, Any], path: Path) -> None:
    """Draws, for each model, million rows a second against the rows of a call, with the limits. Nothing is drawn without times."""
    drawn = {name: found for name, found in results["workloads"].items() if name.startswith("times: ")}
    if not drawn:
        return
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    across = min(len(drawn), 3)
    figure_, places = plt.subplots(
        -(-len(drawn) // across), across, figsize=(5 * across, 3.6 * -(-len(drawn) // across)), squeeze=False
    )
    for axes, (name, workload) in zip(places.flat, drawn.items(), strict=False):
        colors: dict[str, str] = {}  # of a strategy
        for engine, found in workload["engines"].items():
            strategy, _, way = engine.removeprefix("hbc:tvm:").partition(", ")
            batches = [int(rows) for rows in found.get("times_us", {})]
            taken = [microseconds(found, rows) or math.nan for rows in batches]
            if not batches or way == "resident":
                continue
            rates = [n / each for n, each in zip(batches, taken, strict=True)]
            if not way:
                axes.loglog(batches, rates, "k:", label=engine)
                continue
            color = colors.setdefault(strategy, f"C{len(colors)}")
            kernel = way == "kernel"
            axes.loglog(batches, rates, "-" if kernel else "--", color=color, label=strategy if kernel else None)
            if found.get("limit") and kernel:
                axes.axhline(found["limit"] / 1e6, color=color, alpha=0.3)
        axes.set_title(name.removeprefix("times: "), fontsize=9)
        axes.set_xlabel("rows of a call")
        axes.set_ylabel("million rows a second")
        axes.legend(fontsize=6, loc="lower right", framealpha=0.5)
    name = results["card"]["name"]
    lines = "lines: the kernel; dashed: rows of the host; pale: the limit by the counts"
    figure_.suptitle(f"{name}{': times say nothing' if name == 'emulator' else ''}\n{lines}", fontsize=8)
    figure_.tight_layout()
    figure_.savefig(path)
    plt.close(figure_)
