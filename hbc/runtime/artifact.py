"""Converts a model to the contents of a saved file, and back: a manifest, graphs as text, each array once, no code and no pickle.
docs/artefacts.md describes the format. ir/archive.py writes and reads the file."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any
from weakref import WeakValueDictionary

import numpy as np

from hbc.cache.memory import MemoryStore
from hbc.errors import ArtifactError
from hbc.ir.archive import UNREADABLE, Archive, Writer, unreadable
from hbc.ir.graph import Graph, array_digest, array_key
from hbc.ir.lazy_graph import LazyGraph, identity_of
from hbc.ir.printer import facts_beside, print_graph, read_graph
from hbc.ir.signature import Kinds
from hbc.ir.types import Array
from hbc.runtime.contents import Build, Contents, checked_graph, decoded, info_of, require_fitting, require_public
from hbc.runtime.format_1 import read_1
from hbc.runtime.origin import origin_document, read_origin
from hbc.runtime.stored_code import StoredCode, code_members
from hbc.runtime.stored_spec import read_spec, spec_document

FORMAT = "hbc-model"
VERSION = 2
MANIFEST = "model.json"

SCALARS = (str, int, float, bool, type(None))

MOST_COLUMNS = 1 << 24
"""The most columns of an input: a file of a few bytes could claim any number."""


# --- writing -----------------------------------------------------------------------------------------------------------


def write(
    file: IO[bytes], contents: Contents, compress: bool = False, code: Mapping[str, MemoryStore] = MappingProxyType({})
) -> None:
    """Write a saved model. `compress`: the file is smaller and takes longer to load. code: level of processors → its compiled code. Raises
    ArtifactError for an attribute that is neither number, text nor array."""
    writer, arrays = Writer(file, compress), _ArrayWriter()
    listed, compiled = code_members(code)
    variants = [_variant_document(kinds, lazy.graph, arrays) for kinds, lazy in contents.graphs.items()]
    attributes = {name: _encoded(value, arrays, name) for name, value in contents.info.attributes.items()}
    info = contents.info
    document = {
        "format": FORMAT,
        "version": VERSION,
        **origin_document(contents.origin),
        "source": info.source,
        "methods": list(next(iter(contents.graphs.values())).methods),
        "settings": contents.settings,
        "variants": [document for document, _ in variants],
        "main": list(contents.graphs).index(contents.main),
        "arrays": {key: arrays.digests[key] for key in sorted(arrays.digests)},
        "code": listed,
        "attributes": attributes,
        "output_dtypes": info.output_dtypes,
        "without_rows": info.without_rows,
        "sparse": info.sparse,
        "given_back": list(info.given_back),
        "failing": info.failing,
        "estimator": {"kind": info.kind, "score": info.score, "options": info.options},
        "frames": {method: asdict(output) for method, output in info.frames.items()},
        "input": spec_document(contents.spec),
    }
    writer.text(MANIFEST, json.dumps(document, indent=1, allow_nan=False).encode())
    for place, (_, text) in enumerate(variants):
        writer.text(f"graphs/{place}.txt", text)
    for key in sorted(arrays.digests):
        if key in arrays.texts:
            writer.text(f"arrays/{key}.json", json.dumps(arrays.texts[key], allow_nan=False).encode())
        else:
            writer.array(f"arrays/{key}.npy", arrays.numbers[key])
    for member in sorted(compiled):
        writer.data(member, compiled[member])
    writer.close()


def _variant_document(kinds: Kinds, graph: Graph, arrays: _ArrayWriter) -> tuple[dict[str, Any], bytes]:
    """(the part of the manifest about a graph, its text)."""
    text, used = print_graph(graph)
    for key, array in used.items():
        arrays.add(key, array)
    document = {
        "kinds": [[len(list(group)), kind] for kind, group in itertools.groupby(kinds)],
        "mixes_rows": graph.mixes_rows,
        "digest": hashlib.sha256(text.encode()).hexdigest(),
        "arrays": sorted(used),
        "beside": {
            value: {name: arrays.named(array) for name, array in facts.items()} for value, facts in facts_beside(graph).items()
        },
    }
    return document, text.encode()


class _ArrayWriter:
    """The arrays of an artefact, which are written when all are known."""

    def __init__(self) -> None:
        self.digests: dict[str, str] = {}
        self.numbers: dict[str, Array] = {}
        self.texts: dict[str, Any] = {}

    def named(self, array: Array) -> str:
        """The key of an array, which is added."""
        key = "k" + array_key(array)[2]
        self.add(key, array)
        return key

    def add(self, key: str, array: Array) -> None:
        if key in self.digests:
            return
        if array.dtype.kind in "OT":
            array = _of_plain_objects(array)
            self.texts[key] = _encoded(array, self, key)
        else:
            self.numbers[key] = array
        self.digests[key] = array_digest(array)


def _of_plain_objects(array: Array) -> Array:
    """The array, with Python's own objects in place of numpy's: as it will be read."""
    items = array.ravel().tolist()
    if array.dtype == object and set(map(type, items)) <= {*SCALARS}:
        return array
    plain = np.empty(len(items), object)
    plain[:] = [str(item) if isinstance(item, str) else item.item() if isinstance(item, np.generic) else item for item in items]
    return plain.reshape(array.shape)


def _encoded(value: Any, arrays: _ArrayWriter, name: str) -> Any:
    """A value as JSON; arrays of numbers are put among the arrays."""
    if isinstance(value, np.generic) and value.dtype.kind in "fiub":
        value = np.asarray(value)
    if isinstance(value, np.ndarray) and value.dtype.kind in "OT":
        items = [_encoded(item.item() if isinstance(item, np.generic) else item, arrays, name) for item in value.ravel()]
        return {"objects": items, "shape": list(value.shape)}
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiubU":
        return {"array": arrays.named(value)}
    if isinstance(value, (list, tuple)):
        return {type(value).__name__: [_encoded(item, arrays, name) for item in value]}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if isinstance(value, SCALARS):
        return str(value) if isinstance(value, str) else value
    raise ArtifactError(
        path=name,
        found=f"{value!r:.60} (a {type(value).__name__})",
        expected="numbers and strings",
        advice="It cannot be saved.",
    )


# --- reading -----------------------------------------------------------------------------------------------------------


def read(file: IO[bytes] | str | Path, name: str = "", build: Build = lambda read: read()) -> Contents:
    """Read a saved model. `name` stands for the file in messages. A graph is read when it is first asked for, through `build`.

    Raises ArtifactError for a file that `write` has not written, here or when a graph is read, and FileNotFoundError if there is no file.
    """
    path = name or str(file)
    archive, document, digest = _opened(file, path)
    with as_artifact_error(path):
        if document["version"] == 1:
            return read_1(archive, document, build)
        return _contents(archive, document, digest, build)


def manifest(file: IO[bytes] | str | Path, name: str = "") -> dict[str, Any]:
    """The manifest of a saved model, with two more items: `digest`, its own SHA-256, and `members`, the sizes of all members by name,
    unpacked and packed. No graph is read. Raises the same errors as `read`."""
    path = name or str(file)
    archive, document, digest = _opened(file, path)
    if document["version"] > 1:
        with as_artifact_error(path):
            _contents(archive, document, digest, lambda read: read())
    return {**document, "digest": digest, "members": archive.sizes}


def _opened(file: IO[bytes] | str | Path, path: str) -> tuple[Archive, dict[str, Any], str]:
    """(the open file, its manifest, the manifest's SHA-256)."""
    archive = Archive(file, path)
    try:
        if MANIFEST in archive:
            text = archive.text(MANIFEST)
            document = _json(text)
            if isinstance(document, dict) and document.get("format") == FORMAT:
                version = document["version"]
                if type(version) is not int or not 1 <= version <= VERSION:
                    raise ArtifactError(
                        path=path,
                        found=f"format version {version!r}",
                        expected=f"at most {VERSION}",
                        advice="A newer hbc saved it: install that one here, or save the model with this one.",
                    )
                return archive, document, hashlib.sha256(text.encode()).hexdigest()
    except ArtifactError:
        raise
    except UNREADABLE as error:
        raise unreadable(path, error) from error
    if "model_type.txt" in archive:
        advice = "Its files hold pickles, which hbc does not read. Convert the source model again, and use CompiledModel.save."
        raise ArtifactError(path=path, found="a model saved by Hummingbird", expected="a model saved by hbc", advice=advice)
    raise ArtifactError(
        path=path,
        found="a zip file of something else",
        expected="a model saved by hbc",
        advice="Use CompiledModel.save to make one.",
    )


def _json(text: str) -> Any:
    """The value of a JSON text. Raises ValueError for NaN, for infinite numbers, and for names that occur twice, which the standard leaves
    to each reader. Format 1 had NaN."""
    strange: list[str] = []

    def number(name: str) -> float:
        if not math.isfinite(found := float(name)):
            strange.append(name)
        return found

    value = json.loads(text, parse_constant=number, parse_float=number, object_pairs_hook=_without_doubles)
    if strange and not (isinstance(value, dict) and value.get("version") == 1):
        raise ValueError(f"{strange[0]} in JSON")
    return value


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError(f"a name that occurs twice among {', '.join(found)}")
    return found


def _contents(archive: Archive, document: Mapping[str, Any], digest: str, build: Build) -> Contents:
    variants = document["variants"]
    arrays = _Arrays(archive, document["arrays"])
    texts = [f"graphs/{place}.txt" for place in range(len(variants))]
    listed = [name for members in document["code"].values() for name in members]
    if unlisted := {*archive.sizes} - {MANIFEST, *texts, *arrays.members.values(), *listed}:
        raise ValueError(f"the members {', '.join(sorted(unlisted))}, which the manifest does not list")
    all_kinds = [_kinds(variant["kinds"]) for variant in variants]
    main = all_kinds[int(document["main"])]
    info, spec = info_of(document, arrays), read_spec(document["input"], len(main))
    methods = tuple(document["methods"])
    require_public(methods)

    for kinds in all_kinds:
        require_fitting(kinds, spec)

    def lazy(kinds: Kinds, name: str, variant: Mapping[str, Any]) -> LazyGraph:
        text, mixes_rows = archive.text(name), variant["mixes_rows"]
        digests = {key: arrays.digests[key] for key in variant["arrays"]}
        beside = {
            value: {str(name): str(key) for name, key in facts.items()} for value, facts in variant.get("beside", {}).items()
        }
        if hashlib.sha256(text.encode()).hexdigest() != variant["digest"]:
            raise ValueError(f"{name} is damaged")

        def graph() -> Graph:
            facts = {value: {name: arrays[key] for name, key in keys.items()} for value, keys in beside.items()}
            found = checked_graph(read_graph(text, {key: arrays[key] for key in digests}, facts), kinds, info, spec)
            if (
                facts.keys() != facts_beside(found).keys()
                or tuple(found.outputs) != methods
                or found.mixes_rows is not mixes_rows
            ):
                raise ValueError(f"{name} is not what the manifest says")
            return found

        def read() -> Graph:
            with as_artifact_error(archive.path):
                return build(graph)

        return LazyGraph(methods, mixes_rows, lambda: identity_of(text, digests), read)

    graphs = {kinds: lazy(kinds, name, variant) for kinds, name, variant in zip(all_kinds, texts, variants, strict=True)}
    if len(graphs) != len(variants):
        raise ValueError("two variants for the same dtypes")
    code = StoredCode(archive, document["code"])
    return Contents(info, spec, graphs, main, dict(document["settings"]), read_origin(document, digest), code)


def _kinds(runs: Sequence[tuple[int, Any]]) -> Kinds:
    if sum(abs(int(count)) for count, _ in runs) > MOST_COLUMNS:
        raise ValueError(f"more than {MOST_COLUMNS} columns")
    return tuple(kind for count, kind in runs for _ in range(count))


class _Arrays(Mapping[str, Array]):
    """The arrays of an artefact by key. An array is read when it is asked for, compared with its digest, and shared by all graphs that
    have it: it goes with the last of them."""

    def __init__(self, archive: Archive, digests: Mapping[str, str]) -> None:
        self._archive = archive
        self._found: WeakValueDictionary[str, Array] = WeakValueDictionary()
        self.digests = dict(digests)
        texts = {key: f"arrays/{key}.json" for key in digests}
        self.members = {key: text if text in archive else f"arrays/{key}.npy" for key, text in texts.items()}

    def __getitem__(self, key: str) -> Array:
        found = self._found.get(key)
        if found is None:
            member = self.members[key]
            is_text = member.endswith(".json")
            array: Array = decoded(_json(self._archive.text(member)), {}) if is_text else self._archive.array(member)
            if array_digest(array) != self.digests[key]:
                raise ValueError(f"{member} is damaged")
            self._found[key] = found = array
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.digests)

    def __len__(self) -> int:
        return len(self.digests)


@contextlib.contextmanager
def as_artifact_error(path: str) -> Iterator[None]:
    """Errors of damaged files become ArtifactError, which names the file."""
    try:
        yield
    except ArtifactError as error:
        if error.facts["path"] == path:
            raise
        raise _broken(path, error.facts["found"]) from error
    except UNREADABLE as error:
        raise _broken(path, f"{type(error).__name__}: {error}") from error


def _broken(path: str, reason: str) -> ArtifactError:
    return ArtifactError(
        path=path,
        found=f"a damaged or incomplete model ({reason})",
        expected="a file that CompiledModel.save wrote",
        advice="Save the model again. An operator of a third party needs its package installed; a file of a newer hbc needs that one.",
    )
