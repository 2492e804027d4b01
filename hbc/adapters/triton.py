"""Triton's python_backend: the class for a model's model.py. `hbc export --triton FOLDER model.hbc` writes the folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from hbc.adapters.hosted import Failure, Hosted, Tensor
from hbc.serve.tensors import DATATYPES, text


class TritonPythonModel:
    """One instance of a model, in a process of its own."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the model, from beside model.py."""
        folder = Path(args["model_repository"], args["model_version"])
        self.hosted = Hosted(folder, args["model_name"], args["model_version"])

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """An answer for each request; an error for one that the model rejects."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        try:
            found = self.hosted.tensors([_tensor(each) for each in request.inputs()], request.requested_output_names())
        except Failure as failure:
            code = pb_utils.TritonError.INVALID_ARG if failure.status < 500 else pb_utils.TritonError.INTERNAL
            return pb_utils.InferenceResponse(output_tensors=[], error=pb_utils.TritonError(failure.message, code))
        outputs = [
            pb_utils.Tensor(tensor.name, _bytes(tensor.values) if tensor.datatype == "BYTES" else tensor.values)
            for tensor in found
        ]
        return pb_utils.InferenceResponse(output_tensors=outputs)


def _tensor(given: Any) -> Tensor:
    values = given.as_numpy()
    if values.dtype.kind not in "OS":
        return Tensor(given.name(), DATATYPES[values.dtype], values)
    texts = np.empty(values.shape, object)
    texts.ravel()[:] = [text(given.name(), raw) for raw in values.ravel().tolist()]
    return Tensor(given.name(), "BYTES", texts)


def _bytes(texts: Any) -> Any:
    found = np.empty(texts.shape, object)
    found.ravel()[:] = [each.encode() for each in texts.ravel()]
    return found
