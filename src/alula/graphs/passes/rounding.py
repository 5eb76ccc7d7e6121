"""fp16 for an engine without kernels for it: products and sums in fp32, every result rounded."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult, PostconditionError

from alula.graphs.passes.casts import FP16, FP32, MOVES, cast_of
from alula.graphs.passes.edit import retype


class RoundResults(InPlacePass):
    """Puts the casts around every node that computes in fp16 into the graph.

    ONNX Runtime has few fp16 kernels for CPUs. It puts such casts itself, but leaves out those between two nodes, so
    results in between are not rounded, and 300 * 300 is 90000 where a GPU has infinity. Casts of the graph it keeps.
    """

    def call(self, model: ir.Model) -> PassResult:
        """Write the casts; each value has one to fp32 at most."""
        nodes = _halves(model)
        widened: dict[ir.Value, ir.Value] = {}
        for node in nodes:
            for index, value in enumerate(node.inputs):
                if value is None or value.dtype != FP16:
                    continue
                if value not in widened:
                    widened[value] = _before(node, value)
                node.replace_input_with(index, widened[value])
            for value in node.outputs:
                if value.dtype == FP16:
                    _round(node, value)
        return PassResult(model, bool(nodes))

    def ensures(self, model: ir.Model) -> None:
        """No node computes in fp16."""
        if left := _halves(model):
            raise PostconditionError(f"{left[0].name}: {left[0].op_type} is still fp16")


def _halves(model: ir.Model) -> list[ir.Node]:
    return [
        node
        for node in model.graph
        if node.op_type not in MOVES | {"Cast"}
        and any(value is not None and value.dtype == FP16 for value in (*node.inputs, *node.outputs))
    ]


def _before(node: ir.Node, value: ir.Value) -> ir.Value:
    cast, graph = cast_of(value, FP32), node.graph
    assert isinstance(graph, ir.Graph)
    # The name of the fp32 value that was cast to this one may be the same already.
    cast.name = cast.outputs[0].name = f"{value.name}/widened"
    graph.insert_before(node, cast)
    return cast.outputs[0]


def _round(node: ir.Node, value: ir.Value) -> None:
    """Let whoever reads the value read it rounded."""
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    users = list(value.uses())
    retype(value, FP32)
    cast = cast_of(value, FP16)
    cast.name = cast.outputs[0].name = f"{value.name}/rounded"
    graph.insert_after(node, cast)
    for user, index in users:
        user.replace_input_with(index, cast.outputs[0])
