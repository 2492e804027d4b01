"""The operators of ONNX's own domain that exporters of fitted models emit. They are converted only if rows stay the first axis."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np

from hbc.ir.graph import Node
from hbc.ir.types import NUMPY_DTYPES, Dim
from hbc.ops import tensor as t
from hbc.ops.checks import Check
from hbc.ops.linear import Linear, LogSoftmax, Softmax
from hbc.parser.frame import Refusal
from hbc.parser.onnxml.positions import largest_position
from hbc.parser.onnxml.transforms import first_largest
from hbc.parser.onnxml.values import Call, Dims, Layers, Row, Value, as_dtype, dtype_of, implements, inner_axis

# --- elementwise -------------------------------------------------------------------------------------------------------

BINARY: dict[str, Callable[[Node, Node], Node]] = {
    "Add": t.add,
    "Sub": t.sub,
    "Mul": t.mul,
    "And": t.logical_and,
    "Or": t.logical_or,
    "Xor": lambda a, b: t.logical_or(t.logical_and(a, t.logical_not(b)), t.logical_and(t.logical_not(a), b)),
    "Less": t.less,
    "LessOrEqual": t.less_equal,
    "Equal": t.equal,
    "Greater": lambda a, b: t.less(b, a),
    "GreaterOrEqual": lambda a, b: t.less_equal(b, a),
}
UNARY: dict[str, Callable[[Node], Node]] = {
    "Neg": t.neg,
    "Abs": t.absolute,
    "Exp": t.exp,
    "Log": t.log,
    "Sqrt": t.sqrt,
    "Tanh": t.tanh,
    "Sigmoid": t.sigmoid,
    "Floor": t.floor,
    "Ceil": lambda x: t.neg(t.floor(t.neg(x))),
    "Not": t.logical_not,
    "IsNaN": t.isnan,
    "Reciprocal": lambda x: t.div(1.0, x),
    "Relu": lambda x: t.maximum(x, 0.0),
    "Softsign": lambda x: t.div(x, t.add(1.0, t.absolute(x))),
}


@implements(*BINARY)
def binary(call: Call) -> Node:
    return BINARY[call.op](call.node(0), call.node(1))


@implements(*UNARY)
def unary(call: Call) -> Node:
    return UNARY[call.op](call.node(0))


@implements("LeakyRelu", attributes=("alpha",))
def leaky_relu(call: Call) -> Node:
    x = call.node(0)
    return t.where(t.less(x, 0.0), t.mul(x, call.get("alpha", np.float32(0.01))), x)


@implements("IsInf", attributes=("detect_negative", "detect_positive"))
def is_infinite(call: Call) -> Node:
    x = call.node(0)
    size = t.absolute(x)
    if not (int(call.get("detect_negative", 1)) and int(call.get("detect_positive", 1))):
        raise Refusal("it finds infinities of one sign only.")
    return t.equal(size, np.inf)


@implements("Div")
def div(call: Call) -> Node:
    a, b = call.node(0), call.node(1)
    if not a.type.is_float:
        raise Refusal("it divides integers.")
    return t.div(a, b)


@implements("Pow")
def power(call: Call) -> Node:
    x = call.node(0)
    if not x.type.is_float:
        raise Refusal("it raises integers to powers.")
    exponent = t.cast(call.node(1), x.type.dtype)
    value = exponent.op.evaluate() if not exponent.inputs and not exponent.type.batched else None
    if value is not None and value.size == 1 and value.ravel()[0] == 2:
        return t.mul(x, x)
    return t.power(x, exponent)


@implements("Sign")
def sign(call: Call) -> Node:
    x = call.node(0)
    if not x.type.is_float:
        raise Refusal("it takes the sign of integers.")
    zero = t.where(t.isnan(x), x, 0.0)
    return t.where(t.less(0.0, x), 1.0, t.where(t.less(x, 0.0), t.constant(-1.0, x.type.dtype), zero))


@implements("Sum", "Mean", "Max", "Min")
def several(call: Call) -> Node:
    function = {"Max": t.maximum, "Min": t.minimum}.get(call.op, t.add)
    result = call.node(0)
    for i in range(1, len(call.inputs)):
        result = function(result, call.node(i))
    return t.div(result, float(len(call.inputs))) if call.op == "Mean" else result


@implements("Clip", attributes=("min", "max"))
def clip(call: Call) -> Node:
    x = call.node(0)
    for place, name, function in ((1, "min", t.maximum), (2, "max", t.minimum)):
        bound = call.array(place) if call.has(place) else call.get(name)
        if bound is None and x.type.is_float:  # ONNX Runtime takes the limits of the dtype, so that no infinity is left
            bound = getattr(np.finfo(NUMPY_DTYPES[x.type.dtype]), name)
        x = x if bound is None else function(x, np.asarray(bound).reshape(()))
    return x


@implements("Where")
def where(call: Call) -> Node:
    return t.where(call.node(0), call.node(1), call.node(2))


@implements("Cast", attributes=("to",))
def cast(call: Call) -> Value:
    value, dtype = call.value(0), dtype_of(int(call.get("to")))
    if isinstance(value, Dims):
        return value
    if isinstance(value, (Row, Layers)):
        return type(value)(_cast(value.node, dtype))
    return _cast(call.node(0), dtype)


def _cast(x: Node, dtype: str) -> Node:
    """x in another dtype, as ONNX Runtime's Cast converts it. Raises Refusal for casts whose result depends on the machine."""
    if x.type.dtype != dtype and "str" in (x.type.dtype, dtype):
        raise Refusal("it casts between strings and numbers.")
    if not x.type.is_float or dtype in ("f32", "f64", "str"):
        return as_dtype(x, dtype)
    if dtype == "bool":
        return t.logical_not(t.equal(x, 0.0))
    if dtype not in ("i32", "i64"):
        raise Refusal(f"it casts floats to {dtype}.")
    # A float that does not fit, or NaN, becomes the least integer, as on x86 processors.
    least = -(2.0 ** (31 if dtype == "i32" else 63))
    fits = t.logical_and(t.less_equal(least, x), t.less(x, -least))
    return as_dtype(t.where(fits, x, least), dtype)


