"""Casts between fp32 and a half precision, and constants that are stored in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from alula.graphs.passes.caches import is_cache
from alula.graphs.passes.edit import first_input, hand_over, is_constant, replace_constant, retype

FP32, BF16, FP16 = ir.DataType.FLOAT, ir.DataType.BFLOAT16, ir.DataType.FLOAT16

LARGEST = {BF16: 3.3895313892515355e38, FP16: 65504.0}
"""The largest finite number of each half precision."""

_WORDS = {FP32: "fp32", BF16: "bf16", FP16: "fp16"}

MOVES = frozenset(
    {
        "Reshape",
        "Transpose",
        "Squeeze",
        "Unsqueeze",
        "Split",
        "Slice",
        "Expand",
        "Flatten",
        "Identity",
        "Gather",
        "MaxPool",
        "DepthToSpace",
        "SpaceToDepth",
    }
)
"""Operators that move numbers and do not change them: they stay in whatever precision comes in."""

_SCALE = 1

# Their other inputs are sizes and scales, or nothing.
_FIRST_ONLY = MOVES | {"Resize"}


class Casts:
    """Casts of one graph: each value has at most one in each direction.

    With `restored`, what DequantizeLinear gives and QuantizeLinear takes is half precision without a cast, if the
    precision holds the scale: their opset must be 19 at least.
    """

    def __init__(self, half: ir.DataType, *, restored: bool = False) -> None:
        self.half, self.restored = half, restored
        self._made: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}

    def to_half(self, node: ir.Node) -> None:
        """Feed a node half precision only."""
        count = 1 if node.op_type in _FIRST_ONLY else len(node.inputs)
        for index, value in enumerate(node.inputs[:count]):
            if value is not None and value.dtype == FP32:
                self._feed(node, index, self.half)
        for value in node.outputs:
            if value.dtype == FP32:
                retype(value, self.half)

    def to_fp32(self, node: ir.Node) -> None:
        """Feed a node fp32 only; what is to be rounded to eight bits may stay in half precision."""
        if self.restored and node.op_type == "QuantizeLinear" and scale_fits(node, self.half):
            if first_input(node).dtype == self.half:
                self._hold_scale(node)
            return
        for index, value in enumerate(node.inputs):
            if value is not None and value.dtype == self.half:
                self._feed(node, index, FP32)

    def take_caches(self, graph: ir.Graph) -> None:
        """Let what a session gives back to the graph be half precision."""
        for value in graph.inputs:
            if is_cache(value):
                retype(value, self.half)

    def share_table(self, table: ir.Value) -> None:
        """Store a table once in half precision for all who read it, if it holds that."""
        tensor = table.const_value
        assert tensor is not None
        if float(np.abs(tensor.numpy()).max(initial=0)) > LARGEST[self.half]:
            return
        for node, index in list(table.uses()):
            self._feed(node, index, self.half)

    def restore_outputs(self, graph: ir.Graph, *, caches: bool = False) -> None:
        """Give the graph's outputs their fp32 back; with `caches`, these are half precision all of them."""
        for value in list(graph.outputs):
            wanted = self.half if caches and is_cache(value) else FP32
            producer = value.producer()
            if value.dtype in {self.half, FP32} and value.dtype != wanted and producer is not None:
                own = value.dtype
                cast = cast_of(value, wanted)
                graph.insert_after(producer, cast)
                users = [(user, index) for user, index in value.uses() if user is not cast]
                hand_over(value, cast.outputs[0])
                retype(value, own)
                retype(cast.outputs[0], wanted)
                cast.replace_input_with(0, value)
                for user, index in users:
                    user.replace_input_with(index, value)

    def store_table(self, node: ir.Node) -> None:
        """Let a Gather read its fp32 table from half precision, if nobody else reads it; positions stay exact."""
        if node.op_type != "Gather" or not is_constant(node.inputs[0]):
            return
        if any(user.op_type == "RotaryEmbedding" for user in node.outputs[0].consumers()):
            return
        table, output = first_input(node), node.outputs[0]
        if table.dtype != FP32 or len(table.uses()) != 1 or output.is_graph_output():
            return
        replace_constant(node, 0, self.half.name.lower(), rounding_to(self.half), self.half)
        retype(output, self.half)
        cast = cast_of(output, FP32)
        graph = node.graph
        assert isinstance(graph, ir.Graph)
        graph.insert_after(node, cast)
        for user, index in list(output.uses()):
            if user is not cast:
                user.replace_input_with(index, cast.outputs[0])

    def _feed(self, node: ir.Node, index: int, dtype: ir.DataType) -> None:
        value = node.inputs[index]
        assert value is not None
        if (value, dtype) not in self._made:
            if is_constant(value):
                new = replace_constant(node, index, dtype.name.lower(), rounding_to(dtype), dtype)
                self._made[value, dtype] = new
                return
            graph = node.graph
            assert isinstance(graph, ir.Graph)
            twin = self._restored(value) if dtype == self.half else None
            cast = twin or cast_of(value, dtype)
            graph.insert_before(node, cast)
            if twin is not None:
                self._hold_scale(twin)
            self._made[value, dtype] = cast.outputs[0]
            self._made[cast.outputs[0], FP32 if dtype == self.half else self.half] = value
        old = value
        node.replace_input_with(index, self._made[value, dtype])
        if is_constant(old) and not old.uses() and isinstance(node.graph, ir.Graph):
            node.graph.initializers.pop(str(old.name), None)

    def _restored(self, value: ir.Value) -> ir.Node | None:
        """A second DequantizeLinear that is to give half precision, in no graph yet; None where a cast is needed."""
        node = value.producer()
        if not self.restored or node is None or node.op_type != "DequantizeLinear":
            return None
        if not scale_fits(node, self.half):
            return None
        twin = ir.node(node.op_type, node.inputs, node.attributes, name=f"{node.name}/{_WORDS[self.half]}")
        output = twin.outputs[0]
        output.name, output.shape = twin.name, value.shape
        retype(output, self.half)
        return twin

    def _hold_scale(self, node: ir.Node) -> None:
        replace_constant(node, _SCALE, self.half.name.lower(), rounding_to(self.half), self.half)


def scale_fits(node: ir.Node, half: ir.DataType) -> bool:
    """Whether a half precision holds the very scale of a QuantizeLinear or DequantizeLinear."""
    scale = node.inputs[_SCALE]
    if scale is None or not is_constant(scale) or scale.dtype != FP32:
        return False
    assert scale.const_value is not None
    array = scale.const_value.numpy()
    return bool(np.array_equal(rounding_to(half)(array).astype(np.float32), array))


def cast_of(value: ir.Value, dtype: ir.DataType) -> ir.Node:
    """A Cast of the value, in no graph yet."""
    name = f"{value.name}/{_WORDS[dtype]}"
    cast = ir.node("Cast", [value], {"to": int(dtype)}, name=name)
    output = cast.outputs[0]
    output.name, output.shape = name, value.shape
    retype(output, dtype)
    return cast


def rounding_to(dtype: ir.DataType) -> Callable[[NDArray[Any]], NDArray[Any]]:
    """Round to nearest; what the type cannot reach stays finite, since masks and bounds hold the lowest fp32 number."""
    largest = LARGEST[dtype]

    def rounded(array: NDArray[Any]) -> NDArray[Any]:
        # Infinities stay what they are.
        within = np.where(np.isfinite(array), np.clip(array, -largest, largest), array)
        return within.astype(dtype.numpy())

    return rounded
