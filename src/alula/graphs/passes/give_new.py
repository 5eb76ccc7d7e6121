"""A cache that stays where it is: a step takes it as it lies, and gives what it adds."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult, PostconditionError

from alula.graphs.passes.caches import PLACES, joined_again, joins, reads_source
from alula.graphs.passes.edit import Editor

_LENGTH = "length"


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
            joined_again(edit, given)
            given.shape = ir.Shape([_LENGTH if at == PLACES else size for at, size in enumerate(past.shape)])
            edit.replace(edit.op("Identity", node.inputs[1]))
        return PassResult(model, bool(joined))

    def ensures(self, model: ir.Model) -> None:
        """None gives its past back."""
        if not reads_source(model) and (left := joins(model)):
            raise PostconditionError(f"{left[0].outputs[0].name}: still has the past in it")