@implements("Identity")
def identity(call: Call) -> Value:
    return call.value(0)


@implements("Dropout", attributes=("ratio", "seed"))
def dropout(call: Call) -> Value:
    if call.n_outputs > 1 or call.has(2):
        raise Refusal("it drops values, or returns which ones it drops.")
    return call.value(0)


# --- products ----------------------------------------------------------------------------------------------------------


@implements("MatMul")
def matmul(call: Call) -> Node:
    x, w = call.matrix(0), call.array(1)
    if w.ndim == 1:
        return t.reshape(t.matmul(x, w[:, None]), "N")
    return t.matmul(x, w)


@implements("Gemm", attributes=("alpha", "beta", "transA", "transB"))
def gemm(call: Call) -> Node:
    """α · x · w + β · c, [N, K]. With β = 0, c does not count, even if it is infinite or NaN."""
    if int(call.get("transA", 0)):
        raise Refusal("it transposes the rows.")
    x, w = call.matrix(0), call.array(1)
    w = w.T if int(call.get("transB", 0)) else w
    alpha, beta = call.get("alpha", np.float32(1)), call.get("beta", np.float32(1))
    added = call.has(2) and beta != 0
    offset = call.value(2) if added else np.zeros(w.shape[1], w.dtype)
    if isinstance(offset, np.ndarray) and alpha == 1 and offset.size in (1, w.shape[1]) and offset.shape[:-1] in ((), (1,)):
        return Linear(w, np.broadcast_to(offset.ravel() * w.dtype.type(beta), w.shape[1]))(x)
    product = t.matmul(x, w)
    product = product if alpha == 1 else t.mul(product, float(alpha))
    if not added:
        return product
    return t.add(product, call.node(2) if beta == 1 else t.mul(call.node(2), float(beta)))


