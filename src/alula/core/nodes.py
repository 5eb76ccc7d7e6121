"""The nodes of an ONNX file, read from its bytes: engines write such files, and a machine that serves has no onnx."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from alula.core.errors import InputError
from alula.core.tensor import Dim

# Numbers of fields and of element types, from onnx.proto. They never change, or old files could not be read.
_MODEL_GRAPH = 7
_NODE, _INITIALIZER, _INPUT, _OUTPUT, _VALUE_INFO = 1, 5, 11, 12, 13
_NODE_INPUT, _NODE_OUTPUT, _NODE_NAME, _NODE_OP, _NODE_ATTRIBUTE, _NODE_DOMAIN = 1, 2, 3, 4, 5, 7
_ATTRIBUTE_NAME, _ATTRIBUTE_INT, _ATTRIBUTE_GRAPH, _ATTRIBUTE_GRAPHS = 1, 3, 6, 11
_TENSOR_DIMS, _TENSOR_TYPE, _TENSOR_NAME = 1, 2, 8
_DTYPES = {
    **dict(enumerate(("float32", "uint8", "int8", "uint16", "int16", "int32", "int64", "string", "bool"), 1)),
    **dict(enumerate(("float16", "float64", "uint32", "uint64", "complex64", "complex128", "bfloat16"), 10)),
    **dict(enumerate(("float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz"), 17)),
    **dict(enumerate(("uint4", "int4", "float4e2m1"), 21)),
}

_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """One node; one without a name goes by its first output.

    `attributes` is a digest, equal for equal ones; `casts_to` is the element type that a Cast gives.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    domain: str = ""
    attributes: str = ""
    casts_to: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ValueType:
    """Element type and shape of a value; what the file does not say is empty and None."""

    dtype: str = ""
    shape: tuple[Dim, ...] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Nodes:
    """A graph as its nodes in the order of the file, those of inner graphs behind the node that holds them."""

    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: frozenset[str]
    types: Mapping[str, ValueType] = field(default_factory=dict)


def read_nodes(path: Path) -> Nodes:
    """Read the nodes of an ONNX file; its weights are passed over."""
    try:
        content = memoryview(path.read_bytes())
    except FileNotFoundError as error:
        raise InputError(f"no graph at {path}") from error
    try:
        return _model(content)
    except (ValueError, IndexError, TypeError) as error:
        raise InputError(f"{path}: not a readable ONNX file: {error}") from error


def _model(content: memoryview) -> Nodes:
    for number, value in _fields(content):
        if number == _MODEL_GRAPH:
            return _graph(_bytes(value))
    raise ValueError("it holds no graph")


def _graph(content: memoryview) -> Nodes:
    nodes: list[Node] = []
    ends: dict[int, list[str]] = {_INPUT: [], _OUTPUT: []}
    constants: set[str] = set()
    types: dict[str, ValueType] = {}
    for number, value in _fields(content):
        if number == _NODE:
            nodes += _node(_bytes(value), constants)
        elif number == _INITIALIZER:
            name, typed = _initializer(_bytes(value))
            constants.add(name)
            types[name] = typed
        elif number in {_INPUT, _OUTPUT, _VALUE_INFO}:
            name, typed = _value(_bytes(value))
            types[name] = typed
            if number in ends:
                ends[number].append(name)
    # Old exporters list weights among the inputs too.
    inputs = tuple(name for name in ends[_INPUT] if name not in constants)
    return Nodes(
        nodes=tuple(nodes),
        inputs=inputs,
        outputs=tuple(ends[_OUTPUT]),
        constants=frozenset(constants),
        types=types,
    )


