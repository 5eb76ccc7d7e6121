"""INT8 written into a graph: QuantizeLinear and DequantizeLinear in front of linears, weights as int8."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes import InPlacePass, PassResult, PostconditionError, PreconditionError

from alula.graphs.passes.edit import Editor, is_constant, retype, weight

FP32, INT8, UINT8 = ir.DataType.FLOAT, ir.DataType.INT8, ir.DataType.UINT8

Span = tuple[float, float]
"""Least and largest value that an activation is expected to have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scheme:
    """How numbers become eight bits.

    Activations are uint8 with a zero point, or `symmetric` int8; weights int8, symmetric and per output channel,
    with `weight_bits` of the eight used.
    """

    symmetric: bool = False
    weight_bits: int = 7


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
DEFAULT = Scheme()


class Quantize(InPlacePass):
    """Lets every linear, those of `keep` excepted, multiply int8 by int8.

    `spans` has one entry per activation, under the name that `activation_of` gives it.
    """

    def __init__(
        self, spans: Mapping[str, Span], keep: frozenset[str] = frozenset(), scheme: Scheme = DEFAULT
    ) -> None:
        super().__init__()
        self.spans, self.keep, self.scheme = spans, keep, scheme

    def requires(self, model: ir.Model) -> None:
        """Layers to keep exist, and every activation that is to be quantised has a range of finite numbers."""
        found = linears(model)
        if unknown := sorted(self.keep - {str(node.name) for node in found}):
            raise PreconditionError(f"no layer {unknown[0]!r} to keep; there are {len(found)} linears")
        if not found:
            raise PreconditionError("there is no linear with a constant fp32 weight")
        for name in dict.fromkeys(_names(model, self._chosen(model)).values()):
            if name not in self.spans:
                raise PreconditionError(f"no range for {name}; {len(self.spans)} ranges are given")
            if reason := _refusal(*self.spans[name]):
                raise PreconditionError(f"the range of {name} {reason}")

    def call(self, model: ir.Model) -> PassResult:
        """Quantise each activation once, whoever reads it, and each weight by itself."""
        chosen = self._chosen(model)
        made: dict[ir.Value, ir.Value] = {}
        for node, name in _names(model, chosen).items():
            value = node.inputs[0]
            assert value is not None
            if value not in made:
                made[value] = _activation(node, value, self.spans[name], self.scheme)
            node.replace_input_with(0, made[value])
            _weight(node, self.scheme)
        return PassResult(model, bool(chosen))

    def ensures(self, model: ir.Model) -> None:
        """Whatever still multiplies by a constant was to be kept."""
        for node in linears(model):
            if node.name not in self.keep:
                raise PostconditionError(f"{node.name}: not quantised")

    def _chosen(self, model: ir.Model) -> list[ir.Node]:
        return [node for node in linears(model) if node.name not in self.keep]


def linears(model: ir.Model) -> list[ir.Node]:
    """Products of an activation with a constant fp32 matrix, in order."""
    return [node for node in model.graph if _is_linear(node)]


def cost(node: ir.Node) -> int:
    """Multiplications of one linear per token."""
    matrix = node.inputs[1]
    assert matrix is not None
    assert matrix.const_value is not None
    return int(np.prod(matrix.const_value.shape.numpy()))


def activations(model: ir.Model) -> dict[str, ir.Value]:
    """What linears read, each named by the first linear that does: how attention is written changes no such name."""
    named: dict[str, ir.Value] = {}
    seen: set[ir.Value] = set()
    for node in linears(model):
        value = node.inputs[0]
        if value is not None and value not in seen:
            seen.add(value)
            named[f"{node.name}/input"] = value
    return named


def _names(model: ir.Model, chosen: list[ir.Node]) -> dict[ir.Node, str]:
    """The activation's name for each chosen linear."""
    names = {value: name for name, value in activations(model).items()}
    return {node: names[node.inputs[0]] for node in chosen if node.inputs[0] is not None}


