"""INT8 written into a graph: QuantizeLinear and DequantizeLinear in front of layers, weights as int8."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes import InPlacePass, PassResult, PostconditionError, PreconditionError

from alula.graphs.passes.blocks import held_in_half
from alula.graphs.passes.edit import Editor, retype, weight
from alula.graphs.passes.layers import (
    Exchange,
    activations,
    exchanged,
    layers_of,
    output_axis,
    outsiders,
    read_by,
    weight_of,
)

FP32, INT8, UINT8 = ir.DataType.FLOAT, ir.DataType.INT8, ir.DataType.UINT8

_OPSET = 13

Span = tuple[float, float]
"""Least and largest value that an activation is expected to have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scheme:
    """How numbers become eight bits.

    Activations are uint8 with a zero point, or `symmetric` int8; weights int8, symmetric and per output channel,
    with `weight_bits` of the eight used. `exchange` is what others than layers read in int8 (`exchanged`). With
    `half_scales` every scale is a number that fp16 holds, so that a graph may go on in fp16 with the same integers.
    """

    symmetric: bool = False
    weight_bits: int = 7
    exchange: Exchange = "outputs"
    half_scales: bool = False


# MiniLM, 96 texts for min-max ranges and 64 others to compare, worst and mean cosine to fp32; every linear ran as
# MatMulIntegerToFloat in ONNX Runtime 1.32 and as jit_gemm_I8 in OpenVINO 2026.4, on a Zen 3 (AVX2 without VNNI):
#                             onnxruntime      openvino
#   uint8, 8 bits of weight   0.9760 0.9915    0.9796 0.9915   pairs of products saturate at 16 bits
#   uint8, 7 bits             0.9829 0.9914    0.9830 0.9916   they cannot
#   int8,  8 bits             0.9576 0.9807    0.9511 0.9788   half of the linears stay float in ONNX Runtime
#   int8,  7 bits             0.9618 0.9791    0.9613 0.9790
# The table is without smoothing (passes/smooth.py). Times as fast as fp32 of the same engine on two threads, medians of
# interleaved runs on a busy machine at 1x128 and 8x128: onnxruntime 1.54 1.37 (MiniLM), 1.86 1.36 (a BERT tagger);
# openvino 0.84 0.82 and 0.95 0.97, since its int8 product there is slower than its fp32 one.
#
# Images one at a time, same machine, busy: median and best milliseconds of 31 interleaved runs
#                                       onnxruntime fp32, int8     openvino fp32, int8, with outputs
#   open_nsfw (ResNet-50, half width)   44.7 25.5   24.6 13.4      52.3 30.1   45.8 19.1   the same graph
#   EfficientNet-lite0                  22.7 14.6   15.1 10.7      22.4 14.3   14.5  9.6
#   PP-OCRv4 recogniser, 48x320         51.8 28.8   41.3 22.5      35.8 17.8   30.8 14.0   37.7 17.0
# ONNX Runtime took 55.2 35.9 for the recogniser without outputs: QLinearConv has no fp32 result, and to convolve what
# is restored costs more than it saves. Weights of 8 bits lost as much as those of 7.
DEFAULT = Scheme()


class Quantize(InPlacePass):
    """Lets every layer, those of `keep` excepted, multiply int8 by int8.

    `spans` has one entry per activation, under the name that `activations` gives it.
    """

    def __init__(
        self, spans: Mapping[str, Span], keep: frozenset[str] = frozenset(), scheme: Scheme = DEFAULT
    ) -> None:
        super().__init__()
        self.spans, self.keep, self.scheme = spans, keep, scheme

    def requires(self, model: ir.Model) -> None:
        """The opset suffices, layers to keep exist, and what is to be quantised has a range of finite numbers."""
        if (opset := model.opset_imports.get("", 0)) < _OPSET:
            raise PreconditionError(f"opset {opset} has no scale per channel; expected {_OPSET} or later")
        found = layers_of(model)
        if unknown := sorted(self.keep - {str(node.name) for node in found}):
            raise PreconditionError(f"no layer {unknown[0]!r} to keep; there are {len(found)} layers")
        if not found:
            raise PreconditionError("there is no linear or convolution with a constant fp32 weight")
        for name in rounded(model, self.keep, self.scheme).values():
            if name not in self.spans:
                raise PreconditionError(f"no range for {name}; {len(self.spans)} ranges are given")
            if reason := _refusal(*self.spans[name]):
                raise PreconditionError(f"the range of {name} {reason}")

    def call(self, model: ir.Model) -> PassResult:
        """Quantise each activation once, whoever reads it, and each weight by itself."""
        layers = layers_of(model)
        chosen = {node for node in layers if node.name not in self.keep}
        others = exchanged(model, self.scheme.exchange)
        order = {node: at for at, node in enumerate(model.graph)}
        for value, name in rounded(model, self.keep, self.scheme).items():
            uses = [(use.node, use.idx) for use in value.uses() if use.node in chosen and use.idx == 0]
            if others.get(value) in chosen:
                uses += outsiders(value, set(layers))
            first = min(uses, key=lambda use: order[use[0]])[0]
            restored = rounding(first, value, name, self.spans[name], self.scheme)
            for user, index in uses:
                user.replace_input_with(index, restored)
        for node in layers:
            if node in chosen:
                quantize_weight(node, self.scheme)
        return PassResult(model, bool(chosen))

    def ensures(self, model: ir.Model) -> None:
        """Whatever still multiplies by a constant was to be kept."""
        for node in layers_of(model):
            if node.name not in self.keep:
                raise PostconditionError(f"{node.name}: not quantised")


