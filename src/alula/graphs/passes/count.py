"""Counting along a row without a loop."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult, PostconditionError
from onnx_ir.passes.common import ShapeInferencePass

from alula.graphs.passes.edit import Editor, ints_of

BOOL, FP32, INT64 = ir.DataType.BOOL, ir.DataType.FLOAT, ir.DataType.INT64
_THROUGH = frozenset({"Cast", "Identity", "Reshape", "Unsqueeze", "Squeeze"})


class CountByProduct(InPlacePass):
    """Replaces CumSum over the last axis of what was boolean by a product with a triangle of ones.

    TensorRT 8 and the first of 10 make a loop of it, one step per token, which no CUDA graph takes. Sums of zeros and
    ones are exact in fp32 up to 2^24, whatever multiplies them.
    """

    def requires(self, model: ir.Model) -> None:
        """Ranks are known as far as shapes tell."""
        if any(node.op_type == "CumSum" for node in model.graph):
            ShapeInferencePass()(model)

    def call(self, model: ir.Model) -> PassResult:
        """Rewrite them one by one."""
        nodes = _counts(model)
        for node in nodes:
            _multiply(node)
        return PassResult(model, bool(nodes))

    def ensures(self, model: ir.Model) -> None:
        """None of those is left."""
        if left := _counts(model):
            raise PostconditionError(f"{left[0].name}: still there")


def _counts(model: ir.Model) -> list[ir.Node]:
    return [node for node in model.graph if node.op_type == "CumSum" and _is_count(node)]


def _is_count(node: ir.Node) -> bool:
    value, axis = node.inputs[0], ints_of(node.inputs[1])
    if (
        value is None
        or value.shape is None
        or not axis
        or value.dtype not in {FP32, INT64, ir.DataType.INT32}
    ):
        return False
    if axis[0] not in {-1, len(value.shape) - 1} or len(value.shape) < 2:
        return False
    seen: ir.Value | None = value
    while seen is not None and seen.dtype != BOOL:
        producer = seen.producer()
        if producer is None or producer.op_type not in _THROUGH:
            return False
        seen = producer.inputs[0]
    return seen is not None


def _multiply(node: ir.Node) -> None:
    edit, value = Editor(node), node.inputs[0]
    assert value is not None
    assert value.shape is not None
    last = len(value.shape) - 1
    shape = edit.op("Shape", value, dtype=INT64)
    length = edit.op("Slice", shape, edit.ints(last), edit.ints(last + 1), edit.ints(0))
    zero, one = edit.integer(0), edit.integer(1)
    places = edit.op("Range", zero, edit.op("Squeeze", length, edit.ints(0)), one)
    rows, columns = (edit.op("Unsqueeze", places, edit.ints(axis)) for axis in (1, 0))
    if node.attributes.get_int("reverse", 0):
        rows, columns = columns, rows
    compare = "Less" if node.attributes.get_int("exclusive", 0) else "LessOrEqual"
    triangle = edit.op("Cast", edit.op(compare, rows, columns, dtype=BOOL), to=FP32, dtype=FP32)
    numbers = value if value.dtype == FP32 else edit.op("Cast", value, to=FP32, dtype=FP32)
    counted = edit.op("MatMul", numbers, triangle)
    kind = value.dtype
    assert kind is not None
    edit.replace(counted if kind == FP32 else edit.op("Cast", counted, to=kind, dtype=kind))
