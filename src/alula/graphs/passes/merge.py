"""Linears that read the same become one: less to start, and what they read is rounded once."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult, PostconditionError

from alula.graphs.passes.casts import FP32
from alula.graphs.passes.edit import Editor, first_input, hand_over, is_constant, weight
from alula.graphs.passes.layers import weight_of

_PAIR = 2


class MergeLinears(InPlacePass):
    """Replaces linears of one input by a product with all their columns, split again; `least` of them or more."""

    def __init__(self, least: int = _PAIR) -> None:
        super().__init__()
        self.least = least

    def call(self, model: ir.Model) -> PassResult:
        """Group by group; the weights are joined when the model is saved."""
        groups = _groups(model, self.least)
        for group in groups:
            _merge(group)
        return PassResult(model, bool(groups))

    def ensures(self, model: ir.Model) -> None:
        """Nothing is left to merge."""
        if left := _groups(model, self.least):
            raise PostconditionError(f"{left[0][0].name}: not merged")


def _groups(model: ir.Model, least: int) -> list[list[ir.Node]]:
    found: dict[ir.Value, list[ir.Node]] = {}
    for node in model.graph:
        if node.op_type == "MatMul" and _is_own(node.inputs[1]) and not node.outputs[0].is_graph_output():
            found.setdefault(first_input(node), []).append(node)
    return [group for group in found.values() if len(group) >= least]


def _is_own(value: ir.Value | None) -> bool:
    """Whether this is a constant matrix in fp32 that nobody else reads."""
    if value is None or not is_constant(value) or value.dtype != FP32 or len(value.uses()) > 1:
        return False
    tensor = value.const_value
    return tensor is not None and len(tensor.shape) == 2


def _merge(group: list[ir.Node]) -> None:
    first, *_ = group
    edit, graph = Editor(first), first.graph
    assert isinstance(graph, ir.Graph)
    values = [node.inputs[1] for node in group]
    tensors = [weight_of(node) for node in group]
    shapes = [tensor.shape.numpy() for tensor in tensors]
    widths = [columns for _, columns in shapes]
    joined = ir.LazyTensor(
        lambda: ir.tensor(np.concatenate([each.numpy() for each in tensors], axis=1)),
        dtype=FP32,
        shape=ir.Shape([shapes[0][0], sum(widths)]),
    )
    name = "+".join(str(node.name).rpartition("/")[0].rpartition(".")[2] or str(node.name) for node in group)
    stored = weight(graph, f"{first.name}.{name}", joined)
    product = edit.op("MatMul", first_input(first), stored, dtype=FP32)
    parts = ir.node("Split", [product, edit.ints(*widths)], attributes={"axis": -1}, num_outputs=len(group))
    parts.name = f"{first.name}/split"
    graph.insert_before(first, parts)
    for at, (node, new) in enumerate(zip(group, parts.outputs, strict=True)):
        new.name = f"{first.name}/split.{at}"
        hand_over(node.outputs[0], new)
        graph.remove(node, safe=True)
    for value in values:
        graph.initializers.pop(str(value.name))  # type: ignore[union-attr]
