"""The Open Inference Protocol, for the description of the endpoints."""

from __future__ import annotations

from typing import Any

from alula.serve.tensors import BYTES, DATATYPES

TEXT = {"type": "string"}
OBJECT = {"type": "object"}


def _object(required: list[str], **properties: Any) -> dict[str, Any]:
    return {**OBJECT, "properties": properties, "required": required, "additionalProperties": False}


_INPUT = _object(
    ["name", "datatype", "shape"],
    name=TEXT,
    datatype={"enum": [*DATATYPES, BYTES]},
    shape={"type": "array", "items": {"type": "integer", "minimum": 0}},
    data={
        "type": "array",
        "description": "row-major, flat or nested; left out where binary_data_size is given",
    },
    parameters=_object(
        [],
        binary_data_size={
            "type": "integer",
            "minimum": 0,
            "description": "bytes behind the JSON of the body",
        },
    ),
)
_OUTPUT = _object(["name"], name=TEXT, parameters=_object([], binary_data={"type": "boolean"}))

INFER: dict[str, Any] = {
    "id": TEXT,
    "inputs": {"type": "array", "items": _INPUT, "minItems": 1},
    "outputs": {"type": "array", "items": _OUTPUT, "description": "which outputs; all of them by default"},
    "parameters": _object(
        [],
        timeout={"type": "integer", "minimum": 0, "description": "microseconds; 0 leaves it to the server"},
        priority={
            "type": "integer",
            "minimum": 0,
            "maximum": 3,
            "description": "1 is high, 2 normal, 3 low; 0 leaves it to the server",
        },
        binary_data_output={
            "type": "boolean",
            "default": False,
            "description": "outputs as bytes behind the JSON, whose length Inference-Header-Content-Length says",
        },
    ),
}
INFER_EXAMPLE: dict[str, Any] = {
    "inputs": [
        {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["A parrot sat on the fence."]},
    ]
}
PATH = "/v2/models/{model}/infer"
