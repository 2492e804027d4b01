"""The messages of the two protocols, as classes: `Messages.ModelInferRequest` and so on.

They are made when this file is imported, from the descriptors that `protoc` wrote of inference.proto and health.proto. Code that protoc
generates would ask for the protobuf of its own time or newer: other packages of an environment often ask for an older one. The classes
are in a pool of their own, since tritonclient has messages of the same names."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

DESCRIPTORS = Path(__file__).parent / "protocol.binpb"

INFERENCE = "inference.GRPCInferenceService"
HEALTH = "grpc.health.v1.Health"


def _pool() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTORS.read_bytes()).file:
        pool.Add(file)
    return pool


_POOL = _pool()


def _messages(file: str) -> SimpleNamespace:
    """The messages at the top of a file, by name."""
    found = _POOL.FindFileByName(file).message_types_by_name
    return SimpleNamespace(**{name: message_factory.GetMessageClass(each) for name, each in found.items()})


Messages: Any = _messages("inference.proto")
Health: Any = _messages("health.proto")

DATA_TYPES: dict[str, int] = {
    name.removeprefix("TYPE_").replace("STRING", "BYTES"): value.number
    for name, value in _POOL.FindFileByName("inference.proto").enum_types_by_name["DataType"].values_by_name.items()
}
"""Datatype of the protocol → its number in a model's configuration."""

SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3


def methods_of(service: str) -> dict[str, tuple[Any, Any, bool, bool]]:
    """Method of a service → the classes of its request and its answer, and whether each is a stream."""
    return {
        method.name: (
            message_factory.GetMessageClass(method.input_type),
            message_factory.GetMessageClass(method.output_type),
            method.client_streaming,
            method.server_streaming,
        )
        for method in _POOL.FindServiceByName(service).methods
    }
