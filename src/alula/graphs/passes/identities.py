"""Identity, taken out where that changes no name that anybody reads."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult, PostconditionError

from alula.graphs.passes.edit import hand_over


class DropIdentities(InPlacePass):
    """Removes Identity from the main graph; one that makes an output of its own out of another stays.

    onnx-ir's own pass merges two outputs into one, and in branches it renames what the whole graph reads.
    """

    def call(self, model: ir.Model) -> PassResult:
        """Read what they read."""
        found = [node for node in model.graph if _is_idle(node)]
        for node in found:
            _drop(node)
        return PassResult(model, bool(found))

    def ensures(self, model: ir.Model) -> None:
        """None is left that could go."""
        if left := next((node for node in model.graph if _is_idle(node)), None):
            raise PostconditionError(f"{left.name}: still there")


def _is_idle(node: ir.Node) -> bool:
    if node.op_type != "Identity" or node.inputs[0] is None:
        return False
    source = node.inputs[0]
    return not node.outputs[0].is_graph_output() or (
        source.producer() is not None and not source.is_graph_output()
    )


def _drop(node: ir.Node) -> None:
    source, output = node.inputs[0], node.outputs[0]
    assert source is not None
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    if output.is_graph_output():
        hand_over(output, source)
    else:
        output.replace_all_uses_with(source)
    graph.remove(node, safe=True)
