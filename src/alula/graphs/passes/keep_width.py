"""A cache that goes out as wide as it came in, its oldest places given up for the new ones."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult, PostconditionError

from alula.graphs.passes.caches import PLACES, joined_again, joins
from alula.graphs.passes.edit import LAST, Editor

_IDS = "input_ids"


class KeepWidth(InPlacePass):
    """Lets every `present` be the last places of past and new tokens, as many as `past` has.

    A step then has the same sizes as the one before, so that a captured graph is replayed and what one step gives lies
    ready for the next. Rows are padded on the left; whoever calls keeps that padding as wide as what is yet to come.
    """

    def call(self, model: ir.Model) -> PassResult:
        """Cut them one by one; what attends still sees all places."""
        grown = joins(model)
        for node in grown:
            past, given = node.inputs[0], node.outputs[0]
            assert past is not None
            edit = Editor(node)
            whole = joined_again(edit, given)
            kept = edit.op("Slice", whole, _new(edit, model), edit.ints(LAST), edit.ints(PLACES))
            given.shape = past.shape
            edit.replace(kept)
        return PassResult(model, bool(grown))

    def ensures(self, model: ir.Model) -> None:
        """All are as wide as what came in."""
        if left := joins(model):
            raise PostconditionError(f"{left[0].outputs[0].name}: still grows")


def _new(edit: Editor, model: ir.Model) -> ir.Value:
    """How many tokens are new, [1]."""
    ids = next(value for value in model.graph.inputs if value.name == _IDS)
    sizes = edit.op("Shape", ids, dtype=ir.DataType.INT64)
    return edit.op("Gather", sizes, edit.ints(1))
