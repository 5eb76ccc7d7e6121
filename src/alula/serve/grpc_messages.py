"""The messages that are spoken over gRPC, written down as data: those of the Open Inference Protocol and of health.

Classes are made of them here, so that there is no generated code to keep; they live in a pool of their own, so that a
process may also hold other code for the same protocols. Numbers and types are those of the public definitions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from alula.core.errors import InputError

INFERENCE = "inference"
HEALTH = "grpc.health.v1"

_REPOSITORY_PARAMETERS = "map<ModelRepositoryParameter> parameters"
_PARAMETERS = "map<InferParameter> parameters"

# By number from 1 on: a type, "*" behind it where it is repeated, "map<...>" of strings to it, and a name.
INFERENCE_MESSAGES: Mapping[str, tuple[str, ...]] = {
    "ServerLiveRequest": (),
    "ServerLiveResponse": ("bool live",),
    "ServerReadyRequest": (),
    "ServerReadyResponse": ("bool ready",),
    "ModelReadyRequest": ("string name", "string version"),
    "ModelReadyResponse": ("bool ready",),
    "ServerMetadataRequest": (),
    "ServerMetadataResponse": ("string name", "string version", "string* extensions"),
    "ModelMetadataRequest": ("string name", "string version"),
    "ModelMetadataResponse": (
        "string name",
        "string* versions",
        "string platform",
        "ModelMetadataResponse.TensorMetadata* inputs",
        "ModelMetadataResponse.TensorMetadata* outputs",
    ),
    "ModelMetadataResponse.TensorMetadata": ("string name", "string datatype", "int64* shape"),
    "InferParameter": (
        "bool bool_param | parameter_choice",
        "int64 int64_param | parameter_choice",
        "string string_param | parameter_choice",
        "double double_param | parameter_choice",
        "uint64 uint64_param | parameter_choice",
    ),
    "InferTensorContents": (
        "bool* bool_contents",
        "int32* int_contents",
        "int64* int64_contents",
        "uint32* uint_contents",
        "uint64* uint64_contents",
        "float* fp32_contents",
        "double* fp64_contents",
        "bytes* bytes_contents",
    ),
    "ModelInferRequest": (
        "string model_name",
        "string model_version",
        "string id",
        _PARAMETERS,
        "ModelInferRequest.InferInputTensor* inputs",
        "ModelInferRequest.InferRequestedOutputTensor* outputs",
        "bytes* raw_input_contents",
    ),
    "ModelInferRequest.InferInputTensor": (
        "string name",
        "string datatype",
        "int64* shape",
        _PARAMETERS,
        "InferTensorContents contents",
    ),
    "ModelInferRequest.InferRequestedOutputTensor": ("string name", _PARAMETERS),
    "ModelInferResponse": (
        "string model_name",
        "string model_version",
        "string id",
        _PARAMETERS,
        "ModelInferResponse.InferOutputTensor* outputs",
        "bytes* raw_output_contents",
    ),
    "ModelInferResponse.InferOutputTensor": (
        "string name",
        "string datatype",
        "int64* shape",
        _PARAMETERS,
        "InferTensorContents contents",
    ),
    "RepositoryIndexRequest": ("string repository_name", "bool ready"),
    "RepositoryIndexResponse": ("RepositoryIndexResponse.ModelIndex* models",),
    "RepositoryIndexResponse.ModelIndex": (
        "string name",
        "string version",
        "string state",
        "string reason",
    ),
    "ModelRepositoryParameter": (
        "bool bool_param | parameter_choice",
        "int64 int64_param | parameter_choice",
        "string string_param | parameter_choice",
        "bytes bytes_param | parameter_choice",
    ),
    "RepositoryModelLoadRequest": ("string repository_name", "string model_name", _REPOSITORY_PARAMETERS),
    "RepositoryModelLoadResponse": (),
    "RepositoryModelUnloadRequest": ("string repository_name", "string model_name", _REPOSITORY_PARAMETERS),
    "RepositoryModelUnloadResponse": (),
    "ModelStreamInferResponse": ("string error_message", "ModelInferResponse infer_response"),
}

HEALTH_MESSAGES: Mapping[str, tuple[str, ...]] = {
    "HealthCheckRequest": ("string service",),
    # An enumeration, which looks on the wire as a whole number does.
    "HealthCheckResponse": ("int32 status",),
}

_TYPES: Mapping[str, FieldDescriptorProto.Type] = {
    "double": FieldDescriptorProto.TYPE_DOUBLE,
    "float": FieldDescriptorProto.TYPE_FLOAT,
    "int64": FieldDescriptorProto.TYPE_INT64,
    "uint64": FieldDescriptorProto.TYPE_UINT64,
    "int32": FieldDescriptorProto.TYPE_INT32,
    "uint32": FieldDescriptorProto.TYPE_UINT32,
    "bool": FieldDescriptorProto.TYPE_BOOL,
    "string": FieldDescriptorProto.TYPE_STRING,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
}


def classes(package: str, messages: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """A class for each message, by its name."""
    file = FileDescriptorProto(name=f"alula/{package}.proto", package=package, syntax="proto3")
    made: dict[str, DescriptorProto] = {}
    for name, fields in messages.items():
        outer, _, inner = name.rpartition(".")
        made[name] = (made[outer].nested_type if outer else file.message_type).add(name=inner)
        for number, written in enumerate(fields, start=1):
            _field(made[name], f".{package}.{name}", f".{package}", written, number)
    pool = DescriptorPool()
    pool.Add(file)
    return {name: GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in messages}


def parsed(kind: Any, content: bytes) -> Any:
    """The message of this class that the bytes are; raises InputError where they are none."""
    try:
        return kind.FromString(content)
    except DecodeError as error:
        raise InputError(f"the bytes are no {kind.DESCRIPTOR.name}: {error}") from None


def _field(message: DescriptorProto, path: str, package: str, written: str, number: int) -> None:
    head, _, choice = written.partition(" | ")
    kind, _, name = head.partition(" ")
    field = message.field.add(name=name, number=number, label=FieldDescriptorProto.LABEL_OPTIONAL)
    if kind.endswith("*") or kind.startswith("map<"):
        field.label = FieldDescriptorProto.LABEL_REPEATED
    if kind.startswith("map<"):
        entry = message.nested_type.add(name=f"{name.title()}Entry")
        entry.options.map_entry = True
        _field(entry, path, package, "string key", 1)
        _field(entry, path, package, f"{kind[4:-1]} value", 2)
        field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, f"{path}.{entry.name}"
    elif (plain := kind.rstrip("*")) in _TYPES:
        field.type = _TYPES[plain]
    else:
        field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, f"{package}.{plain}"
    if choice:
        if not message.oneof_decl:
            message.oneof_decl.add(name=choice)
        field.oneof_index = 0
