"""ONNX Runtime's optimised model, as `engines/onnxruntime.py` keeps it: its nodes, and the types of its values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from alula.core.errors import ManifestError
from alula.core.parse import get, get_each, get_words
from alula.fusion.values import Layer, Listing, Role, Value
from alula.fusion.words import FLOATING, precision_of, type_named

SCHEMA = "ONNX Runtime's optimised model"

# What it puts behind a node's name: the layout of a convolution's data, and a number where a name is taken.
_ADDED = re.compile(r"(_nchwc|_token_\d+)+$")

_ROLES: Mapping[str, Role] = {
    "ReorderInput": "reformat",
    "ReorderOutput": "reformat",
    "MemcpyFromHost": "reformat",
    "MemcpyToHost": "reformat",
    "Cast": "cast",
    "QuantizeLinear": "quantize",
    "DequantizeLinear": "quantize",
    "DynamicQuantizeLinear": "quantize",
    "Reshape": "view",
    "Squeeze": "view",
    "Unsqueeze": "view",
    "Flatten": "view",
    "Identity": "view",
    "Shape": "upkeep",
}


# The type of what an operator gives: always one, or that of an input by its place. Others give what they compute in.
_ALWAYS = {
    **dict.fromkeys(("Shape", "Size", "NonZero", "ArgMax", "ArgMin"), "int64"),
    **dict.fromkeys(("Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual"), "bool"),
    **dict.fromkeys(("And", "Or", "Not", "IsNaN", "IsInf"), "bool"),
    **dict.fromkeys(("MatMulInteger", "ConvInteger"), "int32"),
}
_OF_INPUT = {
    **dict.fromkeys(("Gather", "GatherElements", "GatherND", "Slice", "Expand", "Concat", "Tile", "Pad"), 0),
    "QuantizeLinear": 2,
    "DequantizeLinear": 1,
}


def read(raw: Mapping[str, Any], source: str, version: str) -> Listing:
    """Each node of the optimised model is a layer; types that the model does not say follow from those before."""
    constants = frozenset(get_words(raw, "constants"))
    values = {name: _value(name, said) for name, said in get(raw, dict, "values").items()}
    layers = []
    for index, node in enumerate(get_each(raw, "nodes", dict)):
        try:
            layer = _layer(node, values, constants)
        except ManifestError as error:
            raise error.under(f"nodes[{index}]") from error
        values.update({value.name: value for value in layer.outputs})
        layers.append(layer)
    inputs = get_words(raw, "inputs")
    return Listing(source=source, version=version, schema=SCHEMA, layers=tuple(layers), inputs=inputs)


def _layer(raw: Mapping[str, Any], values: Mapping[str, Value], constants: frozenset[str]) -> Layer:
    name, kind, domain = get(raw, str, "name"), get(raw, str, "op_type"), get(raw, str, "domain")
    inputs = tuple(values.get(each, Value(name=each)) for each in get_words(raw, "inputs") if each)
    dtype = _given(kind, inputs, type_named(str(raw.get("to", ""))))
    outputs = tuple(
        values.get(each) or Value(name=each, dtype=dtype) for each in get_words(raw, "outputs") if each
    )
    role = _ROLES.get(kind, "compute")
    if kind == "MatMulNBits":
        # Its weights are of four bits, packed into bytes; it computes in the type of what it reads.
        precision = inputs[0].dtype
    elif role == "compute":
        precision = precision_of((value.dtype for value in inputs), (value.dtype for value in outputs))
    else:
        precision = next((value.dtype for value in outputs), "")
    return Layer(
        name=name,
        kind=f"{domain.removeprefix('com.microsoft')}.{kind}".removeprefix("."),
        role=role,
        named=(name, _ADDED.sub("", name)),
        precision=precision,
        inputs=tuple(value for value in inputs if value.name not in constants),
        outputs=outputs,
    )


def _given(kind: str, inputs: Sequence[Value], cast: str) -> str:
    """The type of what an operator gives."""
    dtypes = [value.dtype for value in inputs] or [""]
    if kind in _ALWAYS:
        return _ALWAYS[kind]
    if kind in _OF_INPUT:
        at = _OF_INPUT[kind]
        return dtypes[at] if at < len(dtypes) else ""
    if kind == "Cast":
        return cast
    return next((dtype for dtype in dtypes if dtype in FLOATING), dtypes[0])


def _value(name: str, said: Sequence[Any]) -> Value:
    dtype, shape = said
    return Value(name=name, dtype=type_named(dtype), shape=None if shape is None else tuple(shape))
