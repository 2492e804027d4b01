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

from dataclasses import field
from typing import Any

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.memory import writable
from hbc.compiler.tvm.host.cells import ZERO, argument
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
from hbc.lazy import cached_property, record
from hbc.ops.topics import EULER, Topics, digamma

DOUBLES = 8
"""float64 in a register: words of a document, or topics, that go at once."""
TILE = 4
"""The number of topics that are summed together: their sums hide each other's latency."""
ZERO_F64 = tirx.const(0.0, "float64")


def compiled_topics(machine: Machine) -> Rule:
    """The rule `Topics` → `CompiledTopics`, for float64. With float32, the last bits of numpy's products decide when a document stops."""

    def rule(node: Node) -> Node | None:
        op = node.op
        if type(op) is not Topics or op.words.dtype != np.float64:
            return None
        return CompiledTopics(op.words, op.prior, op.tol, op.max_iter, machine=machine)(*node.inputs)

    return rule


@record(eq=False, repr=False)
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
            *(np.empty(size) for size in ((padded + 2) * (width + -width % DOUBLES), 3 * (padded + DOUBLES))),
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
    a = Parameters()
    with IRBuilder() as builder, T.serial(ZERO, a.documents) as index:
        document = Document(a, dialect, index)
        document.gather_words()
        document.start()
        with T.While(tirx.LT(document.steps[0], a.max_iter)):
            document.divide_counts()
            document.sum_words()
            document.update_gamma()
            document.update_theta()
            document.end_step()
        with T.serial(ZERO, a.topics) as k:
            T.buffer_store(a.result, a.state[k] / a.state[a.topics], [index, k])
    return tirx.PrimFunc(a.in_order(), builder.get()).with_attr("tirx.noalias", True)


class Parameters:
    """The parameters of `iteration`."""

    def __init__(self) -> None:
        self.documents, self.topics, self.padded = (tirx.Var(name, "int64") for name in ("documents", "topics", "padded"))
        self.indptr = argument("indptr", "int64", self.documents + 1)
        self.indices = argument("indices", "int64", tirx.Var("entries", "int64"))
        self.counts = argument("counts", "float64", tirx.Var("numbers", "int64"))
        self.words = argument("words", "float64", tirx.Var("vocabulary", "int64"), self.padded)
        self.block, self.state = argument("block", "float64"), argument("state", "float64")
        self.result = argument("result", "float64", self.documents, self.topics)
        self.max_iter = tirx.Var("max_iter", "int64")
        self.first, self.prior, self.tol = (tirx.Var(name, "float64") for name in ("first", "prior", "tol"))

    def in_order(self) -> list[Any]:
        """The parameters in the order of a call."""
        arrays = [self.indptr, self.indices, self.counts, self.words, self.block, self.state, self.result]
        return [*arrays, self.max_iter, self.first, self.prior, self.tol]


