"""Bodies of the Open Inference Protocol over HTTP: JSON, and behind it the bytes of binary tensors."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from alula.core.errors import InputError
from alula.serve import bodies, deadlines, terms
from alula.serve.bodies import Fields
from alula.serve.inference import VERSION, Answered, Asked, Described
from alula.serve.tensors import Slot, Tensor, from_raw, from_values, to_raw, to_values

HEADER_LENGTH = "inference-header-content-length"
"""The header that says where in a body its JSON ends and the bytes of its tensors begin."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wish:
    """How an answer is to be written: which outputs as bytes behind the JSON."""

    binary: bool = False
    outputs: Mapping[str, bool]

    def of(self, name: str) -> bool:
        """Whether this output is to be bytes."""
        return self.outputs.get(name, self.binary)


def asked(body: bytes, header_length: str | None, model: str, version: str) -> tuple[Asked, Wish]:
    """What a body asks for."""
    head, rest = _cut(body, header_length)
    fields = Fields(bodies.parse(head))
    request_id = fields.maybe("id", str) or ""
    inputs = _Inputs(rest)
    tensors = tuple(
        inputs.tensor(one, f"inputs[{at}]") for at, one in enumerate(_list(fields.get("inputs", list)))
    )
    inputs.done()
    parameters = fields.within("parameters")
    binary = parameters.get("binary_data_output", bool, default=False)
    within_s = microseconds(parameters.maybe("timeout", int))
    priority = terms.numbered(parameters.maybe("priority", int))
    parameters.done()
    wanted = fields.maybe("outputs", list) or []
    outputs = dict(_output(one, f"outputs[{at}]", binary) for at, one in enumerate(_list(wanted)))
    if len(outputs) < len(wanted):
        raise InputError("an output is asked for twice")
    fields.done()
    request = Asked(
        model=model,
        version=version,
        id=request_id,
        inputs=tensors,
        outputs=tuple(outputs),
        within_s=within_s,
        priority=priority,
    )
    return request, Wish(binary=binary, outputs=outputs)


def microseconds(timeout: int | None) -> float | None:
    """The parameter `timeout` in seconds; none and 0 leave it to the server."""
    return deadlines.within(timeout / 1_000_000, "timeout") if timeout else None


def written(answered: Answered, wish: Wish) -> tuple[bytes, int | None]:
    """The body of an answer, and how long its JSON is where bytes follow it."""
    outputs, parts = [], []
    for tensor in answered.outputs:
        about: dict[str, Any] = {
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": list(tensor.values.shape),
        }
        if wish.of(tensor.name):
            parts.append(to_raw(tensor))
            about["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            about["data"] = to_values(tensor)
        outputs.append(about)
    said: dict[str, Any] = {"model_name": answered.model, "model_version": VERSION}
    if answered.id:
        said["id"] = answered.id
    if answered.degraded:
        said["parameters"] = {"degraded": answered.degraded}
    head = json.dumps({**said, "outputs": outputs}, allow_nan=False, separators=(",", ":")).encode()
    return b"".join((head, *parts)), len(head) if parts else None


def metadata(model: Described) -> dict[str, Any]:
    """`GET /v2/models/NAME`."""
    return {
        "name": model.name,
        "versions": [VERSION],
        "platform": model.platform,
        "inputs": [_slot(slot) for slot in model.inputs],
        "outputs": [_slot(slot) for slot in model.outputs],
    }


def _slot(slot: Slot) -> dict[str, Any]:
    return {"name": slot.name, "datatype": slot.datatype, "shape": list(slot.shape)}


def _cut(body: bytes, header_length: str | None) -> tuple[bytes, memoryview]:
    if header_length is None:
        return body, memoryview(b"")
    known = header_length.isascii() and header_length.isdigit() and len(header_length) < 16
    if not known or int(header_length) > len(body):
        raise InputError(
            f"inference-header-content-length is {header_length[:20]!r}; expected 0..{len(body)}, within the body"
        )
    at = int(header_length)
    return body[:at], memoryview(body)[at:]


def _list(given: Sequence[Any]) -> Sequence[dict[str, Any]]:
    for one in given:
        if not isinstance(one, dict):
            raise InputError("inputs and outputs are lists of objects; one of them is something else")
    return given


class _Inputs:
    """Inputs in their order, and the bytes that those of them take which are binary."""

    def __init__(self, rest: memoryview) -> None:
        self._rest = rest
        self._at = 0

    def tensor(self, given: dict[str, Any], where: str) -> Tensor:
        fields = Fields(given, f"{where}.")
        name, datatype = fields.get("name", str), fields.get("datatype", str)
        shape = fields.get("shape", list)
        if not all(type(size) is int for size in shape):
            raise InputError(f"{where}.shape is not a list of whole numbers")
        parameters = fields.within("parameters")
        size = parameters.maybe("binary_data_size", int)
        parameters.done()
        if size is None:
            data = fields.any("data")
            fields.done()
            return from_values(name, datatype, shape, data)
        fields.done()
        return from_raw(name, datatype, shape, self._take(size, name))

    def done(self) -> None:
        if left := len(self._rest) - self._at:
            raise InputError(f"{left} bytes follow those of the last binary input; expected none")

    def _take(self, size: int, name: str) -> memoryview:
        left = len(self._rest) - self._at
        if not 0 <= size <= left:
            raise InputError(f"input {name!r} says {size} bytes; {left} follow the JSON of the body")
        self._at += size
        return self._rest[self._at - size : self._at]


def _output(given: dict[str, Any], where: str, binary: bool) -> tuple[str, bool]:
    fields = Fields(given, f"{where}.")
    name = fields.get("name", str)
    parameters = fields.within("parameters")
    wanted = parameters.get("binary_data", bool, default=binary)
    parameters.done()
    fields.done()
    return name, wanted
