"""The releases of the source libraries. hbc computes as the installed release does, and refuses those that it was not compared with."""

from __future__ import annotations

import functools
import re
import sys

from hbc.errors import BackendUnavailableError

LEAST = {"sklearn": (1, 7, 2), "lightgbm": (4, 6), "xgboost": (3, 1, 1), "catboost": (1, 2, 8)}
"""Package → the first release that hbc was compared with. Its extra, of the same name, asks for it."""


def since(major: int, minor: int, package: str = "sklearn") -> bool:
    """Whether the installed scikit-learn, or another package, is of that release, or of a later one. The words beside each call say what
    changed in it."""
    return _installed(package) >= (major, minor)


@functools.cache
def require_release(package: str) -> None:
    """Raise BackendUnavailableError if the installed release of a source library is older than those that hbc was compared with: a model
    of it might give other results."""
    if package in LEAST and (installed := _installed(package)) < LEAST[package]:
        found, least = (".".join(map(str, release)) for release in (installed, LEAST[package]))
        reason = f"its release {found} may compute otherwise than those from {least} on, which hbc was compared with"
        raise BackendUnavailableError(backend=package, reason=reason, extra=package, kind="library")


def _installed(package: str) -> tuple[int, ...]:
    """The release of an imported package."""
    return tuple(map(int, re.findall(r"\d+", sys.modules[package].__version__)[:3]))
