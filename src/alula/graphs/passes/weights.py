"""Weights of eight bits in the form that TensorRT 8 reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes import InPlacePass, PassResult, PostconditionError, PreconditionError

from alula.graphs.passes.edit import Editor, constant, is_constant, weight

FP32, INT8 = ir.DataType.FLOAT, ir.DataType.INT8


class FloatWeights(InPlacePass):
    """Stores weights of eight bits as the floats they stand for, rounded and restored where they are read.

    TensorRT 8 has no constants of int8, and wants a zero point for every scale. Dividing such a float by its scale
    gives the integer again, so no result changes.
    """

    def requires(self, model: ir.Model) -> None:
        """What is restored is symmetric, with scales in fp32."""
        for node in _stored(model):
            scale, zero = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None
            if scale is None or not is_constant(scale) or scale.dtype != FP32:
                raise PreconditionError(f"{node.name}: the scale is no constant of fp32")
            if zero is not None and (not is_constant(zero) or _array(zero).any()):
                raise PreconditionError(f"{node.name}: the zero point is not zero")

    def call(self, model: ir.Model) -> PassResult:
        """Put a QuantizeLinear before each."""
        nodes = _stored(model)
        for node in nodes:
            _round(node)
        return PassResult(model, bool(nodes))

    def ensures(self, model: ir.Model) -> None:
        """Nothing restores a constant any more."""
        if left := _stored(model):
            raise PostconditionError(f"{left[0].name}: still restores a constant")


def _stored(model: ir.Model) -> list[ir.Node]:
    return [
        node
        for node in model.graph.all_nodes()
        if node.op_type == "DequantizeLinear" and is_constant(node.inputs[0]) and _is_int8(node.inputs[0])
    ]


def _is_int8(value: ir.Value | None) -> bool:
    return value is not None and value.dtype == INT8


def _array(value: ir.Value) -> NDArray[Any]:
    assert value.const_value is not None
    return value.const_value.numpy()


def _round(node: ir.Node) -> None:
    small, scale = node.inputs[:2]
    assert small is not None
    assert scale is not None
    assert small.const_value is not None
    edit, axis = Editor(node), node.attributes.get_int("axis", 1)
    along = [1] * len(small.const_value.shape)
    if scale.const_value is not None and len(scale.const_value.shape) == 1:
        along[axis] = -1
    name, count = f"{small.name}_restored", scale.const_value.shape.numpy() if scale.const_value else ()
    restored = ir.LazyTensor(
        lambda: ir.tensor(_array(small).astype(np.float32) * _array(scale).reshape(along)),
        dtype=FP32,
        shape=ir.Shape(small.const_value.shape.numpy()),
        name=name,
    )
    label = "_".join(map(str, count)) or "one"
    zeros = constant(edit.graph, f"int8_zeros_{label}", np.zeros(count, np.int8))
    rounded = edit.op(
        "QuantizeLinear", weight(edit.graph, name, restored), scale, zeros, dtype=INT8, axis=axis
    )
    rounded.shape = small.shape
    node.resize_inputs(3)
    node.replace_input_with(0, rounded)
    node.replace_input_with(2, zeros)
    if not small.uses() and not small.is_graph_output():
        edit.graph.initializers.pop(str(small.name))
