"""Every layer twice, as it was and in int8, behind a switch: one graph to measure what each layer costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult, PostconditionError

from alula.graphs.passes.edit import Editor, constant
from alula.graphs.passes.layers import activations, exchanged, layers_of, outsiders, read_by
from alula.graphs.passes.quantize import DEFAULT, Quantize, Scheme, Span, quantize_weight, rounding

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
        layers = layers_of(model)
        flags = ir.Value(name=SWITCHES, shape=ir.Shape([len(layers)]), type=ir.TensorType(ir.DataType.BOOL))
        names = {value: name for name, value in activations(model).items()}
        read = [names[read_by(node)] for node in layers]
        others = {
            value: (layers.index(node), outsiders(value, set(layers)))
            for value, node in exchanged(model, self.scheme.exchange).items()
        }
        order = {node: at for at, node in enumerate(model.graph)}
        model.graph.inputs.append(flags)
        switches = [_flag(model.graph, flags, index) for index in range(len(layers))]
        for value, (index, uses) in others.items():
            first = min(uses, key=lambda use: order[use[0]])[0]
            self._exchange(first, value, names[value], switches[index], uses)
        for node, name, flag in zip(layers, read, switches, strict=True):
            self._switch(node, name, flag)
        return PassResult(model, True)

    def ensures(self, model: ir.Model) -> None:
        """No layer is left outside a branch."""
        if left := layers_of(model):
            raise PostconditionError(f"{left[0].name}: has no switch")

    def _exchange(
        self,
        first: ir.Node,
        value: ir.Value,
        name: str,
        flag: ir.Value,
        uses: Sequence[tuple[ir.Node, int]],
    ) -> None:
        """Let others than layers read the value rounded if the flag is set."""
        restored = rounding(first, value, f"{name}/others", self.spans[name], self.scheme)
        chosen = Editor(first).op("Where", flag, restored, value, dtype=ir.DataType.FLOAT)
        chosen.name = chosen.producer().name = f"{name}/others"  # type: ignore[union-attr]
        chosen.shape = value.shape
        for user, index in uses:
            user.replace_input_with(index, chosen)

    def _switch(self, node: ir.Node, name: str, flag: ir.Value) -> None:
        """Put a layer into both branches."""
        edit = Editor(node)
        before = set(edit.graph)
        small = _copy(node, "int8")
        restored = rounding(small, read_by(node), f"{node.name}/int8/input", self.spans[name], self.scheme)
        small.replace_input_with(0, restored)
        quantize_weight(small, self.scheme)
        then_branch = _branch(edit.graph, [each for each in edit.graph if each not in before], small)
        plain = _copy(node, "fp32")
        else_branch = _branch(edit.graph, [plain], plain)
        made = ir.node("If", [flag], {"then_branch": then_branch, "else_branch": else_branch})
        made.name = made.outputs[0].name = f"{node.name}/switch"
        edit.graph.insert_before(node, made)
        edit.replace(made.outputs[0])


def _flag(graph: ir.Graph, flags: ir.Value, index: int) -> ir.Value:
    """One of the flags, at the very start of the graph."""
    place = constant(graph, f"int64_{index}", np.array(index, np.int64))
    made = ir.node("Gather", [flags, place], {"axis": 0}, name=f"{SWITCHES}/{index}")
    flag = made.outputs[0]
    flag.name, flag.shape, flag.type = made.name, ir.Shape([]), ir.TensorType(ir.DataType.BOOL)
    graph.insert_before(graph[0], made)
    return flag


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
