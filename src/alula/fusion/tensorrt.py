"""What TensorRT's engine inspector says, in the form of 8.6 to 10 and in that of 11.

Read from real documents of 8.6, 10 and 11 (tests/fusion/samples); that TensorRT-RTX, whose interface is that of 11,
writes the same form is unproven.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from alula.core.errors import ManifestError
from alula.core.parse import get
from alula.core.tensor import Dim
from alula.fusion.values import Layer, Listing, Role, Value
from alula.fusion.words import precision_of, split_camel, type_in, type_named

SCHEMA_10 = "TensorRT inspector, as 8.6 to 10 write it"
SCHEMA_11 = "TensorRT inspector, as 11 writes it"

_PROFILE = re.compile(r" \[profile (\d+)\]")
# The compiler inside TensorRT numbers its regions and the kernels in each: "node_linear_myl4_0".
_KERNEL = re.compile(r"_myl(\d+)_\d+$")
_REGION = re.compile(r"\{ForeignNode\[(.+?)\.\.\.(.+)\]\}")
# Between them 8.6 and 10 write \x1e or \x1f, 11 writes \x1f, and the inspector's text nothing.
_METADATA = re.compile(r"(?=\[ONNX Layer: )")
_ONNX_LAYER = "[ONNX Layer: "
_REFORMAT = "Reformatting CopyNode"
_GENERATED = re.compile(r"__my[el]|_gemm_mha|\(Unnamed Layer\*|ONNXTRT_")

# The first types in the name of a kernel: "sm80_xmma_gemm_f16f16_f16f32_f32_tn", "sm50_xmma_pooling_tiled_FP32NCHW".
_IN_KERNEL = re.compile(r"(?<![a-z])(?:tf32)*(bf16|f16|f32|i8|fp16|fp32)(?![0-9])", re.IGNORECASE)

# What kernels that are generated do, as their names abbreviate it.
_CASTS, _VIEWS, _MOVES = {"Cast"}, {"Resh"}, {"Move", "Tran", "Copy"}

NAMES_ONLY = "the engine was built without ProfilingVerbosity.DETAILED: layers have names and nothing else"


def read(document: Mapping[str, Any], source: str, version: str) -> Listing:
    """The layers of the first profile; layers of others are the same work for other sizes."""
    raw: list[Any] = get(document, list, "Layers")
    if not raw:
        raise ManifestError("is empty: the engine has no layers", "Layers")
    layers = [_layer(each, f"Layers[{index}]") for index, each in enumerate(raw)]
    profiles = _profiles(layers)
    notes = []
    if any(isinstance(each, str) for each in raw):
        notes.append(NAMES_ONLY)
    if (count := len(set(profiles))) > 1:
        notes.append(f"the engine has {count} profiles; these are the layers of the first")
    return Listing(
        source=source,
        version=version,
        schema=SCHEMA_11 if "I/O Tensors" in document else SCHEMA_10,
        layers=tuple(layer for layer, profile in zip(layers, profiles, strict=True) if profile == 0),
        inputs=_inputs(document, layers),
        profiles=count,
        notes=tuple(notes),
    )


def _inputs(document: Mapping[str, Any], layers: Sequence[Layer]) -> tuple[str, ...]:
    """What the engine takes; the form of 10 lists inputs and outputs together, of which layers give some."""
    if "I/O Tensors" in document:
        tensors = document["I/O Tensors"]
        return tuple(each["Name"] for each in tensors if str(each.get("IOMode")).upper() == "INPUT")
    given = {value.name for layer in layers for value in layer.outputs}
    names = (_PROFILE.sub("", name) for name in document.get("Bindings", ()))
    return tuple(dict.fromkeys(name for name in names if name not in given))


def _layer(raw: Any, where: str) -> Layer:
    if isinstance(raw, str):
        named, span = names_in(raw)
        role: Role = "reformat" if raw.startswith(_REFORMAT) else "compute"
        return Layer(name=raw, named=named, span=span, role=role, opaque=span is not None)
    if not isinstance(raw, Mapping):
        raise ManifestError("is neither a name nor an object", where)
    try:
        return _described(raw)
    except ManifestError as error:
        raise error.under(where) from error


def _described(raw: Mapping[str, Any]) -> Layer:
    name = get(raw, str, "Name")
    kind = raw.get("LayerType") or ""
    inputs = tuple(_value(each) for each in raw.get("Inputs") or ())
    outputs = tuple(_value(each) for each in raw.get("Outputs") or ())
    named, span = names_in(name)
    if told := _told(str(raw.get("Metadata") or "")):
        named, span = told, None
    kernel = str(raw.get("TacticName") or "")
    role = _role(raw, name, kind, inputs, outputs)
    return Layer(
        name=name,
        kind=kind,
        role=role,
        named=named,
        span=span,
        precision=_precision(raw, inputs, outputs, kernel) if role == "compute" else "",
        inputs=inputs,
        outputs=outputs,
        kernel=kernel,
        opaque=span is not None,
    )


def _told(metadata: str) -> tuple[str, ...]:
    """The nodes that the parser wrote into a layer's metadata, the graphs around inner ones left out."""
    parts = (part for part in _METADATA.split(metadata) if part.startswith(_ONNX_LAYER))
    names = (part.removeprefix(_ONNX_LAYER).rstrip().removesuffix("]").split(" | ")[0] for part in parts)
    return tuple(dict.fromkeys(names))


