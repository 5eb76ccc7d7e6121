"""RMSNormalization (opset 23) in operators that older parsers read."""

from __future__ import annotations

import math

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult, PostconditionError, PreconditionError
from onnx_ir.passes.common import ShapeInferencePass

from alula.graphs.passes.casts import BF16, FP16, FP32
from alula.graphs.passes.edit import Editor, is_over_last_axis

_HALVES = frozenset({FP16, BF16})


_LEAST = 2.0**-14
"""The smallest number that fp16 has with all of its digits."""


class DecomposeRms(InPlacePass):
    """Replaces every RMSNormalization over the last axis by its definition, the mean of squares in fp32.

    In fp16 a row of 300s would have infinite squares, and become zeros. Where a compiler may count in fp16 whatever the
    graph says, the row is divided by its largest magnitude first: `bounded`.
    """

    def __init__(self, *, bounded: bool = False) -> None:
        super().__init__()
        self.bounded = bounded

    def requires(self, model: ir.Model) -> None:
        """Nothing but the last axis is normalised, and in fp32; types are known as far as shapes tell."""
        if any(node.inputs[0] is None or node.inputs[0].dtype is None for node in _norms(model)):
            ShapeInferencePass()(model)
        for node in _norms(model):
            if not is_over_last_axis(node):
                axis = node.attributes.get_int("axis", -1)
                raise PreconditionError(f"{node.name}: RMSNormalization from axis {axis} on is not supported")
            if node.attributes.get_int("stash_type", int(FP32)) != FP32:
                raise PreconditionError(f"{node.name}: RMSNormalization in other than fp32 is not supported")

    def call(self, model: ir.Model) -> PassResult:
        """Rewrite them one by one."""
        nodes = _norms(model)
        for node in nodes:
            _decompose(Editor(node), bounded=self.bounded)
        return PassResult(model, bool(nodes))

    def ensures(self, model: ir.Model) -> None:
        """None of them is left."""
        if left := _norms(model):
            raise PostconditionError(f"{left[0].name}: still there")


def _norms(model: ir.Model) -> list[ir.Node]:
    return [
        node for node in model.graph.all_nodes() if node.op_type == "RMSNormalization" and not node.domain
    ]


def _decompose(edit: Editor, *, bounded: bool) -> None:
    x, scale = edit.node.inputs[:2]
    assert x is not None
    assert scale is not None
    half = x.dtype if x.dtype in _HALVES else None
    wide = x if half is None else edit.op("Cast", x, to=int(FP32), dtype=FP32)
    epsilon = edit.node.attributes.get_float("epsilon", 1e-5)
    if bounded:
        wide, least = _bounded(edit, wide, math.sqrt(epsilon))
    else:
        least = edit.number(epsilon, FP32)
    squares = edit.op("ReduceMean", edit.op("Mul", wide, wide), edit.ints(-1), keepdims=1)
    normed = edit.op("Div", wide, edit.op("Sqrt", edit.op("Add", squares, least)))
    if half is not None:
        normed = edit.op("Cast", normed, to=int(half), dtype=half)
    edit.replace(edit.op("Mul", normed, scale))


def _bounded(edit: Editor, x: ir.Value, floor: float) -> tuple[ir.Value, ir.Value]:
    """A row over its largest magnitude, and what its epsilon is then; neither is above 1, and not both are 0.

    A norm gives the same for a multiple of its row if its epsilon is multiplied by the square.
    """
    lowest = edit.number(max(floor, _LEAST), FP32)
    most = edit.op("Max", edit.op("ReduceMax", edit.op("Abs", x), edit.ints(-1), keepdims=1), lowest)
    share = edit.op("Div", lowest, most)
    return edit.op("Div", x, most), edit.op("Mul", share, share)
