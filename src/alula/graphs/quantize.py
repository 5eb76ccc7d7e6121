"""INT8 in two steps: the activations to observe, then the graph that rounds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes.common import LiftConstantsToInitializersPass, ShapeInferencePass

from alula.core.errors import InputError
from alula.graphs.passes.fold import FoldAffine
from alula.graphs.passes.layers import activations, cost, is_convolution, layers_of, read_by, result_of
from alula.graphs.passes.merge import MergeLinears
from alula.graphs.passes.pack import Packing, PackWeights
from alula.graphs.passes.paged import is_paged, reads_encoder
from alula.graphs.passes.quantize import DEFAULT, Quantize, Scheme, Span
from alula.graphs.passes.smooth import Factors, Smooth, factors_for
from alula.graphs.passes.split import SplitGemm
from alula.graphs.passes.switch import Switch
from alula.graphs.rewrite import Pass, rewrite

_NONE: Factors = MappingProxyType({})
# NVIDIA's guide to explicit quantisation: all inputs of layers with weights, no outputs, and of a sum the input that
# is carried past the layers; activations per tensor, weights per channel.
_TENSORRT = Scheme(symmetric=True, weight_bits=8, exchange="residuals", half_scales=True)
_SCHEMES: Mapping[str, Scheme] = {
    "openvino": Scheme(exchange="sums"),
    "tensorrt": _TENSORRT,
    "tensorrt-rtx": _TENSORRT,
}
_BITS: Mapping[str, int] = {"int8-weights": 8, "int4-weights": 4}
_EIGHT_BITS, _FOURS = Packing(bits=8, blocks=(64, 32, 16)), (32, 16)
_PACKINGS: Mapping[str, Mapping[int, Packing]] = {
    # Its activations are rounded in the blocks of the weights, so that short ones lose less.
    "onnxruntime": {
        8: Packing(bits=8, blocks=_FOURS, zeros="whole"),
        4: Packing(bits=4, blocks=_FOURS, zeros="whole"),
    },
    "openvino": {8: _EIGHT_BITS, 4: Packing(bits=4, blocks=_FOURS, zeros="real")},
    # It looks no rows up in constants of few bits.
    "tensorrt-rtx": {
        8: Packing(bits=8, blocks=(), tables=False, half_scales=True),
        4: Packing(bits=4, blocks=_FOURS, tables=False, half_scales=True),
    },
}
_PREPARED: tuple[Pass, ...] = (
    LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
    FoldAffine(),
    ShapeInferencePass(),
    SplitGemm(),
)


def scheme_for(engine: str) -> Scheme:
    """How numbers become eight bits where this engine is to run fast.

    ONNX Runtime convolves in int8 only where the result is int8 as well; OpenVINO computes what follows in fp32, and
    is slower with more to convert. TensorRT knows no zero points, computes a sum with the convolution before it if
    what is added is int8 and what is convolved is not rounded in between, and has room for eight bits of weight.
    """
    return _SCHEMES.get(engine, DEFAULT)


def layers(model: ir.Model) -> tuple[str, ...]:
    """Names of the layers that can be quantised, in order."""
    return tuple(str(node.name) for node in layers_of(rewrite(model, _PREPARED)))


def observe(model: ir.Model, smoothing: Factors = _NONE) -> tuple[ir.Model, tuple[str, ...]]:
    """A copy that also gives every activation that is to be int8, and the names of these outputs."""
    copy = rewrite(model, [*_PREPARED, Smooth(smoothing), ShapeInferencePass()])
    named = activations(copy)
    if not named:
        raise InputError(
            "there is no linear or convolution with a constant fp32 weight, so there is nothing to calibrate"
        )
    for name, value in named.items():
        if value.shape is None:
            raise InputError(f"{name}: its shape is not known")
        seen = ir.node("Identity", [value], name=name)
        output = seen.outputs[0]
        output.name, output.type = name, ir.TensorType(ir.DataType.FLOAT)
        output.shape = ir.Shape(
            [
                f"{name}.{axis}" if isinstance(size, ir.SymbolicDim) and size.value is None else size
                for axis, size in enumerate(value.shape)
            ]
        )
        copy.graph.append(seen)
        copy.graph.outputs.append(output)
    return copy, tuple(named)


def smoothing_for(model: ir.Model, amplitudes: Mapping[str, NDArray[Any]]) -> Factors:
    """What channels are divided by, from the largest magnitude that each was seen with."""
    prepared = rewrite(model, _PREPARED)
    if missing := sorted(set(activations(prepared)) - set(amplitudes)):
        raise InputError(f"no amplitudes for {missing[0]}; {len(amplitudes)} are given")
    return factors_for(prepared, amplitudes)


def channel_axes(model: ir.Model) -> dict[str, int]:
    """Where the channels of each activation lie: second for what convolutions read or give, last otherwise."""
    prepared = rewrite(model, _PREPARED)
    images = {
        value
        for node in layers_of(prepared)
        if is_convolution(node)
        for value in (read_by(node), result_of(node))
    }
    return {name: 1 if value in images else -1 for name, value in activations(prepared).items()}


def quantize(
    model: ir.Model,
    ranges: Mapping[str, Span],
    *,
    keep: frozenset[str] = frozenset(),
    smoothing: Factors = _NONE,
    scheme: Scheme = DEFAULT,
) -> ir.Model:
    """A copy whose layers multiply int8, those named in `keep` excepted.

    `ranges` are of what `observe` gave with the same `smoothing`.
    """
    return rewrite(model, [*_PREPARED, Smooth(smoothing, keep), Quantize(ranges, keep, scheme)])


def switchable(
    model: ir.Model,
    ranges: Mapping[str, Span],
    *,
    smoothing: Factors = _NONE,
    scheme: Scheme = DEFAULT,
) -> ir.Model:
    """A copy with one more input, `quantised`: a flag for each of `layers`, set for those that compute in int8.

    With the flags of all but `keep` set it gives what `quantize` does; with none it gives what `model` does.
    """
    return rewrite(model, [*_PREPARED, Smooth(smoothing), Switch(ranges, scheme)])


def costs(model: ir.Model) -> dict[str, int]:
    """Multiplications of each layer per row and token: what it costs to keep it."""
    prepared = rewrite(model, _PREPARED)
    return {str(node.name): cost(node) for node in layers_of(prepared)}


def pack(
    model: ir.Model,
    engine: str,
    precision: str,
    *,
    keep: frozenset[str] = frozenset(),
    smoothing: Factors = _NONE,
) -> ir.Model:
    """A copy whose linears, those named in `keep` excepted, read their weights from eight or four bits.

    In ONNX Runtime the head of a decoder that reads an encoder stays: what FLAN-T5-small loses in eight bits, a KL
    divergence of 0.021, is lost there but for 0.0007, and the gate lets 0.01 through.

    Nothing is calibrated. Smoothing, where there is any, moves precision to the channels that are large: with it MiniLM
    in four bits loses a quarter less.
    """
    packing = packing_for(engine, precision)
    if engine == "onnxruntime" and reads_encoder(model):
        packing = replace(packing, heads=False)
    if engine != "openvino" or not is_paged(model):
        return rewrite(model, [*_PREPARED, Smooth(smoothing, keep), PackWeights(packing, keep)])
    # A linear that is kept by name stays one by itself.
    merged: list[Pass] = [] if keep else [MergeLinears(least=3)]
    packed = PackWeights(replace(packing, apart=packing.zeros == "real"), keep)
    return rewrite(model, [*_PREPARED, Smooth(smoothing, keep), *merged, packed])


def packing_for(engine: str, precision: str) -> Packing:
    """How weights are stored where this engine is to run fast.

    OpenVINO reads zeros that are no whole numbers, ONNX Runtime's kernel whole ones alone, and TensorRT none.
    """
    if precision not in _BITS:
        raise InputError(f"precision {precision!r} stores no weights in few bits; {' and '.join(_BITS)} do")
    return _PACKINGS.get(engine, _PACKINGS["onnxruntime"])[_BITS[precision]]
