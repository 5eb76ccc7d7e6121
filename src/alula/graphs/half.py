"""fp16 in two steps: the magnitudes to measure, then the names of what must stay fp32."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult
from onnx_ir.passes.common import LiftConstantsToInitializersPass

from alula.core.errors import InputError
from alula.graphs.passes.attention import DecomposeAttention
from alula.graphs.passes.casts import FP16, FP32, LARGEST
from alula.graphs.passes.choice import HALF, Policy, is_layer
from alula.graphs.passes.edit import constant, is_constant, retype
from alula.graphs.passes.fold import FoldAffine
from alula.graphs.passes.precision import ToFloat16
from alula.graphs.passes.shrink import ShrinkStream, stream_of
from alula.graphs.rewrite import Pass, rewrite

# What was measured is the largest of some rows, and others may have more. MiniLM and a BERT tagger, 132 values each
# over 96 sentences of one pattern: over other texts they were at most 2.2 times as large (products of queries and
# keys), 95 of 100 at most 1.3 times.
HEADROOM = 4.0
BEYOND = LARGEST[FP16] / HEADROOM
"""What a value may measure and still be fp16."""


def fp16_passes(policy: Policy = HALF, keep: frozenset[str] = frozenset()) -> tuple[Pass, ...]:
    """Weights where they are looked for, norms folded into them, attention as the policy takes it, then fp16."""
    passes: list[Pass] = [LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)]
    if policy.maps:
        passes.append(FoldAffine())
    if not policy.attention:
        passes.append(DecomposeAttention(late=policy.scores, apart=policy.scores))
    return (*passes, ToFloat16(policy, keep))


def half_layers(model: ir.Model, policy: Policy = HALF) -> dict[str, int]:
    """The linears and convolutions that fp16 takes, in order, each with its number of weights."""
    return {str(node.name): _size(node) for node in _chosen(model, policy)[1] if is_layer(node)}


def observe_magnitudes(model: ir.Model, policy: Policy = HALF) -> tuple[ir.Model, tuple[str, ...]]:
    """A copy in fp32 that also gives the largest magnitude of every value that fp16 would have to hold.

    Each is a scalar under one of the names, infinity where there is NaN. Padding counts: an infinity there spreads.
    """
    copy, chosen = _chosen(model, policy)
    touched = _touched(chosen)
    if not touched:
        raise InputError("nothing in this graph would be fp16, so there is nothing to measure")
    measured = rewrite(copy, [Measure(tuple(touched))])
    return measured, tuple(touched)


def beyond_fp16(model: ir.Model, largest: Mapping[str, float], policy: Policy = HALF) -> frozenset[str]:
    """Names of the nodes that must stay fp32: a value they take or give measured beyond fp16, with headroom. Pure.

    `largest` is by the names of `observe_magnitudes` of the same model.
    """
    touched = _touched(_chosen(model, policy)[1])
    if missing := sorted(set(touched) - set(largest)):
        raise InputError(f"no magnitude for {missing[0]}; {len(largest)} are given, expected {len(touched)}")
    found: set[str] = set()
    for name, (_, nodes) in touched.items():
        # Not the other way round: NaN is not within.
        if not (math.isfinite(largest[name]) and largest[name] <= BEYOND):
            found.update(str(node.name) for node in nodes)
    return frozenset(found)


def shrinkage(model: ir.Model, largest: Mapping[str, float]) -> float:
    """What the stream between layers has to be multiplied by to be fp16: a power of two, 1 where it is, or is none.

    `largest` is by the names of `observe_magnitudes` of the same model. Pure.
    """
    stream = stream_of(model)
    if stream is None:
        return 1.0
    most = max(largest.get(f"{value.name}{_ENDING}", 0.0) for value in (*stream.values, *stream.added))
    return 2.0 ** -max(0, math.ceil(math.log2(most / BEYOND))) if 0 < most < math.inf else 1.0


def shrink(model: ir.Model, scale: float) -> ir.Model:
    """The model with its stream multiplied, or as it is by 1."""
    return model if scale == 1 else rewrite(model, [ShrinkStream(scale)])


class Measure(InPlacePass):
    """Adds the largest magnitude of each named value as an output of its own."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        self.names = names

    def call(self, model: ir.Model) -> PassResult:
        """Reduce inside the graph, so that no value outlives its readers."""
        values = {f"{value.name}{_ENDING}": value for value in _values(model)}
        for name in self.names:
            _reduce(model.graph, name, values[name])
        return PassResult(model, modified=True)


_ENDING = "/magnitude"


def _values(model: ir.Model) -> list[ir.Value]:
    return [*model.graph.inputs, *(value for node in model.graph for value in node.outputs)]


def _reduce(graph: ir.Graph, name: str, value: ir.Value) -> None:
    """Behind the value's own node, and without a copy of it: where nodes run in this order, it is let go as ever."""
    made: list[ir.Node] = []

    def op(kind: str, *inputs: ir.Value, **attributes: int) -> ir.Value:
        node = ir.node(kind, inputs, attributes)
        node.name = node.outputs[0].name = f"{name}/{kind}"
        made.append(node)
        return node.outputs[0]

    largest, smallest = (op(kind, value, keepdims=0) for kind in ("ReduceMax", "ReduceMin"))
    # ONNX Runtime's maximum passes over NaN, and a sum of squares does not.
    infinity = constant(graph, "infinity", np.array(math.inf, np.float32))
    lost = op("IsNaN", op("ReduceSumSquare", value, keepdims=0))
    found = op("Where", lost, infinity, op("Max", largest, op("Neg", smallest)))
    found.name, found.shape = name, ir.Shape([])
    retype(found, FP32)
    graph.outputs.append(found)
    producer = value.producer()
    if producer is None:
        graph.insert_before(graph[0], made)
    else:
        graph.insert_after(producer, made)


def _chosen(model: ir.Model, policy: Policy) -> tuple[ir.Model, dict[ir.Node, None]]:
    """A copy as it is before the casts, and which of its nodes fp16 takes if none is kept."""
    *before, to_half = fp16_passes(policy)
    assert isinstance(to_half, ToFloat16)
    copy = rewrite(model, [*before, _Required(to_half)])
    return copy, to_half.chosen(copy)


class _Required(InPlacePass):
    """Another pass's precondition, which also infers types."""

    def __init__(self, other: ToFloat16) -> None:
        super().__init__()
        self.other = other

    def requires(self, model: ir.Model) -> None:
        self.other.requires(model)

    def call(self, model: ir.Model) -> PassResult:
        return PassResult(model, modified=False)


def _touched(chosen: Mapping[ir.Node, None]) -> dict[str, tuple[ir.Value, list[ir.Node]]]:
    """The fp32 values that chosen nodes take and give, by the name of their measurement, each with these nodes."""
    touched: dict[str, tuple[ir.Value, list[ir.Node]]] = {}
    for node in chosen:
        for value in (*node.inputs, *node.outputs):
            if value is not None and value.dtype == FP32 and not is_constant(value):
                touched.setdefault(f"{value.name}{_ENDING}", (value, []))[1].append(node)
    return touched


def _size(node: ir.Node) -> int:
    value = node.inputs[1]
    assert value is not None
    assert value.const_value is not None
    return int(value.const_value.size)
