"""OpenVINO's executed graph, as `engines/openvino.py` keeps it: layers by their friendly names, with runtime info."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from alula.core.errors import ManifestError
from alula.core.parse import get, get_words
from alula.core.tensor import Dim
from alula.fusion.values import Layer, Listing, Role, Value
from alula.fusion.words import type_named

SCHEMA = "OpenVINO's executed graph"

# With sizes that are not fixed, some kernels are chosen when a call comes.
_UNDECIDED = ("unknown", "undef")

_ENDS = {"Input", "Output"}
_ROLES: Mapping[str, Role] = {
    "Reorder": "reformat",
    "Convert": "cast",
    "FakeQuantize": "quantize",
    "Reshape": "view",
    "ShapeOf": "upkeep",
}


def read(raw: Sequence[Any], source: str, version: str) -> Listing:
    """The layers in the order they run; weights that are laid out when a model is loaded are no layers."""
    entries = []
    for index, each in enumerate(raw):
        if not isinstance(each, Mapping):
            raise ManifestError("is not an object", f"layers[{index}]")
        entries.append(each)
    names = {get(each, str, "name") for each in entries}
    weights = _constant(entries, names)
    ordered = sorted(entries, key=lambda each: int(each.get("execOrder", 0)))
    by_name = {each["name"]: each for each in entries}
    layers = tuple(
        _layer(each, by_name, weights)
        for each in ordered
        if each.get("layerType") not in _ENDS and each["name"] not in weights
    )
    inputs = tuple(each["name"] for each in ordered if each.get("layerType") == "Input")
    return Listing(source=source, version=version, schema=SCHEMA, layers=layers, inputs=inputs)


def _constant(entries: Sequence[Mapping[str, Any]], names: set[str]) -> set[str]:
    """What depends on no input: constants are not listed, so neither are what they are read from."""
    found: set[str] = set()
    for each in entries:
        sources = {_name(value) for value in get_words(each, "inputs")} & names
        if each.get("layerType") != "Input" and not sources - found:
            found.add(each["name"])
    return found


def _layer(raw: Mapping[str, Any], by_name: Mapping[str, Mapping[str, Any]], weights: set[str]) -> Layer:
    name, kind = raw["name"], str(raw.get("layerType", ""))
    given = str(raw.get("outputPrecisions", "")).split(",")
    shapes = get_words(raw, "shapes") if "shapes" in raw else ()
    dtypes = [type_named(word) for word in given] + [""] * len(shapes)
    role = _ROLES.get(kind, "compute")
    kernel = str(raw.get("primitiveType", ""))
    precision = type_named(str(raw.get("runtimePrecision", "")))
    return Layer(
        name=name,
        kind=kind,
        role=role,
        named=tuple(part for part in str(raw.get("originalLayersNames", "")).split(",") if part),
        precision=precision.removeprefix("u") if role == "compute" and precision == "uint8" else precision,
        inputs=tuple(
            _source(value, by_name)
            for value in get_words(raw, "inputs")
            if _name(value) in by_name and _name(value) not in weights
        ),
        outputs=tuple(
            Value(name=f"{name}:{port}", dtype=dtype, shape=_shape(text))
            for port, (text, dtype) in enumerate(zip(shapes, dtypes, strict=False))
        ),
        kernel=kernel if not kernel.startswith(_UNDECIDED) else "",
    )


def _source(value: str, by_name: Mapping[str, Mapping[str, Any]]) -> Value:
    producer = by_name[_name(value)]
    if producer.get("layerType") == "Input":
        return Value(name=_name(value), dtype=type_named(str(producer.get("outputPrecisions", ""))))
    port = int(value.rpartition(":")[2])
    shapes, dtypes = producer.get("shapes", ()), str(producer.get("outputPrecisions", "")).split(",")
    return Value(
        name=value,
        dtype=type_named(dtypes[port]) if port < len(dtypes) else "",
        shape=_shape(shapes[port]) if port < len(shapes) else None,
    )


def _name(value: str) -> str:
    return value.rpartition(":")[0]


def _shape(text: str) -> tuple[Dim, ...] | None:
    """`[1..64,384]` as its parts; ranges stay words."""
    found = re.fullmatch(r"\[(.*)\]", text)
    if found is None:
        return None
    parts = [part.strip() for part in found[1].split(",") if part.strip()]
    return tuple(int(part) if part.isdigit() else part for part in parts)
