"""Shape with a range, Slice and Squeeze without axes, in the form that every parser reads."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult, PostconditionError, PreconditionError
from onnx_ir.passes.common import ShapeInferencePass

from alula.graphs.passes.edit import LAST, Editor, ints_of

_AXES = {"Slice": 3, "Squeeze": 1}


class SliceShape(InPlacePass):
    """Replaces Shape with start or end by Shape and Slice.

    TensorRT 8.6 ignores the two attributes and reads the whole shape.
    """

    def call(self, model: ir.Model) -> PassResult:
        """Rewrite them one by one."""
        nodes = _ranged(model)
        for node in nodes:
            edit = Editor(node)
            start, end = node.attributes.get_int("start", 0), node.attributes.get_int("end", LAST)
            whole = edit.op("Shape", node.inputs[0], dtype=ir.DataType.INT64)
            edit.replace(edit.op("Slice", whole, edit.ints(start), edit.ints(end), edit.ints(0)))
        return PassResult(model, bool(nodes))

    def ensures(self, model: ir.Model) -> None:
        """None is left."""
        if left := _ranged(model):
            raise PostconditionError(f"{left[0].name}: still there")


def _ranged(model: ir.Model) -> list[ir.Node]:
    return [
        node
        for node in model.graph.all_nodes()
        if node.op_type == "Shape" and {"start", "end"} & node.attributes.keys()
    ]


class NameAxes(InPlacePass):
    """Gives every Slice its axes, and every Squeeze of what has a known shape.

    Without any, TensorRT wants starts for all of them, where ONNX lets the last ones go.
    """

    def requires(self, model: ir.Model) -> None:
        """The number of starts is known."""
        if _unnamed(model):
            ShapeInferencePass()(model)
        for node in _unnamed(model):
            if node.op_type == "Slice" and _axes(node) is None:
                raise PreconditionError(
                    f"{node.name}: Slice without axes, and how many starts it has is not known"
                )

    def call(self, model: ir.Model) -> PassResult:
        """Count the starts of each, or find the axes of size 1."""
        found = {node: axes for node in _unnamed(model) if (axes := _axes(node)) is not None}
        for node, axes in found.items():
            at = _AXES[node.op_type]
            node.resize_inputs(max(len(node.inputs), at + 1))
            node.replace_input_with(at, Editor(node).ints(*axes))
        return PassResult(model, bool(found))

    def ensures(self, model: ir.Model) -> None:
        """All slices have them."""
        for node in _unnamed(model):
            if node.op_type == "Slice":
                raise PostconditionError(f"{node.name}: Slice without axes")


def _unnamed(model: ir.Model) -> list[ir.Node]:
    return [
        node
        for node in model.graph.all_nodes()
        if (at := _AXES.get(node.op_type)) is not None and (len(node.inputs) <= at or node.inputs[at] is None)
    ]


def _axes(node: ir.Node) -> tuple[int, ...] | None:
    """What the axes are where none are named; None if that is not known."""
    value = node.inputs[0 if node.op_type == "Squeeze" else 1]
    known = ints_of(value)
    shape = value.shape if value is not None else None
    if node.op_type == "Slice" and known is not None:
        return tuple(range(len(known)))
    if shape is None or not all(isinstance(size, int) for size in shape):
        return None
    if node.op_type == "Squeeze":
        return tuple(axis for axis, size in enumerate(shape) if size == 1)
    return tuple(range(int(shape[0]))) if len(shape) == 1 else None  # type: ignore[arg-type] # seen to be an int
