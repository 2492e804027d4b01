"""PairwiseCoupling in ONNX: a Loop of sweeps over all rows at once, until no row needs another sweep."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from hbc.compiler.onnx.builder import PROTO_DTYPES, Builder, emits
from hbc.ir.graph import Node
from hbc.ir.types import NUMPY_DTYPES
from hbc.ops.coupling import PairwiseCoupling


def _column(b: Builder, x: str, i: int) -> str:
    """The column x[:, i : i + 1], [N, 1]."""
    return b("Slice", x, np.array([i]), np.array([i + 1]), np.array([1]))


@emits(PairwiseCoupling)
def _pairwise_coupling(b: Builder, op: PairwiseCoupling, node: Node) -> str:
    (r,) = b.inputs(node)
    size, dtype = op.classes, NUMPY_DTYPES[op.dtype]
    above = np.triu(np.ones((size, size), bool), 1)
    # Matrices over pairs of classes are held as [N, K · K], so that two axes are enough.
    one_way = b("Gather", r, op.places.reshape(-1), axis=1)
    against = b("Where", above.reshape(1, -1), one_way, b("Sub", np.ones((), dtype), one_way))
    other_way = b("Where", above.T.reshape(1, -1), one_way, b("Sub", np.ones((), dtype), one_way))  # position (t, j) holds r_jt
    squares = b("Mul", other_way, other_way)
    rows = []
    products = b("Neg", b("Mul", other_way, against))
    for i in range(size):
        others = [_column(b, squares, i * size + j) for j in range(size) if j != i]
        total = others[0]
        for other in others[1:]:
            total = b("Add", total, other)
        cells = [total if j == i else _column(b, products, i * size + j) for j in range(size)]
        rows.append(b("Concat", *cells, axis=1))
    start = b(
        "Expand", np.full((1, 1), 1.0 / size, dtype), b("Concat", b("Shape", r, start=0, end=1), np.array([size]), axis=0)
    )
    on = b("Expand", np.ones((1, 1), bool), b("Concat", b("Shape", r, start=0, end=1), np.array([1]), axis=0))
    some = b("Squeeze", b("Less", np.array([0]), b("Shape", r, start=0, end=1)), np.array([0]))

    inner = b.body()
    body = _sweep(inner, rows, op)
    b.resume(inner)
    found = b("Loop", np.asarray(op.sweeps), some, start, on, body=body)
    b.nodes[-1].output[:] = [found, f"{found}_on"]
    return found


def _sweep(b: Builder, rows: list[str], op: PairwiseCoupling) -> onnx.GraphProto:
    """The body of the Loop, one sweep: (round, go on, p, unfinished rows) → (go on, p, unfinished rows)."""
    prefix = b.new_name()
    step, again, p, on = (f"{prefix}_{name}" for name in ("step", "again", "p", "on"))
    given = [
        helper.make_tensor_value_info(step, PROTO_DTYPES["i64"], []),
        helper.make_tensor_value_info(again, PROTO_DTYPES["bool"], []),
        helper.make_tensor_value_info(p, PROTO_DTYPES[op.dtype], None),
        helper.make_tensor_value_info(on, PROTO_DTYPES["bool"], None),
    ]
    size, dtype = op.classes, NUMPY_DTYPES[op.dtype]
    one, two = (np.asarray(value, dtype) for value in (1, 2))

    def total(terms: list[str]) -> str:
        result = terms[0]
        for term in terms[1:]:
            result = b("Add", result, term)
        return result

    each = [_column(b, p, j) for j in range(size)]
    # Added column by column of Q. Q is symmetric, so rows[j] is its column j.
    Qp = total([b("Mul", rows[j], each[j]) for j in range(size)])
    pQp = total([b("Mul", each[j], _column(b, Qp, j)) for j in range(size)])
    far = b("GreaterOrEqual", b("Abs", b("Sub", Qp, pQp)), np.asarray(op.tolerance, dtype))
    left = b("And", on, b.any(far, axis=1, keepdims=True))
    following = p
    for i in range(size):
        least, mine = _column(b, rows[i], i), _column(b, Qp, i)
        diff = b("Div", b("Sub", pQp, mine), least)
        whole = b("Add", diff, one)
        following = b("Add", following, b("Mul", diff, np.eye(size, dtype=dtype)[i : i + 1]))
        inner = b("Add", b("Mul", diff, least), b("Mul", mine, two))
        pQp = b("Div", b("Div", b("Add", pQp, b("Mul", diff, inner)), whole), whole)
        Qp = b("Div", b("Add", Qp, b("Mul", diff, rows[i])), whole)
        following = b("Div", following, whole)
    following = b("Where", left, following, p)
    go_on = b.any(left)
    results = [
        helper.make_tensor_value_info(go_on, PROTO_DTYPES["bool"], None),
        helper.make_tensor_value_info(following, PROTO_DTYPES[op.dtype], None),
        helper.make_tensor_value_info(left, PROTO_DTYPES["bool"], None),
    ]
    return helper.make_graph(b.nodes, "sweep", given, results)
