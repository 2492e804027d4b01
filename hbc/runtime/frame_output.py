"""Results in frames, as scikit-learn's `set_output` gives them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hbc.errors import BackendUnavailableError, InvalidInputError
from hbc.ir.signature import FrameOutput
from hbc.ir.types import Array
from hbc.runtime.input.frame_view import FrameView
from hbc.runtime.input.frames import read_frame


def make_frame(
    output: FrameOutput, X: Any, compute: Callable[[], Sequence[Array]], positions: Callable[[FrameView], Sequence[int]]
) -> Any:
    """The frame that scikit-learn's `set_output` gives, made by the same constructors. compute() gives the blocks of computed columns,
    positions(view) the positions of the model's columns in a frame. Raises InvalidInputError."""
    import narwhals.stable.v2 as nw

    if type(X).__module__.startswith("narwhals.") and hasattr(X, "to_native"):
        X = X.to_native()
    try:
        library: Any = nw.Implementation.from_string(output.library).to_native_namespace()
    except ImportError as error:
        raise BackendUnavailableError(
            backend=output.library, reason="not installed, and the result is a frame of it", extra="frames", kind="library"
        ) from error
    own, array = isinstance(X, library.DataFrame), isinstance(X, np.ndarray)
    if isinstance(X, np.ndarray) and X.dtype.kind in "fiu" and not (X.dtype.isnative and X.dtype.itemsize <= 8):
        advice = "The source library makes a frame of that dtype, or rejects it: X.astype(float)."
        raise InvalidInputError(found=f"the dtype {X.dtype.str}", expected="numpy's usual dtypes", advice=advice)
    keeps = max(output.origins, default=-1) >= 0
    if output.native and not own and not (array and output.arrays):
        raise InvalidInputError(
            found=f"a {type(X).__name__}",
            expected=f"a frame of {output.library}" + (" or an array" if output.arrays else ""),
            advice="Columns of the input come back as they are, in their own dtypes: convert the input first.",
        )
    position: Sequence[int] = range(len(output.origins))
    if keeps and own:
        view = read_frame(X)
        position = positions(view) if isinstance(view, FrameView) else position
        gone = [output.names[i] for i, origin in enumerate(output.origins) if origin >= 0 and position[origin] < 0]
        if gone:
            raise InvalidInputError(found="a frame without columns that the result has", expected=", ".join(gone[:5]))
    blocks = list(compute()) if not own or min(output.origins, default=-1) < 0 else []
    if keeps:
        blocks = _with_own(output, X, blocks, position, own)
    if output.library == "polars":
        names = list(output.names)
        if len(blocks) == 1 and not own:
            return library.DataFrame(blocks[0], schema=names, orient="row")
        columns: list[Any] = []
        for block in blocks:
            frame = block if isinstance(block, library.DataFrame) else library.DataFrame(block, orient="row")
            columns += frame.get_columns()
        return library.DataFrame([column.alias(name) for column, name in zip(columns, names, strict=True)])
    index = X.index if output.index and isinstance(X, (library.DataFrame, library.Series)) else None
    parts = [
        block if isinstance(block, library.DataFrame) else library.DataFrame(block, index=index, copy=False) for block in blocks
    ]
    frame = parts[0] if len(parts) == 1 else library.concat(parts, axis=1)
    frame.columns = np.array(output.names, object)
    return frame


def _with_own(output: FrameOutput, X: Any, blocks: list[Array], position: Sequence[int], frame: bool) -> list[Any]:
    """The blocks, cut where columns of the input stand between theirs."""
    parts: list[Any] = []
    block, used = 0, 0
    for kept, group in itertools.groupby(output.origins, key=lambda origin: origin >= 0):
        run = list(group)
        if kept:
            chosen = [position[origin] if frame else origin for origin in run]
            by_position = X if isinstance(X, np.ndarray) or not hasattr(X, "iloc") else X.iloc
            parts.append(by_position[:, chosen])
            continue
        left = len(run)
        while left:
            step = min(left, blocks[block].shape[1] - used)
            parts.append(blocks[block][:, used : used + step])
            left, used = left - step, used + step
            if used == blocks[block].shape[1]:
                block, used = block + 1, 0
    return parts
