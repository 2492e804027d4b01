"""The report on a compiled model (CompiledModel.explain), as text and as HTML."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape
from typing import Any

from hbc.ir.graph import Graph
from hbc.ir.signature import InputLimits, InputSpec, Kinds, Limits, ModelInfo, input_layout
from hbc.lazy import record
from hbc.runtime.drawing import svg
from hbc.runtime.style import CSS
from hbc.runtime.variant import Launches, Plan, Variant

NAMES_SHOWN = 12


@record
class Facts:
    """The contents of a report: a model's source, its input, its variants, the variant that the report shows (`main`), and its options."""

    info: ModelInfo
    spec: InputSpec
    variants: tuple[Variant, ...]
    main: Variant
    backend: str
    device: str
    settings: Mapping[str, Any]
    code: str
    """What became of the compiled code in the saved model; "" where there is none."""

    @property
    def methods(self) -> str:
        """The names of the methods, with commas."""
        return ", ".join(self.main.graph.outputs)


def explain(model: Facts) -> str:
    """The report as text, in sections."""
    states = _states(model)  # before the plan, which for a variant of the cache is made only now, for this report
    variant, plan = model.main, model.main.plan
    settings = {key: value for key, value in model.settings.items() if key not in ("backend", "device", "tuned")}
    options = ", ".join(f"{key}={value!r}" for key, value in settings.items() if value is not None)
    lines = [
        f"{model.info.source}, compiled for {model.backend} on {model.device}" + (f" ({options})" if options else ""),
        f"methods: {model.methods}"
        + "".join(f"; {method} gives a frame of {output.library}" for method, output in model.info.frames.items()),
        *([f"compiled code in the file: {model.code}"] if model.code else []),
        f"input: {_input(model.spec)}",
        *_rejected(plan.facts.limits, variant.kinds, model.spec),
        "",
        "variants (one for each dtype of input; each is compiled when it is first needed):",
        *(f"  {state}" for state in states),
        "",
        f"The rest is about the variant {variant.name}.",
        "",
        "passes:",
        *_passes(plan),
        "",
        "launches in a call:",
        *(f"  {method}: {_launches(launches)}" for method, launches in plan.launches.items()),
        "",
        "tree ensembles:",
        *([f"  {note}" for note in strategies(plan)] or ["  none"]),
        "",
        f"operators as parsed ({_size(variant.graph)}):",
        *(f"  {line}" for line in str(variant.graph).splitlines()),
        "",
        f"operators as compiled ({_size(plan.graph)}):",
        *(f"  {line}" for line in str(plan.graph).splitlines()),
    ]
    return "\n".join(lines) + "\n"


def strategies(plan: Plan) -> list[str]:
    """One line for every tree ensemble: its strategy and the reason."""
    return [note for done in plan.records if done.name == "ChooseStrategy" for note in done.notes]


def _passes(plan: Plan) -> list[str]:
    lines = []
    for done in plan.records:
        lines.append(f"  {done.name:<20} {'fired' if done.changed else '-':<6} {done.seconds * 1e3:9.2f} ms")
        lines += [f"      {note}" for note in done.notes]
    return lines


def _input(spec: InputSpec) -> str:
    strings = spec.having("strings")
    if spec.ndim == 1:
        return "a vector" + (" of strings" if strings else "")
    text = f"{spec.n_features} column" + ("s" if spec.n_features != 1 else "")
    if spec.feature_names is not None:
        rest = len(spec.feature_names) - NAMES_SHOWN
        text += f" ({', '.join(spec.feature_names[:NAMES_SHOWN])}{f', … {rest} more' if rest > 0 else ''})"
        text += ", matched by name in any order" if spec.frames.by_name else ", matched by name and order"
    if strings:
        text += f"; strings in {', '.join(spec.describe_column(i) for i in strings[:NAMES_SHOWN])}"
        text += ", …" if len(strings) > NAMES_SHOWN else ""
    return text


def _rejected(limits: Limits, kinds: Kinds, spec: InputSpec) -> list[str]:
    lines = [f"rejected: fewer than {limits.min_rows} rows"] if limits.min_rows else []
    for entry, columns in zip(limits.inputs, input_layout(kinds).values(), strict=True):
        missing = [i for i, allowed in zip(columns, entry.allow_nan, strict=True) if not allowed]
        large = [i for i, allowed in zip(columns, entry.allow_inf, strict=True) if not allowed]
        lines += [f"rejected: NaN in {_which(missing, spec)} ({_owners(entry)})"] if missing else []
        lines += [f"rejected: ±inf in {_which(large, spec)} ({_owners(entry)})"] if large else []
    return lines


