"""A cache that goes out as wide as it came in, its oldest places given up for the new ones."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult, PostconditionError

from alula.graphs.passes.caches import is_cache
from alula.graphs.passes.edit import Editor

_IDS = "input_ids"
_PLACES = 2
_LAST = (1 << 63) - 1


class KeepWidth(InPlacePass):
    """Lets every `present` be the last places of past and new tokens, as many as `past` has.

    A step then has the same sizes as the one before, so that a captured graph is replayed and what one step gives lies
    ready for the next. Rows are padded on the left; whoever calls keeps that padding as wide as what is yet to come.
    """

    def call(self, model: ir.Model) -> PassResult:
        """Cut them one by one; what attends still sees all places."""
        grown = _grown(model)
        for node in grown:
            past, given = node.inputs[0], node.outputs[0]
            assert past is not None
            edit = Editor(node)
            whole = edit.op("Concat", *node.inputs, axis=_PLACES)
            whole.shape = given.shape
            kept = edit.op("Slice", whole, _new(edit, model), edit.ints(_LAST), edit.ints(_PLACES))
            users = [use for use in given.uses() if use.node is not node]
            for use in users:
                use.node.replace_input_with(use.idx, whole)
            given.shape = past.shape
            edit.replace(kept)
        return PassResult(model, bool(grown))

    def ensures(self, model: ir.Model) -> None:
        """All are as wide as what came in."""
        if left := _grown(model):
            raise PostconditionError(f"{left[0].outputs[0].name}: still grows")


def _grown(model: ir.Model) -> list[ir.Node]:
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


def _new(edit: Editor, model: ir.Model) -> ir.Value:
    """How many tokens are new, [1]."""
    ids = next(value for value in model.graph.inputs if value.name == _IDS)
    sizes = edit.op("Shape", ids, dtype=ir.DataType.INT64)
    return edit.op("Gather", sizes, edit.ints(1))
