"""The errors that hbc raises. Their constructors take facts by keyword and write the message from them. So every message says what was
found, what was expected, where, and what to do next.

All are subclasses of HbcError, and of the built-in exception that fits, so that `except ValueError` catches an InvalidInputError."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hbc.lazy import record


def _rebuild(cls: type[HbcError], facts: dict[str, Any]) -> HbcError:
    return cls(**facts)


class HbcError(Exception):
    """The base class of all errors that hbc raises on purpose. `facts`: the keyword arguments of the constructor, by name.

    Example:
        >>> try:
        ...     hbc.convert(forest).predict(X[:, :3])
        ... except hbc.HbcError as error:
        ...     type(error).__name__, sorted(error.facts)
        ('InvalidInputError', ['advice', 'expected', 'found', 'where'])
    """

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.facts = facts

    def __reduce__(self) -> tuple[Any, ...]:
        # joblib and multiprocessing send errors by pickle. By default it would call the constructor with the message, not with the facts.
        return _rebuild, (type(self), self.facts)


@record
class Culprit:
    """One estimator or operator that cannot be converted."""

    operator: str
    """Its dotted class name."""
    path: str
    """Its place in the model, for example `model.steps[0] 'scaler'`."""
    reason: str
    """A sentence that says why it cannot be converted."""
    advice: str
    """A sentence that says what the user can do; "" if nothing is known."""

    def __str__(self) -> str:
        return f"{self.operator} at {self.path}: {self.reason} {self.advice}".rstrip()


class UnsupportedOperatorError(HbcError, NotImplementedError):
    """The model cannot be converted exactly, or the backend cannot run it; or a method is called that fails in the source library too.

    `culprits`: all operators, or options of operators, that are the cause. The message lists every one."""

    def __init__(self, *, culprits: Sequence[Culprit]) -> None:
        self.culprits = tuple(culprits)
        what = counted(len(self.culprits), "operator")
        lines = "".join(f"\n  - {culprit}" for culprit in self.culprits)
        super().__init__(f"hbc cannot convert {what} of this model exactly:{lines}", culprits=self.culprits)


class InvalidInputError(HbcError, ValueError):
    """The input data, or another argument, does not fit the model, or the source library rejects it too.

    found, expected: descriptions of the two. where: the name of the argument, perhaps with a column. advice: a sentence, or ""."""

    def __init__(self, *, found: str, expected: str, where: str = "X", advice: str = "") -> None:
        message = f"{where}: found {found}, expected {expected}." + (f" {advice}" if advice else "")
        super().__init__(message, found=found, expected=expected, where=where, advice=advice)


class NotFittedError(HbcError, ValueError, AttributeError):
    """An estimator of the model has not been fitted. operator: its dotted class name. path: its place in the model."""

    def __init__(self, *, operator: str, path: str = "model") -> None:
        super().__init__(
            f"{operator} at {path} is not fitted: hbc converts fitted models. Call fit() on it first.",
            operator=operator,
            path=path,
        )


class FrozenModelError(HbcError, TypeError):
    """A compiled model is told to learn, or to change. asked: the method. source: the class of the model that it was compiled from."""

    def __init__(self, *, asked: str, source: str) -> None:
        message = (
            f"{asked}: the model is compiled from a fitted {source}, and never changes. Fit the source, and call hbc.convert again. "
            "Where a tool of scikit-learn calls fit, pass sklearn.frozen.FrozenEstimator(model)."
        )
        super().__init__(message, asked=asked, source=source)


class ArtifactError(HbcError, ValueError):
    """A file cannot be read as a model, or a model cannot be written. path: the file. found, expected, advice: as in InvalidInputError."""

    def __init__(self, *, path: str, found: str, expected: str, advice: str = "") -> None:
        message = f"{path}: found {found}, expected {expected}." + (f" {advice}" if advice else "")
        super().__init__(message, path=path, found=found, expected=expected, advice=advice)


class BackendUnavailableError(HbcError, ImportError):
    """A library or the device of a backend is missing. backend: its name. reason: what is missing.
    extra: the extra of hbc that installs the library, or None. advice: a sentence, or "".
    kind: what it is in words, if it is no backend: an extra, a library or an engine."""

    def __init__(self, *, backend: str, reason: str, extra: str | None = None, advice: str = "", kind: str = "backend") -> None:
        install = f" Install it with: pip install 'hbc[{extra}]'." if extra else ""
        message = f"{kind} {backend!r} is not available: {reason}.{install}" + (f" {advice}" if advice else "")
        super().__init__(message, backend=backend, reason=reason, extra=extra, advice=advice, kind=kind)


class DeviceMemoryError(HbcError, MemoryError):
    """A GPU, or the host's memory that a GPU can read, has no room for a model or for a piece of a call. device: which. wanted, free,
    total: bytes, or None where they are not known."""

    def __init__(self, *, device: str, wanted: int | None, free: int | None, total: int | None) -> None:
        need = "more" if wanted is None else f"{wanted / 1e6:,.1f} MB"
        have = "" if free is None or total is None else f", of which {free / 1e6:,.1f} of {total / 1e6:,.1f} MB are free"
        super().__init__(
            f"{device}: no memory for {need}{have}. Other programs and libraries use the same memory: end them or empty their caches "
            "(torch.cuda.empty_cache()), or choose another GPU (device='cuda:1').",
            device=device,
            wanted=wanted,
            free=free,
            total=total,
        )


@contextmanager
def requires(extra: str, kind: str = "extra") -> Iterator[None]:
    """A context in which a library that is not installed is a BackendUnavailableError, which says that hbc's extra `extra` installs it.
    kind: see BackendUnavailableError."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise BackendUnavailableError(backend=extra, reason=f"{error.name} is not installed", extra=extra, kind=kind) from error


def counted(n: int, what: str, several: str = "") -> str:
    """A number with its noun, for messages: "1 file", "1,204 files". several: the plural, where it is not the noun with an s."""
    return f"{n:,} {what if n == 1 else several or f'{what}s'}"


def no_such_file(path: str) -> FileNotFoundError:
    """The error for a model's file that is not there. Of a URL it says that hbc reads none, and has both slashes: pathlib takes one
    away."""
    import re

    url, found = re.subn(r"\A([a-z][a-z0-9+]+):/+", r"\1://", path)
    other = ". A model is read from this computer, not from a URL: copy it here first" if found else ""
    return FileNotFoundError(f"{url}: no such file{other}")


def meant(name: str, known: Sequence[str]) -> str:
    """The words " (did you mean …?)" if one of the known names is much like this one, otherwise nothing."""
    import difflib

    close = difflib.get_close_matches(name, known, 1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def shown(value: Any) -> str:
    """A caller's value in an error: the first 60 characters of its `repr`, and its type. The type alone where `repr` fails, as for lists
    that are nested too deeply, and integers of 5,000 digits."""
    name = type(value).__name__
    try:
        return f"{value!r:.60} (of type {name})".replace("\n", " ")  # those between the rows of arrays
    except Exception:
        return f"a value (of type {name})"