def _which(columns: list[int], spec: InputSpec) -> str:
    if len(columns) == spec.n_features:
        return "any column"
    return ", ".join(spec.describe_column(i) for i in columns[:5]) + (", …" if len(columns) > 5 else "")


def _owners(entry: InputLimits) -> str:
    return ", ".join(dict.fromkeys(owner for owner in entry.owners if owner))


def _states(model: Facts) -> list[str]:
    """What happened to each variant so far, with the times."""
    return [f"{variant.name}: {_state(variant)}" for variant in model.variants]


def _state(variant: Variant) -> str:
    times = variant.times
    steps = {
        "looked for compiled code": times.recalling,
        "imported optimizer and compiler": times.importing,
        "optimized": times.optimizing,
        "made ready": times.compiling,
    }
    text = ", ".join(f"{step} in {seconds * 1e3:.1f} ms" for step, seconds in steps.items() if seconds is not None)
    if variant.recalled is not None:
        text = f"found in {variant.recalled.place}, {text}"
    return "; ".join([text, *variant.ready.executable.steps]) if variant.is_built else "not ready yet"


def _size(graph: Graph) -> str:
    count = len(graph.nodes) - len(graph.inputs)
    return f"{count} operator" + ("s" if count != 1 else "")


def html(model: Facts) -> str:
    """The report as an HTML element: the model's facts, its passes, and pictures of its graph as parsed and as compiled, side by side.
    All text is escaped."""
    return _report(model, unfolded=False)


def page(model: Facts) -> str:
    """The report as an HTML document, with everything unfolded."""
    head = (
        "<meta charset='utf-8'><meta name='viewport' content='width=device-width'><meta name='color-scheme' content='light dark'>"
        f"<title>{escape(model.info.source)}, compiled by hbc</title>"
    )
    body = _report(model, unfolded=True)
    return f"<!doctype html><html lang='en'><head>{head}</head><body class='hbc-page'>{body}</body></html>\n"


def _report(model: Facts, unfolded: bool) -> str:
    states = _states(model)
    plan, parsed = model.main.plan, model.main.graph
    facts = {
        "methods": [model.methods],
        "input": [_input(model.spec)],
        "compiled code in the file": [model.code] if model.code else [],
        "tree ensembles": strategies(plan),
        "variants": states,
        "launches in a call": [f"{method}: {_launches(launches)}" for method, launches in plan.launches.items()],
    }
    rows = "".join(
        f"<dt>{escape(name)}</dt><dd>{'<br>'.join(map(escape, lines))}</dd>" for name, lines in facts.items() if lines
    )
    graphs = (
        _picture(f"As parsed: {_size(parsed)}", svg(parsed, plan.graph)),
        _picture(f"As compiled: {_size(plan.graph)}", svg(plan.graph, parsed, plan.hosted)),
    )
    fired = sum(done.changed for done in plan.records)
    return (
        f"<div class='hbc-report'><style>{CSS}</style>"
        f"<h3>{escape(model.info.source)} <small>compiled for {escape(model.backend)} on {escape(model.device)}</small></h3>"
        f"<dl>{rows}</dl>"
        + _details(f"Passes: {fired} of {len(plan.records)} changed the graph", _table(plan), unfolded)
        + _details("The graph before and after the passes", f"{LEGEND}<div class='graphs'>{''.join(graphs)}</div>", unfolded)
        + "</div>"
    )


LEGEND = (
    "<p class='legend'><span class='device'>on the device</span> <span class='host'>on the host, in numpy</span> "
    "<span class='changed'>only on this side: a pass removed it, or made it</span> Point at a box to see its parameters.</p>"
)


def _table(plan: Plan) -> str:
    """The passes as an HTML table."""
    rows = (
        f"<tr class='{'fired' if done.changed else ''}'><td>{escape(done.name)}</td><td>{'changed' if done.changed else ''}</td>"
        f"<td>{done.seconds * 1e3:.2f} ms</td><td>{'<br>'.join(map(escape, done.notes))}</td></tr>"
        for done in plan.records
    )
    return f"<table>{''.join(rows)}</table>"


def _picture(title: str, picture: str) -> str:
    found = re.search(r"width='(\d+)'", picture)
    width = f" style='--width: {found[1]}'" if found else ""  # so that both pictures have the same scale
    return f"<figure{width}><figcaption>{escape(title)}</figcaption>{picture}</figure>"


def _details(summary: str, body: str, unfolded: bool) -> str:
    return f"<details{' open' if unfolded else ''}><summary>{escape(summary)}</summary>{body}</details>"


def _launches(launches: Launches) -> str:
    text = f"{launches.device} function" + ("s" if launches.device != 1 else "") + " on the device"
    return text + (
        f", {launches.host} operator" + ("s" if launches.host != 1 else "") + " on the host" if launches.host else ""
    )
