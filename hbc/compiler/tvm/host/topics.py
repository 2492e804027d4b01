"""The topics of documents, of LatentDirichletAllocation (hbc/ops/topics.py): one compiled function has a document's whole iteration. All
models share it.

    for each document:
        gamma = 1;  theta = exp(digamma(gamma) - digamma(Σ gamma))
        until the mean change of gamma is below tol, at most max_iter times:
            ratio[word] = count[word] / (Σ theta[k] · words[word, k] + eps)
            gamma[k] = prior + theta[k] · Σ ratio[word] · words[word, k]
            theta = exp(digamma(gamma) - digamma(Σ gamma))
        result = gamma / Σ gamma
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.memory import writable
from hbc.compiler.tvm.run.cache import compiled
from hbc.compiler.tvm.run.executable import as_tensor
from hbc.compiler.tvm.run.targets import Machine
from hbc.compiler.tvm.tir.dialect import Dialect, Expr
from hbc.compiler.tvm.tir.expressions import number
from hbc.compiler.tvm.tir.lines import FORMATS
from hbc.compiler.tvm.tir.mathematics import function
from hbc.compiler.tvm.tir.powers import Statements
from hbc.compiler.tvm.tir.vectors import as_vector, broadcast, store, vector
from hbc.ir.graph import Node
from hbc.ir.rewrite import Rule
from hbc.ir.rows import Rows
from hbc.ir.types import Array
from hbc.lazy import cached_property
from hbc.ops.topics import EULER, Topics, digamma

DOUBLES = 8
"""float64 in a register: words of a document, or topics, that go at once."""
TILE = 4
"""The number of topics that are summed together: their sums hide each other's latency."""
ZERO = tirx.const(0, "int64")


def compiled_topics(machine: Machine) -> Rule:
    """The rule `Topics` → `CompiledTopics`, for float64. With float32, the last bits of numpy's products decide when a document stops."""

    def rule(node: Node) -> Node | None:
        op = node.op
        if type(op) is not Topics or op.words.dtype != np.float64:
            return None
        return CompiledTopics(op.words, op.prior, op.tol, op.max_iter, machine=machine)(*node.inputs)

    return rule


@dataclass(frozen=True, eq=False, repr=False)
class CompiledTopics(Topics):
    """`Topics` by the compiled function.

    300 documents of 50 words and 10 topics take 4 ms instead of 84 (scikit-learn: 63), one document 70 µs instead of 340.
    """

    machine: Machine = field(kw_only=True)

    def evaluate(self, x: Array) -> Array:
        return self.of_rows(Rows.from_dense(x))

    def of_rows(self, x: Rows) -> Array:
        x = x if x.unique else Rows.from_dense(x.dense())
        result = np.empty((len(x), len(self.words)))
        if not self.max_iter or not len(x):
            result.fill(1 / len(self.words))
            return result
        padded, width = len(self.words) + -len(self.words) % TILE, max(int(np.diff(x.indptr).max()), 1)
        data, indices = (x.data, x.indices) if len(x.data) else (np.zeros(1), np.zeros(1))  # TVM takes no empty array
        arrays = (
            *(array.astype(np.int64, copy=False) for array in (x.indptr, indices)),
            writable(np.ascontiguousarray(data)),
            *(np.empty(size) for size in ((padded + 2) * _whole(width), 3 * (padded + DOUBLES))),
            result,
        )
        indptr, indices, counts, *rest = map(as_tensor, arrays)
        self._iteration(indptr, indices, counts, self._words, *rest, self.max_iter, self._first, self.prior, self.tol)
        return result

    @cached_property
    def _words(self) -> Any:
        """The topics of the words, [V, K], padded with zeros to a multiple of TILE topics."""
        return as_tensor(np.ascontiguousarray(np.pad(self.words.T, ((0, 0), (0, -len(self.words) % TILE)))))

    @cached_property
    def _first(self) -> float:
        """theta where all gamma are 1."""
        return float(np.exp(digamma(np.ones(1)) - digamma(np.full(1, float(len(self.words)))))[0])

    @cached_property
    def _iteration(self) -> Any:
        return compiled(iteration(self.machine.dialect), self.machine)


