"""What a batch costs: seconds of engine time for so many rows padded to one length, by what was measured.

Pure: what was measured is an argument. The estimate is a line over cells (rows x length), which is what encoders come
close to, times how far a shape that ran before was off that line.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

Shape: TypeAlias = tuple[int, int]
"""Rows, and the length they are padded to."""

KEPT = 0.98
"""Of earlier measurements' weight, with each one more: the last fifty or so decide."""
DOUBT = 100.0
"""Measurements of one shape count against so many of the line, since each is noisy by itself: with 3, batches were
padded half as much again, since whatever shape had been lucky was taken again.
"""
RECENT = 100
"""Measurements of one shape that are remembered at most: a machine that became busy is found out."""
FARTHEST = 4.0
"""A measurement that is farther off than so many times counts as if it were so far: something else had the machine."""
FIXED_CELLS = 32.0
"""Cells that take as long as a call does beside its cells, until it is known: MiniLM on OpenVINO, two AVX-512 cores."""
NEW = 0.1
"""Of what kernels for a shape take, what its first batch is charged with: the next ones have them for nothing."""
LEAST = 1e-6
"""Of a mean call's seconds, what a cell costs at least."""
SHAPES = 4_096
"""Shapes that are remembered."""


@dataclass(slots=True)
class _Seen:
    """How often a shape ran, and how far off the line it was on average."""

    count: float = 0.0
    ratio: float = 1.0


class Costs:
    """What batches cost, refined by every one that ran."""

    def __init__(self) -> None:
        # Sums of a least-squares line through (cells, seconds), each point weighted by 1/seconds squared, so that
        # errors count in proportion.
        self._weight = self._cells = self._squares = self._seconds = self._products = 0.0
        self._seen: dict[Shape, _Seen] = {}
        self._new_s = 0.0
        self.fixed_s = 0.0
        self.cell_s = 0.0

    @property
    def known(self) -> bool:
        """Whether anything was measured."""
        return self.cell_s > 0

    def ran_before(self, rows: int, length: int) -> bool:
        """Whether a batch of this shape ran: its kernels are there."""
        return (rows, length) in self._seen

    def seconds(self, rows: int, length: int) -> float:
        """What a batch takes; before anything was measured, in units of a cell."""
        line = self._line(rows, length)
        seen = self._seen.get((rows, length))
        if seen is None:
            return line + NEW * self._new_s
        return line * (DOUBT + seen.count * seen.ratio) / (DOUBT + seen.count)

    def row_seconds(self, length: float, rows: int) -> float:
        """What one row costs where it is one of so many of this length."""
        return self._line(rows, length) / rows

    def learn(self, rows: int, length: int, seconds: float, *, warm: bool = False) -> None:
        """Take note of one batch. Unless it is `warm`, the first of a shape makes its kernels, which counts apart."""
        if seconds <= 0:
            return
        if (rows, length) not in self._seen:
            if len(self._seen) >= SHAPES:
                del self._seen[next(iter(self._seen))]
            self._seen[rows, length] = _Seen()
            if self.known and not warm:
                self._first(self._line(rows, length), seconds)
                return
        line, seen = self._line(rows, length), self._seen[rows, length]
        if self.known:
            seconds = min(max(seconds, line / FARTHEST), line * FARTHEST)
            seen.ratio += (seconds / line - seen.ratio) / min(seen.count + 1, RECENT)
            seen.count = min(seen.count + 1, RECENT)
        self._fit(float(rows * length), seconds)

    def _first(self, line: float, seconds: float) -> None:
        """What kernels for another shape take, on average."""
        more = max(0.0, min(seconds, FARTHEST * line) - line)
        self._new_s += 0.2 * (more - self._new_s)

    def _line(self, rows: int, length: float) -> float:
        if not self.known:
            return FIXED_CELLS + rows * length
        return self.fixed_s + self.cell_s * rows * length

    def _fit(self, cells: float, seconds: float) -> None:
        if not self.known:
            # Two points that say what is usual, worth little as soon as there are others.
            scale = seconds / (FIXED_CELLS + cells)
            for usual in (FIXED_CELLS, 8 * FIXED_CELLS):
                self._add(usual, scale * (FIXED_CELLS + usual), 0.2)
        self._add(cells, seconds, 1.0)
        spread = self._weight * self._squares - self._cells**2
        cell = (self._weight * self._products - self._cells * self._seconds) / spread if spread > 0 else 0.0
        fixed = (self._seconds - cell * self._cells) / self._weight
        if fixed < 0:  # as fast as can be told from the cells alone
            fixed, cell = 0.0, self._products / self._squares
        # Calls that cost the same whatever is in them still cost more than nothing for each cell.
        self.fixed_s, self.cell_s = fixed, max(cell, LEAST * self._seconds / self._weight)

    def _add(self, cells: float, seconds: float, weight: float) -> None:
        weight /= seconds**2
        self._weight = KEPT * self._weight + weight
        self._cells = KEPT * self._cells + weight * cells
        self._squares = KEPT * self._squares + weight * cells**2
        self._seconds = KEPT * self._seconds + weight * seconds
        self._products = KEPT * self._products + weight * cells * seconds
