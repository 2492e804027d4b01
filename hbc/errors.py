"""The error tree. Constructors take facts by keyword and write the sentence, so that every message says
what was found, what was expected, where, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


def _rebuild(cls: type[HbcError], facts: dict[str, Any]) -> HbcError:
    return cls(**facts)


class HbcError(Exception):
    """The root of everything hbc raises on purpose. `facts` are the constructor's keywords."""

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.facts = facts

    def __reduce__(self) -> tuple[Any, ...]:
        # joblib and multiprocessing send errors back by pickle; the default would pass the sentence, not the facts.
        return _rebuild, (type(self), self.facts)


@dataclass(frozen=True)
class Culprit:
    """One thing that cannot be converted: the operator's dotted name, where it stands, why, and what to do."""

    operator: str
    path: str
    reason: str
    advice: str

    def __str__(self) -> str:
        return f"{self.operator} at {self.path}: {self.reason} {self.advice}".rstrip()


class UnsupportedOperatorError(HbcError, NotImplementedError):
    """Names every operator (or option of one) that cannot be compiled exactly, all at once."""

    def __init__(self, *, culprits: Sequence[Culprit]) -> None:
        self.culprits = tuple(culprits)
        what = "1 operator" if len(self.culprits) == 1 else f"{len(self.culprits)} operators"
        lines = "".join(f"\n  - {culprit}" for culprit in self.culprits)
        super().__init__(f"hbc cannot convert {what} of this model exactly:{lines}", culprits=self.culprits)


class InvalidInputError(HbcError, ValueError):
    """The data (or an argument) is not what the model was fitted for, or what its source library rejects."""

    def __init__(self, *, found: str, expected: str, where: str = "X", advice: str = "") -> None:
        message = f"{where}: found {found}, expected {expected}." + (f" {advice}" if advice else "")
        super().__init__(message, found=found, expected=expected, where=where, advice=advice)


class NotFittedError(HbcError, ValueError, AttributeError):
    """The estimator has not been fitted."""

    def __init__(self, *, operator: str, path: str = "model") -> None:
        super().__init__(
            f"{operator} at {path} is not fitted: hbc converts fitted models. Call fit() on it first.",
            operator=operator,
            path=path,
        )


class ArtifactError(HbcError, ValueError):
    """A saved model cannot be read or written."""

    def __init__(self, *, path: str, found: str, expected: str, advice: str = "") -> None:
        message = f"{path}: found {found}, expected {expected}." + (f" {advice}" if advice else "")
        super().__init__(message, path=path, found=found, expected=expected, advice=advice)


class BackendUnavailableError(HbcError, ImportError):
    """A backend's library, or a device, is missing; the message names the extra that installs it."""

    def __init__(self, *, backend: str, reason: str, extra: str | None = None, advice: str = "") -> None:
        install = f" Install it with: pip install 'hbc[{extra}]'." if extra else ""
        message = f"backend {backend!r} is not available: {reason}.{install}" + (f" {advice}" if advice else "")
        super().__init__(message, backend=backend, reason=reason, extra=extra, advice=advice)
