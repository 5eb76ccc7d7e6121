"""The sums between layers made smaller by a power of two, which no norm behind them sees."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult, PreconditionError

from alula.graphs.passes.edit import constant_linear, is_constant, scale_constant, weight

_NORM = "RMSNormalization"


@dataclass(frozen=True, kw_only=True, slots=True)
class Stream:
    """What runs from the embeddings through all layers: its values, what is added to it, the norms that read it."""

    start: ir.Value
    values: tuple[ir.Value, ...]
    added: tuple[ir.Value, ...]
    norms: tuple[ir.Node, ...]


class ShrinkStream(InPlacePass):
    """Multiplies the stream between layers by a power of two: embeddings, and the weights of all that is added.

    An RMS norm gives the same for a multiple of what it reads once its epsilon is multiplied by the square, and powers
    of two round nothing. So what is beyond fp16 (SmolLM2-135M has sums of more than 20,000 from layer 11 on) is within.
    """

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def requires(self, model: ir.Model) -> None:
        """There is a stream that nothing but norms reads."""
        if stream_of(model) is None:
            raise PreconditionError("no sums between layers that norms alone read")

    def call(self, model: ir.Model) -> PassResult:
        """Where it begins, what comes in, and where it is read."""
        stream = stream_of(model)
        assert stream is not None
        self._begin(model.graph, stream.start)
        for value in stream.added:
            for node, at in constant_linear(value):
                scale_constant(node, at, self.scale)
        for node in stream.norms:
            epsilon = node.attributes.get_float("epsilon", 1e-5)
            node.attributes["epsilon"] = ir.AttrFloat32("epsilon", epsilon * self.scale**2)
        return PassResult(model, modified=True)

    def _begin(self, graph: ir.Graph, start: ir.Value) -> None:
        """The table stays as it is, which may be the head's too."""
        gather = start.producer()
        assert gather is not None
        factor = weight(graph, f"{gather.name}/scale", ir.tensor(np.array(self.scale, np.float32)))
        users = list(start.uses())
        made = ir.node("Mul", [start, factor])
        made.name = f"{gather.name}/shrunk"
        made.outputs[0].name = made.name
        graph.insert_after(gather, made)
        made.outputs[0].type, made.outputs[0].shape = start.type, start.shape
        for use in users:
            use.node.replace_input_with(use.idx, made.outputs[0])


def stream_of(model: ir.Model) -> Stream | None:
    """The sums that begin at the embeddings; None where anything but sums, norms and selections reads them."""
    ids = next((value for value in model.graph.inputs if value.name == "input_ids"), None)
    starts = [node for node in model.graph if node.op_type == "Gather" and _embeds(node, ids)]
    if len(starts) != 1:
        return None
    start = starts[0].outputs[0]
    values, added, norms = [start], [], []
    for value in values:  # which grow meanwhile
        if value.is_graph_output():
            return None
        for use in value.uses():
            node = use.node
            if node.op_type == _NORM and use.idx == 0:
                norms.append(node)
            elif node.op_type == "Gather" and use.idx == 0:
                values.append(node.outputs[0])
            elif node.op_type == "Add" and (other := node.inputs[1 - use.idx]) and constant_linear(other):
                added.append(other)
                values.append(node.outputs[0])
            else:
                return None
    return Stream(start=start, values=tuple(values), added=tuple(added), norms=tuple(norms))


def _embeds(node: ir.Node, ids: ir.Value | None) -> bool:
    """Whether this looks tokens up in a table."""
    return ids is not None and node.inputs[1] is ids and is_constant(node.inputs[0])
