"""From a runtime's document and the graph to the report, and from the report to JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from alula.core.errors import ManifestError
from alula.core.nodes import Nodes
from alula.core.parse import get
from alula.fusion import onnxruntime, openvino, tensorrt
from alula.fusion.attention import attention
from alula.fusion.place import place
from alula.fusion.values import Layer, Listing, Removed, Report, Value

SCHEMA = 1

_SAYS_ROLE = {"Reformat", "Reorder", "ReorderInput", "ReorderOutput", "Convert", "Cast"}


def report_of(
    document: Mapping[str, Any], graph: Nodes | None = None, about: Mapping[str, str] | None = None
) -> Report:
    """The report on what a runtime runs: `document` is ours, with source, version and layers, or TensorRT's own.

    Without the graph the nodes of a layer are the names that the runtime has for it. `about` is for the reader.
    """
    listing = listing_of(document)
    if graph is None:
        layers = tuple(replace(layer, nodes=tuple(dict.fromkeys(layer.named))) for layer in listing.layers)
        removed: tuple[Removed, ...] = ()
    else:
        layers, removed = place(listing.layers, graph)
    return Report(
        about=about or {},
        listing=listing,
        nodes=None if graph is None else graph.nodes,
        layers=layers,
        removed=removed,
        attention=attention(layers, graph),
    )


def listing_of(document: Mapping[str, Any]) -> Listing:
    """The layers of a document, with their times if it holds any."""
    listing = _read(document)
    if "times" not in document:
        return listing
    return with_times(listing, get(document, list, "times"), document.get("call_ms"))


def _read(document: Mapping[str, Any]) -> Listing:
    if "Layers" in document:
        return tensorrt.read(document, "tensorrt", "")
    if "source" not in document:
        raise ManifestError(
            "lists no layers; expected a bundle's layers.json, or what TensorRT's inspector or trtexec "
            "--exportLayerInfo wrote"
        )
    source, version = get(document, str, "source"), get(document, str, "version")
    if source in {"tensorrt", "tensorrt-rtx"}:
        inside: dict[str, Any] = get(document, dict, "layers")
        return _under("layers", lambda: tensorrt.read(inside, source, version))
    if source == "openvino":
        return openvino.read(get(document, list, "layers"), source, version)
    if source == "onnxruntime":
        inside = get(document, dict, "layers")
        return _under("layers", lambda: onnxruntime.read(inside, source, version))
    known = "tensorrt, tensorrt-rtx, openvino, onnxruntime"
    raise ManifestError(f"is {source!r}, expected one of: {known}", "source")


def _under(key: str, read: Callable[[], Listing]) -> Listing:
    try:
        return read()
    except ManifestError as error:
        raise error.under(key) from error


def with_times(listing: Listing, times: Sequence[Any], call_ms: float | None = None) -> Listing:
    """The listing with a time for each layer that `times` names: [{"name", "timeMs"}], or trtexec's --exportProfile.

    Of several layers with one name, the first has the first time. Names that are no layer's are left out, and said.
    """
    left: dict[str, list[tuple[float, str]]] = {}
    for index, each in enumerate(times):
        if not isinstance(each, Mapping):
            raise ManifestError("is not an object", f"times[{index}]")
        if "name" not in each:
            # trtexec begins with a record that only counts the runs.
            continue
        # It gives the sum over all runs as timeMs, and the mean of one beside it.
        key = next((key for key in ("averageMs", "timeMs") if key in each), "timeMs")
        try:
            time = get(each, float, key), str(each.get("kernel") or "")
            left.setdefault(get(each, str, "name"), []).append(time)
        except ManifestError as error:
            raise error.under(f"times[{index}]") from error
    if not any(layer.name in left for layer in listing.layers):
        raise ManifestError(f"none of these {len(times)} is of a layer here", "times")
    layers = []
    for layer in listing.layers:
        if mine := left.get(layer.name):
            time_ms, kernel = mine.pop(0)
            layers.append(replace(layer, time_ms=time_ms, kernel=kernel or layer.kernel))
        else:
            layers.append(layer)
    notes = listing.notes
    if unknown := sum(len(rest) for rest in left.values()):
        notes += (f"{unknown} of the times are of no layer here",)
    return replace(listing, layers=tuple(layers), call_ms=call_ms, notes=notes)


def counts(report: Report) -> dict[str, int]:
    """How many nodes went in, and what became of them."""
    homes: dict[str, list[Layer]] = {}
    for layer in report.layers:
        for node in layer.nodes:
            homes.setdefault(node, []).append(layer)
    opaque = sum(any(layer.opaque for layer in layers) for layers in homes.values())
    fused = sum(
        any(layer.fused for layer in layers) and not any(layer.opaque for layer in layers)
        for layers in homes.values()
    )
    return {
        "graph": len(homes) if report.nodes is None else len(report.nodes),
        "fused": fused,
        "in_regions": opaque,
        "alone": len(homes) - fused - opaque,
        "split": sum(len(layers) > 1 for layers in homes.values()),
        "removed": len(report.removed),
    }


def by_kind(report: Report) -> list[tuple[str, int, float | None]]:
    """The kinds of layers that work, how many of each and what they take together: most time first, or most often."""
    found: dict[str, list[Layer]] = {}
    for layer in report.working:
        found.setdefault(kind_of(layer), []).append(layer)
    rows = [(kind, len(layers), total(layers)) for kind, layers in found.items()]
    return sorted(rows, key=lambda row: (-(row[2] or 0.0), -row[1], row[0]))


def kind_of(layer: Layer) -> str:
    """The runtime's word for a layer; with its role, where the word does not say that it only moves or casts."""
    kind = layer.kind or "unnamed"
    told = layer.role in {"compute", "quantize"} or kind.rpartition(".")[2] in _SAYS_ROLE
    return kind if told else f"{kind} ({layer.role})"


