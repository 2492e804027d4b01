"""Artefacts of format 1, which hbc 0.1.0 wrote: one document with everything but the arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hbc.ir.archive import Archive
from hbc.ir.graph import Graph
from hbc.ir.lazy_graph import LazyGraph
from hbc.ir.printer import read_graph
from hbc.ir.signature import Arrays, Column, Frames, InputSpec, Kinds, Sparse
from hbc.runtime.contents import Build, Contents, checked_graph, decoded, info_of, require_fitting, require_public
from hbc.runtime.origin import Origin
from hbc.runtime.stored_spec import checked, require_width, tuples


def read_1(archive: Archive, document: Mapping[str, Any], build: Build) -> Contents:
    """The contents of an artefact of format 1. Its graphs are read at once. Raises one of UNREADABLE or ArtifactError for what hbc did not
    write."""
    names = [name for name in archive.sizes if name.startswith("arrays/")]
    arrays = {name.removeprefix("arrays/").removesuffix(".npy"): archive.array(name) for name in names}
    arrays |= {key: decoded(value, arrays) for key, value in document["objects"].items()}
    info, spec = info_of(document, arrays), read_spec_1(document["input"], len(document["main"]))
    graphs = {}
    for variant in document["variants"]:
        kinds: Kinds = tuple(variant["kinds"])
        require_fitting(kinds, spec)

        def graph(text: str = variant["graph"], kinds: Kinds = kinds) -> Graph:
            return checked_graph(read_graph(text, arrays), kinds, info, spec)

        graphs[kinds] = LazyGraph.of(build(graph))
    main: Kinds = tuple(document["main"])
    if main not in graphs or len({lazy.methods for lazy in graphs.values()}) != 1:
        raise ValueError("variants that do not belong together")
    require_public(graphs[main].methods)
    return Contents(info, spec, graphs, main, dict(document["settings"]), Origin())


def read_spec_1(document: Mapping[str, Any], width: int) -> InputSpec:
    """The spec of 34 fields in a row: flags, and tuples of columns or of a number for each column."""
    old: dict[str, Any] = {name: tuples(value) for name, value in document.items()}
    if unknown := old.keys() - FIELDS_1:
        raise ValueError(f"the fields {', '.join(sorted(unknown))}")
    count = int(old["n_features"])
    require_width(count, width)
    stay = old["objects_stay"] or (0,) * count
    lists = {name: frozenset(old[name]) for name in COLUMNS_1}
    numbers = {name: old[flag] or (0,) * count for name, flag in NUMBERS_1.items()}
    columns = []
    for i in range(count):
        facts: dict[str, Any] = {name: i in found for name, found in lists.items()}
        facts |= {name: found[i] for name, found in numbers.items()}
        columns.append(Column(**facts, objects_stay=stay[i] > 0, returned=stay[i] > 1))
    reader = READERS_1[old["reader"]]
    return checked(
        InputSpec(
            tuple(columns),
            *(old["feature_names"], old["ndim"], old["items"], old["own_dtype"]),
            Arrays(old["narrow_as_f32"], old["plain_floats"], old["native_order"], old["fixed_width"]),
            Frames(
                by_column=old["dtype_by_column"],
                in_order=old["dtype_by_column"] and not old["by_name"],
                required=old["frames_only"],
                apart=old["dtypes_apart"],
                integers_as_f64=old["integers_as_f64"],
                libraries=old["libraries"],
                no_numbers=reader,
                dates=old["dates"],
                stacked=old["stacked"],
            ),
            Sparse(
                accepted=old["sparse"],
                nan=old["sparse_nan"],
                absent_is_missing=old["absent_is_missing"],
                floats_only=old["float_entries"],
                matrices_only=old["reader"] == "catboost",
                csr_if_named=old["reader"] == "xgboost",
                dense_methods=old["dense_methods"],
            ),
        )
    )


COLUMNS_1 = ("strings", "signed", "beside_numbers", "frames_as_f64", "objects_only", "none_apart", "texts_only", "digits")
"""Fields of version 1 that are lists of columns, which now are fields of these columns."""

NUMBERS_1 = {"integer_bits": "integer_bits", "function_bits": "functions"}
"""Fields of a column that version 1 had as a list of a number for each column, or an empty one; and the names of those lists."""

READERS_1: dict[str, tuple[str, ...]] = {
    "": (),
    "lightgbm": (
        *("pandas.ObjectDType", "pandas.CategoricalDtype", "pandas.ArrowDtype"),
        *("polars.Float16", "pyarrow.halffloat", "pyarrow.dictionary"),
    ),
    "xgboost": ("pandas.ObjectDType", "pandas.CategoricalDtype", "polars.Float16", "pyarrow.halffloat", "pyarrow.dictionary"),
    "catboost": ("pandas.CategoricalDtype", "pandas.BooleanDtype with NA"),
}
"""The library that version 1 named instead of the dtypes from which it reads no numbers."""

FIELDS_1 = {
    *("n_features", "feature_names", "by_name", "dtype_by_column", "frames_only", "integers_as_f64", "sparse", "sparse_nan"),
    *("absent_is_missing", "ndim", "dates", "items", "narrow_as_f32", "float_entries", "own_dtype", "native_order", "stacked"),
    *("libraries", "reader", "plain_floats", "objects_stay", "fixed_width", "dtypes_apart", "dense_methods"),
    *COLUMNS_1,
    *NUMBERS_1.values(),
}
