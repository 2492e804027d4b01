"""MLServer: the runtime `hbc.adapters.mlserver.HbcModel`, for model-settings.json."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlserver
from mlserver.codecs import Base64Codec, NumpyCodec
from mlserver.errors import MLServerError
from mlserver.types import InferenceRequest, InferenceResponse, MetadataTensor, ResponseOutput
from mlserver.utils import get_model_uri

from hbc.adapters.hosted import FILE, Failure, Hosted, Tensor
from hbc.errors import HbcError
from hbc.serve.tensors import metadata


class HbcModel(mlserver.MLModel):
    """A model saved by hbc. `parameters.uri` is its file, or a folder with model.hbc; `parameters.extra` may have options of `hbc.load`."""

    async def load(self) -> bool:
        """Load the model, and tell MLServer its inputs and outputs. Raises MLServerError of status 400, as `hbc serve` answers, for a file
        that is not there or cannot be read: its repository API would answer 500 otherwise, and log a traceback."""
        extra: dict[str, Any] = (self.settings.parameters and self.settings.parameters.extra) or {}
        path = await get_model_uri(self.settings, wellknown_filenames=[FILE])
        try:
            self._hosted = Hosted(path, self.name, **extra)
        except (HbcError, OSError) as error:
            raise MLServerError(f"model {self.name!r}: {error}", 400) from error
        inputs, outputs = metadata(self._hosted.served)
        self.inputs = [MetadataTensor(name=name, datatype=datatype, shape=shape) for name, datatype, shape in inputs]
        self.outputs = [MetadataTensor(name=name, datatype=datatype, shape=shape) for name, datatype, shape in outputs]
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """The answer. What the model rejects is an error of status 400 that says why."""
        try:
            found = self._hosted.tensors(
                [_tensor(each) for each in payload.inputs], [each.name for each in payload.outputs or ()]
            )
        except Failure as failure:
            raise MLServerError(failure.message, failure.status) from failure
        return InferenceResponse(
            id=payload.id, model_name=self.name, model_version=self.version, outputs=[_output(tensor) for tensor in found]
        )


def _tensor(given: Any) -> Tensor:
    """An input as its datatype and shape say. Of MLServer's content types only base64 counts: it changes what the strings are."""
    datatype = given.datatype.value if hasattr(given.datatype, "value") else str(given.datatype)
    values = given.data.root
    if datatype == "BYTES" and given.parameters is not None and given.parameters.content_type == Base64Codec.ContentType:
        values = Base64Codec.decode_input(given)
    elif not isinstance(values, Sequence) or isinstance(values, str):
        values = [values]  # MLServer takes a single value for a list of one
    return Hosted.tensor(given.name, datatype, given.shape, values)


def _output(tensor: Tensor) -> ResponseOutput:
    if tensor.datatype != "BYTES":
        return NumpyCodec.encode_output(tensor.name, tensor.values)
    texts = [text.encode() for text in tensor.values.ravel()]
    return ResponseOutput(name=tensor.name, datatype="BYTES", shape=list(tensor.values.shape), data=texts)
