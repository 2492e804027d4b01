"""Calls: the ways from the caller's X to the result of a method. There is a class for each kind of result. The class for a method is chosen
once, when the model is made (`call_of`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy import ndarray

from hbc.compiler.base import Direct, Quick, no_quick_way, quick_of
from hbc.errors import InvalidInputError
from hbc.ir.coded_strings import dense
from hbc.ir.later import part_of, read
from hbc.ir.rows import Rows
from hbc.ir.signature import InputSpec, Kinds, ModelInfo, keeps_dtype
from hbc.ir.types import NUMPY_DTYPES, Array
from hbc.lazy import cached_property, record
from hbc.runtime import sparse
from hbc.runtime.frame_output import make_frame
from hbc.runtime.host import ROWS_OF_PART, Labels
from hbc.runtime.input.frame_view import FrameView
from hbc.runtime.input.frames import read_frame
from hbc.runtime.input.intake import Intake, as_given
from hbc.runtime.input.sparse_reader import reject_sparse
from hbc.runtime.one_row import OneRow
from hbc.runtime.places import card_of, is_cudf
from hbc.runtime.variant import Ready, Variant

T = TypeVar("T")

FEW_RECORDS = 256
"""The most dicts of a list that are read without a frame. With 15 columns, one takes 5 µs and 256 take 530; by a frame of pandas they take
240 and 565."""

LEAST_TOGETHER = 256
"""The least rows whose methods are computed together."""


@record
class Shared:
    """The parts of a model that all its methods share: the facts about the source, the reader of its input, and the variants."""

    info: ModelInfo
    spec: InputSpec
    intake: Intake
    variants: Mapping[Kinds, Variant]
    record_handle: Callable[[ArrayCall], Any]
    """Makes the RecordHandle of a call."""

    @cached_property
    def plain(self) -> dict[np.dtype[Any], Variant]:
        """dtype → the variant that takes a whole matrix of this dtype as it is. Empty for models of strings, frames or vectors."""
        spec, intake = self.spec, self.intake
        if (
            spec.ndim != 2
            or spec.frames.required
            or spec.having("objects_only")
            or intake.texts
            or len(intake.numbers) != spec.n_features
        ):
            return {}
        taken = ("f32", "f64") if spec.having("f64_between") or spec.having("unsigned") else ("f32", "f64", "i64")
        dtypes = {dtype: np.dtype(NUMPY_DTYPES[dtype]) for dtype in intake.uniform if dtype in taken}
        variants = {plain: self.variants[intake.uniform[dtype]] for dtype, plain in dtypes.items()}
        return {dtype: variant for dtype, variant in variants.items() if len(set(variant.kinds)) == 1}

    @cached_property
    def mixes_rows(self) -> bool:
        """Whether a row's result depends on other rows of the call, so that a large input cannot be cut into blocks."""
        return any(variant.source.mixes_rows for variant in self.variants.values())

    @cached_property
    def on_gpu(self) -> bool:
        """Whether the model computes on a GPU, perhaps while the host reads and encodes other rows."""
        return any(variant.device.startswith("cuda") for variant in self.variants.values())

    @cached_property
    def later(self) -> int:
        """The `later` of an Intake: for a GPU, columns of strings of many rows are read in parts."""
        columns = self.spec.ndim == 2 and not self.spec.items and self.intake.texts
        return ROWS_OF_PART if columns and self.on_gpu else 0


