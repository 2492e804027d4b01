"""KServe: the class HbcModel, and `python -m hbc.adapters.kserve --model_name NAME --model_dir FOLDER`, the command of a container."""

from __future__ import annotations

import argparse
import json
import os
import struct
from typing import Any
from uuid import uuid4

import kserve
import numpy as np
from kserve.errors import InferenceError, InvalidInput, ModelNotReady
from kserve.protocol.infer_type import InferOutput, InferRequest, InferResponse

from hbc.adapters.hosted import Failure, Hosted, Tensor
from hbc.serve.jsonable import jsonable
from hbc.serve.served import Outputs
from hbc.serve.tensors import metadata, text


class HbcModel(kserve.Model):
    """A model saved by hbc. path: its file, or a folder with model.hbc, such as KServe's /mnt/models. method: the one that version 1 of the
    protocol asks for, by default the model's usual one; version 2 names its outputs. options: those of `hbc.load`."""

    def __init__(self, name: str, path: str | os.PathLike[str], method: str | None = None, **options: Any) -> None:
        super().__init__(name)
        self._path, self._method, self._options = path, method, options
        self._hosted: Hosted | None = None
        self.ready = False

    def load(self) -> bool:
        """Load the model."""
        self._hosted = Hosted(self._path, self.name, **self._options)
        self.ready = True
        return True

    def get_input_types(self) -> list[dict[str, Any]]:
        """The inputs, for KServe's metadata."""
        return [
            {"name": name, "datatype": datatype, "shape": shape} for name, datatype, shape in metadata(self._model.served)[0]
        ]

    def get_output_types(self) -> list[dict[str, Any]]:
        """The outputs, for KServe's metadata."""
        return [
            {"name": name, "datatype": datatype, "shape": shape} for name, datatype, shape in metadata(self._model.served)[1]
        ]

    def predict(self, payload: Any, headers: Any = None, response_headers: Any = None) -> Any:
        """The answer in the version of the protocol that the request has."""
        try:
            return self._version_2(payload) if isinstance(payload, InferRequest) else self._version_1(payload)
        except Failure as failure:
            raise (InvalidInput if failure.status < 500 else InferenceError)(failure.message) from failure

    @property
    def _model(self) -> Hosted:
        if self._hosted is None:
            raise ModelNotReady(self.name)
        return self._hosted

    def _version_1(self, payload: Any) -> dict[str, Any]:
        """{"instances": [records or rows]} → {"predictions": […]}. KServe hands over bytes if the request does not say that it is JSON."""
        if isinstance(payload, bytes):
            try:
                payload = json.loads(payload)
            except (ValueError, RecursionError) as error:
                raise Failure("invalid", f"the body is no JSON: {error}.") from error
        instances = payload.get("instances") if isinstance(payload, dict) else None
        if not isinstance(instances, list) or not instances:
            raise Failure("invalid", "instances: expected a list of objects, or of rows.")
        found: Outputs | Any = self._model.rows(instances, self._method)
        if isinstance(found, dict):
            raise Failure(
                "invalid", f"{self._method}: its result has several parts, which version 1 of the protocol cannot name."
            )
        values = jsonable(found)
        return {"predictions": values.tolist() if isinstance(values, np.ndarray) else values}

    def _version_2(self, request: InferRequest) -> InferResponse:
        tensors = [_tensor(each) for each in request.inputs]
        found = self._model.tensors(tensors, [output.name for output in request.request_outputs or ()])
        outputs = []
        for tensor in found:
            output = InferOutput(name=tensor.name, shape=list(tensor.values.shape), datatype=tensor.datatype)
            output.set_data_from_numpy(tensor.values, binary_data=bool(request.use_binary_outputs or request.from_grpc))
            outputs.append(output)
        return InferResponse(
            response_id=request.id or str(uuid4()),
            model_name=self.name,
            infer_outputs=outputs,
            use_binary_outputs=request.use_binary_outputs,
            requested_outputs=request.request_outputs,
            from_grpc=request.from_grpc,
        )


def _tensor(given: Any) -> Tensor:
    """Raises Failure for data that the datatype and the shape do not hold."""
    if isinstance(given.data, list):
        return Hosted.tensor(given.name, given.datatype, given.shape, given.data)
    try:
        values = np.asarray(given.as_numpy())  # of bytes, or an array of another program
    except (ValueError, TypeError, OverflowError, struct.error) as error:
        raise Failure(
            "invalid", f"input {given.name!r}: found data that is no {given.datatype}{given.shape}: {error}."
        ) from error
    if given.datatype == "BYTES":
        texts = np.empty(values.shape, object)
        texts.ravel()[:] = [text(given.name, each) if isinstance(each, bytes) else each for each in values.ravel().tolist()]
        values = texts
    return Tensor(given.name, given.datatype, values)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(parents=[kserve.model_server.parser])
    parser.add_argument("--model_dir", default="/mnt/models", help="the file of the model, or a folder with model.hbc")
    parser.add_argument("--method", help="the method for version 1 of the protocol")
    arguments, _ = parser.parse_known_args()
    model = HbcModel(arguments.model_name, arguments.model_dir, arguments.method)
    model.load()
    kserve.ModelServer().start([model])