def _node(content: memoryview, constants: set[str]) -> list[Node]:
    """A node, and behind it those of the graphs in its attributes."""
    lists: dict[int, list[str]] = {_NODE_INPUT: [], _NODE_OUTPUT: []}
    texts = {_NODE_NAME: "", _NODE_OP: "", _NODE_DOMAIN: ""}
    attributes: list[bytes] = []
    casts_to = ""
    inner: list[Node] = []
    for number, value in _fields(content):
        if number in lists:
            lists[number].append(_text(value))
        elif number in texts:
            texts[number] = _text(value)
        elif number == _NODE_ATTRIBUTE:
            attributes.append(bytes(_bytes(value)))
            casts_to = _cast_type(_bytes(value)) or casts_to
            for inside, graph in _fields(_bytes(value)):
                if inside in {_ATTRIBUTE_GRAPH, _ATTRIBUTE_GRAPHS}:
                    nested = _graph(_bytes(graph))
                    constants |= nested.constants
                    inner += nested.nodes
    outputs = tuple(lists[_NODE_OUTPUT])
    node = Node(
        name=texts[_NODE_NAME] or next(iter(outputs), ""),
        op=texts[_NODE_OP],
        inputs=tuple(lists[_NODE_INPUT]),
        outputs=outputs,
        domain=texts[_NODE_DOMAIN],
        attributes=hashlib.sha256(b"".join(sorted(attributes))).hexdigest()[:16] if attributes else "",
        casts_to=casts_to if texts[_NODE_OP] == "Cast" else "",
    )
    return [node, *inner]


def _cast_type(attribute: memoryview) -> str:
    fields = dict(_fields(attribute))
    if _text(fields.get(_ATTRIBUTE_NAME, memoryview(b""))) != "to":
        return ""
    number = fields.get(_ATTRIBUTE_INT)
    return _DTYPES.get(number, "") if isinstance(number, int) else ""


def _initializer(content: memoryview) -> tuple[str, ValueType]:
    name, dtype = "", ""
    dims: list[Dim] = []
    for number, value in _fields(content):
        if number == _TENSOR_NAME:
            name = _text(value)
        elif number == _TENSOR_TYPE and isinstance(value, int):
            dtype = _DTYPES.get(value, "")
        elif number == _TENSOR_DIMS:
            dims += [value] if isinstance(value, int) else _packed(value)
    return name, ValueType(dtype=dtype, shape=tuple(dims))


def _value(content: memoryview) -> tuple[str, ValueType]:
    """A ValueInfoProto: name, and tensor_type with elem_type and shape inside type."""
    name, typed = "", ValueType()
    for number, value in _fields(content):
        if number == 1:
            name = _text(value)
        elif number == 2:
            for inside, tensor in _fields(_bytes(value)):
                if inside == 1:
                    typed = _tensor_type(_bytes(tensor))
    return name, typed


def _tensor_type(content: memoryview) -> ValueType:
    dtype, shape = "", None
    for number, value in _fields(content):
        if number == 1 and isinstance(value, int):
            dtype = _DTYPES.get(value, "")
        elif number == 2:
            shape = tuple(_dim(_bytes(dim)) for inside, dim in _fields(_bytes(value)) if inside == 1)
    return ValueType(dtype=dtype, shape=shape)


def _dim(content: memoryview) -> Dim:
    for number, value in _fields(content):
        if number == 1 and isinstance(value, int):
            return value
        if number == 2:
            return _text(value)
    return "?"


def _fields(content: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """The fields of one protobuf message: number, and a whole number or bytes."""
    at = 0
    while at < len(content):
        tag, at = _varint(content, at)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, at = _varint(content, at)
            yield number, value
            continue
        if wire == _BYTES:
            size, at = _varint(content, at)
        elif wire in {_EIGHT_BYTES, _FOUR_BYTES}:
            size = 8 if wire == _EIGHT_BYTES else 4
        else:
            raise ValueError(f"a field of wire type {wire} at byte {at}")
        if at + size > len(content):
            raise ValueError(f"it is cut short: {len(content)} bytes, but a field ends at byte {at + size}")
        yield number, content[at : at + size]
        at += size


def _varint(content: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(content):
            raise ValueError("it is cut short within a number")
        byte = content[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _packed(content: memoryview) -> list[Dim]:
    values: list[Dim] = []
    at = 0
    while at < len(content):
        value, at = _varint(content, at)
        values.append(value)
    return values


def _bytes(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise ValueError(f"a number, {value}, where a message is expected")  # noqa: TRY004 - malformed
    return value


def _text(value: int | memoryview) -> str:
    return bytes(_bytes(value)).decode("utf-8", errors="replace")
