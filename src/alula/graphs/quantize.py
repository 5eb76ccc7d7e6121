"""INT8 in two steps: the activations to observe, then the graph that rounds them."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

from alula.core.errors import InputError
from alula.graphs.passes.quantize import DEFAULT, Quantize, Scheme, Span, activations, linears
from alula.graphs.rewrite import rewrite


def layers(model: ir.Model) -> tuple[str, ...]:
    """Names of the layers that can be quantised, in order."""
    return tuple(str(node.name) for node in linears(model))


def observe(model: ir.Model) -> tuple[ir.Model, tuple[str, ...]]:
    """A copy that also gives every activation that a linear reads, and the names of these outputs."""
    copy = rewrite(model, [ShapeInferencePass()])
    named = activations(copy)
    if not named:
        raise InputError("there is no linear with a constant fp32 weight, so there is nothing to calibrate")
    for name, value in named.items():
        if value.shape is None:
            raise InputError(f"{name}: its shape is not known")
        seen = ir.node("Identity", [value], name=name)
        output = seen.outputs[0]
        output.name, output.shape, output.type = name, value.shape, ir.TensorType(ir.DataType.FLOAT)
        copy.graph.append(seen)
        copy.graph.outputs.append(output)
    return copy, tuple(named)


def quantize(
    model: ir.Model,
    ranges: Mapping[str, Span],
    *,
    keep: frozenset[str] = frozenset(),
    scheme: Scheme = DEFAULT,
) -> ir.Model:
    """A copy whose linears multiply int8, those named in `keep` excepted; `ranges` are of what `observe` gives."""
    return rewrite(model, [Quantize(ranges, keep, scheme)])
