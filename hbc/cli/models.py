"""The model that a command names: a file of the library that trained it, or one that hbc has saved."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hbc
from hbc.cli.terminal import names_in, quoted, warned, without_noise
from hbc.errors import ArtifactError, no_such_file
from hbc.parser.files import PICKLES, READERS, read_model


def require_file(path: Path, expected: str = "a file with a model") -> None:
    """Raise FileNotFoundError if there is nothing at `path`, ArtifactError if it is a directory."""
    if path.is_dir():
        raise ArtifactError(path=str(path), found="a directory", expected=expected)
    if not path.exists():
        raise no_such_file(str(path))


def is_saved(path: Path) -> bool:
    """Whether hbc has saved the model, by its name and its first bytes. Such a file may have any name that is not another library's."""
    suffix = path.suffix.lower()
    return suffix not in READERS and (suffix == ".hbc" or zipfile.is_zipfile(path))


def require_saved(path: Path) -> None:
    """Raise an error if there is no file, or hbc has not saved the model in it."""
    require_file(path, "a model saved by hbc")
    if not is_saved(path):
        advice = f"First: {conversion(path, f'{path.stem}.hbc')}" if path.suffix.lower() in READERS else ""
        raise ArtifactError(path=str(path), found="no model saved by hbc", expected="a .hbc file", advice=advice)


def require_source(path: Path) -> None:
    """Raise an error if there is no file, or hbc has saved the model in it."""
    require_file(path)
    if is_saved(path):
        advice = "The answers are compared with those of the library that trained the model."
        raise ArtifactError(path=str(path), found="a model saved by hbc", expected="the fitted model", advice=advice)


def conversion(path: Path, output: str | Path) -> str:
    """The command that converts a model of another library."""
    return f"hbc convert {quoted(path)}{' --trust' if path.suffix.lower() in PICKLES else ''} -o {quoted(output)}"


def require_folder(output: Path) -> None:
    """Raise ArtifactError if there is no folder for a file to write."""
    if not output.absolute().parent.is_dir():
        raise ArtifactError(path=str(output), found="no such folder", expected="an existing folder to write to")


def source_of(path: Path, trust: bool, also: tuple[str, ...] = (".hbc",)) -> Any:
    """The fitted model in a file of another library. What the library warns of is printed: scikit-learn does for pickles of another
    version. also: further suffixes that the command takes. Raises ArtifactError, without what the library itself prints about the file."""
    require_file(path)
    with without_noise(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        model = read_model(path, trust, (*READERS, *also))
    for text in dict.fromkeys(_said(warning.message) for warning in caught if issubclass(warning.category, UserWarning)):
        warned(f"{path}: {text}")
    return model


def _said(warning: Warning | str) -> str:
    """What a library warns of. scikit-learn does it for each estimator of a pickle."""
    versions = [getattr(warning, f"{when}_sklearn_version", None) for when in ("original", "current")]
    if None in versions:
        return str(warning)
    return (
        f"scikit-learn {versions[0]} saved it, and {versions[1]} is installed here, which may read or compute it otherwise. Convert it "
        "where it was fitted, or compare the answers with known ones."
    )


def compiled_of(path: Path, trust: bool, backend: str | None) -> Any:
    """The CompiledModel of a file: loaded if hbc has saved it, converted otherwise. backend None: that of the saved model; for other models
    tvm."""
    require_file(path)
    if is_saved(path):
        return hbc.load(path, backend=backend)
    return hbc.convert(source_of(path, trust), backend or "tvm")


def require_new(output: Path, model: Path, refused: set[str], expected: str) -> None:
    """Raise ArtifactError if `output` is the model itself or a directory, or has a suffix in `refused`: it could be a model of another
    library."""
    suffix = output.suffix.lower()
    if output.is_dir():
        raise ArtifactError(path=str(output), found="a directory", expected=f"the name of a file: {expected}")
    if suffix in refused:
        raise ArtifactError(path=str(output), found=f"the suffix {suffix!r} of a model of another library", expected=expected)
    if output.exists() and model.exists() and output.samefile(model):
        raise ArtifactError(path=str(output), found=f"the file that is read ({model.name})", expected="another file to write")


def methods_of(compiled: Any, asked: str | None, usual: Sequence[str]) -> list[str]:
    """The methods that are asked for, with commas between them; None: the usual ones. Raises ValueError for one that the model lacks."""
    names = list(usual) if asked is None else names_in("--methods", asked)
    if unknown := [name for name in names if name not in compiled.methods]:
        raise ValueError(f"--methods: found {', '.join(map(repr, unknown))}, expected some of {', '.join(compiled.methods)}")
    return names
