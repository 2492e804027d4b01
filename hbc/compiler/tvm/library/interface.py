"""What a library says of itself: its functions, as C declares them, and the model that they compute."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from hbc.ir.types import NUMPY_DTYPES, DType
from hbc.lazy import record

C_TYPES: dict[DType, str] = {
    "bool": "uint8_t",
    "i8": "int8_t",
    "u8": "uint8_t",
    "i16": "int16_t",
    "u16": "uint16_t",
    "i32": "int32_t",
    "i64": "int64_t",
    "f32": "float",
    "f64": "double",
}
RESULTS = {
    "OK": (0, "the results are written"),
    "REJECTED": (1, "the model rejects a number of the input (NaN, infinite or too large), as its source does"),
    "ROWS": (2, "the number of rows is negative, or less than the model takes"),
    "POINTER": (3, "a pointer is null"),
    "MEMORY": (4, "there is no memory for the workspace"),
    "PROCESSOR": (5, "this processor lacks instructions that the library was compiled for"),
}
"""What a function returns, by the name that follows HBC_ in the header: the number, and its meaning."""


@record
class Matrix:
    """An input: numbers of one dtype, row after row. `columns`: which of the model's columns these are."""

    name: str
    dtype: DType
    columns: tuple[int, ...]


@record
class Result:
    """A result of a method: for each row an array of `shape`. `is_class`: it is the place of a label among `Interface.classes`."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    is_class: bool = False


@record
class Method:
    name: str
    results: tuple[Result, ...]


@record
class Interface:
    """All functions of a library. Their names begin with `prefix`."""

    prefix: str
    version: str
    """Of hbc."""
    source: str
    """The estimator's public dotted name."""
    processor: str
    inputs: tuple[Matrix, ...]
    methods: tuple[Method, ...]
    n_features: int
    """The columns of the source's own input."""
    feature_names: tuple[str, ...]
    """Empty where the source does not know them."""
    classes: tuple[Any, ...]
    """The labels of the classes, strings or numbers. Empty where the model has no classes."""

    @property
    def exports(self) -> tuple[str, ...]:
        """The names of all functions."""
        kinds = ("", "_with", "_workspace")
        methods = [f"{self.prefix}_{method.name}{kind}" for method in self.methods for kind in kinds]
        facts = ("about", "message", "columns", "feature_name", "classes", "class_name")
        return (*methods, *(f"{self.prefix}_{fact}" for fact in facts))

    @property
    def feature_labels(self) -> tuple[str, ...]:
        """The names of the columns of all inputs, one after the other; their numbers where the source knows no names."""
        columns = [column for matrix in self.inputs for column in matrix.columns]
        return tuple(self.feature_names[i] if self.feature_names else f"column {i}" for i in columns)

    @property
    def class_labels(self) -> tuple[str, ...]:
        """The labels of the classes as text."""
        return tuple(map(str, self.classes))

    def about(self) -> str:
        """All of this as JSON."""
        facts = {
            "hbc": self.version,
            "model": self.source,
            "processor": self.processor,
            "n_features": self.n_features,
            "feature_names": self.feature_names or None,
            "classes": self.classes or None,
            "inputs": [
                {"name": matrix.name, "dtype": _numpy_name(matrix.dtype), "columns": matrix.columns} for matrix in self.inputs
            ],
            "methods": {
                method.name: [
                    {
                        "name": result.name,
                        "dtype": _numpy_name(result.dtype),
                        "shape": result.shape,
                        "is_class": result.is_class,
                    }
                    for result in method.results
                ]
                for method in self.methods
            },
        }
        return json.dumps(facts, default=_plain)


def _numpy_name(dtype: DType) -> str:
    return str(NUMPY_DTYPES[dtype])


def _plain(value: Any) -> Any:
    """A number of numpy's as one of Python's, anything else as text."""
    return value.item() if isinstance(value, np.generic) else str(value)


