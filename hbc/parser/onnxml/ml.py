"""The operators of ai.onnx.ml that prepare features or map labels (onnxruntime/core/providers/cpu/ml)."""

from __future__ import annotations

from typing import Any

import numpy as np

from hbc.ir.graph import Node
from hbc.ir.types import NUMPY_DTYPES, Array
from hbc.ops import tensor as t
from hbc.ops.checks import Check, CheckValues
from hbc.ops.columns import Categorize
from hbc.ops.vectorizers.counting import MapValues
from hbc.ops.vectorizers.strings import pack
from hbc.parser.frame import Refusal, select_columns
from hbc.parser.onnxml.positions import largest_position
from hbc.parser.onnxml.values import ML, Call, Dicts, Layers, Row, Value, implements, map_columns


@implements("Scaler", attributes=("offset", "scale"), domain=ML)
def scaler(call: Call) -> Node:
    """(x - offset) · scale, f32[N, F]. It is computed in float64 for float64 x, otherwise in float32."""
    x = call.matrix(0)
    x = x if x.type.is_float else t.cast(x, "f32")
    offset, scale = (_per_column(call, name, x.type.columns) for name in ("offset", "scale"))
    return t.cast(t.mul(t.sub(x, offset), scale), "f32")


def _per_column(call: Call, name: str, columns: int) -> Array:
    """The values of an attribute: one for all columns, or one for each. Raises Refusal for another number."""
    values = np.asarray(call.get(name, np.zeros(0, np.float32)))
    if len(values) not in (1, columns):
        raise Refusal(f"its {name} has {len(values)} values for {columns} columns.")
    return values


@implements(
    "Imputer",
    attributes=("imputed_value_floats", "imputed_value_int64s", "replaced_value_float", "replaced_value_int64"),
    domain=ML,
)
def imputer(call: Call) -> Node:
    x = call.matrix(0)
    kind, name = ("float", "imputed_value_floats") if x.type.is_float else ("int64", "imputed_value_int64s")
    values, replaced = _per_column(call, name, x.type.columns), call.get(f"replaced_value_{kind}")
    if replaced is None or x.type.dtype not in ("f32", "i64"):
        raise Refusal(f"it has no value to replace in {x.type}.")
    missing = t.isnan(x) if kind == "float" and np.isnan(replaced) else t.equal(x, replaced)
    return t.where(missing, values, x)


@implements("Normalizer", attributes=("norm",), domain=ML)
def normalizer(call: Call) -> Node:
    """x / norm, f32[N, F]; rows with the norm 0 stay as they are. L2 is computed as √(x² / Σ x²) with the sign of x. MAX is the largest
    number of a row, not the largest magnitude."""
    x = call.matrix(0)
    norm = call.get("norm", "MAX")
    single = t.cast(x, "f32")
    if norm == "MAX":
        least = float(np.finfo(np.float32).min)
        size = t.max_(t.where(t.less(least, single), single, least), axis=1, keepdims=True)  # NaN is ignored
        scaled = t.div(single, size)
    elif norm == "L1":
        size = t.sum_(t.cast(t.absolute(x), "f32"), axis=1, keepdims=True, ordered=True)
        scaled = t.div(single, size)
    elif norm == "L2":
        squares = t.cast(t.mul(x, x), "f32")
        size = t.sum_(squares, axis=1, keepdims=True, ordered=True)
        root = t.sqrt(t.div(squares, size))
        scaled = t.where(t.less(single, 0.0), t.neg(root), root)
    else:
        raise Refusal(f"its norm is {norm!r}.")
    return t.where(t.equal(size, 0.0), single, scaled)


@implements("Binarizer", attributes=("threshold",), domain=ML)
def binarizer(call: Call) -> Node:
    x = call.rows_of(0)
    if x.type.dtype != "f32":
        raise Refusal(f"its input is {x.type}; ONNX Runtime takes float32.")
    x = Check("onnx.ModelProto", allow_nan=False, allow_inf=True, min_rows=0)(x)
    return t.cast(t.less(t.constant(call.get("threshold", np.float32(0))), x), "f32")


@implements("FeatureVectorizer", attributes=("inputdimensions",), domain=ML)
def feature_vectorizer(call: Call) -> Node:
    """The inputs side by side, as float32. Raises Refusal if inputdimensions does not agree with their widths."""
    blocks = [t.cast(call.matrix(i), "f32") for i in range(len(call.inputs))]
    widths = [block.type.columns for block in blocks]
    if list(call.get("inputdimensions", widths)) != widths:
        raise Refusal(f"its inputs have {widths} columns, but inputdimensions says otherwise.")
    return t.concat(blocks)


