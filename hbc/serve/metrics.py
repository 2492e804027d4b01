"""Metrics in the text format of Prometheus, under the names that Triton gives them; the histogram is hbc's own.

prometheus-client is not used: it puts `_total` behind the names of counters, which Triton's do not have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from hbc.serve.service import Service
from hbc.serve.statistics import BUCKETS, MISSING, OUTSIDE_ABOVE, OUTSIDE_BELOW, UNSEEN, Statistics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

COUNTERS: tuple[tuple[str, str, Callable[[Statistics], float]], ...] = (
    ("nv_inference_request_success", "Requests that were answered.", lambda s: s.success),
    ("nv_inference_request_failure", "Requests for a known model that were refused or failed.", lambda s: s.failure),
    ("nv_inference_count", "Rows of the requests that were answered.", lambda s: s.rows),
    ("nv_inference_exec_count", "Calls of the model: requests that are computed together count once.", lambda s: s.executions),
    ("nv_inference_request_duration_us", "Microseconds of answered requests.", lambda s: s.request_seconds * 1e6),
    ("nv_inference_queue_duration_us", "Microseconds that answered requests waited.", lambda s: s.queue_seconds * 1e6),
    ("nv_inference_compute_input_duration_us", "Microseconds to read requests.", lambda s: s.input_seconds * 1e6),
    ("nv_inference_compute_infer_duration_us", "Microseconds of the models.", lambda s: s.infer_seconds * 1e6),
    ("nv_inference_compute_output_duration_us", "Microseconds to write answers.", lambda s: s.output_seconds * 1e6),
)
"""Name, help, value of Statistics."""


def exposition(service: Service, statistics: Mapping[tuple[str, str], Statistics]) -> str:
    """All metrics as text. Names of models and versions have no characters that would have to be escaped."""
    return "\n".join(_lines(service, statistics)) + "\n"


def _lines(service: Service, statistics: Mapping[tuple[str, str], Statistics]) -> Iterator[str]:
    known = [(f'model="{name}",version="{version}"', found) for (name, version), found in sorted(statistics.items())]
    for name, text, value in COUNTERS:
        yield from _about(name, "counter", text)
        for labels, found in known:
            yield f"{name}{{{labels}}} {_number(value(found))}"
    name = "nv_inference_pending_request_count"
    yield from _about(name, "gauge", "Requests that wait or are computed, in the process that answers.")
    for served in service.repository.all():
        yield f'{name}{{model="{served.name}",version="{served.version}"}} {served.pending}'
    name = "hbc_request_seconds"
    yield from _about(name, "histogram", "Seconds of answered requests.")
    for labels, found in known:
        total = 0
        for bound, count in zip((*map(str, BUCKETS), "+Inf"), found.histogram, strict=True):
            total += count
            yield f'{name}_bucket{{{labels},le="{bound}"}} {total}'
        yield f"{name}_sum{{{labels}}} {_number(found.request_seconds)}"
        yield f"{name}_count{{{labels}}} {total}"
    yield from _drift(known)
    yield from _about("hbc_ready", "gauge", "1 if all models are ready and the server does not stop.")
    yield f"hbc_ready {int(service.ready)}"


DRIFT = (
    ("hbc_column_missing", "Missing values in a column.", {MISSING: ""}),
    ("hbc_column_unseen", "Values in a column that are none of the categories that the model knows.", {UNSEEN: ""}),
    (
        "hbc_column_outside",
        "Numbers in a column beyond all those that the model compares it with.",
        {OUTSIDE_BELOW: ',side="below"', OUTSIDE_ABOVE: ',side="above"'},
    ),
)
"""Name, help, and which counts of a column there are."""


def _drift(known: list[tuple[str, Statistics]]) -> Iterator[str]:
    """What drift.py has counted, if it was told to."""
    watched = [(labels, found) for labels, found in known if found.drift]
    if not watched:
        return
    yield from _about("hbc_drift_rows", "counter", "Rows in which the values of columns were counted.")
    for labels, found in watched:
        yield f"hbc_drift_rows{{{labels}}} {found.drift_rows}"
    for name, text, kinds in DRIFT:
        yield from _about(name, "counter", text)
        for labels, found in watched:
            for column, counts in found.drift.items():
                for place, side in kinds.items():
                    yield f'{name}{{{labels},column="{_escaped(column)}"{side}}} {counts[place]}'


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _about(name: str, kind: str, text: str) -> tuple[str, str]:
    return f"# HELP {name} {text}", f"# TYPE {name} {kind}"


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.9g}"
