"""`hbc.load`. It is a file of its own so that it imports neither parser nor optimizer nor compiler where compiled code is in the cache."""

from __future__ import annotations

import hashlib
import io
import os
import re
from collections.abc import Sequence
from pathlib import Path

from hbc.arguments import flag
from hbc.builder import Builder, model_of, read
from hbc.compiler.base import BackendName, DeviceName, backend_name
from hbc.errors import ArtifactError, BackendUnavailableError, no_such_file
from hbc.hummingbird import answered
from hbc.process import PASSES, show
from hbc.runtime.model import CompiledModel


@answered
def load(
    path: str | os.PathLike[str],
    device: DeviceName | None = None,
    backend: BackendName | None = None,
    *,
    warm_up: bool | str | Sequence[str] = False,
    trust_code: bool = False,
    checksum: str | None = None,
) -> CompiledModel:
    """Read a model that `CompiledModel.save` wrote, and compile it.

    Compiled code that this computer has in its cache on disk is found there: the model answers after 0.3 s of processor time, and
    neither the compiler nor torch is imported.

    This needs neither scikit-learn nor the library that trained the model, and runs no code from the file unless you say so.

    Args:
        path: the file.
        device: as in `hbc.convert`; by default the one that the model was saved with.
        backend: the same.
        warm_up: True to compile all methods now, or the names of some, as in `hbc.convert`.
        trust_code: True to run compiled code that the file holds (`CompiledModel.save(path, code=…)`) if this processor can. Whoever wrote
            such a file can run any code here. By default the code is not even read, and the model is compiled.
        checksum: the SHA-256 of the file, in hexadecimal, from where you trust it. The file is compared with it, and its code is used too.

    Returns:
        The CompiledModel.

    Raises:
        ArtifactError: the file is no saved model, is damaged, has another checksum, or was saved by a newer hbc.
        FileNotFoundError: there is no such file.
        UnsupportedOperatorError: the backend cannot run an operator of the model.
        BackendUnavailableError: a library of the backend, or the device, is missing.
        ValueError: the backend or the device is unknown, trust_code is no bool, or the checksum is no SHA-256.

    Example:
        >>> hbc.convert(forest).save("forest.hbc")
        >>> hbc.load("forest.hbc").predict(X[:3]).shape
        (3,)
    """
    if backend is not None:
        backend_name(backend)
    trusted = flag("trust_code", trust_code)
    name = os.fspath(path)
    if not isinstance(name, str):
        name = os.fsdecode(name)
    try:
        file = Path(name) if checksum is None else _checked(name, checksum)
        return _loaded(file, name, device, backend, trusted or checksum is not None, warm_up)
    except FileNotFoundError as error:
        if ":/" not in name:
            raise
        raise no_such_file(name) from error


def load_bytes(data: bytes, name: str, device: DeviceName | None = None, backend: BackendName | None = None) -> CompiledModel:
    """The model of a file's bytes, as `load` reads it; compiled code in them is not run. `name` stands for the file in messages. Raises the
    same errors."""
    if backend is not None:
        backend_name(backend)
    return _loaded(io.BytesIO(data), name, device, backend, False, False)


def _loaded(
    file: Path | io.BytesIO,
    name: str,
    device: str | None,
    backend: str | None,
    trusted: bool,
    warm_up: bool | str | Sequence[str],
) -> CompiledModel:
    contents = read(file, name)
    try:
        saved = Builder.from_settings(contents.settings)
    except (KeyError, TypeError, ValueError) as error:
        raise ArtifactError(path=name, found=f"settings that cannot be read ({error})", expected="what hbc saved") from error
    builder = saved.moved(backend, device)
    try:
        builder = builder.with_code(contents.code, trusted)
        if builder.code_note:
            show(PASSES, lambda: f"hbc: compiled code in {name}: {builder.code_note}")
        builder = builder.as_tuned(contents.graphs[contents.main])
        model = model_of(contents, builder)
        # The saved backend could run all variants when the model was converted, and need not prove it now.
        model = model._prepare_main() if backend is None else model._prepare()
        return model._warmed(warm_up)
    except BackendUnavailableError as error:
        advice = error.facts["advice"]
        if backend is None and not (device and advice):
            advice = (
                f"It was saved for {saved.backend!r} on {saved.device!r}; choose others with hbc.load(path, device, backend), "
                "or --device and --backend of a command."
            )
        if builder.code_note:
            advice += f" Compiled code in the file: {builder.code_note}."
        raise BackendUnavailableError(**{**error.facts, "advice": advice}) from error


def _checked(path: str, checksum: str) -> io.BytesIO:
    """The bytes of a file. They are read once, so that nothing can change between the test and their use. Raises ArtifactError if their
    SHA-256 is another, ValueError for what is no SHA-256."""
    if not (isinstance(checksum, str) and re.fullmatch("[0-9a-fA-F]{64}", checksum)):
        raise ValueError(f"checksum: found {checksum!r}, expected the SHA-256 of the file: 64 hexadecimal digits")
    data = Path(path).read_bytes()
    found = hashlib.sha256(data).hexdigest()
    if found != checksum.lower():
        advice = "Do not use it: it is damaged, or someone has changed it."
        raise ArtifactError(path=path, found=f"a file with the SHA-256 {found}", expected=checksum.lower(), advice=advice)
    return io.BytesIO(data)
