"""Several texts in one row of a graph: how it takes their tokens from a padded batch, and gives the states back."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from alula.families.builder import Builder

_PATH = "packing"
_NOBODY = 2
"""Subtracted from a key that is masked: lower than any text's number, and than the -1 of no text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Packing:
    """The inputs of a packed graph (`core/packing.py`), and the length of the padded batch, a vector of one."""

    cells: ir.Value
    texts: ir.Value
    token_cells: ir.Value
    length: ir.Value

    def take(self, b: Builder, padded: ir.Value) -> ir.Value:
        """What each cell's token has in [batch, length], as [rows, width]."""
        return b.op("Gather", b.op("Reshape", padded, b.ints(-1), path=_PATH), self.cells, path=_PATH)

    def places(self, b: Builder) -> ir.Value:
        """Where each cell's token stands in its text, from 0."""
        return b.op("Mod", self.cells, self.length, path=_PATH)

    def same_text(self, b: Builder, mask: ir.Value) -> ir.Value:
        """1 where the token of a query may see that of a key, else 0, [rows, 1, width, width]; `mask` is padded."""
        raised = b.op("Add", self.texts, b.ints(_NOBODY), path=_PATH)
        keys = b.op("Sub", b.op("Mul", raised, self.take(b, mask), path=_PATH), b.ints(_NOBODY), path=_PATH)
        query = b.op("Unsqueeze", self.texts, b.ints(1, 3), path=_PATH)
        same = b.op("Equal", query, b.op("Unsqueeze", keys, b.ints(1, 2), path=_PATH), path=_PATH)
        return b.op("Cast", same, path=_PATH, to=int(ir.DataType.FLOAT))

    def give_back(self, b: Builder, states: ir.Value, hidden: int) -> ir.Value:
        """States [rows, width, hidden] as [batch, length, hidden]; where there is no token, the first one's."""
        flat = b.op("Reshape", states, b.ints(-1, hidden), path=_PATH)
        return b.op("Gather", flat, self.token_cells, path=_PATH)
