"""A cache that stays where it is: a step takes it as it lies, and gives what it adds."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult, PostconditionError

from alula.graphs.passes.caches import is_cache
from alula.graphs.passes.edit import Editor

PLACES = 2
"""The axis of a cache [batch, heads, places, features] along which tokens lie."""
_LENGTH, _CROSS = "length", "cross."


class GiveNew(InPlacePass):
    """Lets every `present` be the keys or values of the new tokens alone; who runs the graph puts them into the past.

    A step then has the same sizes as the one before, so that a captured graph is replayed, and nothing of the past is
    copied. Where the past's places lie does not matter to attention, so whoever keeps them may begin again at the
    first when the last is full; a decoder that reads a source may count distances along the row, so it stays as it is.
    """

    def call(self, model: ir.Model) -> PassResult:
        """Rewrite them one by one; what attends still sees all places."""
        joined = joins(model) if not reads_source(model) else []
        for node in joined:
            past, given = node.inputs[0], node.outputs[0]
            assert past is not None
            assert past.shape is not None
            edit = Editor(node)
            apart(edit, given)
            given.shape = ir.Shape([_LENGTH if at == PLACES else size for at, size in enumerate(past.shape)])
            edit.replace(edit.op("Identity", node.inputs[1]))
        return PassResult(model, bool(joined))

    def ensures(self, model: ir.Model) -> None:
        """None gives its past back."""
        if not reads_source(model) and (left := joins(model)):
            raise PostconditionError(f"{left[0].outputs[0].name}: still has the past in it")


def reads_source(model: ir.Model) -> bool:
    """Whether a decoder looks at what an encoder read."""
    return any(str(value.name).startswith(_CROSS) for value in model.graph.inputs)


def joins(model: ir.Model) -> list[ir.Node]:
    """What puts new places behind those of a past, and gives both."""
    return [
        node
        for node in model.graph.all_nodes()
        if node.op_type == "Concat"
        and node.outputs[0].is_graph_output()
        and is_cache(node.outputs[0])
        and node.inputs[0] is not None
        and is_cache(node.inputs[0])
    ]


def apart(edit: Editor, given: ir.Value) -> ir.Value:
    """Past and new tokens joined once more, for all that use them inside the graph, so that `given` may change."""
    node = edit.node
    whole = edit.op("Concat", *node.inputs, axis=PLACES)
    whole.shape = given.shape
    for use in [use for use in given.uses() if use.node is not node]:
        use.node.replace_input_with(use.idx, whole)
    return whole
