"""Opens the container that a caller passes (array, list, frame, sparse matrix, tensor) as an array or a FrameView."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import numpy as np

from hbc.errors import InvalidInputError
from hbc.ir.types import Array
from hbc.runtime.input.frame_view import FrameView
from hbc.runtime.input.frames import read_frame
from hbc.runtime.places import require_own_signs
from hbc.runtime.sparse import is_sparse

RESHAPE = (
    "Reshape your data either using array.reshape(-1, 1) if your data has a single feature "
    "or array.reshape(1, -1) if it contains a single sample."
)
EVEN = "Give every row a value for every column (None where it is missing)."
ELSEWHERE = (
    'Copy it: X.cpu(). A model of tvm, torch or torchscript on "cuda" takes X where it is, unless the host has a part in the method: '
    "strings, frames, columns of several dtypes."
)
_CPU = (1, 3)  # DLPack's device types whose memory the host reads: CPU and pinned


def open_input(X: Any, *, mixed: bool, vector: bool = False) -> Array | FrameView:
    """X as an array, or as a FrameView if it is a frame. Raises InvalidInputError for anything else.

    `mixed`: a list may hold numbers beside strings. It becomes an array of objects, since numpy would turn the numbers into strings.
    `vector`: the model takes a vector, so that a series or an iterator is accepted."""
    if isinstance(X, np.matrix):
        raise InvalidInputError(found="an np.matrix", expected="an array", advice="Convert it with np.asarray.")
    if isinstance(X, np.ndarray):
        if hasattr(X, "mask") and np.any(X.mask):
            advice = "scikit-learn and LightGBM ignore the mask, pandas makes NaN of it: pass X.filled(numpy.nan), or X.data."
            raise InvalidInputError(found="a masked array with masked values", expected="an array", advice=advice)
        return np.asarray(X)
    if isinstance(X, (list, tuple)):
        return _from_sequence(X, mixed)
    if is_sparse(X):  # a dok_matrix is a dict too
        return np.asarray(X.toarray())
    if X is None or isinstance(X, (str, bytes, Mapping)):
        _reject_kind(X)
    frame = read_frame(X)
    if isinstance(frame, FrameView):
        return frame
    if frame is not None:
        if not vector:
            row = f"X.to_frame().{'T' if hasattr(X, 'T') else 'transpose()'} if it is one row"
            advice = f"Pass a frame: {row}, X.to_frame() if it is a single feature."
            raise InvalidInputError(found=f"a {type(X).__name__}", expected="a matrix", advice=advice)
        return frame
    if hasattr(X, "__dlpack__") and hasattr(X, "__dlpack_device__"):
        return _from_dlpack(X)
    if isinstance(X, Iterator) and vector:
        return _from_sequence(list(X), mixed)
    return _from_sequence(X, mixed and not hasattr(X, "__array__"))


def _from_sequence(X: Any, mixed: bool) -> Array:
    try:
        array = np.asarray(X)
        if mixed and array.dtype.kind == "U":
            array = np.asarray(X, dtype=object)
    except (ValueError, TypeError, RuntimeError) as error:
        found = f"a {type(X).__name__} that is no array ({error})"
        if isinstance(X, (list, tuple)) and len({len(row) if hasattr(row, "__len__") else -1 for row in X}) > 1:
            found = f"a {type(X).__name__} of rows of different lengths"
        raise InvalidInputError(found=found, expected="rows of equal length", advice=EVEN) from error
    if array.ndim == 0:
        _reject_kind(X)
    if array.ndim == 1 and array.dtype.kind == "O" and len({_length(row) for row in array}) > 1:
        found = f"a {type(X).__name__} of rows of different lengths"
        raise InvalidInputError(found=found, expected="rows of equal length", advice=EVEN)
    return array


def _length(row: Any) -> int:
    return len(row) if isinstance(row, (list, tuple, np.ndarray)) else -1


def _from_dlpack(X: Any) -> Array:
    """A tensor as an array that shares its memory. Raises InvalidInputError if the host cannot read that memory."""
    try:
        kind = int(X.__dlpack_device__()[0])
    except (BufferError, RuntimeError, ValueError):  # a device that DLPack has no number for, such as PyTorch's "meta"
        kind = -1
    if kind not in _CPU:
        raise InvalidInputError(
            found=f"a tensor on device {getattr(X, 'device', kind)}", expected="a tensor on the CPU", advice=ELSEWHERE
        )
    require_own_signs(X)
    try:
        return np.from_dlpack(X)
    except (BufferError, RuntimeError, TypeError, ValueError, AssertionError) as error:
        raise InvalidInputError(
            found=f"a tensor that cannot be read ({error})",
            expected="a dense tensor of a numpy dtype, without a gradient",
            advice="Try X.detach().float().",
        ) from error


def _reject_kind(X: Any) -> NoReturn:
    name = type(X).__name__
    text = "None" if X is None else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
    expected = "an array, a list of rows, a frame (pandas, polars, pyarrow), a sparse matrix or a tensor"
    advice = RESHAPE if np.isscalar(X) and not isinstance(X, str | bytes) else ""
    raise InvalidInputError(found=text, expected=expected, advice=advice)
