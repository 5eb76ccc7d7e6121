"""Whether attention runs as one layer, and how that is known."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from alula.core.nodes import Node, Nodes
from alula.fusion.values import Attention, Layer, Verdict

_OPERATORS = {"Attention", "MultiHeadAttention", "GroupQueryAttention", "PackedMultiHeadAttention"}
_PRODUCTS = {"MatMul", "Gemm", "Einsum", "MatMulInteger", "QLinearMatMul"}
# What lies between the products and the softmax: scale, mask, types, shapes.
_BETWEEN = {
    "Add",
    "Sub",
    "Mul",
    "Div",
    "Where",
    "Cast",
    "Reshape",
    "Transpose",
    "Identity",
    "Dropout",
    "Expand",
}
_BETWEEN |= {"QuantizeLinear", "DequantizeLinear", "Unsqueeze", "Squeeze", "IsNaN", "Clip"}
_KERNELS = re.compile(r"mha|flash|scaled_?dot_?product|sdpa|fused_?attention", re.IGNORECASE)
# A layer's name may be a node's, which says "mha" of a product too; the names of kernels begin with it.
_NAMES = re.compile(r"_?(gemm_)?f?mha_|_?flash", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the graph has attention: the operator itself, or product, softmax and product, by name."""

    pieces: tuple[str, ...]


def attention(layers: Sequence[Layer], graph: Nodes | None) -> Attention:
    """Judge every place where the graph has attention; without a graph, go by the names of kernels."""
    if graph is None:
        return _by_kernels(layers)
    found = tuple(places(graph))
    if not found:
        return Attention(verdict="none", evidence="the graph has none")
    homes: dict[str, list[Layer]] = {}
    for layer in layers:
        for node in layer.nodes:
            homes.setdefault(node, []).append(layer)
    judged = [_judge(place, homes) for place in found]
    verdicts = Counter(verdict for verdict, _ in judged)
    fused = verdicts["fused"]
    mixed: Verdict = "in part" if fused or verdicts["in part"] else "unknown"
    verdict = judged[0][0] if len(verdicts) == 1 else mixed
    return Attention(verdict=verdict, places=len(found), fused=fused, evidence=_evidence(judged))


def places(graph: Nodes) -> Iterator[Place]:
    """Every attention of the graph."""
    producer = {value: node for node in graph.nodes for value in node.outputs if value}
    readers: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for value in node.inputs:
            readers.setdefault(value, []).append(node)
    for node in graph.nodes:
        if node.op in _OPERATORS:
            yield Place((node.name,))
        elif node.op == "Softmax":
            before = _nearest(node, lambda each: (producer[v] for v in each.inputs if v in producer))
            behind = _nearest(node, lambda each: (r for v in each.outputs for r in readers.get(v, ())))
            if before and behind:
                yield Place((before.name, node.name, behind.name))


def _nearest(node: Node, step: Callable[[Node], Iterable[Node]]) -> Node | None:
    """The nearest product, through what may lie between."""
    waiting, seen = list(step(node)), {node.name}
    while waiting:
        each = waiting.pop(0)
        if each.op in _PRODUCTS:
            return each
        if each.name not in seen and each.op in _BETWEEN:
            seen.add(each.name)
            waiting += step(each)
    return None


def _judge(place: Place, homes: dict[str, list[Layer]]) -> tuple[Verdict, str]:
    """The verdict on one place, and what it rests on."""
    of_pieces = [homes.get(piece, []) for piece in place.pieces]
    if not all(of_pieces):
        return "unknown", "a part of it is in no layer"
    if regions := [layer for layer in of_pieces[0] if layer.opaque]:
        return (
            "unknown",
            f"inside a region of {len(regions[0].nodes)} nodes that the runtime does not look into",
        )
    if len(place.pieces) == 1:
        return _judge_operator(of_pieces[0])
    shared = [layer for layer in of_pieces[0] if all(_holds(layer, pieces) for pieces in of_pieces)]
    if shared:
        return "fused", f"both products and the softmax are in one layer, {_called(shared[0])}"
    softmax = of_pieces[1]
    if any(_holds(layer, of_pieces[0]) or _holds(layer, of_pieces[2]) for layer in softmax):
        return "in part", "the softmax shares a layer with one of the products"
    return "not fused", "products and softmax are layers of their own"


def _judge_operator(doing: Sequence[Layer]) -> tuple[Verdict, str]:
    if len(doing) == 1:
        return "fused", f"the Attention operator is one layer, {_called(doing[0])}"
    return "not fused", f"the Attention operator is split into {len(doing)} layers"


def _holds(layer: Layer, among: Sequence[Layer]) -> bool:
    return any(layer is other for other in among)


def _called(layer: Layer) -> str:
    if _for_attention(layer):
        return f"{layer.kind or 'unnamed'}, kernel {layer.kernel or layer.name}"
    return layer.kind or layer.name


def _for_attention(layer: Layer) -> bool:
    return bool(_KERNELS.search(f"{layer.kind} {layer.kernel}") or _NAMES.match(layer.name))


def _evidence(judged: Sequence[tuple[Verdict, str]]) -> str:
    counted = Counter(evidence for _, evidence in judged)
    if len(counted) == 1:
        return next(iter(counted))
    return "; ".join(f"{count} times: {evidence}" for evidence, count in counted.most_common(3))


def _by_kernels(layers: Sequence[Layer]) -> Attention:
    kernels = [layer for layer in layers if _for_attention(layer)]
    if kernels:
        named = "1 kernel is" if len(kernels) == 1 else f"{len(kernels)} kernels are"
        evidence = f"{named} named for it, such as {kernels[0].kernel or kernels[0].name}"
        return Attention(verdict="fused", places=len(kernels), fused=len(kernels), evidence=evidence)
    if operators := [layer for layer in layers if layer.kind in _OPERATORS]:
        counted = "1 layer is" if len(operators) == 1 else f"{len(operators)} layers are"
        evidence = f"{counted} {operators[0].kind}"
        return Attention(verdict="fused", places=len(operators), fused=len(operators), evidence=evidence)
    if any(layer.opaque for layer in layers):
        return Attention(verdict="unknown", evidence="there are regions that the runtime does not look into")
    if any("softmax" in " ".join((layer.name, *layer.named)).lower() for layer in layers):
        return Attention(verdict="unknown", evidence="a softmax runs, and no kernel is named for attention")
    return Attention(verdict="none", evidence="no layer is named for it")