@implements("Softmax", "LogSoftmax", attributes=("axis",))
def softmax(call: Call) -> Node:
    x = call.matrix(0)
    inner_axis(int(call.get("axis", -1 if call.opset >= 13 else 1)), x)
    return Softmax()(x) if call.op == "Softmax" else LogSoftmax()(x)


# --- reductions --------------------------------------------------------------------------------------------------------


def _log_sum_exp(x: Node, axis: int) -> Node:
    """ln Σ e^x along an axis, which keeps the length 1."""
    largest = t.max_(x, axis, keepdims=True)
    largest = t.where(t.less(t.absolute(largest), np.inf), largest, 0.0)
    return t.add(t.log(t.sum_(t.exp(t.sub(x, largest)), axis, keepdims=True)), largest)


def _without_nan(x: Node) -> Node:
    """x. A call is rejected for NaN, because the result of ONNX Runtime's vectorized reductions depends on where the NaN stands."""
    return Check("onnx.ModelProto", allow_nan=False, allow_inf=True, min_rows=0)(x) if x.type.is_float else x


def _product(x: Node, axis: int) -> Node:
    """The product along an axis, which keeps the length 1. Raises Refusal for more than 64 factors."""
    parts = [t.take(x, np.array([i]), axis=axis) for i in range(int(x.type.shape[axis]))]
    if not 1 <= len(parts) <= 64:
        raise Refusal(f"it multiplies {len(parts)} values.")
    result = parts[0]
    for part in parts[1:]:
        result = t.mul(result, part)
    return result


REDUCTIONS: dict[str, Callable[[Node, int], Node]] = {
    "ReduceSum": lambda x, axis: t.sum_(x, axis, keepdims=True),
    "ReduceMean": lambda x, axis: t.div(t.sum_(x, axis, keepdims=True), float(x.type.shape[axis])),
    "ReduceMax": lambda x, axis: t.max_(_without_nan(x), axis, keepdims=True),
    "ReduceMin": lambda x, axis: t.min_(_without_nan(x), axis, keepdims=True),
    "ReduceProd": _product,
    "ReduceL1": lambda x, axis: t.sum_(t.absolute(x), axis, keepdims=True),
    "ReduceL2": lambda x, axis: t.sqrt(t.sum_(t.mul(x, x), axis, keepdims=True)),
    "ReduceSumSquare": lambda x, axis: t.sum_(t.mul(x, x), axis, keepdims=True),
    "ReduceLogSumExp": _log_sum_exp,
}


def _reduced(op: str, x: Node, axis: int) -> Node:
    """The reduction `op` along an axis, which keeps the length 1. ONNX Runtime computes sums and products of integers in float64; the
    result is the nearest integer that the dtype has. Raises Refusal for reductions of integers that need a division or a function."""
    if x.type.is_float or op in ("ReduceMax", "ReduceMin"):
        return REDUCTIONS[op](x, axis)
    if op in ("ReduceMean", "ReduceL2", "ReduceLogSumExp"):
        raise Refusal(f"it reduces integers ({x.type}).")
    result = REDUCTIONS[op](t.cast(x, "f64"), axis)
    largest = np.iinfo(NUMPY_DTYPES[x.type.dtype]).max
    return t.where(t.less_equal(float(largest), result), t.constant(largest, x.type.dtype), _cast(result, x.type.dtype))


