"""Several texts in one row: which text goes where, and what a graph that takes its rows so has to be told.

Pure. A batch comes padded to its longest text. Its tokens are laid out anew in rows of one width with next to nothing
between them, and what reads them is told whose they are. First fit in the order of falling sizes is within 11/9 of the
fewest rows: D. S. Johnson, "Near-optimal bin packing algorithms", MIT (1973).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from alula.core.tensor import TensorSpec

CELLS, CELL_TEXTS, TOKEN_CELLS = "cells", "cell_texts", "token_cells"
"""What a packed graph takes beside the padded batch [batch, length]: of each cell [rows, width] the token, counted
through that batch, and the text, -1 where there is none; and of each token the cell, counted through all rows, where
there is no token that of the text's first one.
"""
ROWS, WIDTH = "packed_rows", "packed_width"
"""Its axes that the padded batch has not."""

BESIDE: tuple[TensorSpec, ...] = (
    TensorSpec(name=CELLS, dtype="int64", shape=(ROWS, WIDTH)),
    TensorSpec(name=CELL_TEXTS, dtype="int64", shape=(ROWS, WIDTH)),
    TensorSpec(name=TOKEN_CELLS, dtype="int64", shape=("batch", "length")),
)

STEP = 4
"""Widths are multiples of this, of twice that in wide rows: OpenVINO keeps kernels for each that it has met."""
NARROW = 64
"""Rows are at least about so wide: attention takes longer in wider ones, but narrow ones are hard to fill."""
WIDTHS = (NARROW, 96, 128, 192, 256)
"""About so wide rows are tried."""
TWICE = 1200.0
"""A cell of so wide a row takes twice as long as in a row without width: MiniLM in bf16 on one core of a Zen 5, 512
cells in ms by width: 32 32.1, 64 32.8, 128 34.3, 256 37.6, 512 43.7.
"""
TRIES = 4
"""So many widths are tried for each number of rows."""


def is_packed(inputs: Iterable[TensorSpec]) -> bool:
    """Whether a graph of these inputs takes several texts in a row."""
    return any(spec.name == CELLS for spec in inputs)


def without_packing(inputs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """What whoever asks such a graph has to give: the padded batch alone."""
    beside = {spec.name for spec in BESIDE}
    return tuple(spec for spec in inputs if spec.name not in beside)


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """The places of the texts in each row, from left to right, and how wide all rows are."""

    rows: Sequence[Sequence[int]]
    width: int

    @property
    def cost(self) -> float:
        """What it takes, in cells of a row without width."""
        return cost(len(self.rows) * self.width, self.width)


def cost(cells: float, width: float) -> float:
    """What so many cells take in rows of this width, in cells of a row without width."""
    return cells * (1 + width / TWICE)


def lay_out(lengths: Sequence[int]) -> Layout:
    """The best of a few layouts of texts with so many tokens each; a text stays whole.

    No row is wider than `widest` of the longest text.
    """
    order = sorted(range(len(lengths)), key=lambda at: -lengths[at])
    total, longest = sum(lengths), lengths[order[0]]
    narrow = _stepped(max(longest, NARROW))
    found = [Layout(rows=_first_fit(order, lengths, narrow), width=narrow)]
    for rows in {max(1, round(total / width)) for width in WIDTHS}:
        width = _stepped(max(longest, -(-total // rows)))
        for _ in range(TRIES):
            if width > widest(longest):
                break
            filled = _first_fit(order, lengths, width)
            if len(filled) <= rows:
                found.append(Layout(rows=filled, width=width))
                break
            width = _stepped(width + 1)
    return min(found, key=lambda layout: layout.cost)


def widest(longest: int) -> int:
    """How wide rows are at most where the longest text has so many tokens."""
    return _stepped(max(longest, WIDTHS[-1]))


def _stepped(width: int) -> int:
    step = STEP if width <= WIDTHS[2] else 2 * STEP
    return -(-width // step) * step


def _first_fit(order: Sequence[int], lengths: Sequence[int], width: int) -> list[list[int]]:
    rows: list[list[int]] = []
    room: list[int] = []
    for at in order:
        length = lengths[at]
        row = next((row for row, left in enumerate(room) if left >= length), len(room))
        if row == len(room):
            rows.append([])
            room.append(width)
        rows[row].append(at)
        room[row] -= length
    return rows


def beside(mask: NDArray[np.generic]) -> Mapping[str, NDArray[np.int64]]:
    """The inputs beside a padded batch [batch, length] with this mask; a text ends at the last token that is kept."""
    batch, length = mask.shape
    # What is not kept at the end is left out; between others it stays, and the mask hides it.
    kept = np.where(mask.any(axis=1), length - np.argmax(mask[:, ::-1] != 0, axis=1), 1)
    lengths: list[int] = kept.tolist()
    layout = lay_out(lengths)
    cells = np.zeros((len(layout.rows), layout.width), np.int64)
    texts = np.full_like(cells, -1)
    token_cells = np.empty((batch, length), np.int64)
    for row, members in enumerate(layout.rows):
        begin = 0
        for text in members:
            end, first = begin + lengths[text], row * layout.width + begin
            cells[row, begin:end] = np.arange(text * length, text * length + lengths[text])
            texts[row, begin:end] = text
            token_cells[text] = first  # where there is no token, never that of another's text
            token_cells[text, : lengths[text]] = np.arange(first, first + lengths[text])
            begin = end
    return {CELLS: cells, CELL_TEXTS: texts, TOKEN_CELLS: token_cells}