def iteration(dialect: Dialect) -> tirx.PrimFunc:
    """`iteration(indptr i64[D + 1], indices i64[E], counts[E], words[V, P], block[(P + 2) W], state[3 (P + 8)], result[D, K], max_iter i64,
    first, prior, tol)` in TIR: it writes the shares of K topics in D documents to `result`. The other arrays are float64.

    P is K rounded up to a multiple of TILE. W is the most words of a document, rounded up to a multiple of DOUBLES. `block` and `state` are
    memory to work in. `first` is theta at the beginning, where all gamma are 1.
    """
    documents, topics, padded = (tirx.Var(name, "int64") for name in ("documents", "topics", "padded"))

    def argument(name: str, *shape: Any, dtype: str = "float64") -> Any:
        sizes = [tirx.Var(size, "int64") if isinstance(size, str) else size for size in shape]
        return tirx.decl_buffer(sizes, dtype, name=name, data_alignment=8)

    indptr, indices = argument("indptr", documents + 1, dtype="int64"), argument("indices", "entries", dtype="int64")
    counts, words = argument("counts", "numbers"), argument("words", "vocabulary", padded)
    block, state, result = (
        argument("block", "block_size"),
        argument("state", "state_size"),
        argument("result", documents, topics),
    )
    max_iter = tirx.Var("max_iter", "int64")
    first, prior, tol = (tirx.Var(name, "float64") for name in ("first", "prior", "tol"))
    zero, eps = number(0, "f64"), broadcast(number(float(np.finfo(np.float64).eps), "f64"), DOUBLES)

    with IRBuilder() as builder, T.serial(ZERO, documents) as document:
        memory, numbers = as_vector(block), as_vector(state)
        begin = T.Bind(indptr[document])
        count = T.Bind(indptr[document + 1] - begin)
        vectors = T.Bind((count + (DOUBLES - 1)) // DOUBLES)
        stride = T.Bind(vectors * DOUBLES)
        # The rows of `block`, an entry for each word of the document: its count; its ratio; its weight in topic 0, 1, …
        with T.serial(ZERO, stride) as entry:
            place = T.Bind(begin + tirx.Min(entry, count - 1))
            T.buffer_store(block, tirx.Select(tirx.LT(entry, count), counts[place], zero), [entry])
            word = T.Bind(indices[place])
            with T.serial(ZERO, padded) as k:
                T.buffer_store(block, words[word, k], [(k + 2) * stride + entry])
        # The parts of `state`: gamma and their sum; digamma of these, then theta; for each topic the sum over the words.
        wide = T.Bind((topics + DOUBLES) // DOUBLES)
        theta, sums = T.Bind(wide * DOUBLES), T.Bind(wide * (2 * DOUBLES))
        with T.serial(ZERO, theta) as k:
            T.buffer_store(state, number(1, "f64"), [k])
            T.buffer_store(state, first, [theta + k])
        steps, change = (T.alloc_buffer((1,), dtype, scope="global") for dtype in ("int64", "float64"))
        totals = [T.alloc_buffer((DOUBLES,), "float64", scope="global") for _ in range(TILE)]

        def clear(total: Any) -> None:
            store(total, broadcast(zero, DOUBLES), 0, DOUBLES)

        def add(total: Any, a: Expr, b: Expr) -> None:
            term = tirx.call_llvm_pure_intrin(f"float64x{DOUBLES}", "llvm.fmuladd", a, b, vector(total, 0, DOUBLES))
            store(total, term, 0, DOUBLES)

        T.buffer_store(steps, ZERO, [0])
        with T.While(tirx.LT(steps[0], max_iter)):
            with T.serial(ZERO, vectors) as part:
                clear(totals[0])
                with T.serial(ZERO, topics) as k:
                    share = broadcast(numbers[theta + k], DOUBLES)
                    add(totals[0], share, vector(memory, (k + 2) * stride + part * DOUBLES, DOUBLES))
                norm = tirx.Add(vector(totals[0], 0, DOUBLES), eps)
                store(memory, tirx.Div(vector(memory, part * DOUBLES, DOUBLES), norm), stride + part * DOUBLES, DOUBLES)
            with T.serial(ZERO, padded // TILE) as tile:
                for total in totals:
                    clear(total)
                with T.serial(ZERO, vectors) as part:
                    ratio = T.Bind(vector(memory, stride + part * DOUBLES, DOUBLES))
                    for i, total in enumerate(totals):
                        add(total, ratio, vector(memory, (tile * TILE + (i + 2)) * stride + part * DOUBLES, DOUBLES))
                for i, total in enumerate(totals):
                    half = DOUBLES // 2
                    while half:
                        store(total, tirx.Add(vector(total, 0, half), vector(total, half, half)), 0, half)
                        half //= 2
                    T.buffer_store(state, total[0], [sums + tile * TILE + i])
            T.buffer_store(change, zero, [0])
            T.buffer_store(state, zero, [topics])
            with T.serial(ZERO, topics) as k:
                gamma = T.Bind(prior + state[theta + k] * state[sums + k])
                T.buffer_store(change, change[0] + tirx.abs(state[k] - gamma), [0])
                T.buffer_store(state, gamma, [k])
                T.buffer_store(state, state[topics] + gamma, [topics])
            with T.serial(ZERO, wide) as part:
                store(numbers, _digamma(vector(numbers, part * DOUBLES, DOUBLES), dialect), theta + part * DOUBLES, DOUBLES)
            whole = T.Bind(broadcast(state[theta + topics], DOUBLES))
            with T.serial(ZERO, wide) as part:
                rest = tirx.Sub(vector(numbers, theta + part * DOUBLES, DOUBLES), whole)
                store(numbers, function("exp", rest, "f64", dialect, DOUBLES), theta + part * DOUBLES, DOUBLES)
            still = tirx.LT(change[0] / tirx.Cast("float64", topics), tol)
            T.buffer_store(steps, tirx.Select(still, max_iter, steps[0] + 1), [0])
        with T.serial(ZERO, topics) as k:
            T.buffer_store(result, state[k] / state[topics], [document, k])

    arguments = [indptr, indices, counts, words, block, state, result, max_iter, first, prior, tol]
    return tirx.PrimFunc(arguments, builder.get()).with_attr("tirx.noalias", True)


def _digamma(x: Expr, dialect: Dialect) -> Expr:
    """`hbc.ops.topics.digamma` of a vector."""
    c = Statements(FORMATS["f64"], dialect, DOUBLES)
    zero, one, six = (c.real(value) for value in (0, 1, 6))
    given = c.name(x)
    small = tirx.LE(given, c.real(1e-6))
    inverse = c.name(tirx.Div(one, given))
    x, result = c.name(tirx.Select(small, six, given)), zero
    for step in range(6):
        below = tirx.LT(x, six)
        result = c.name(tirx.Sub(result, tirx.Select(below, tirx.Div(one, x) if step else inverse, zero)))
        x = c.name(tirx.Add(x, tirx.Select(below, one, zero)))
    r = c.name(tirx.Div(one, x))
    result = tirx.Add(result, tirx.Sub(function("log", x, "f64", dialect, DOUBLES), tirx.Mul(c.real(0.5), r)))
    square = c.name(tirx.Mul(r, r))
    series: Expr = c.real(1 / 252)
    for coefficient in (1 / 120, 1 / 12):
        series = tirx.Sub(c.real(coefficient), tirx.Mul(square, series))
    result = tirx.Sub(result, tirx.Mul(square, series))
    return tirx.Select(small, tirx.Sub(c.real(-EULER), inverse), result)


def _whole(count: int) -> int:
    return -(-count // DOUBLES) * DOUBLES
