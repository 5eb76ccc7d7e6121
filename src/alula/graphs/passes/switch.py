"""Every layer twice, as it was and in int8, behind a switch: one graph to measure what each layer costs."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult, PostconditionError

from alula.graphs.passes.edit import Editor
from alula.graphs.passes.quantize import DEFAULT, Quantize, Scheme, Span, activations, linears, quantized

SWITCHES = "quantised"
"""The input that says which layers compute in int8, in their order."""


class Switch(InPlacePass):
    """Adds the input `quantised`; a layer whose flag is set computes what `Quantize` makes of it, others in fp32.

    `If` runs one of its branches alone, so that no run pays for both.
    """

    def __init__(self, spans: Mapping[str, Span], scheme: Scheme = DEFAULT) -> None:
        super().__init__()
        self.spans, self.scheme = spans, scheme

    def requires(self, model: ir.Model) -> None:
        """What `Quantize` asks for when it keeps nothing."""
        Quantize(self.spans, scheme=self.scheme).requires(model)

    def call(self, model: ir.Model) -> PassResult:
        """Put each layer into both branches of its own `If`."""
        nodes = linears(model)
        names = {value: name for name, value in activations(model).items()}
        flags = ir.Value(name=SWITCHES, shape=ir.Shape([len(nodes)]), type=ir.TensorType(ir.DataType.BOOL))
        model.graph.inputs.append(flags)
        for index, node in enumerate(nodes):
            value = node.inputs[0]
            assert value is not None
            _switch(node, flags, index, self.spans[names[value]], self.scheme)
        return PassResult(model, True)

    def ensures(self, model: ir.Model) -> None:
        """No layer is left outside a branch."""
        if left := linears(model):
            raise PostconditionError(f"{left[0].name}: has no switch")


def _switch(node: ir.Node, flags: ir.Value, index: int, span: Span, scheme: Scheme) -> None:
    edit = Editor(node)
    place = edit.number(index, ir.DataType.INT64)
    flag = edit.op("Gather", flags, place, dtype=ir.DataType.BOOL, axis=0)
    flag.shape = ir.Shape([])
    before = set(edit.graph)
    rounded = _copy(node, "int8")
    quantized(rounded, span, scheme)
    then_branch = _branch(edit.graph, [each for each in edit.graph if each not in before], rounded)
    plain = _copy(node, "fp32")
    else_branch = _branch(edit.graph, [plain], plain)
    made = ir.node("If", [flag], {"then_branch": then_branch, "else_branch": else_branch})
    made.name = made.outputs[0].name = f"{node.name}/switch"
    edit.graph.insert_before(node, made)
    edit.replace(made.outputs[0])


def _copy(node: ir.Node, what: str) -> ir.Node:
    """The same operation on the same inputs, in front of the node."""
    made = ir.node(node.op_type, node.inputs, node.attributes, name=f"{node.name}/{what}")
    old, new = node.outputs[0], made.outputs[0]
    new.name, new.shape, new.type = f"{made.name}/output", old.shape, ir.TensorType(ir.DataType.FLOAT)
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    graph.insert_before(node, made)
    return made


def _branch(graph: ir.Graph, nodes: list[ir.Node], last: ir.Node) -> ir.Graph:
    """These nodes moved out of the graph, whose constants they go on to read."""
    graph.remove(nodes)
    return ir.Graph([], last.outputs, nodes=nodes, name=str(last.name))