@implements("ArrayFeatureExtractor", domain=ML)
def array_feature_extractor(call: Call) -> Value:
    """Two uses: columns of a matrix by constant numbers, [N, K]; or numbers and labels from a constant table of K rows by computed
    positions [N, J], [K, N · J]. Raises Refusal if neither K nor J is 1."""
    values, places = call.value(0), call.value(1)
    if isinstance(values, Node):
        return select_columns(call.matrix(0), [int(i) for i in call.array(1).ravel()])
    table = call.array(0)
    if isinstance(places, Row):
        places = places.node
    if not isinstance(places, Node) or table.ndim > 2:
        raise Refusal("it looks up positions that are not computed from the rows, or in a table of more than two axes.")
    lone = table.ndim == 1 or table.shape[0] == 1
    index = t.reshape(places, "N") if places.type.shape[1:] == (1,) else places
    index = Check("onnx.ModelProto", min_rows=1)(_within(index, table.shape[-1]))  # ONNX Runtime fails for zero rows
    if lone:
        return Row(t.take(table.ravel(), index, axis=0))
    if len(index.type.shape) != 1:
        raise Refusal("it looks up several positions a row in a table of several rows.")
    return Layers(t.take(np.ascontiguousarray(table.T), index, axis=0))


def _within(index: Node, size: int) -> Node:
    """Positions in a table of that size, i64. A call is rejected for others, unless it is plain that there are none: ONNX Runtime rejects
    those that are too large, and reads other memory for negative ones."""
    index = t.cast(index, "i64")
    if size and largest_position(index) < size:
        return index
    columns = index if len(index.type.shape) == 2 else t.reshape(index, "N", 1)
    checked = t.concat(
        [_known(select_columns(columns, [i]), np.arange(size), f"position {i}") for i in range(columns.type.columns)]
    )
    # PyTorch is traced with rows of its own, for which nothing is checked.
    checked = t.minimum(t.maximum(checked, 0), size - 1)
    return checked if columns is index else t.reshape(checked, "N")


@implements("DictVectorizer", attributes=("string_vocabulary", "int64_vocabulary"), domain=ML)
def dict_vectorizer(call: Call) -> Node:
    """A column for each word of the vocabulary, f32[N, K]: the number that the map of a row has for it, or 0. ONNX Runtime takes one map at
    a time."""
    value, vocabulary = call.value(0), call.get("string_vocabulary", ())
    if not isinstance(value, Dicts) or not len(vocabulary):
        raise Refusal("it has no vocabulary of strings, or its input is no map.")
    places: dict[str, int] = {}
    columns = np.array([places.setdefault(word, len(places)) for word in vocabulary])
    numbers = MapValues(*pack(places), np.arange(len(places)), len(places), "f32")(value.node)
    return t.take(numbers, columns, axis=1) if len(places) < len(columns) else numbers


@implements("ZipMap", attributes=("classlabels_strings", "classlabels_int64s"), domain=ML)
def zip_map(call: Call) -> Value:
    """The matrix from which ONNX Runtime makes dictionaries."""
    return call.matrix(0)


# --- categories --------------------------------------------------------------------------------------------------------


@implements("OneHotEncoder", attributes=("cats_int64s", "cats_strings", "zeros"), domain=ML)
def one_hot_encoder(call: Call) -> Node:
    """1 where x equals category k, else 0: f32[N, C, K] for x[N, C], or f32[N, K] for x[N]. With zeros=0 unknown values are rejected."""
    x = call.rows_of(0)
    strings = x.type.dtype == "str"
    categories: Any = call.get("cats_strings" if strings else "cats_int64s", ())
    if not len(categories) or len(set(categories)) < len(categories):
        raise Refusal("it has no categories of the type of its input, or a category twice.")
    table = np.array(categories, str if strings else np.int64)
    if not strings:
        x = t.cast(x, "i64")
    size = len(table)
    shape = x.type.shape
    matrix = x if len(shape) == 2 else t.reshape(x, "N", 1)
    blocks = []
    for i in range(matrix.type.columns):
        column = select_columns(matrix, [i])
        column = column if int(call.get("zeros", 1)) else _known(column, table, f"column {i}")
        blocks.append(t.cast(t.equal(Categorize(table)(column), np.arange(size)[None, :]), "f32"))
    return t.reshape(t.concat(blocks), *shape, size)