class ArrayCall:
    """A method that returns an array, or a list of several.

    The model's generated method calls `quick` first, and looks into `short` then. The call itself takes any X, and has two ways to the
    result: `fast`, by the executable's direct function, and `slow`, which tests the values and raises an error that names the bad one.
    """

    returns = ""
    """The kind of result in words, if it is no array; "" for arrays."""

    def __init__(self, method: str, shared: Shared) -> None:
        self.method = method
        self.shared = shared
        self.short: dict[np.dtype[Any], tuple[Direct, int]] = {}
        """dtype → (the direct function for plain matrices, the least number of rows that it takes). The first slow call fills it."""
        self.quick: Callable[..., Any] = no_quick_way
        """(X) → the result for a few rows of a plain matrix, in the shortest time; None for everything else."""
        self._quick: Quick | None = None
        info, spec = shared.info, shared.spec
        dtype = info.output_dtypes.get(method)
        self.dtype = None if dtype is None else np.dtype(dtype)
        """The dtype of the source's result, if the graph's result has another one; otherwise None."""
        self._empty = None
        if method in info.without_rows:
            dtype, shape = info.without_rows[method]
            self._empty = np.empty(shape, dtype)
        methods = next(iter(shared.variants.values())).source.methods
        self.keeps_dtype = bool(spec.own_dtype) and method == keeps_dtype(methods)
        self._plain = shared.plain
        self._one_row: dict[Kinds, OneRow | None] = {}
        """The variants that one row has come to → its short way from then on, if there is one."""

    def __call__(self, X: Any) -> Any:
        """The result of the source's method for X. Raises InvalidInputError."""
        if type(X) is list and 0 < len(X) <= FEW_RECORDS and type(X[0]) is dict and self.answers_rows:
            found = self._records.without_frame(X)
            if found is not None:
                return found
        number = card_of(X)
        if number is not None and not self.returns and self._resident.runs_there:
            return self._resident(X, number)
        if is_cudf(X) and self.shared.on_gpu and not self.returns:
            found = self._resident.of_frame(X)
            if found is not None:
                return found
        return self.result_for(self.shared.intake.frame_of(X))

    def result_for(self, X: Any) -> Any:
        """The result for an X that `Intake.frame_of` need not look at, such as a FrameView: an array, a list of several or a sparse
        matrix, also where the method returns a frame of these."""
        found = self._answer(X)
        return as_given(found, X, self.shared.spec, self.shared.intake.positions) if self.keeps_dtype else found

    def _answer(self, X: Any) -> Any:
        """The result, before it is cast to the dtype of X (for methods that keep it)."""
        if type(X) is ndarray:
            variant, flags = self._plain.get(X.dtype), X.flags
            width = self.shared.spec.n_features
            if variant is not None and X.ndim == 2 and X.shape[1] == width and flags.c_contiguous and flags.aligned:
                # A plain matrix of the right width, dtype and layout goes through without a copy.
                return self.answer(variant, (X,))
        elif sparse.is_sparse(X) and self._needs_blocks(X):
            parts = _in_blocks(X, self._read)
            if isinstance(parts[0], list):
                return [np.concatenate(each) for each in zip(*parts, strict=True)]
            return np.concatenate(parts)
        return self._read(X)

    @cached_property
    def _resident(self) -> Any:
        from hbc.runtime.resident import Resident  # most calls have arrays of the host

        return Resident(self)

    @cached_property
    def _records(self) -> Any:
        return self.shared.record_handle(self)

    @property
    def answers_rows(self) -> bool:
        """Whether the result for a frame is that of `answer` for its arrays: an array, whatever the dtypes of the frame."""
        return not (self.returns or self.keeps_dtype)

    def _needs_blocks(self, X: Any) -> bool:
        """Whether a sparse matrix has to be cut into blocks of rows. Raises InvalidInputError where the method takes none."""
        if self.method in self.shared.spec.sparse.dense_methods:
            reject_sparse(X)
        return not self.shared.mixes_rows and sparse.is_large(X)

    def _read(self, X: Any) -> Any:
        shared = self.shared
        if self.method == "predict_log_proba":
            shared.intake.require_double(X)
        try:
            kinds, arrays = shared.intake(X, shared.later)
        except InvalidInputError:
            if not shared.later:
                raise
            kinds, arrays = shared.intake(X)  # its error is about the first of several bad values
        return self.answer(shared.variants[kinds], arrays)

    def answer(self, variant: Variant, arrays: Sequence[Array]) -> Any:
        """The result for the inputs of a variant's graph. Raises InvalidInputError for values that the source rejects."""
        found = self.fast(variant, arrays)
        return self.slow(variant, arrays) if found is None else found

    def fast(self, variant: Variant, arrays: Sequence[Array]) -> Any:
        """The result by the direct function, which also tests the values. None if there is no such function yet, if it does not take these
        arrays, or if a value does not pass the test. The numbers of a frame come here as an array."""
        array = arrays[0]
        if len(arrays) == 1 and type(array) is ndarray and self._plain.get(array.dtype) is variant:
            short = self.short.get(array.dtype)
            if short is None or len(array) < short[1]:
                return None
            if not array.flags.carray:  # pandas gives arrays that are read-only
                if len(array) > 1:
                    return None
                array = array.copy()
            return short[0](array, len(array))
        row = self._one_row.get(variant.kinds) if len(array) == 1 else None
        return None if row is None else row.of_arrays(arrays)

    def one_row(self, variant: Variant) -> OneRow | None:
        """The short way of one row through a variant. None if there is none."""
        if variant.kinds not in self._one_row:
            row = None
            if self.shared.spec.ndim == 2 and not self.shared.spec.items:
                row = OneRow(self.method, variant, self.shared.intake.columns, self.dtype, self.direct(variant))
            self._one_row[variant.kinds] = row if row and row.usable else None
        return self._one_row[variant.kinds]

    def slow(self, variant: Variant, arrays: Sequence[Array]) -> Any:
        """The result by `run`, after a test of the values. Raises InvalidInputError for values that the source rejects."""
        if self.shared.on_gpu:
            found = in_parts([self], variant, arrays)
            if found is not None:
                return self._owned(found[0], arrays)
            arrays = [read(array) for array in arrays]
        ready, arrays = self._tested(variant, arrays)
        # Before `run`: otherwise a backend compiles the method first without and then again with the test.
        self._remember(variant)
        results = self._owned(ready.run(self.method, arrays), arrays)
        if len(arrays[0]) == 1 and (row := self.one_row(variant)) is not None:
            row.learn(arrays)
        return results

    def _tested(self, variant: Variant, arrays: Sequence[Array]) -> tuple[Ready, Sequence[Array]]:
        """The compiled variant, and the arrays in the form that it takes. Raises InvalidInputError for values that the source rejects."""
        ready = variant.ready
        taken = arrays if ready.takes_coded_strings else [dense(array) for array in arrays]
        ready.gate_of(self.method)(taken)
        return ready, taken

    def _remember(self, variant: Variant) -> None:
        """Put the direct function of a variant of plain matrices into `short`, if it is not there."""
        dtype = next((dtype for dtype, plain in self._plain.items() if plain is variant), None)
        if dtype is not None and dtype not in self.short:
            least = self.least_rows(variant)
            self.short[dtype] = (self._shortcut(variant) or _none, least)
            quick = quick_of(self.short[dtype][0], least)
            if quick is not None and self._quick is not None:
                self._quick.and_then(quick)
            elif quick is not None:
                self._quick, self.quick = quick, quick.function

    def warm_up(self, variant: Variant) -> None:
        """Compile the method for a variant now, as its first call would."""
        self._remember(variant)
        variant.ready.executable.warm_up(self.method)

    def _shortcut(self, variant: Variant) -> Direct | None:
        """The function for `short`."""
        return self.direct(variant)

    def direct(self, variant: Variant) -> Direct | None:
        """The executable's direct function, if its result has the source's dtype; otherwise None."""
        direct = variant.ready.direct(self.method)
        own = NUMPY_DTYPES[variant.facts.results[self.method][0].dtype]
        if isinstance(direct, Labels):
            return direct if self.dtype is None else direct.astype(self.dtype)
        return direct if self.dtype is None or own == self.dtype else None

    def least_rows(self, variant: Variant) -> int:
        """The least number of rows that a direct function may be given."""
        return max(variant.ready.gate_of(self.method).min_rows, 1)

    def _owned(self, results: Sequence[Array], arrays: Sequence[Array]) -> Any:
        """The results with the source's dtypes, in memory of their own: neither the caller nor the model has it."""
        if self._empty is not None and not len(results[0]):
            return self._empty.copy()
        dtype = self.dtype
        owned = []
        for result in results:
            if dtype is not None and result.dtype != dtype:
                result = result.astype(dtype)
            elif result.base is None:
                for array in arrays:  # a generator under any() would take 0.3 µs, as long as all the rest of this function
                    if result is array:
                        result = result.copy()
            elif not result.flags.writeable or any(
                isinstance(array, ndarray) and np.may_share_memory(result, array) for array in arrays
            ):
                result = result.copy()
            owned.append(result)
        return owned[0] if len(owned) == 1 else owned