class Document:
    """Emits the iteration for one document. Its methods are the lines of the loop in this file's docstring.

    `block` has rows of `stride` entries, one for each word of the document: row 0 has its count, row 1 its ratio, row k + 2 its weight in
    topic k. `state` has three parts: gamma with its sum behind it; from `theta` on, theta; from `sums` on, for each topic the sum over the
    words.
    """

    def __init__(self, a: Parameters, dialect: Dialect, index: Expr) -> None:
        self.a, self.dialect = a, dialect
        self.block, self.state = as_vector(a.block), as_vector(a.state)
        self.begin = T.Bind(a.indptr[index])
        self.count = T.Bind(a.indptr[index + 1] - self.begin)
        self.vectors = T.Bind((self.count + (DOUBLES - 1)) // DOUBLES)
        self.stride = T.Bind(self.vectors * DOUBLES)

    def gather_words(self) -> None:
        """Fill the counts and the weights of the document's words. The entries that the last vector has too many get the count 0."""
        a = self.a
        with T.serial(ZERO, self.stride) as entry:
            place = T.Bind(self.begin + tirx.Min(entry, self.count - 1))
            T.buffer_store(a.block, tirx.Select(tirx.LT(entry, self.count), a.counts[place], ZERO_F64), [entry])
            word = T.Bind(a.indices[place])
            with T.serial(ZERO, a.padded) as k:
                T.buffer_store(a.block, a.words[word, k], [(k + 2) * self.stride + entry])

    def start(self) -> None:
        """Set gamma to 1 and theta to match, and allocate the number of steps, the change of gamma, and registers of sums."""
        self.wide = T.Bind((self.a.topics + DOUBLES) // DOUBLES)  # vectors of the topics and the sum of gamma
        self.theta, self.sums = T.Bind(self.wide * DOUBLES), T.Bind(self.wide * (2 * DOUBLES))
        with T.serial(ZERO, self.theta) as k:
            T.buffer_store(self.a.state, number(1, "f64"), [k])
            T.buffer_store(self.a.state, self.a.first, [self.theta + k])
        self.steps, self.change = (T.alloc_buffer((1,), dtype, scope="global") for dtype in ("int64", "float64"))
        self.totals = [T.alloc_buffer((DOUBLES,), "float64", scope="global") for _ in range(TILE)]
        T.buffer_store(self.steps, ZERO, [0])

    def divide_counts(self) -> None:
        """ratio[word] = count[word] / (Σ theta[k] · words[word, k] + eps), for a vector of words at a time."""
        eps, total = broadcast(number(float(np.finfo(np.float64).eps), "f64"), DOUBLES), self.totals[0]
        with T.serial(ZERO, self.vectors) as part:
            self._clear(total)
            with T.serial(ZERO, self.a.topics) as k:
                share = broadcast(self.state[self.theta + k], DOUBLES)
                self._add(total, share, self._words(k + 2, part))
            norm = tirx.Add(vector(total, 0, DOUBLES), eps)
            store(self.block, tirx.Div(self._words(0, part), norm), self.stride + part * DOUBLES, DOUBLES)

    def sum_words(self) -> None:
        """sums[k] = Σ ratio[word] · words[word, k], for TILE topics at a time."""
        with T.serial(ZERO, self.a.padded // TILE) as tile:
            for total in self.totals:
                self._clear(total)
            with T.serial(ZERO, self.vectors) as part:
                ratio = T.Bind(self._words(1, part))
                for i, total in enumerate(self.totals):
                    self._add(total, ratio, self._words(tile * TILE + (i + 2), part))
            for i, total in enumerate(self.totals):
                half = DOUBLES // 2
                while half:
                    store(total, tirx.Add(vector(total, 0, half), vector(total, half, half)), 0, half)
                    half //= 2
                T.buffer_store(self.a.state, total[0], [self.sums + tile * TILE + i])

    def update_gamma(self) -> None:
        """gamma[k] = prior + theta[k] · sums[k], with the sum of gamma and the sum of their changes."""
        a = self.a
        T.buffer_store(self.change, ZERO_F64, [0])
        T.buffer_store(a.state, ZERO_F64, [a.topics])
        with T.serial(ZERO, a.topics) as k:
            gamma = T.Bind(a.prior + a.state[self.theta + k] * a.state[self.sums + k])
            T.buffer_store(self.change, self.change[0] + tirx.abs(a.state[k] - gamma), [0])
            T.buffer_store(a.state, gamma, [k])
            T.buffer_store(a.state, a.state[a.topics] + gamma, [a.topics])

    def update_theta(self) -> None:
        """theta = exp(digamma(gamma) - digamma(Σ gamma)), for a vector of topics at a time."""
        with T.serial(ZERO, self.wide) as part:
            at = self.theta + part * DOUBLES
            store(self.state, _digamma(vector(self.state, part * DOUBLES, DOUBLES), self.dialect), at, DOUBLES)
        whole = T.Bind(broadcast(self.a.state[self.theta + self.a.topics], DOUBLES))
        with T.serial(ZERO, self.wide) as part:
            at = self.theta + part * DOUBLES
            rest = tirx.Sub(vector(self.state, at, DOUBLES), whole)
            store(self.state, function("exp", rest, "f64", self.dialect, DOUBLES), at, DOUBLES)

    def end_step(self) -> None:
        """Count the step. If the mean change of gamma is below tol, it is the last one."""
        converged = tirx.LT(self.change[0] / tirx.Cast("float64", self.a.topics), self.a.tol)
        T.buffer_store(self.steps, tirx.Select(converged, self.a.max_iter, self.steps[0] + 1), [0])

    def _words(self, row: Expr, part: Expr) -> Expr:
        """A vector of words in a row of `block`."""
        return vector(self.block, row * self.stride + part * DOUBLES, DOUBLES)

    def _clear(self, total: Any) -> None:
        store(total, broadcast(ZERO_F64, DOUBLES), 0, DOUBLES)

    def _add(self, total: Any, a: Expr, b: Expr) -> None:
        """total += a · b, lane by lane; fused if the processor can."""
        sums = tirx.call_llvm_pure_intrin(f"float64x{DOUBLES}", "llvm.fmuladd", a, b, vector(total, 0, DOUBLES))
        store(total, sums, 0, DOUBLES)


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