# --- the header ----------------------------------------------------------------------------------------------------------


def header(interface: Interface) -> str:
    """The C header of a library."""
    prefix, upper = interface.prefix, interface.prefix.upper()
    codes = "".join(f"    HBC_{name} = {code}, /* {meaning} */\n" for name, (code, meaning) in RESULTS.items())
    inputs = "".join(_of_input(matrix, interface) for matrix in interface.inputs)
    methods = "".join(_of_method(method, interface) for method in interface.methods)
    classes = "".join(f"   {i}: {_quoted(label)}\n" for i, label in enumerate(interface.classes))
    return f"""/* {_comment(interface.source)}, compiled by hbc {interface.version} for {_comment(interface.processor)}.

   Link with the library, or load it. It needs nothing but memset, memcpy, malloc and free of the C library.
   All functions may be called by any number of threads at once. Results must not overlap the input. */
#ifndef {upper}_H
#define {upper}_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

/* What the functions return. {prefix}_message gives the meaning as text. */
#ifndef HBC_RESULTS
#define HBC_RESULTS
enum {{
{codes}}};
#endif

/* The inputs: numbers in the order of the rows, without gaps.
{inputs}*/
#define {upper}_COLUMNS {len(interface.feature_labels)}
#define {upper}_CLASSES {len(interface.classes)}
{methods}
/* The model as JSON: versions, inputs, names of columns, classes, methods with dtypes and shapes of their results. */
const char *{prefix}_about(void);
/* The meaning of what a function has returned. */
const char *{prefix}_message(int64_t code);
/* {upper}_COLUMNS; and the name of a column of the input, counted from 0, or NULL. */
int64_t {prefix}_columns(void);
const char *{prefix}_feature_name(int64_t column);
/* {upper}_CLASSES; and the label of a class as text, or NULL. Probabilities of classes have this order.
{classes}*/
int64_t {prefix}_classes(void);
const char *{prefix}_class_name(int64_t number);

#ifdef __cplusplus
}}
#endif
#endif
"""


def parameters(method: Method, interface: Interface, workspace: bool = False) -> str:
    """The parameters of a method's function in C."""
    inputs = [f"const {C_TYPES[matrix.dtype]} *{matrix.name}" for matrix in interface.inputs]
    results = [f"{C_TYPES[result.dtype]} *{result.name}" for result in method.results]
    return ", ".join([*inputs, "int64_t rows", *results, *(["void *workspace"] if workspace else [])])


def _of_input(matrix: Matrix, interface: Interface) -> str:
    start = sum(len(other.columns) for other in interface.inputs[: interface.inputs.index(matrix)])
    labels = interface.feature_labels[start : start + len(matrix.columns)]
    lines = "".join(f"     {i}: {_quoted(label)}\n" for i, label in enumerate(labels))
    return f"   {matrix.name} [rows, {len(matrix.columns)}], {C_TYPES[matrix.dtype]}\n{lines}"


def _of_method(method: Method, interface: Interface) -> str:
    prefix, shapes = interface.prefix, []
    for result in method.results:
        shape = ", ".join(["rows", *map(str, result.shape)])
        number = f": the number of a class, see {prefix}_class_name" if result.is_class else ""
        shapes.append(f"{result.name} [{shape}]{number}")
    return f"""
/* {method.name}: {"; ".join(shapes)} */
int {prefix}_{method.name}({parameters(method, interface)});
/* The same without allocating memory. workspace: {prefix}_{method.name}_workspace() bytes, for one call at a time. */
int {prefix}_{method.name}_with({parameters(method, interface, workspace=True)});
int64_t {prefix}_{method.name}_workspace(void);
"""


def _quoted(value: Any) -> str:
    """A label, harmless within a comment."""
    return _comment(json.dumps(value, default=_plain))


def _comment(text: str) -> str:
    return text.replace("*/", "* /").replace("/*", "/ *")
