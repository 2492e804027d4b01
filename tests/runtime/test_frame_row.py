"""A frame of one row is read as a whole, and gives what reading its columns one by one gives; with the same errors."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

import hbc
from hbc.errors import InvalidInputError
from hbc.runtime.input.intake import Intake

RANDOM = np.random.default_rng(0)
NUMBERS, TEXTS = ["a", "b", "c", "d"], ["s", "t"]


@pytest.fixture(scope="module")
def fitted() -> tuple[Any, Any, Intake]:
    """(the pipeline, compiled, the reader of its input)."""
    X = pd.DataFrame(
        {name: RANDOM.normal(size=200) for name in NUMBERS} | {name: RANDOM.choice(["x", "y", "z"], 200) for name in TEXTS}
    )
    encoders = (
        (OneHotEncoder(handle_unknown="ignore"), ["s"]),
        (OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1), ["t"]),
    )
    model = make_pipeline(make_column_transformer((StandardScaler(), NUMBERS), *encoders), LogisticRegression())
    model.fit(X, (X.a + (X.s == "x") > 0).astype(int))
    compiled = hbc.convert(model, "numpy", X)
    return model, compiled, compiled._calls["predict_proba"].shared.intake


def read(intake: Intake, frame: Any, alone: bool) -> Any:
    """What the reader makes of a frame: the variant, and all values with their types; or the error."""
    reader = intake._frames
    kept, reader._alone = reader._alone, alone
    try:
        kinds, arrays = intake(frame)
    except InvalidInputError as error:
        return str(error)
    finally:
        reader._alone = kept
    return kinds, [
        (array.dtype, array.shape, repr(array.tolist()), [type(v) for v in array.ravel().tolist()]) for array in arrays
    ]


PANDAS: list[Callable[[], Any]] = [
    lambda: pd.Series([1.5]),
    lambda: pd.Series([np.nan]),
    lambda: pd.Series([-0.0]),
    lambda: pd.Series([np.inf]),
    lambda: pd.Series([1.5], dtype="f4"),
    lambda: pd.Series([1.5], dtype="f2"),
    lambda: pd.Series([1.5], dtype=">f8"),
    lambda: pd.Series([3]),
    lambda: pd.Series([(1 << 53) + 1]),
    lambda: pd.Series([-(1 << 63)]),
    lambda: pd.Series([(1 << 64) - 1], dtype="u8"),
    lambda: pd.Series([3], dtype="i1"),
    lambda: pd.Series([True]),
    lambda: pd.Series([1.5], dtype="Float64"),
    lambda: pd.Series([3], dtype="Int64"),
    lambda: pd.Series([pd.NA], dtype="Int64"),
    lambda: pd.Series([True], dtype="boolean"),
    lambda: pd.Series([1.5], dtype=object),
    lambda: pd.Series([None], dtype=object),
    lambda: pd.Series(["2.5"]),
    lambda: pd.Series([1.5], dtype=pd.ArrowDtype(pa.float64())),
    lambda: pd.Series(pd.Categorical([3])),
    lambda: pd.Series([pd.Timestamp("2026-01-01")]),
    lambda: pd.Series([1 + 2j]),
    lambda: pd.Series([1.5], dtype=pd.SparseDtype(float)),
]
PANDAS_TEXTS: list[Callable[[], Any]] = [
    lambda: pd.Series(["x"]),
    lambda: pd.Series(["unknown ü"]),
    lambda: pd.Series([""]),
    lambda: pd.Series([None], dtype="str"),
    lambda: pd.Series(["y"], dtype=object),
    lambda: pd.Series([None], dtype=object),
    lambda: pd.Series([np.nan], dtype=object),
    lambda: pd.Series([np.float64("nan")], dtype=object),
    lambda: pd.Series([pd.NA], dtype=object),
    lambda: pd.Series([np.str_("z")], dtype=object),
    lambda: pd.Series([3], dtype=object),
    lambda: pd.Series([b"x"], dtype=object),
    lambda: pd.Series(["x"], dtype="string"),
    lambda: pd.Series([pd.NA], dtype="string"),
    lambda: pd.Series(["x"], dtype="string[python]"),
    lambda: pd.Series(["x"], dtype="str"),
    lambda: pd.Series(["x"], dtype=pd.ArrowDtype(pa.string())),
    lambda: pd.Series(pd.Categorical(["x"], categories=["x", "y"])),
    lambda: pd.Series(pd.Categorical([None], categories=["x", "y"])),
    lambda: pd.Series([np.nan]),
    lambda: pd.Series([1.5]),
]
POLARS: list[Callable[[], Any]] = [
    *(
        lambda dtype=dtype: pl.Series([2], dtype=dtype)
        for dtype in (pl.Int8, pl.Int64, pl.UInt8, pl.UInt64, pl.Float32, pl.Float64)
    ),
    *(lambda dtype=dtype: pl.Series([None], dtype=dtype) for dtype in (pl.Int64, pl.Float64, pl.Boolean, pl.Null)),
    lambda: pl.Series([float("nan")]),
    lambda: pl.Series([(1 << 53) + 1]),
    lambda: pl.Series([True]),
    lambda: pl.Series(["2.5"]),
    lambda: pl.Series([[1.5]]),
    lambda: pl.Series([2], dtype=pl.Decimal(10, 2)),
]
POLARS_TEXTS: list[Callable[[], Any]] = [
    lambda: pl.Series(["x"]),
    lambda: pl.Series(["unknown ü"]),
    lambda: pl.Series([None], dtype=pl.String),
    lambda: pl.Series([None], dtype=pl.Null),
    lambda: pl.Series(["x"], dtype=pl.Categorical),
    lambda: pl.Series(["x"], dtype=pl.Enum(["x", "y"])),
    lambda: pl.Series([1.5]),
]
ARROW: list[Callable[[], Any]] = [
    *(
        lambda kind=kind: pa.array([2], kind)
        for kind in (pa.int8(), pa.int64(), pa.uint8(), pa.uint64(), pa.float32(), pa.float64())
    ),
    *(lambda kind=kind: pa.array([None], kind) for kind in (pa.int64(), pa.float64(), pa.bool_(), pa.null())),
    lambda: pa.array([float("nan")]),
    lambda: pa.array([(1 << 53) + 1]),
    lambda: pa.array([np.float16(1.5)], pa.float16()),
    lambda: pa.array([True]),
    lambda: pa.array(["2.5"]),
]
ARROW_TEXTS: list[Callable[[], Any]] = [
    lambda: pa.array(["x"]),
    lambda: pa.array(["unknown ü"]),
    lambda: pa.array(["x"], pa.large_string()),
    lambda: pa.array([None], pa.string()),
    lambda: pa.array([None], pa.null()),
    lambda: pa.array(["x"]).dictionary_encode(),
    lambda: pa.array([1.5]),
]
LIBRARIES: dict[str, tuple[Any, Any, Callable[[dict[str, Any]], Any]]] = {
    "pandas": (PANDAS, PANDAS_TEXTS, pd.DataFrame),
    "polars": (POLARS, POLARS_TEXTS, pl.DataFrame),
    "pyarrow": (ARROW, ARROW_TEXTS, pa.table),
}


@pytest.mark.every_case
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.filterwarnings("ignore:Sparse:FutureWarning")
def test_a_row_as_a_whole_is_its_columns_one_by_one(fitted: tuple[Any, Any, Intake], library: str) -> None:
    _, _, intake = fitted
    numbers, texts, make = LIBRARIES[library]
    order, short = random.Random(0), 0
    for _ in range(600):
        usual = order.choice(numbers[:5])  # columns of one dtype are the usual case, and random ones hardly ever are
        columns = {name: (usual if order.random() < 0.8 else order.choice(numbers))() for name in NUMBERS}
        columns |= {name: order.choice(texts[:3] if order.random() < 0.7 else texts)() for name in TEXTS}
        frame = make(dict(order.sample(list(columns.items()), len(columns))))
        expected = read(intake, frame, alone=False)
        assert read(intake, frame, alone=True) == expected, frame
        found = intake._frames._from_row(view(intake, frame), positions(intake, frame)) if type(expected) is tuple else None
        short += found is not None
    assert short > 50


def view(intake: Intake, frame: Any) -> Any:
    from hbc.runtime.input.frames import read_frame

    return read_frame(frame)


def positions(intake: Intake, frame: Any) -> Any:
    return intake.positions(view(intake, frame))


def test_the_answers_are_the_sources(fitted: tuple[Any, Any, Intake]) -> None:
    """Each kind of row twice: the first time its columns are read one by one."""
    model, compiled, _ = fitted
    good: list[dict[str, Any]] = [
        {"a": 1.5, "b": -2.0, "c": 0.25, "d": 3.5, "s": "x", "t": "y"},
        {"a": 1, "b": -2.0, "c": 3, "d": 3.5, "s": "unknown", "t": "z"},
        {"a": 1, "b": 2, "c": 3, "d": (1 << 53) + 1, "s": "y", "t": "unknown"},
    ]
    for row in good:
        frame = pd.DataFrame([row])
        expected = model.predict_proba(frame)
        for other in (
            frame,
            frame.astype({"s": object, "t": object}),
            pl.DataFrame([row]),
            pa.Table.from_pylist([row]),
            frame[list("tdcsab")],
        ):
            for _ in range(3):
                np.testing.assert_allclose(compiled.predict_proba(other), expected, rtol=1e-9)


def test_names_twice_and_of_two_levels_are_refused(fitted: tuple[Any, Any, Intake]) -> None:
    _, compiled, _ = fitted
    frame = pd.DataFrame([{"a": 1.5, "b": -2.0, "c": 0.25, "d": 3.5, "s": "x", "t": "y"}])
    for _ in range(2):
        compiled.predict(frame)
    twice = pd.concat([frame, frame[["a"]]], axis=1)
    levels = frame.copy()
    levels.columns = pd.MultiIndex.from_product([frame.columns, ["one"]])
    for other in (twice, levels, frame.drop(columns="t"), frame.rename(columns={"t": "T"})):
        with pytest.raises(InvalidInputError):
            compiled.predict(other)
    wider = frame.assign(more=1)
    np.testing.assert_array_equal(compiled.predict(wider), compiled.predict(frame))
