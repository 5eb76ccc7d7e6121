"""RotaryEmbedding (opset 23) in operators that older parsers read."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult, PostconditionError, PreconditionError
from onnx_ir.passes.common import ShapeInferencePass

from alula.graphs.passes.edit import Editor

_LAST = 3


class DecomposeRotary(InPlacePass):
    """Replaces every RotaryEmbedding of whole heads, their two halves apart, by products and sums."""

    def requires(self, model: ir.Model) -> None:
        """Heads lie on an axis of their own, and their size is known."""
        if any(_size(node) is None for node in _rotations(model)):
            ShapeInferencePass()(model)
        for node in _rotations(model):
            if reason := _refusal(node):
                raise PreconditionError(f"{node.name}: RotaryEmbedding {reason}")

    def call(self, model: ir.Model) -> PassResult:
        """Rewrite them one by one; cosines and sines get the axis of heads once, whoever shares them."""
        nodes = _rotations(model)
        spread: dict[ir.Value, ir.Value] = {}
        for node in nodes:
            _decompose(Editor(node), spread)
        return PassResult(model, bool(nodes))

    def ensures(self, model: ir.Model) -> None:
        """None of them is left."""
        if left := _rotations(model):
            raise PostconditionError(f"{left[0].name}: still there")


def _rotations(model: ir.Model) -> list[ir.Node]:
    return [node for node in model.graph.all_nodes() if node.op_type == "RotaryEmbedding" and not node.domain]


def _size(node: ir.Node) -> int | None:
    x = node.inputs[0]
    last = x.shape[-1] if x is not None and x.shape is not None and len(x.shape) == _LAST + 1 else None
    return last if isinstance(last, int) else None


def _refusal(node: ir.Node) -> str:
    """Why this one cannot be written out; empty when it can."""
    if node.attributes.get_int("interleaved", 0):
        return "of neighbours is not supported"
    if len(node.inputs) > _LAST and node.inputs[_LAST] is not None:
        return "with position_ids is not supported; look cosines and sines up in front of it"
    size = _size(node)
    if size is None:
        return "of other than [batch, heads, length, size] with a known size is not supported"
    if node.attributes.get_int("rotary_embedding_dim", 0) not in {0, size}:
        return "of a part of each head is not supported"
    return ""


def _decompose(edit: Editor, spread: dict[ir.Value, ir.Value]) -> None:
    x, size = edit.node.inputs[0], _size(edit.node)
    assert size is not None
    cos, sin = (_with_heads(edit, value, spread) for value in edit.node.inputs[1:_LAST])
    half = size // 2
    first, second = (
        edit.op("Slice", x, edit.ints(start), edit.ints(start + half), edit.ints(_LAST))
        for start in (0, half)
    )
    turned = (
        edit.op("Sub", edit.op("Mul", first, cos), edit.op("Mul", second, sin)),
        edit.op("Add", edit.op("Mul", first, sin), edit.op("Mul", second, cos)),
    )
    edit.replace(edit.op("Concat", *turned, axis=_LAST))


def _with_heads(edit: Editor, value: ir.Value | None, spread: dict[ir.Value, ir.Value]) -> ir.Value:
    """[batch, length, half] as [batch, 1, length, half]."""
    assert value is not None
    if value not in spread:
        spread[value] = edit.op("Unsqueeze", value, edit.ints(1))
    return spread[value]