def _known(column: Node, table: Array, name: str) -> Node:
    """The column [N, 1]. A call is rejected for a value that is not in the table."""
    table = table if table.dtype.kind == "U" else np.sort(table)
    no = np.array([False])
    return CheckValues(
        "onnx.ModelProto",
        allow_nan=True,
        allow_inf=True,
        min_rows=0,
        values=table[None, :],
        counts=np.array([len(table)]),
        nan=no,
        none=no,
        columns=(name,),
    )(column)


SIDES = {"strings": str, "int64s": np.int64, "floats": np.float32, "tensor": None}
DEFAULTS = {"U": ("default_string", "_Unused"), "i": ("default_int64", -1), "f": ("default_float", -0.0)}


@implements(
    "LabelEncoder",
    attributes=(
        *(f"{side}_{kind}" for side in ("keys", "values") for kind in SIDES),
        *(name for name, _ in DEFAULTS.values()),
        "default_tensor",
        "classes_strings",
    ),
    domain=ML,
)
def label_encoder(call: Call) -> Value:
    value = call.value(0)
    if isinstance(value, Row):
        return Row(map_columns(value.node, lambda column: _encoded(call, column)))
    return map_columns(call.rows_of(0), lambda column: _encoded(call, column))


def _encoded(call: Call, x: Node) -> Node:
    """values[k] where x = keys[k], the default elsewhere. Version 1 of the operator maps between strings and their positions instead."""
    if call.get("classes_strings") is not None:  # version 1 of the operator
        classes = np.array(call.get("classes_strings"), str)
        places = np.arange(len(classes))
        keys, values = (classes, places) if x.type.dtype == "str" else (places, classes)
    else:
        keys, values = _side(call, "keys"), _side(call, "values")
    if len(keys) != len(values) or not len(keys):
        raise Refusal(f"it has {len(keys)} keys for {len(values)} values.")
    default = call.get("default_tensor")
    if default is None:
        name, default = DEFAULTS[values.dtype.kind]
        default = call.get(name, default)
    return _looked_up(x, keys, values, np.asarray(default).ravel()[0], call.opset)


def _looked_up(x: Node, keys: Array, values: Array, default: Any, opset: int = 1) -> Node:
    """values[k] where x = keys[k], the default elsewhere, in x's shape. NaN equals a NaN among the keys from `opset` 4 on. Raises
    Refusal if a key occurs twice."""
    rank = len(x.type.shape)
    column = t.reshape(x, "N", 1) if rank == 1 else x
    if x.type.dtype != "str":
        keys = keys.astype(NUMPY_DTYPES[x.type.dtype])
    nan = np.flatnonzero(np.isnan(keys)) if keys.dtype.kind == "f" else np.zeros(0, np.int64)
    if len(nan) and opset < 4:
        keys, values, nan = keys[~np.isnan(keys)], values[~np.isnan(keys)], nan[:0]  # before opset 4, NaN equals nothing
    known = np.delete(np.arange(len(keys)), nan)
    if len(np.unique(keys[known])) < len(known) or len(nan) > 1:
        raise Refusal("it has a key twice.")
    table = np.concatenate([values[known], values[nan], np.array([default], values.dtype if values.dtype.kind != "U" else str)])
    last = len(table) - 1
    index = Categorize(keys[known], nan=len(known) if len(nan) else last, none=last, unknown=last)(column)
    found = t.take(table, index, axis=0)
    return t.reshape(found, "N") if rank == 1 else found


def _side(call: Call, side: str) -> Array:
    """The array of keys or values (`side`) from the attribute that holds it."""
    for kind, dtype in SIDES.items():
        value = call.get(f"{side}_{kind}")
        if value is not None and len(value):
            return np.asarray(value) if dtype is None else np.array(value, dtype)
    return np.zeros(0, np.int64)


@implements("CategoryMapper", attributes=("cats_int64s", "cats_strings", "default_int64", "default_string"), domain=ML)
def category_mapper(call: Call) -> Value:
    strings, integers = np.array(call.get("cats_strings", []), str), np.asarray(call.get("cats_int64s", np.zeros(0, np.int64)))
    x = call.rows_of(0)
    if x.type.dtype == "str":
        return map_columns(x, lambda column: _looked_up(column, strings, integers, call.get("default_int64", -1)))
    return map_columns(x, lambda column: _looked_up(column, integers, strings, call.get("default_string", "_Unused")))