def _is_linear(node: ir.Node) -> bool:
    if node.op_type != "MatMul" or node.domain != "":
        return False
    value, matrix = node.inputs
    if matrix is None or matrix.const_value is None or matrix.is_graph_input() or is_constant(value):
        return False
    return matrix.const_value.dtype == FP32 and len(matrix.const_value.shape) == 2


def _refusal(low: float, high: float) -> str:
    """What is wrong with a range; empty if nothing is."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return f"is {low}..{high}, expected finite numbers"
    return "" if low <= high else f"is {low}..{high}, expected the lower end first"


def _activation(node: ir.Node, value: ir.Value, span: Span, scheme: Scheme) -> ir.Value:
    """The value rounded to eight bits and back."""
    edit, dtype = Editor(node), INT8 if scheme.symmetric else UINT8
    scale, zero = step(span, scheme)
    steps = edit.number(float(scale), FP32)
    zeros = edit.number(zero, dtype)
    rounded = edit.op("QuantizeLinear", value, steps, zeros, dtype=dtype)
    restored = edit.op("DequantizeLinear", rounded, steps, zeros, dtype=FP32)
    rounded.shape = restored.shape = value.shape
    return restored


def quantized(node: ir.Node, span: Span, scheme: Scheme) -> None:
    """Let one linear alone multiply int8."""
    value = node.inputs[0]
    assert value is not None
    node.replace_input_with(0, _activation(node, value, span, scheme))
    _weight(node, scheme)


def step(span: Span, scheme: Scheme) -> tuple[np.float32, int]:
    """Scale and zero point of a range, which is widened to hold zero: padding and cut-off values must be exact."""
    low, high = min(span[0], 0.0), max(span[1], 0.0)
    if low == high:
        return np.float32(1.0), 0
    if scheme.symmetric:
        return np.float32(max(-low, high) / 127), 0
    scale = np.float32((high - low) / 255)
    return scale, round(-low / float(scale))


def _weight(node: ir.Node, scheme: Scheme) -> None:
    """The constant as int8 with a scale per column, computed when the model is saved."""
    old, edit = node.inputs[1], Editor(node)
    assert old is not None
    tensor = old.const_value
    assert tensor is not None
    most = (1 << (scheme.weight_bits - 1)) - 1
    columns = int(tensor.shape.numpy()[1])
    scales = weight(
        edit.graph,
        f"{old.name}_scale",
        ir.LazyTensor(
            lambda: ir.tensor(_scales(tensor.numpy(), most)),
            dtype=FP32,
            shape=ir.Shape([columns]),
            name=f"{old.name}_scale",
        ),
    )
    rounded = weight(
        edit.graph,
        f"{old.name}_int8",
        ir.LazyTensor(
            lambda: ir.tensor(_rounded(tensor.numpy(), most)),
            dtype=INT8,
            shape=ir.Shape(tensor.shape),  # type: ignore[arg-type] # a tensor's own shape is fixed
            name=f"{old.name}_int8",
        ),
    )
    restored = edit.op("DequantizeLinear", rounded, scales, dtype=FP32, axis=1)
    restored.name = restored.producer().name = f"{node.name}/weight"  # type: ignore[union-attr]
    restored.shape = ir.Shape(tensor.shape)  # type: ignore[arg-type]
    retype(restored, FP32)
    node.replace_input_with(1, restored)
    if not old.uses() and not old.is_graph_output():
        edit.graph.initializers.pop(str(old.name))


def _scales(array: NDArray[np.float32], most: int) -> NDArray[np.float32]:
    largest = np.abs(array).max(axis=0)
    return np.where(largest > 0, largest / most, 1).astype(np.float32)


def _rounded(array: NDArray[np.float32], most: int) -> NDArray[np.int8]:
    rounded: NDArray[np.int8] = np.rint(array / _scales(array, most)).clip(-most, most).astype(np.int8)
    return rounded