def by_precision(report: Report) -> Counter[str]:
    """How many layers that compute do so in which precision; "unknown" where the runtime does not say."""
    return Counter(layer.precision or "unknown" for layer in report.layers if layer.role == "compute")


def of_role(report: Report, role: str) -> tuple[Layer, ...]:
    """The layers of one role: reformats and casts cost time and do nothing of the model's."""
    return tuple(layer for layer in report.layers if layer.role == role)


def total(layers: Sequence[Layer]) -> float | None:
    """What these take together; None where none was timed."""
    times = [layer.time_ms for layer in layers if layer.time_ms is not None]
    return sum(times) if times else None


def to_json(report: Report) -> dict[str, Any]:
    """The whole report, ready for `json.dump`."""
    listing, found = report.listing, report.attention
    return {
        "schema": SCHEMA,
        "source": listing.source,
        "version": listing.version,
        "read_as": listing.schema,
        "about": dict(report.about),
        "notes": list(listing.notes),
        "profiles": listing.profiles,
        "nodes": {**counts(report), "known": report.nodes is not None},
        "attention": {
            "verdict": found.verdict,
            "places": found.places,
            "fused": found.fused,
            "evidence": found.evidence,
        },
        "precisions": dict(by_precision(report)),
        "kinds": [
            {"kind": kind, "layers": count, "time_ms": time_ms} for kind, count, time_ms in by_kind(report)
        ],
        "total_ms": report.total_ms,
        "call_ms": listing.call_ms,
        "layers": [_layer_json(layer) for layer in report.layers],
        "removed": [{"node": each.node, "op": each.op, "why": each.why} for each in report.removed],
    }


def _layer_json(layer: Layer) -> dict[str, Any]:
    return {
        "name": layer.name,
        "kind": layer.kind,
        "role": layer.role,
        "nodes": list(layer.nodes),
        "precision": layer.precision,
        "time_ms": layer.time_ms,
        "kernel": layer.kernel,
        "opaque": layer.opaque,
        "inputs": [_value_json(value) for value in layer.inputs],
        "outputs": [_value_json(value) for value in layer.outputs],
    }


def _value_json(value: Value) -> dict[str, Any]:
    return {
        "name": value.name,
        "dtype": value.dtype,
        "shape": None if value.shape is None else list(value.shape),
    }
