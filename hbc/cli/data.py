"""Small files of data: CSV and Parquet by pandas, .npy by numpy; and the same through pipes."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import IO, Any

import numpy as np

import hbc
from hbc.cli.models import require_file
from hbc.errors import ArtifactError, InvalidInputError, counted
from hbc.ir.store import write_atomically
from hbc.runtime.input.columns import names_in_data
from hbc.scoring.formats import require_header

SUFFIXES = (".csv", ".parquet", ".npy")
PIPE = Path("-")
"""The name that stands for standard input, or for standard output."""
NUMPY, PARQUET = b"\x93NUMPY", b"PAR1"
"""The first bytes of files in these formats."""


def read(path: Path) -> Any:
    """The data in a file: a pandas frame, or an array for .npy. The first bytes of standard input tell its format. Raises ArtifactError
    for a file that cannot be read, FileNotFoundError if there is none."""
    if path == PIPE:
        data = standard_input().read()
        suffix = ".npy" if data.startswith(NUMPY) else ".parquet" if data.startswith(PARQUET) else ".csv"
        return _parsed(Path("standard input"), suffix, io.BytesIO(data))
    require_file(path, "a file with data")
    require_suffix(path)
    return _parsed(path, path.suffix.lower(), path)


def standard_input() -> IO[bytes]:
    """The stream of standard input. Raises ArtifactError if it is closed."""
    if sys.stdin is None:
        raise ArtifactError(path="standard input", found="a closed stream", expected="data")
    return sys.stdin.buffer


def _parsed(path: Path, suffix: str, source: Any) -> Any:
    """The data of a file or stream. path: its name in messages."""
    try:
        if suffix == ".npy":
            with open(source, "rb") if source is path else source as file:
                if file.read(len(NUMPY)) != NUMPY:
                    raise ArtifactError(
                        path=str(path), found="a file of another format", expected="an array that numpy.save wrote"
                    )
                file.seek(0)
                return np.load(file, allow_pickle=False)
        return _pandas(path).read_csv(source) if suffix == ".csv" else _pandas(path).read_parquet(source)
    except ArtifactError:
        raise
    except Exception as error:  # whatever a library raises for a broken file
        reason = (str(error) or "no reason given").splitlines()[0]
        found = f"a file that cannot be read ({type(error).__name__}: {reason})"
        raise ArtifactError(path=str(path), found=found, expected=f"data in the format {suffix}") from error


def name_of(path: Path) -> str:
    """What messages call a file of data."""
    return "standard input" if path == PIPE else path.name


def write(path: Path, columns: dict[str, Any]) -> None:
    """Write named columns of equal length to a .csv or .parquet file, or the only one to .npy (its name is not kept). Raises ArtifactError
    if the file cannot be written whole."""
    if path.suffix.lower() == ".npy":
        matrix = np.stack(list(columns.values()), axis=1) if len(columns) > 1 else next(iter(columns.values()))
        write_atomically(path, lambda file: np.save(file, matrix, allow_pickle=False))
        return
    frame = _pandas(path).DataFrame(columns)
    written = frame.to_csv if path.suffix.lower() == ".csv" else frame.to_parquet
    write_atomically(path, lambda file: written(file, index=False))


def csv_of(columns: dict[str, Any]) -> str:
    """Named columns of equal length as CSV, for standard output. Raises ArtifactError without pandas."""
    text: str = _pandas(Path("standard output"), " Or write a .npy file: --output FILE.").DataFrame(columns).to_csv(index=False)
    return text


def require_suffix(path: Path) -> None:
    """Raise ArtifactError for a file that is not data by its suffix."""
    if path.suffix.lower() not in SUFFIXES:
        found = f"the suffix {path.suffix!r}" if path.suffix else "no suffix"
        raise ArtifactError(path=str(path), found=found, expected=f"one of {', '.join(SUFFIXES)}")


def suited(path: Path, data: Any, model: hbc.CompiledModel) -> Any:
    """The data in a file as a model takes it. A frame with more columns (the target, for example) is cut to those of fit, if the model
    knows their names. If not, it takes a frame of numbers as an array. Raises InvalidInputError for a file of a model without names that
    has another number of columns, or no names in its first line."""
    names, count = model.spec.feature_names, model.spec.n_features
    own = getattr(model, "feature_names_in_", None) if names is None else names  # LightGBM knows names that it does not compare
    if isinstance(data, np.ndarray):
        columns: list[str] = []
    else:
        columns = list(map(str, data.columns))
        found = names_in_data(model.spec, list(map(str, own)), columns) if own is not None else {}
        if own is not None and len(found) == len(own):
            places = [columns.index(found[name]) for name in map(str, own)]  # the names of a file of Parquet may be numbers
            return _with_categories(path, _numbers_if_empty(data.iloc[:, places], model), model)
        _require_commas(path, columns, count)
    if names is None and data.ndim == 2 and data.shape[1] != count:
        raise InvalidInputError(
            found=counted(data.shape[1], "column"),
            expected=f"{count}",
            where=str(path),
            advice="The model knows no names of columns, so the file must have its columns only, in their order."
            if own is None
            else f"Name the columns of the model in the file: {', '.join(map(str, own[:10]))}{' …' if len(own) > 10 else ''}.",
        )
    if names is not None or isinstance(data, np.ndarray):
        return data
    if path.suffix.lower() not in (".parquet", ".npy"):
        # pandas gives such names to columns without one.
        given = ["" if name.startswith("Unnamed: ") else name for name in columns]
        require_header(str(path), given, model.schema.columns)
    data = _numbers_if_empty(data, model)
    return data.to_numpy() if all(dtype.kind in "biuf" for dtype in data.dtypes) else data


def _numbers_if_empty(data: Any, model: hbc.CompiledModel) -> Any:
    """The frame with float64 where the model takes numbers, if it has no rows: of a CSV file with a header only, pandas makes columns
    of objects, and LightGBM and XGBoost would reject these in place of saying that there are no rows, or answering for none."""
    if len(data):
        return data
    columns = zip(data.columns, model.spec.columns, strict=True)
    return data.astype({name: float for name, column in columns if not (column.strings or column.categories_only)})


def _with_categories(path: Path, data: Any, model: hbc.CompiledModel) -> Any:
    """The frame with categories where the model was fitted on such: CSV has none, and Parquet none of numbers. Raises InvalidInputError for
    a column of numbers where the categories are texts, and the other way round: which text was meant is not known any more."""
    pandas = _pandas(path)
    changed = {}
    for column, (name, values) in zip(model.spec.columns, data.items(), strict=True):
        known = column.category_values
        if not (known or column.categories_only) or isinstance(values.dtype, pandas.CategoricalDtype):
            continue
        there = values.dropna()
        texts = column.strings or any(isinstance(value, str) for value in known)
        if len(there) and texts == pandas.api.types.is_numeric_dtype(there.dtype):
            raise InvalidInputError(
                found="numbers" if texts else "text",
                expected="text, as the categories are" if texts else "numbers, as the categories are",
                where=f"{path}, column {name!r}",
                advice="`hbc score` reads CSV as the model says." if path.suffix.lower() != ".parquet" else "",
            )
        found = pandas.unique(there)
        if (
            known
            and all(type(value) is int for value in known)
            and found.dtype.kind == "f"
            and (found == np.floor(found)).all()
        ):
            found = found.astype(np.int64)  # missing values have made floats of them
        changed[name] = pandas.Categorical(values, categories=np.sort(found))
    return data.assign(**changed)


def _require_commas(path: Path, columns: list[str], count: int) -> None:
    """Raise InvalidInputError for CSV with another separator, which is read as a single column."""
    sign = next((sign for sign in ";\t|" if len(columns) == 1 < count and sign in columns[0]), "")
    if sign:
        advice = "`hbc score --separator` reads such files."
        raise InvalidInputError(found=f"{sign!r} between the columns", expected="commas", where=str(path), advice=advice)


def _pandas(path: Path, otherwise: str = "") -> Any:
    try:
        import pandas
    except ImportError as error:
        advice = f"Install it with: pip install 'hbc[frames]'.{otherwise}"
        raise ArtifactError(
            path=str(path), found="no pandas on this computer", expected="it, for CSV and Parquet", advice=advice
        ) from error
    return pandas
