"""The search of `hbc tune`: one model is compiled in several ways, which differ only in their speed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, Generic

import numpy as np

from hbc.errors import UnsupportedOperatorError
from hbc.ir.graph import Graph
from hbc.lazy import record
from hbc.runtime.model import CompiledModel
from hbc.tuning.race import C, Clock, agreeing, batches_of, length, overall, race, take

METHODS = ("predict_proba", "decision_function", "predict", "score_samples", "transform")
"""The first of these methods that a model has is measured."""


@record
class Tuning:
    """The result of `hbc.tune`. Printed, it is a table of the measured times."""

    model: CompiledModel
    """The model, compiled in the chosen way."""
    rows: tuple[int, ...]
    """The numbers of rows in a call that were measured, ascending."""
    seconds: dict[str, list[float]]
    """Candidate → the time of a call in seconds, for each of `rows`."""
    chosen: str
    """The candidate that `model` is."""
    left_out: dict[str, str]
    """Candidate → the reason why it was not measured."""
    path: Path | None
    """The file that keeps the choice, or None if it could not be written."""

    def __str__(self) -> str:
        width = max(map(len, self.seconds))
        lines = [f"{'µs a call, rows':<{width + 2}}" + "".join(f"{count:>12,}" for count in self.rows)]
        for name, times in self.seconds.items():
            figures = "".join(f"{1e6 * each:>12,.0f}" if each >= 1e-4 else f"{1e6 * each:>#12.3g}" for each in times)
            lines.append(f"{name:<{max(width + 2, 15)}}{figures}" + "  ← chosen" * (name == self.chosen))
        reasons: dict[str, list[str]] = {}
        for name, reason in self.left_out.items():
            reasons.setdefault(reason, []).append(name)
        lines += [f"not measured ({reason}): {', '.join(names)}" for reason, names in reasons.items()]
        return "\n".join(lines)


@record
class Found(Generic[C]):
    """The result of a search. usual: the candidate that is the standard. overall: the choice for all numbers of rows together. each:
    the choice for each of them. seconds and left_out are those of Tuning."""

    rows: tuple[int, ...]
    usual: C
    overall: C
    each: tuple[C, ...]
    seconds: dict[str, list[float]]
    left_out: dict[str, str] = field(default_factory=dict)

    def summary(self) -> str:
        counts = " | ".join(f"{count:,}" for count in self.rows)
        names = dict.fromkeys((str(self.overall), str(self.usual)))
        times = "; ".join(f"{name} {' | '.join(f'{1e6 * t:,.3g}' for t in self.seconds[name])}" for name in names)
        return f"µs a call of {counts} row{'s' * (self.rows != (1,))}: {times}"


def search(
    made: Callable[[C], CompiledModel],
    strategies: Sequence[C],
    told: Sequence[C],
    schedules: Callable[[C], Sequence[C]],
    data: Any,
    rows: tuple[int, ...],
    clock: Clock,
    tell: Callable[[str], object] | None = None,
) -> Found[C]:
    """Find the fastest candidate in four stages. `made` compiles a candidate. `tell` is called with what is done now, in a few words.

    1. Compile the strategies, of which the first is the usual one, and the candidates `told`: for each number of rows, the usual one
       that is told this number. Those that compile to the same graphs are measured once.
    2. Race all of them, for each number of rows.
    3. Race the schedules (threads, blocks of rows) of the best against it.
    4. Race the winners against the usual ones again: of many candidates, one may win by luck. These times decide, and are shown.
    """
    usual = strategies[0]
    say: Callable[[str], object] = (lambda text: None) if tell is None else tell

    def make(choice: C) -> CompiledModel:
        say(f"compiling {choice}")
        return made(choice)

    # 1. compile
    models, same, left_out = _distinct(make, strategies, told)
    method = _measured_method(models[usual])
    batches = [batches_of(data, count) for count in rows]
    some = take(data, np.arange(min(length(data), 1000)))

    def measured(choices: Mapping[C, CompiledModel]) -> dict[C, list[float]]:
        calls = agreeing({choice: getattr(model, method) for choice, model in choices.items()}, some, usual)
        races = []
        for count, part in zip(rows, batches, strict=True):
            say(f"measuring {', '.join(map(str, calls))} on {count:,} row{'s' * (count != 1)}")
            races.append(race(calls, part, clock))
        return {choice: [found[choice] for found in races] for choice in calls}

    # 2. strategies
    times = measured(models)
    # 3. schedules of the best
    best = overall(times, usual)
    variants = {choice: make(choice) for choice in schedules(best)}
    if variants:
        models |= variants
        again = measured({usual: models[usual], best: models[best], **variants})
        times |= {choice: list(map(min, times.get(choice, found), found)) for choice, found in again.items()}
    # 4. winners and usual ones
    leaders = [min(times, key=lambda choice: times[choice][place]) for place in range(len(rows))]
    final = dict.fromkeys([usual, overall(times, usual), *leaders, *(same[choice] for choice in told)])
    decisive = measured({choice: models[choice] for choice in final}) if len(final) > 1 else {usual: times[usual]}
    each = tuple(
        overall({c: [found[place]] for c, found in decisive.items()}, same[choice]) for place, choice in enumerate(told)
    )
    seconds = {str(choice): found for choice, found in (times | decisive).items()}
    return Found(rows, usual, overall(decisive, usual), each, seconds, left_out)


def _distinct(
    made: Callable[[C], CompiledModel], strategies: Sequence[C], told: Sequence[C]
) -> tuple[dict[C, CompiledModel], dict[C, C], dict[str, str]]:
    """The models to measure; for each candidate the one of them that is the same; and the strategies left out, each with its reason."""
    models: dict[C, CompiledModel] = {}
    same: dict[C, C] = {}
    left_out: dict[str, str] = {}
    for choice in (*strategies, *told):
        try:
            model = made(choice)
            method = _measured_method(model)
            compiled = _compiled(model, method)
        except UnsupportedOperatorError as error:
            left_out[str(choice)] = error.culprits[0].reason
            continue
        same[choice] = next((other for other in models if _compiled(models[other], method) == compiled), choice)
        if same[choice] == choice:
            models[choice] = model
        elif choice in strategies:
            left_out[str(choice)] = f"the same as {same[choice]}"
    return models, same, left_out


def _measured_method(model: CompiledModel) -> str:
    return next((name for name in METHODS if name in model.methods), model.methods[0])


def _compiled(model: CompiledModel, method: str) -> list[Graph]:
    """The graphs that are compiled for a method, one for each variant."""
    return [variant.plan.graph.select(method) for variant in model.variants.values()]
