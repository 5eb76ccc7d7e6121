"""Layers that can be quantised: products with a constant weight, what they read, and what they give to others."""

from __future__ import annotations

import math
from typing import Literal

import onnx_ir as ir

from alula.graphs.passes.edit import is_constant

FP32 = ir.DataType.FLOAT

_CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})
_FUSED = frozenset({"Relu", "Clip"})
"""What engines compute together with the product before it."""
Exchange = Literal["outputs", "sums", "residuals"]
_POOLS = frozenset({"MaxPool", "AveragePool", "GlobalAveragePool"})


def layers_of(model: ir.Model) -> list[ir.Node]:
    """Products of an activation with a constant fp32 weight, in order."""
    return [node for node in model.graph if _is_layer(node)]


def is_convolution(node: ir.Node) -> bool:
    """Whether channels are axis 1 of what the layer reads and gives; otherwise they are the last."""
    return node.op_type in _CONVOLUTIONS


def weight_of(node: ir.Node) -> ir.TensorProtocol:
    """The constant of a layer."""
    value = node.inputs[1]
    assert value is not None
    assert value.const_value is not None
    return value.const_value


def output_axis(node: ir.Node) -> int:
    """The axis of the weight along which the layer's output channels lie."""
    return 0 if node.op_type == "Conv" else 1


def read_by(node: ir.Node) -> ir.Value:
    """The activation of a layer."""
    value = node.inputs[0]
    assert value is not None
    return value


def activations(model: ir.Model) -> dict[str, ir.Value]:
    """What layers read, and what convolutions give, each named by the first layer that does.

    How attention is written changes no such name.
    """
    named: dict[ir.Value, str] = {}
    layers = layers_of(model)
    for node in layers:
        named.setdefault(read_by(node), f"{node.name}/input")
    for node in layers:
        if is_convolution(node):
            named.setdefault(result_of(node), f"{node.name}/output")
    return {name: value for value, name in named.items()}


def result_of(node: ir.Node) -> ir.Value:
    """What a layer gives, behind the activation function that engines compute with it."""
    value = node.outputs[0]
    users = value.consumers()
    if len(users) == 1 and not value.is_graph_output():
        user = users[0]
        if user.op_type in _FUSED and all(is_constant(each) for each in user.inputs[1:] if each is not None):
            return user.outputs[0]
    return value


def exchanged(model: ir.Model, exchange: Exchange) -> dict[ir.Value, ir.Node]:
    """What others than layers read in int8, and the layer on whose account they do.

    With "outputs" that is whatever a convolution gives; with "sums" what it gives to a sum or a pool, or shares with a
    sum, since engines then go on in int8; with "residuals" what is added to the result of a convolution alone.
    """
    layers = layers_of(model)
    found = _residuals(model, layers) if exchange == "residuals" else _given(layers, exchange == "outputs")
    return {value: node for value, node in found.items() if outsiders(value, set(layers))}


def _given(layers: list[ir.Node], outputs: bool) -> dict[ir.Value, ir.Node]:
    found: dict[ir.Value, ir.Node] = {}
    for node in layers:
        if is_convolution(node) and (outputs or _is_added(result_of(node)) or _is_pooled(result_of(node))):
            found.setdefault(result_of(node), node)
    for node in layers:
        if is_convolution(node) and _is_added(read_by(node)):
            found.setdefault(read_by(node), node)
    return found


def _residuals(model: ir.Model, layers: list[ir.Node]) -> dict[ir.Value, ir.Node]:
    """By sum: the operand that no convolution gives, or of two the one given first, as far as its range is known."""
    order = {node: at for at, node in enumerate(layers) if is_convolution(node)}
    known = set(activations(model).values())
    found: dict[ir.Value, ir.Node] = {}
    for node in model.graph:
        if node.op_type != "Add" or len(set(node.inputs)) != 2:
            continue
        # A convolution computes a sum with its own result, if nobody else reads that.
        own = [value for value in node.inputs if value is not None and _is_own(value, order)]
        if not own:
            continue
        last = max(own, key=lambda value: order[_producer(value)])
        other = next(value for value in node.inputs if value is not last)
        if other in known:
            found.setdefault(other, _producer(last))
    return found


def _is_own(value: ir.Value, convolutions: dict[ir.Node, int]) -> bool:
    return value.producer() in convolutions and len(value.uses()) == 1 and not value.is_graph_output()


def _producer(value: ir.Value) -> ir.Node:
    node = value.producer()
    assert node is not None
    return node


def _is_added(value: ir.Value) -> bool:
    """Whether a sum with another activation reads it."""
    return any(
        use.node.op_type == "Add" and not is_constant(use.node.inputs[1 - use.idx]) for use in value.uses()
    )


def _is_pooled(value: ir.Value) -> bool:
    return any(user.op_type in _POOLS for user in value.consumers())


def outsiders(value: ir.Value, layers: set[ir.Node]) -> list[tuple[ir.Node, int]]:
    """Uses of an activation by others than layers."""
    return [(use.node, use.idx) for use in value.uses() if not (use.node in layers and use.idx == 0)]


def cost(node: ir.Node) -> int:
    """Multiplications of one layer per row; a size that is free counts as one."""
    weights = math.prod(weight_of(node).shape.numpy())
    shape = node.outputs[0].shape
    if shape is None:
        return weights
    positions = shape[2:] if is_convolution(node) else shape[1:-1]
    return weights * math.prod(size for size in positions if isinstance(size, int))


def _is_layer(node: ir.Node) -> bool:
    if node.domain != "" or node.op_type not in {"MatMul", *_CONVOLUTIONS}:
        return False
    value, weight = node.inputs[:2]
    if weight is None or weight.const_value is None or weight.is_graph_input() or is_constant(value):
        return False
    if weight.const_value.dtype != FP32:
        return False
    if node.op_type == "MatMul":
        return len(weight.const_value.shape) == 2
    return node.op_type == "Conv" or node.attributes.get_int("group", 1) == 1
