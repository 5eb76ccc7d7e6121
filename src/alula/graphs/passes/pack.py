"""Weights of linears in four bits, restored by block as they are read; activations stay fp32."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes import InPlacePass, PassResult, PostconditionError, PreconditionError

from alula.graphs.passes.edit import Editor
from alula.graphs.passes.layers import is_convolution, layers_of, weight_of
from alula.graphs.passes.quantize import lazy

FP32, UINT4 = ir.DataType.FLOAT, ir.DataType.UINT4

# MiniLM, all 36 linears, 64 sentences, worst and mean cosine to fp32, alike in ONNX Runtime 1.32 and OpenVINO 2026.4:
# 0.964 0.9735 with blocks of 32, 0.974 0.9804 of 16, 0.947 0.9665 of 64; 0.971 0.9809 smoothed as for int8. About as
# fast as fp32 on a Zen 3 (AVX2). Files: 90.3 MB in fp32, 58.6 in int8, 54.7 in int4, 47.7 of which are tables.
BLOCKS = (32, 16)
"""How many neighbours along the sum share a scale and a zero point: the first that divides them.

OpenVINO refuses a last block that is shorter, and ONNX Runtime has no kernel below 16, so other linears stay fp32.
"""

_OPSET = 21


class PackInt4(InPlacePass):
    """Stores the weight of every linear, those of `keep` excepted, as uint4 with scale and zero point by block."""

    def __init__(self, keep: frozenset[str] = frozenset()) -> None:
        super().__init__()
        self.keep = keep

    def requires(self, model: ir.Model) -> None:
        """The opset has blocks, there is a linear, and those to keep exist."""
        if (opset := model.opset_imports.get("", 0)) < _OPSET:
            raise PreconditionError(f"opset {opset} has no blocks of int4; expected {_OPSET} or later")
        found = linears(model)
        if not found:
            raise PreconditionError(
                f"there is no linear with a constant fp32 weight whose rows {BLOCKS[-1]} divides"
            )
        if unknown := sorted(self.keep - {str(node.name) for node in found}):
            raise PreconditionError(f"no linear {unknown[0]!r} to keep; there are {len(found)}")

    def call(self, model: ir.Model) -> PassResult:
        """One by one; each weight is packed when the model is saved."""
        chosen = [node for node in linears(model) if node.name not in self.keep]
        for node in chosen:
            _pack(node)
        return PassResult(model, bool(chosen))

    def ensures(self, model: ir.Model) -> None:
        """Whatever still multiplies by an fp32 constant was to be kept."""
        for node in linears(model):
            if node.name not in self.keep:
                raise PostconditionError(f"{node.name}: not packed")


def linears(model: ir.Model) -> list[ir.Node]:
    """Products with a constant fp32 matrix that blocks divide, in order."""
    return [node for node in layers_of(model) if not is_convolution(node) and block_of(node)]


def block_of(node: ir.Node) -> int:
    """The block of a linear's weight; 0 where none divides it."""
    rows = int(weight_of(node).shape.numpy()[0])
    return next((block for block in BLOCKS if rows % block == 0), 0)


@dataclass(frozen=True, slots=True)
class Packed:
    """A matrix in four bits; scales and zero points have a row for each block of rows."""

    values: NDArray[np.uint8]
    scales: NDArray[np.float32]
    zeros: NDArray[np.uint8]


def packed(matrix: NDArray[np.float32], block: int) -> Packed:
    """Each column rounded by blocks of rows; zero is exact."""
    rows, columns = matrix.shape
    cut = matrix.reshape(rows // block, block, columns)
    low, high = np.minimum(cut.min(axis=1), 0), np.maximum(cut.max(axis=1), 0)
    scales = ((high - low) / 15).astype(np.float32)
    scales[scales == 0] = 1
    zeros = np.rint(-low / scales).clip(0, 15)
    values = np.rint(cut / scales[:, None] + zeros[:, None]).clip(0, 15)
    return Packed(values.reshape(rows, columns).astype(np.uint8), scales, zeros.astype(np.uint8))


def _pack(node: ir.Node) -> None:
    old, edit, tensor, block = node.inputs[1], Editor(node), weight_of(node), block_of(node)
    assert old is not None
    graph, name = edit.graph, str(old.name)
    rows, columns = tensor.shape.numpy()
    few = [rows // block, columns]
    values, scales, zeros = (
        lazy(
            graph, f"{name}_int4", UINT4, [rows, columns], lambda: _four(packed(tensor.numpy(), block).values)
        ),
        lazy(graph, f"{name}_scales", FP32, few, lambda: packed(tensor.numpy(), block).scales),
        lazy(graph, f"{name}_zeros", UINT4, few, lambda: _four(packed(tensor.numpy(), block).zeros)),
    )
    restored = edit.op("DequantizeLinear", values, scales, zeros, dtype=FP32, axis=0, block_size=block)
    restored.name = restored.producer().name = f"{node.name}/weight"  # type: ignore[union-attr]
    restored.shape = ir.Shape([rows, columns])
    node.replace_input_with(1, restored)
    if not old.uses() and not old.is_graph_output():
        graph.initializers.pop(name)


def _four(array: NDArray[np.uint8]) -> NDArray[ml_dtypes.uint4]:
    return array.astype(ml_dtypes.uint4)
