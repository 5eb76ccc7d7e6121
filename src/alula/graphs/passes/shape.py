"""Shape with a range, in the form that every parser reads."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult, PostconditionError

from alula.graphs.passes.edit import Editor

_LAST = (1 << 63) - 1


class SliceShape(InPlacePass):
    """Replaces Shape with start or end by Shape and Slice.

    TensorRT 8.6 ignores the two attributes and reads the whole shape.
    """

    def call(self, model: ir.Model) -> PassResult:
        """Rewrite them one by one."""
        nodes = _ranged(model)
        for node in nodes:
            edit = Editor(node)
            start, end = node.attributes.get_int("start", 0), node.attributes.get_int("end", _LAST)
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
