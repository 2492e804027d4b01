"""Hosted: a model inside a server that is not hbc's. It answers tensors and JSON as `hbc serve` does, in the caller's thread."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hbc.loading import load
from hbc.serve.engine import Answer, Request, clock, computed, failure_of
from hbc.serve.failures import Failure
from hbc.serve.limits import Limits
from hbc.serve.served import Served
from hbc.serve.statistics import Statistics
from hbc.serve.tensors import Tensor, asked_outputs, output_tensors, request_of, shape_of, text

FILE = "model.hbc"
"""The name of a model's file in the folders that servers give."""


class Hosted:
    """The model of a file, or of the file model.hbc in a folder, loaded and warmed up.

    options: those of `hbc.load`. Raises what `hbc.load` does. Requests raise Failure (`kind`, `message`, `status` of HTTP); an error that
    is not the caller's fault passes as it is, and the server's own log has it."""

    def __init__(self, path: str | os.PathLike[str], name: str = "model", version: str = "1", **options: Any) -> None:
        place = Path(path)
        place = place / FILE if place.is_dir() else place
        self.served = Served(name, version, place, None, load(place, **options), Statistics())
        self.served.warm_up()
        self.limits = Limits()

    def tensors(self, given: Sequence[Tensor], outputs: Sequence[str] = ()) -> list[Tensor]:
        """The outputs for tensors: one matrix, or one tensor for each column. outputs: their names, by default the usual one. Raises
        Failure."""
        methods = asked_outputs(self.served, outputs)
        request = request_of(self.served, given, methods, self.limits, None, clock())
        return output_tensors(request, self._outputs(request), outputs)

    @staticmethod
    def tensor(name: str, datatype: str, shape: Sequence[int], data: Sequence[Any]) -> Tensor:
        """The tensor of a list of values, as other servers have read it from JSON or from gRPC, flat or nested; None is a missing value.
        Raises Failure for values that the datatype does not hold."""
        from hbc.serve.lists import from_list  # needs orjson, which arrays do not

        texts = datatype == "BYTES" and any(isinstance(each, bytes) for each in data)
        values = [text(name, each) if isinstance(each, bytes) else each for each in data] if texts else list(data)
        return from_list(name, datatype, shape_of(name, shape), values)

    def json(self, body: bytes, method: str | None = None) -> bytes:
        """The answer to a body of plain JSON, as `hbc serve` takes it: {"record": {…}}, {"records": […]}, {"columns": {…}} or
        {"rows": […]}, with "methods" if others than the usual one are wanted. Raises Failure."""
        from hbc.serve import plain  # needs orjson, which tensors do not

        request, request_id = plain.read(self.served, method or plain.USUAL, body, self.limits, clock())
        return plain.write(request, Answer(self._outputs(request), 0.0, 0.0), request_id)

    def rows(self, rows: Sequence[Any], method: str | None = None) -> Any:
        """The result of a method for rows: dicts from names to values, or lists of values. Raises Failure."""
        form: Any = "records" if rows and isinstance(rows[0], Mapping) else "matrix"
        chosen = method or self.served.usual
        self.served.predictor(chosen)
        outputs = self._outputs(Request(self.served, (chosen,), form, list(rows), len(rows)))
        return outputs[chosen] if list(outputs) == [chosen] else outputs

    def _outputs(self, request: Request) -> Any:
        try:
            return computed(self.served, request.methods, request.form, request.value)
        except Exception as error:
            known = failure_of(error)
            if known is None:
                raise
            raise known from error


__all__ = ["Failure", "Hosted", "Tensor"]
