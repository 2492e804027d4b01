"""`hbc.load`. It is a file of its own so that it imports neither parser nor optimizer nor compiler where compiled code is in the cache."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from hbc.builder import Builder, model_of, read
from hbc.compiler.base import backend_name
from hbc.errors import ArtifactError, BackendUnavailableError
from hbc.runtime.model import CompiledModel


def load(
    path: str | os.PathLike[str],
    device: str | None = None,
    backend: str | None = None,
    *,
    warm_up: bool | str | Sequence[str] = False,
) -> CompiledModel:
    """Read a model that `CompiledModel.save` wrote, and compile it. Returns the CompiledModel.

    path: the file. device, backend: as in `hbc.convert`; by default the ones that the model was saved with.
    warm_up: True to compile all methods now, or the names of some, as in `hbc.convert`.

    Compiled code that this computer has in its cache on disk is found there: the model answers after 0.3 s of processor time, and
    neither the compiler nor torch is imported.

    This needs neither scikit-learn nor the library that trained the model, and runs no code from the file.

    Raises:
        ArtifactError: the file is no saved model, is damaged, or was saved by a newer hbc.
        FileNotFoundError: there is no such file.
        UnsupportedOperatorError: the backend cannot run an operator of the model.
        BackendUnavailableError: a library of the backend, or the device, is missing.
        ValueError: the backend or the device is unknown.
    """
    if backend is not None:
        backend_name(backend)
    name = os.fspath(path)
    if not isinstance(name, str):
        name = os.fsdecode(name)
    contents = read(Path(name), name)
    try:
        saved = Builder.from_settings(contents.settings)
    except (KeyError, TypeError, ValueError) as error:
        raise ArtifactError(path=name, found=f"settings that cannot be read ({error})", expected="what hbc saved") from error
    builder = saved.moved(backend, device)
    try:
        return model_of(contents, builder.as_tuned(contents.graphs[contents.main]))._prepare(compile=True)._warmed(warm_up)
    except BackendUnavailableError as error:
        advice = f"It was saved for {saved.backend!r} on {saved.device!r}; choose others with hbc.load(path, device, backend)."
        raise BackendUnavailableError(**{**error.facts, "advice": advice}) from error