@implements(*REDUCTIONS, attributes=("axes", "keepdims", "noop_with_empty_axes"))
def reduction(call: Call) -> Value:
    value, axes = call.value(0), call.axes()
    if isinstance(value, Layers):
        return _mean_of_layers(call, value, axes or [])
    x = call.rows_of(0)
    if not axes:
        if int(call.get("noop_with_empty_axes", 0)):
            raise Refusal("it has no axes.")
        raise Refusal("it reduces all axes, that of rows too.")
    if len(axes) > 1 and call.op in ("ReduceMean", "ReduceL2", "ReduceLogSumExp"):
        raise Refusal("it reduces several axes.")
    places = sorted(inner_axis(axis, x) for axis in axes)
    for place in places:
        x = _reduced(call.op, x, place)
    if int(call.get("keepdims", 1)):
        return x
    return t.reshape(x, *(size for i, size in enumerate(x.type.shape) if i not in places))


def _mean_of_layers(call: Call, value: Layers, axes: list[int]) -> Value:
    """The sum or the mean of K results, which are added one after the other. Raises Refusal for other reductions of layers."""
    if len(axes) != 1 or call.op not in ("ReduceSum", "ReduceMean") or not value.node.type.is_float or value.axis(axes[0]) != 1:
        raise Refusal("it reduces several axes of results of several estimators, or another one than the first.")
    keep = bool(int(call.get("keepdims", 1)))
    total = t.sum_(value.node, 1, keepdims=keep, ordered=True)
    result = t.div(total, float(value.node.type.shape[1])) if call.op == "ReduceMean" else total
    return Layers(result) if keep else result


@implements("ArgMax", "ArgMin", attributes=("axis", "keepdims", "select_last_index"))
def argmax(call: Call) -> Node:
    x = call.rows_of(0)
    if int(call.get("select_last_index", 0)):
        raise Refusal("it takes the last of equal numbers.")
    axis = inner_axis(int(call.get("axis", 0)), x)
    if call.op == "ArgMin":
        x = t.neg(x) if x.type.is_float else t.sub(t.constant(-1, x.type.dtype), x)  # the least integer has no negative
    found = first_largest(x, axis)
    if not int(call.get("keepdims", 1)):
        return found
    return t.reshape(found, *x.type.shape[:axis], 1, *x.type.shape[axis + 1 :])


# --- shapes ------------------------------------------------------------------------------------------------------------


@implements("Shape", attributes=("start", "end"))
def shape(call: Call) -> Value:
    dims = call.rows_of(0).type.shape
    return Dims(dims[slice(call.get("start"), call.get("end"))])