class SparseCall(ArrayCall):
    """A method that returns a sparse matrix for some kinds of X (arrays, CSR, CSC), and an
    array for the others. The arrays are not made from Rows, which took 50 times as long."""

    def __init__(self, method: str, shared: Shared) -> None:
        super().__init__(method, shared)
        self._classes = shared.info.sparse.get(method, ("", "", ""))
        self.returns = "a sparse matrix" if self._classes[0] else ""

    def _answer(self, X: Any) -> Any:
        given = type(X) is not ndarray and sparse.is_sparse(X)
        name = self._classes[0 if not given else 2 if X.format == "csc" else 1]
        if not name:
            return super()._answer(X)
        rows = Rows.stack(_in_blocks(X, self._rows)) if given and self._needs_blocks(X) else self._rows(X)
        if name.endswith(" *"):
            name = f"{name[:3]}_{'matrix' if sparse.is_matrix(X) else 'array'}"
        return sparse.as_scipy(rows, name)

    def _rows(self, X: Any) -> Rows:
        """The result as Rows: from the host, or made from arrays that are computed a block of rows at a time."""
        kinds, arrays = self.shared.intake(X)
        variant = self.shared.variants[kinds]
        ready, taken = self._tested(variant, arrays)
        facts = variant.facts
        (kind,) = facts.results[self.method]
        rows = max(len(taken[0]), 1)
        step = rows
        if self.method not in facts.gives_rows and not self.shared.mixes_rows:
            step = max(sparse.BLOCK_BYTES // max(kind.columns * NUMPY_DTYPES[kind.dtype].itemsize, 1), 1)
        if self.shared.spec.items:
            self._learn_items(variant)
        found = []
        for start in range(0, rows, step):
            (part,) = ready.executable.run_rows(self.method, [array[start : start + step] for array in taken])
            found.append(part if isinstance(part, Rows) else Rows.from_dense(part))
        whole = Rows.stack(found)
        return whole if self.dtype is None else whole.with_data(whole.data.astype(self.dtype))

    def _learn_items(self, variant: Variant) -> None:
        """Put the short way of a list of one object into `quick`, if the method has one."""
        ready, name = variant.ready, self._classes[0]
        row_of, gate = ready.executable.row_of(self.method), ready.gate_of(self.method)
        if row_of is None or self.dtype is not None or gate.guards or gate.min_rows > 1 or len(self.shared.variants) > 1:
            return

        def quick(X: Any) -> Any:
            """The result for a list of one object that needs no test. None for everything else."""
            if type(X) is not list or len(X) != 1:
                return None
            with np.errstate(all="ignore"):  # as in calls of many rows (`Graph.evaluate_rows`)
                row = row_of(X[0])
            return None if row is None else sparse.as_scipy(row, name)

        self.quick = quick


class GivenBack(SparseCall):
    """A method that returns the very array or sparse matrix that it receives, if the source accepts its values. For other input it computes
    a result."""

    def __call__(self, X: Any) -> Any:
        if sparse.is_sparse(X):
            super().__call__(sparse.without_rows(X) if len(X.shape) == 2 else X)  # it tests what kind of matrix X is
            return X
        if type(X) is not ndarray:
            return super().__call__(X)
        kinds, arrays = self.shared.intake(X)
        variant = self.shared.variants[kinds]
        self._tested(variant, arrays)
        self._remember(variant)
        return X

    def fast(self, variant: Variant, arrays: Sequence[Array]) -> None:
        """None: the functions in `short` return the caller's own array, but these arrays were made from X."""
        return None

    def _shortcut(self, variant: Variant) -> Direct | None:
        gate = variant.ready.gate_of(self.method)
        return _itself if gate.simple and gate.fast is None else None


class NamedCall(ArrayCall):
    """A method that takes only frames, since it needs the names of columns. Other
    methods of the model take arrays too. `short` stays empty: it is for arrays."""

    def __init__(self, method: str, shared: Shared) -> None:
        super().__init__(method, shared)
        self.returns = "a result for named columns only"

    def _answer(self, X: Any) -> Any:
        if not isinstance(read_frame(X), FrameView):
            advice = "Pass pandas.DataFrame(X, columns=model.feature_names_in_)."
            expected = f"a frame, since the source's {self.method} compares the names of columns"
            raise InvalidInputError(found=f"a {type(X).__name__}", expected=expected, advice=advice)
        return super()._answer(X)

    def _remember(self, variant: Variant) -> None:
        pass


class FrameCall(SparseCall):
    """A method that returns a frame (scikit-learn's `set_output`). `short` stays empty: it is for arrays."""

    def __init__(self, method: str, shared: Shared) -> None:
        super().__init__(method, shared)
        self.returns = "a frame"
        self._output = shared.info.frames[method]

    def __call__(self, X: Any) -> Any:
        X = self.shared.intake.frame_of(X)
        if sparse.is_sparse(X):
            raise InvalidInputError(
                found=f"a sparse matrix ({type(X).__name__})",
                expected="a dense one, since the result is a frame",
                advice="Pass X.toarray().",
            )

        def blocks() -> Sequence[Array]:
            found = self._answer(X)
            return found if isinstance(found, list) else [found]

        return make_frame(self._output, X, blocks, self.shared.intake.positions)

    def _remember(self, variant: Variant) -> None:
        pass


def answers(calls: Sequence[ArrayCall], variant: Variant, arrays: Sequence[Array]) -> list[Any]:
    """The results of several calls of one model for the inputs of a variant's graph. They may share memory. What they have in common is
    computed once, if there are so many rows that a function for it is worth its compiling. Raises InvalidInputError for values that the
    source rejects."""
    if len(calls) == 1 or len(arrays[0]) < LEAST_TOGETHER:
        return [call.answer(variant, arrays) for call in calls]
    found = in_parts(calls, variant, arrays) if calls[0].shared.on_gpu else None
    if found is not None:
        return [call._owned(values, arrays) for call, values in zip(calls, found, strict=True)]
    for call in {variant.ready.gate_of(call.method): call for call in calls}.values():  # each test of values once
        ready, taken = call._tested(variant, arrays)
    found = ready.executable.run_together([call.method for call in calls], taken)
    return [call._owned(values, taken) for call, values in zip(calls, found, strict=True)]


def in_parts(calls: Sequence[ArrayCall], variant: Variant, arrays: Sequence[Array]) -> list[list[Array]] | None:
    """The values of several methods, where the device computes parts of the rows while the host reads, tests and encodes the next ones.
    None where it does not, and where a value is rejected: its error names a row of the whole input, so all rows have to be tested."""
    ready, rows, methods = variant.ready, len(arrays[0]), [call.method for call in calls]
    most = ready.executable.rows_of_part(methods)
    if not 0 < most < rows or variant.source.mixes_rows:
        return None
    gates = list(dict.fromkeys(map(ready.gate_of, methods)))
    if any(guard.whole for gate in gates for guard in gate.guards):
        return None

    def part(start: int, end: int) -> list[Array]:
        found = [part_of(array, start, end) for array in arrays]
        for gate in gates:
            gate(found)
        return found

    try:
        return ready.executable.run_in_parts(methods, rows, part, most)
    except InvalidInputError:
        return None


def call_of(method: str, shared: Shared) -> ArrayCall:
    """The call of a method: an object of the class for its kind of result."""
    info = shared.info
    if method in info.frames:
        return FrameCall(method, shared)
    if method in info.given_back:
        return GivenBack(method, shared)
    if method in shared.spec.frames.named_methods:
        return NamedCall(method, shared)
    return SparseCall(method, shared) if method in info.sparse else ArrayCall(method, shared)


def _in_blocks(X: Any, compute: Callable[[Any], T]) -> list[T]:
    """The results for the blocks of rows of a large sparse matrix. Errors name the block's first row."""
    found: list[T] = []
    for start, block in sparse.blocks(X):
        try:
            found.append(compute(block))
        except InvalidInputError as error:
            if not start:
                raise
            where = f"{error.facts.get('where') or 'X'}, counting rows from row {start}"
            raise InvalidInputError(**{**error.facts, "where": where}) from error
    return found


def _none(X: Array, n: int) -> None:
    return None


def _itself(X: Array, n: int) -> Array:
    return X
