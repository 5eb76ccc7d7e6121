"""What only scales and shifts the channels that a convolution gives, made part of its weight and bias."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes import InPlacePass, PassResult, PostconditionError

from alula.graphs.passes.edit import array_of, hand_over, is_constant, replace_constant, weight
from alula.graphs.passes.layers import is_convolution, layers_of, output_axis, weight_of

Floats = NDArray[np.float32]


class FoldAffine(InPlacePass):
    """Folds BatchNormalization, and products and sums with a constant per channel, into the convolution before."""

    def call(self, model: ir.Model) -> PassResult:
        """Again and again, since several may follow one another."""
        changed = False
        for node in layers_of(model):
            while is_convolution(node) and (found := _follower(node)) is not None:
                _fold(node, *found)
                changed = True
        return PassResult(model, changed)

    def ensures(self, model: ir.Model) -> None:
        """None is left behind a convolution."""
        for node in layers_of(model):
            if is_convolution(node) and (found := _follower(node)) is not None:
                raise PostconditionError(f"{found[0].name}: not folded into {node.name}")


def _follower(node: ir.Node) -> tuple[ir.Node, Floats, Floats] | None:
    """The only reader of a convolution's output with scale and shift per channel, if that is all it does."""
    output = node.outputs[0]
    uses = tuple(output.uses())
    if len(uses) != 1 or output.is_graph_output() or (len(node.inputs) > 2 and not _is_known(node.inputs[2])):
        return None
    user, index = uses[0].node, uses[0].idx
    channels = int(weight_of(node).shape.numpy()[output_axis(node)])
    ones, zeros = np.ones(channels, np.float32), np.zeros(channels, np.float32)
    if user.op_type == "BatchNormalization" and len(user.outputs) == 1:
        scale, bias, mean, variance = (array_of(value) for value in user.inputs[1:])
        if scale is None or bias is None or mean is None or variance is None:
            return None
        epsilon = user.attributes.get_float("epsilon", 1e-5)
        factor = scale.astype(np.float64) / np.sqrt(variance.astype(np.float64) + epsilon)
        shift = bias.astype(np.float64) - mean.astype(np.float64) * factor
        return user, factor.astype(np.float32), shift.astype(np.float32)
    if user.op_type not in {"Mul", "Add"} or not is_constant(user.inputs[1 - index]):
        return None
    constant = _per_channel(array_of(user.inputs[1 - index]), channels, len(weight_of(node).shape))
    if constant is None:
        return None
    return (user, constant, zeros) if user.op_type == "Mul" else (user, ones, constant)


def _is_known(bias: ir.Value | None) -> bool:
    return bias is None or is_constant(bias)


def _per_channel(array: NDArray[np.generic] | None, channels: int, rank: int) -> Floats | None:
    """The numbers of a constant that has one for all channels or one for each; None for any other."""
    if array is None or array.dtype != np.float32 or array.ndim > rank:
        return None
    shape = (1,) * (rank - array.ndim) + array.shape
    if array.size == 1:
        return np.full(channels, array.reshape(()), np.float32)
    return array.reshape(-1).astype(np.float32) if shape == (1, channels, *(1,) * (rank - 2)) else None


def _fold(node: ir.Node, user: ir.Node, scale: Floats, shift: Floats) -> None:
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    if (scale != 1).any():
        along = [1] * len(weight_of(node).shape)
        along[output_axis(node)] = -1
        replace_constant(node, 1, "folded", lambda array: array * scale.reshape(along))
    old = node.inputs[2] if len(node.inputs) > 2 else None
    before = array_of(old)
    folded = shift if before is None else before.astype(np.float32) * scale + shift
    name = f"{node.name}/bias"
    bias = weight(graph, name, ir.tensor(folded.astype(np.float32), name=name))
    node.resize_inputs(3)
    node.replace_input_with(2, bias)
    constants = [each for each in (old, *user.inputs) if each is not None and is_constant(each)]
    hand_over(user.outputs[0], node.outputs[0])
    graph.remove(user, safe=True)
    for each in constants:
        if not each.uses():
            graph.initializers.pop(str(each.name), None)
