"""WorkerMethod: what an engine sends to its workers. It carries the model as the bytes of its file, and each process loads them once."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hbc.arguments import texts
from hbc.errors import InvalidInputError, shown
from hbc.lazy import cached_property
from hbc.loaded import loaded_once
from hbc.runtime.arrow import ArrowMethod
from hbc.runtime.input.frame_view import duplicates
from hbc.runtime.model import CompiledModel


def arrow_method(model: CompiledModel, methods: str | Sequence[str] | None, class_names: Sequence[str] | None) -> ArrowMethod:
    """`CompiledModel.arrow` of a model in this process. Raises TypeError for what is no model, such as the path of one."""
    if not isinstance(model, CompiledModel):
        raise TypeError(f"model: found {shown(model)}, expected a CompiledModel, as hbc.convert and hbc.load return it")
    return model.arrow(methods, class_names=class_names)


def require_data(name: str, data: Any, attribute: str, expected: str) -> None:
    """Raise TypeError, which names the argument, for data that lacks an attribute of this engine's."""
    if not hasattr(data, attribute):
        raise TypeError(f"{name}: found {shown(data)}, expected {expected}")


class WorkerMethod:
    """A function from a record batch or table of Arrow to the same kind: columns of the input, then the results of a model.

    Pickled, it is the bytes of the model's file and these names: compiled code does not travel. A process that gets it loads the model at
    the first call, once for all that carry it, and finds compiled code in the cache on its disk.

    model: a CompiledModel, or the path of a file that `CompiledModel.save` wrote. methods, class_names: as in `CompiledModel.arrow`.
    keep: the names of the columns of the input that are returned too, before the results. Raises what `hbc.load` and `arrow` raise, and
    ValueError for a name that occurs twice.
    """

    def __init__(
        self,
        model: CompiledModel | str | os.PathLike[str],
        methods: str | Sequence[str] | None = None,
        keep: str | Sequence[str] = (),
        class_names: Sequence[str] | None = None,
    ) -> None:
        if isinstance(model, CompiledModel):
            self._name, self._data, loaded = repr(model), model._bytes(), model
        else:
            self._name, loaded = os.fspath(model), None
            self._data = Path(model).read_bytes()
        self._digest = hashlib.sha256(self._data).hexdigest()
        self._model(loaded)
        self._methods = None if methods is None else tuple(texts("methods", methods, "the name of a method, or several"))
        self._class_names = None if class_names is None else tuple(texts("class_names", class_names, "a name for each class"))
        self.keep = tuple(texts("keep", keep, "the name of a column, or several"))
        names = [*self.keep, *self.results.names]
        if twice := sorted({name for name in names if names.count(name) > 1}) if self.keep else []:
            raise ValueError(f"keep: found {twice[0]!r} twice among the columns of the answer, expected names that differ")

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_method"}

    def _model(self, loaded: CompiledModel | None = None) -> CompiledModel:
        return loaded_once(self._digest, lambda: self._data, self._name, model=loaded)

    @cached_property
    def _method(self) -> Any:
        return self._model().arrow(self._methods, class_names=self._class_names)

    @property
    def results(self) -> Any:
        """The pyarrow.Schema of the results, without the columns that are kept."""
        return self._method.schema

    @property
    def names(self) -> list[str]:
        """The names of the model's inputs, in order. One that knows no names has "0", "1" …"""
        columns = self._method.columns
        if columns is None:
            return [str(place) for place in range(len(self._model().schema.columns))]
        return list(columns)

    def inputs(self, names: Iterable[str]) -> list[str]:
        """The columns that the model reads of data with these names. A model that knows no names takes all that are not kept, in order.
        Raises InvalidInputError if one is missing or there twice, also one to keep."""
        given = list(names)
        columns = self._method.columns
        chosen = [name for name in given if name not in self.keep] if columns is None else self._method.names_in(given)
        if missing := [name for name in dict.fromkeys([*self.keep, *chosen]) if name not in given]:
            raise InvalidInputError(
                found=f"the columns {', '.join(map(repr, given[:20]))}",
                expected=f"also {', '.join(map(repr, missing[:20]))}",
                advice="The model finds its columns by their names.",
            )
        if len(set(given)) < len(given):
            for name in (*self.keep, *chosen):
                if given.count(name) > 1:
                    raise duplicates(name)
        return list(chosen)

    def reads(self, names: Iterable[str]) -> list[str]:
        """The columns to read of data with these names: those to keep, and `inputs`. Raises the same error."""
        return list(dict.fromkeys([*self.keep, *self.inputs(names)]))

    def answer(self, data: Any) -> Any:
        """The results for a batch or table of the model's inputs. Raises InvalidInputError for what the source rejects."""
        return self._method(data)

    def __call__(self, data: Any) -> Any:
        """The kept columns and the results for a batch or table. Raises InvalidInputError."""
        found = self.answer(data.select(self.inputs(data.schema.names)))
        if not self.keep:
            return found
        kept = data.select(list(self.keep))
        schema = kept.schema.remove_metadata()
        for field in found.schema:
            schema = schema.append(field)
        return type(data).from_arrays([*kept.columns, *found.columns], schema=schema)

    def stream(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yields the answer to each batch."""
        return map(self, batches)
