"""Messages of the Open Inference Protocol over gRPC to requests, and answers to messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from alula.core.errors import InputError
from alula.serve import terms, v2
from alula.serve.grpc_messages import INFERENCE, INFERENCE_MESSAGES, classes
from alula.serve.inference import VERSION, Answered, Asked, Described
from alula.serve.tensors import (
    BYTES,
    DATATYPES,
    Slot,
    Tensor,
    check_head,
    from_raw,
    of_strings,
    shaped,
    to_raw,
)

MESSAGES = classes(INFERENCE, INFERENCE_MESSAGES)

CONTENTS: Mapping[str, str] = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    BYTES: "bytes_contents",
}
"""Where values of each datatype stand in a message; FP16 comes as bytes alone."""


def asked(request: Any) -> Asked:
    """What a `ModelInferRequest` asks for."""
    given = _parameters(request.parameters, "the request", ("timeout", "priority"))
    timeout, priority = given.get("timeout"), given.get("priority")
    if timeout is not None and (type(timeout) is not int or timeout < 0):
        raise InputError("parameter timeout is no whole number of microseconds")
    if priority is not None and type(priority) is not int:
        raise InputError("parameter priority is no whole number")
    for output in request.outputs:
        _parameters(output.parameters, f"output {output.name!r}", ())
    return Asked(
        model=request.model_name,
        version=request.model_version,
        id=request.id,
        inputs=_inputs(request),
        outputs=tuple(output.name for output in request.outputs),
        within_s=v2.microseconds(timeout),
        priority=terms.numbered(priority),
    )


def response(answered: Answered) -> Any:
    """A `ModelInferResponse`; its tensors are bytes behind their descriptions."""
    made = MESSAGES["ModelInferResponse"](model_name=answered.model, model_version=VERSION, id=answered.id)
    if answered.degraded:
        made.parameters["degraded"].string_param = answered.degraded
    for tensor in answered.outputs:
        made.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.values.shape)
        made.raw_output_contents.append(to_raw(tensor))
    return made


def metadata(model: Described) -> Any:
    """A `ModelMetadataResponse`."""
    made = MESSAGES["ModelMetadataResponse"](name=model.name, versions=[VERSION], platform=model.platform)
    for slots, to in ((model.inputs, made.inputs), (model.outputs, made.outputs)):
        for slot in slots:
            _describe(slot, to)
    return made


def _describe(slot: Slot, to: Any) -> None:
    to.add(name=slot.name, datatype=slot.datatype, shape=slot.shape)


def _inputs(request: Any) -> tuple[Tensor, ...]:
    raw = request.raw_input_contents
    for given in request.inputs:
        _parameters(given.parameters, f"input {given.name!r}", ())
    if not raw:
        return tuple(map(_contents, request.inputs))
    if len(raw) != len(request.inputs):
        raise InputError(
            f"{len(request.inputs)} inputs and {len(raw)} raw_input_contents; expected one of each, or none raw"
        )
    for given in request.inputs:
        if given.HasField("contents"):
            raise InputError(f"input {given.name!r} has contents beside raw_input_contents; expected either")
    return tuple(
        from_raw(given.name, given.datatype, list(given.shape), content)
        for given, content in zip(request.inputs, raw, strict=True)
    )


def _contents(given: Any) -> Tensor:
    name, datatype, shape = given.name, given.datatype, list(given.shape)
    check_head(name, datatype, shape)
    if datatype not in CONTENTS:
        raise InputError(f"input {name!r} is {datatype}, which comes in raw_input_contents alone")
    for other, _ in given.contents.ListFields():
        if other.name != CONTENTS[datatype]:
            raise InputError(f"input {name!r} is {datatype} with {other.name}; expected {CONTENTS[datatype]}")
    content = getattr(given.contents, CONTENTS[datatype])
    if datatype == BYTES:
        return shaped(name, of_strings(list(content)), shape)
    values = np.array(content, _wide(datatype))
    cast = values.astype(DATATYPES[datatype])
    if datatype not in {"FP32", "FP64"} and (cast != values).any():
        raise InputError(f"input {name!r} holds a number that is no {datatype}")
    return shaped(name, cast, shape)


def _wide(datatype: str) -> str:
    """What holds whatever stands in a message for the datatype."""
    if datatype in {"BOOL", "FP32", "FP64"}:
        return DATATYPES[datatype]
    return "uint64" if datatype.startswith("U") else "int64"


def _parameters(given: Any, where: str, known: tuple[str, ...]) -> dict[str, Any]:
    """Parameters by their names; one that nobody knows is refused."""
    if unknown := sorted(set(given) - set(known)):
        takes = f"; it takes {', '.join(known)}" if known else ""
        raise InputError(f"{where} has the parameter {unknown[0]!r}, which is not supported{takes}")
    return {name: getattr(given[name], given[name].WhichOneof("parameter_choice") or "") for name in given}
