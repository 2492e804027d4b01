"""A .onnx file: the options of `CompiledModel.export`, its inputs, and what its metadata says of the model."""

from __future__ import annotations

import json
import operator
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper

from hbc.arguments import flag
from hbc.compiler.base import About
from hbc.compiler.onnx.builder import NAN_MARKER, NEWEST, NONE_MARKER, OLDEST, VERSIONS, Dialect, build, emittable, input_name
from hbc.ir.graph import Graph
from hbc.ir.signature import input_layout
from hbc.ir.store import write_atomically
from hbc.lazy import record

USUAL = 21
"""The opset of a file if none is asked for: the oldest in which TreeEnsemble has float64. ONNX Runtime 1.20 reads it."""
OPTIONS = ("opset", "plain", "columns")
STRINGS_NOTE = (
    "Strings are texts. A missing value has to be passed as one of two texts that stand for it: the metadata `hbc.none` for None and "
    "`hbc.nan` for NaN."
)


@record
class FileOptions:
    """The options of a .onnx file."""

    opset: int = USUAL
    """The version of ONNX's operators. The versions of the file format and of ai.onnx.ml are those that ONNX released with it."""
    plain: bool = False
    """Whether only standard operators are used: trees become comparisons and look-ups, for runtimes without ai.onnx.ml."""
    columns: bool = False
    """Whether there is one input [N, 1] for each column, with its name, instead of one matrix for each dtype."""

    @property
    def dialect(self) -> Dialect:
        ir, ml = {opset: (ir, ml) for opset, ir, ml in VERSIONS}[self.opset]
        return Dialect(self.opset, ir, ml, self.plain)


def checked(chosen: Mapping[str, Any]) -> FileOptions:
    """The options that the caller has chosen. Raises ValueError for a bad value."""
    for name in ("plain", "columns"):
        flag(name, chosen.get(name, False))
    opset = chosen.get("opset")
    if opset is None:
        return FileOptions(**{**chosen, "opset": USUAL})
    try:
        number = 0 if isinstance(opset, bool) else operator.index(opset)
    except TypeError:
        number = 0
    known = min(NEWEST, onnx.defs.onnx_opset_version())
    if not OLDEST <= number <= known:
        raise ValueError(f"opset={opset!r}: expected a whole number from {OLDEST} to {known}, the opsets that hbc writes")
    return FileOptions(**{**chosen, "opset": number})


def write(graph: Graph, path: str, about: About, options: FileOptions) -> None:
    """Writes a graph to a .onnx file, with the outputs of all methods. Raises ValueError for operators that this ONNX does not have."""
    foreign = sorted({type(node.op).__name__ for node in graph.nodes if not emittable(node.op, options.plain)})
    if foreign:
        raise ValueError(
            f"{path}: this model cannot be exported, because ONNX has no operator for {', '.join(foreign)}; save() it instead"
        )
    names = _names(about)
    layout = {name: [names[i] for i in columns] for name, columns in input_layout(about.kinds).items()}
    columns = {node: layout[input_name(node)] for node in graph.inputs} if options.columns else None
    if columns is not None:
        _require_columns(graph, names, path)
    model = build(graph, graph.inputs, options.dialect, columns)
    _describe(model, graph, about, layout, options)
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception as error:  # the classes of its errors are not public
        raise ValueError(
            f"{path}: opset {options.opset} cannot hold this model ({_first_line(error)}); try a newer one"
        ) from error
    content = model.SerializeToString()
    write_atomically(path, lambda file: file.write(content))


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _names(about: About) -> list[str]:
    """The names of all columns; x0, x1, … if the model knows none."""
    known = about.spec.feature_names
    return list(known) if known is not None else [f"x{i}" for i in range(len(about.kinds))]


def _require_columns(graph: Graph, names: list[str], path: str) -> None:
    """Raise ValueError if the columns cannot be inputs under their names."""
    if any(len(node.type.shape) != 2 for node in graph.inputs):
        raise ValueError(f"{path}: columns=True is for models of tables; this one takes a vector")
    repeated = sorted({name for name in names if names.count(name) > 1})
    taken = sorted(set(names) & set(graph.outputs))
    if repeated or taken or "" in names:
        found = f"several columns {repeated[0]!r}" if repeated else f"a column {(taken or [''])[0]!r}"
        expected = "other names than the methods'" if taken and not repeated else "a name of its own for each column"
        raise ValueError(f"{path}: columns=True: found {found}, expected {expected}")


def _describe(
    model: onnx.ModelProto, graph: Graph, about: About, layout: Mapping[str, list[str]], options: FileOptions
) -> None:
    """Writes what is known of the model into its metadata: where it comes from, and what its inputs and outputs mean."""
    facts: dict[str, str] = {"hbc.version": sys.modules["hbc"].__version__, "hbc.source": about.info.source}
    if about.spec.feature_names is not None:
        facts["hbc.feature_names"] = json.dumps(list(about.spec.feature_names))
    if not options.columns:
        facts["hbc.inputs"] = json.dumps(layout)
        for declared in model.graph.input:
            declared.doc_string = f"columns: {', '.join(layout[declared.name])}"
    classes = about.info.attributes.get("classes_")
    if classes is not None:
        facts["hbc.classes"] = json.dumps(_listed(classes), default=str)
    if any(node.type.dtype == "str" for node in graph.inputs):
        model.doc_string = STRINGS_NOTE
        facts |= {"hbc.none": NONE_MARKER, "hbc.nan": NAN_MARKER}
    helper.set_model_props(model, facts)


def _listed(classes: Any) -> Any:
    """The class labels as lists: of several outputs a list for each."""
    if isinstance(classes, np.ndarray):
        return classes.tolist()
    return [_listed(found) for found in classes] if isinstance(classes, (list, tuple)) else classes