@implements("Reshape", attributes=("allowzero",))
def reshape(call: Call) -> Value:
    value, wanted = call.value(0), call.value(1)
    target: list[Dim] = list(wanted.dims) if isinstance(wanted, Dims) else [int(d) for d in call.array(1).ravel()]
    x = value.node if isinstance(value, Row) else call.rows_of(0)
    source: tuple[Dim, ...] = (1, "N", *x.type.shape[1:]) if isinstance(value, Row) else x.type.shape
    if not int(call.get("allowzero", 0)):
        target = [source[i] if d == 0 else d for i, d in enumerate(target)]
    size = math.prod(int(d) for d in source if d != "N")
    rest = math.prod(int(d) for d in target[1:] if d not in ("N", -1))
    if target and target[0] in ("N", -1) and not {"N", -1} & set(target[1:]) and rest == size:
        return t.reshape(x, "N", *target[1:])
    if target and target[0] == "N" and target[1:].count(-1) == 1 and rest:
        return t.reshape(x, "N", *(size // rest if d == -1 else d for d in target[1:]))
    if target in ([1, -1], [1, "N"]) and size == 1:
        return Row(t.reshape(x, "N"))
    if len(target) > 2 and target[:2] in ([1, -1], [1, "N"]) and target[2:] == list(x.type.shape[1:]):
        return Layers(t.reshape(x, "N", 1, *x.type.shape[1:]))
    if target and target[0] == call.declared_rows and not isinstance(value, Row) and "N" not in target[1:]:
        inner = [size // rest if d == -1 and rest else int(d) for d in target[1:]]
        if math.prod(inner) == size:
            return t.reshape(x, "N", *inner)
    raise Refusal(f"it reshapes {list(source)} to {target}, where rows would not stay the first axis.")


@implements("Flatten", attributes=("axis",))
def flatten(call: Call) -> Node:
    x = call.rows_of(0)
    axis = int(call.get("axis", 1))
    if axis != 1 and axis + len(x.type.shape) != 1:
        raise Refusal("it joins rows with columns.")
    return t.reshape(x, "N", math.prod(int(d) for d in x.type.shape[1:]))


@implements("Squeeze", attributes=("axes",))
def squeeze(call: Call) -> Value:
    value, axes = call.value(0), call.axes()
    if isinstance(value, Dims):
        return Dims(value.dims, scalar=True)
    if axes is None:
        raise Refusal("it drops every axis of length 1, which is also that of rows for a single row.")
    if isinstance(value, Row) and axes in ([0], [-2]) and len(value.node.type.shape) == 1:
        return value.node
    if isinstance(value, Layers) and axes == [0] and value.node.type.shape[1] == 1:
        return t.reshape(value.node, "N", *value.node.type.shape[2:])
    x = call.rows_of(0)
    places = {inner_axis(axis, x) for axis in axes}
    if any(x.type.shape[place] != 1 for place in places):
        raise Refusal("it drops an axis that is not of length 1.")
    return t.reshape(x, *(size for i, size in enumerate(x.type.shape) if i not in places))


@implements("Unsqueeze", attributes=("axes",))
def unsqueeze(call: Call) -> Value:
    value, axes = call.value(0), call.axes() or []
    if isinstance(value, Dims):
        return Dims(value.dims)
    x = call.rows_of(0)
    rank = len(x.type.shape) + len(axes)
    places = {axis + rank if axis < 0 else axis for axis in axes}
    if 0 in places:
        if places == {0} and rank == 2:
            return Row(x)
        if places == {0}:
            return Layers(t.reshape(x, "N", 1, *x.type.shape[1:]))
        raise Refusal("it puts an axis before the rows.")
    rest = iter(x.type.shape)
    return t.reshape(x, *(1 if i in places else next(rest) for i in range(rank)))


@implements("Transpose", attributes=("perm",))
def transpose(call: Call) -> Value:
    value = call.value(0)
    perm = [int(i) for i in call.get("perm", ())]
    if isinstance(value, Row) and len(value.node.type.shape) == 1:
        if perm in ([], [1, 0]):
            return t.reshape(value.node, "N", 1)
        return value
    if isinstance(value, Layers):
        rank = len(value.node.type.shape)
        if (perm or list(range(rank))[::-1]) == [1, 0, *range(2, rank)]:
            return value.node
        raise Refusal("it moves axes.")
    x = call.rows_of(0)
    if perm == list(range(len(x.type.shape))):
        return x
    if perm in ([], [1, 0]) and x.type.shape == ("N", 1):
        return Row(t.reshape(x, "N"))
    raise Refusal("it moves axes.")


@implements("Concat", attributes=("axis",))
def concat(call: Call) -> Value:
    values = [call.value(i) for i in range(len(call.inputs))]
    if any(isinstance(value, Dims) for value in values):
        dims: list[Dim] = []
        for value in values:
            dims += value.dims if isinstance(value, Dims) else [int(d) for d in np.asarray(value).ravel()]
        return Dims(tuple(dims))
    layers = [value for value in values if isinstance(value, Layers)]
    if len(layers) == len(values):
        return Layers(t.concat([value.node for value in layers], layers[0].axis(int(call.get("axis")))))
    nodes = [call.rows_of(i) for i in range(len(values))]
    return t.concat(nodes, inner_axis(int(call.get("axis")), nodes[0]))


@implements("Split", attributes=("axis", "split", "num_outputs"))
def split(call: Call) -> tuple[Value, ...]:
    x = call.rows_of(0)
    axis = inner_axis(int(call.get("axis", 0)), x)
    size = int(x.type.shape[axis])
    sizes = [int(n) for n in (call.array(1) if call.has(1) else call.get("split", ()))]
    if not sizes:
        each = -(-size // call.n_outputs)
        sizes = [min(each, size - i * each) for i in range(call.n_outputs)]
    if sum(sizes) != size or min(sizes) < 0:
        raise Refusal(f"it splits {size} columns into {sizes}.")
    ends = np.cumsum([0, *sizes])
    return tuple(t.take(x, np.arange(a, b), axis=axis) for a, b in itertools.pairwise(ends))


@implements("Slice", attributes=("axes", "starts", "ends"))
def slice_(call: Call) -> Value:
    value = call.value(0)
    starts, ends = ((call.get(name) if name in call.attributes else call.array(i)) for i, name in ((1, "starts"), (2, "ends")))
    axes = call.axes(3)
    axes = list(range(len(starts))) if axes is None else axes
    steps = [int(step) for step in call.array(4)] if call.has(4) else [1] * len(axes)
    parts = [slice(int(a), int(b), step) for a, b, step in zip(starts, ends, steps, strict=True)]
    parts = [slice(p.start, None if p.step < 0 and p.stop < -(2**31) else p.stop, p.step) for p in parts]
    if isinstance(value, Dims):
        return Dims(value.dims[parts[0]])
    x = call.rows_of(0)
    for axis, part in zip(axes, parts, strict=True):
        if axis == 0 and (part.start, part.step) == (0, 1) and part.stop >= (call.declared_rows or 2**31 - 1):
            continue
        place = inner_axis(axis, x)
        x = t.take(x, np.arange(int(x.type.shape[place]))[part], axis=place)
    return x


@implements("Gather", attributes=("axis",))
def gather(call: Call) -> Value:
    value, axis = call.value(0), int(call.get("axis", 0))
    if isinstance(value, Dims):
        index = call.array(1)
        places = [int(i) for i in index.ravel()]
        return Dims(tuple(value.dims[i] for i in places), scalar=index.ndim == 0)
    if isinstance(value, np.ndarray):
        if axis != 0:
            raise Refusal("it looks up a table along another axis than the first.")
        taken = t.cast(call.rows_of(1), "i64")
        if largest_position(taken) >= len(value):
            raise Refusal("it looks up positions that do not come from an ArgMax, and might lie outside of the table.")
        return t.take(value, taken, axis=0)
    if isinstance(value, Layers) and axis == 0 and call.array(1).ndim == 0:
        count, number = int(value.node.type.shape[1]), int(call.array(1))
        if not -count <= number < count:
            raise Refusal(f"it takes result {number} of {count}.")
        return t.take(value.node, np.array(number % count), axis=1)
    x = call.rows_of(0)
    place = inner_axis(axis, x)
    index = call.array(1)
    index = np.where(index < 0, index + int(x.type.shape[place]), index)
    return t.take(x, index, axis=place)


@implements("ConstantOfShape", attributes=("value",))
def constant_of_shape(call: Call) -> Value:
    wanted = call.value(0)
    value = np.asarray(call.get("value", np.zeros(1, np.float32))).reshape(())
    if not isinstance(wanted, Dims) or not wanted.dims or wanted.dims[0] != "N" or call.rows.type.dtype == "str":
        raise Refusal("its shape does not begin with the number of rows.")
    rows = call.rows if len(call.rows.type.shape) == 1 else t.reshape(t.take(call.rows, np.array([0]), axis=1), "N")
    inner = [int(d) for d in wanted.dims[1:]]
    # True for every row, also if it is NaN. This gives the constant its number of rows.
    yes = t.logical_or(t.equal(rows, rows), t.logical_not(t.equal(rows, rows)))
    yes = t.reshape(yes, "N", *(1 for _ in inner))
    filled = np.full((1, *inner), value)
    return t.where(yes, t.constant(filled), t.constant(filled))