def rounded(model: ir.Model, keep: frozenset[str], scheme: Scheme) -> dict[ir.Value, str]:
    """The activations that somebody reads in int8 when these layers are kept, with their names."""
    names = {value: name for name, value in activations(model).items()}
    readers = [(read_by(node), node) for node in layers_of(model)]
    read = [*readers, *exchanged(model, scheme.exchange).items()]
    return {value: names[value] for value, node in read if node.name not in keep}


def _refusal(low: float, high: float) -> str:
    """What is wrong with a range; empty if nothing is."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return f"is {low}..{high}, expected finite numbers"
    return "" if low <= high else f"is {low}..{high}, expected the lower end first"


def rounding(node: ir.Node, value: ir.Value, name: str, span: Span, scheme: Scheme) -> ir.Value:
    """The value rounded to eight bits and back, in front of the node."""
    edit, dtype = Editor(node), INT8 if scheme.symmetric else UINT8
    scale, zero = step(span, scheme)
    steps = edit.number(float(scale), FP32)
    zeros = edit.number(zero, dtype)
    small = edit.op("QuantizeLinear", value, steps, zeros, dtype=dtype)
    restored = edit.op("DequantizeLinear", small, steps, zeros, dtype=FP32)
    for each, kind in ((small, "rounded"), (restored, "restored")):
        each.name = each.producer().name = f"{name}/{kind}"  # type: ignore[union-attr]
        each.shape = value.shape
    return restored


def step(span: Span, scheme: Scheme) -> tuple[np.float32, int]:
    """Scale and zero point of a range, which is widened to hold zero: padding and cut-off values must be exact."""
    low, high = min(span[0], 0.0), max(span[1], 0.0)
    if low == high:
        return np.float32(1.0), 0
    width = max(-low, high) / 127 if scheme.symmetric else (high - low) / 255
    scale = np.float32(_held(np.array(width, np.float32), scheme).item())
    return scale, 0 if scheme.symmetric else round(-low / float(scale))


def quantize_weight(node: ir.Node, scheme: Scheme) -> None:
    """The constant as int8 with a scale per output channel, computed when the model is saved."""
    old, edit, tensor, axis = node.inputs[1], Editor(node), weight_of(node), output_axis(node)
    assert old is not None
    shape, name = tensor.shape.numpy(), old.name
    scales = lazy(
        edit.graph,
        f"{name}_scale",
        FP32,
        shape[axis : axis + 1],
        lambda: _scales(tensor.numpy(), axis, scheme),
    )
    small = lazy(edit.graph, f"{name}_int8", INT8, shape, lambda: _rounded(tensor.numpy(), axis, scheme))
    restored = edit.op("DequantizeLinear", small, scales, dtype=FP32, axis=axis)
    restored.name = restored.producer().name = f"{node.name}/weight"  # type: ignore[union-attr]
    restored.shape = ir.Shape(shape)
    retype(restored, FP32)
    node.replace_input_with(1, restored)
    if not old.uses() and not old.is_graph_output():
        edit.graph.initializers.pop(str(old.name))


def lazy(
    graph: ir.Graph, name: str, dtype: ir.DataType, shape: Sequence[int], array: Callable[[], NDArray[Any]]
) -> ir.Value:
    """A new initializer that is computed when the model is saved."""
    tensor = ir.LazyTensor(lambda: ir.tensor(array()), dtype=dtype, shape=ir.Shape(shape), name=name)
    return weight(graph, name, tensor)


def _scales(array: NDArray[np.float32], axis: int, scheme: Scheme) -> NDArray[np.float32]:
    largest = np.abs(array).max(axis=tuple(other for other in range(array.ndim) if other != axis))
    return _held(np.where(largest > 0, largest / _most(scheme), 1).astype(np.float32), scheme)


def _most(scheme: Scheme) -> int:
    """The largest integer that stands for a weight."""
    return (1 << (scheme.weight_bits - 1)) - 1


def _held(scales: NDArray[np.float32], scheme: Scheme) -> NDArray[np.float32]:
    return held_in_half(scales) if scheme.half_scales else scales


def _rounded(array: NDArray[np.float32], axis: int, scheme: Scheme) -> NDArray[np.int8]:
    along, most = [1] * array.ndim, _most(scheme)
    along[axis] = -1
    scales = _scales(array, axis, scheme).reshape(along)
    rounded: NDArray[np.int8] = np.rint(array / scales).clip(-most, most).astype(np.int8)
    return rounded