def names_in(name: str) -> tuple[tuple[str, ...], tuple[str, str] | None]:
    """The names that TensorRT joined to the name of a layer; for a region, also its first and last."""
    name = _KERNEL.sub("", _PROFILE.sub("", name)).strip()
    if name.startswith(_REFORMAT):
        return (), None
    if region := _REGION.search(name):
        first, last = names_in(region[1])[0], names_in(region[2])[0]
        return (*first, *last), (first[0], last[-1]) if first and last else None
    parts = re.split(r" \+ | \|\| |, ", name.replace("PWN(", ""))
    found = []
    for part in parts:
        stripped = part
        while stripped.endswith(")") and stripped.count(")") > stripped.count("("):
            stripped = stripped[:-1]
        if stripped and not _GENERATED.match(stripped):
            found.append(stripped)
    return tuple(dict.fromkeys(found)), None


def _profiles(layers: Sequence[Layer]) -> list[int]:
    """The profile of each layer: said in its name or its values', or those of another kernel of its region."""
    regions: dict[str, int] = {}
    said: list[int | None] = []
    for layer in layers:
        tagged = _PROFILE.search(" ".join((layer.name, *(v.name for v in (*layer.inputs, *layer.outputs)))))
        said.append(int(tagged[1]) if tagged else None)
        if tagged and (region := _KERNEL.search(layer.name)):
            regions[region[1]] = int(tagged[1])
    found = []
    for layer, profile in zip(layers, said, strict=True):
        region = _KERNEL.search(layer.name)
        found.append(profile or (regions.get(region[1], 0) if region else 0))
    return found


def _value(raw: Mapping[str, Any]) -> Value:
    if "Format/Datatype" in raw:
        dtype = type_in(str(raw["Format/Datatype"]))
    else:
        # 11.0 spells it Datatype in layers, and DataType in what goes in and out.
        dtype = type_named(str(raw.get("Datatype") or raw.get("DataType") or ""))
    dimensions = raw.get("Dimensions")
    shape: tuple[Dim, ...] | None = None
    if isinstance(dimensions, list):
        shape = tuple("?" if dim == -1 else dim for dim in dimensions)
    return Value(name=str(raw.get("Name", "")), dtype=dtype, shape=shape)


def _role(
    raw: Mapping[str, Any], name: str, kind: str, inputs: Sequence[Value], outputs: Sequence[Value]
) -> Role:
    if kind == "NoOp":
        return "view"
    if kind in {"shape_call", "Constant"} or not outputs:
        return "upkeep"
    if kind == "Reformat" or name.startswith(_REFORMAT):
        by_origin: dict[str, Role] = {"CAST": "cast", "QDQ": "quantize"}
        return by_origin.get(str(raw.get("Origin")), "reformat")
    generated = re.fullmatch(r"__myl_([A-Za-z0-9]+?)_myl\d+_\d+", _PROFILE.sub("", name))
    does = set(split_camel(generated[1])) if generated else {kind.capitalize()}
    if does <= _CASTS | _VIEWS and does & _CASTS:
        return "cast"
    if does <= _MOVES | _VIEWS and not raw.get("Metadata"):
        return "reformat"
    return "compute"


def _precision(raw: Mapping[str, Any], inputs: Sequence[Value], outputs: Sequence[Value], kernel: str) -> str:
    """By its tensors; where sizes are not fixed 8.6 tells no types of those, so by weights, or the kernel's name.

    Products of fp32 that the kernel rounds to tf32 are called that.
    """
    weights = raw.get("Weights")
    found = (
        precision_of((v.dtype for v in inputs), (v.dtype for v in outputs))
        or (type_named(str(weights.get("Type"))) if isinstance(weights, Mapping) else "")
        or next((type_named(word) for word in _IN_KERNEL.findall(kernel)), "")
    )
    return "tf32" if found == "fp32" and "tf32" in kernel else found
