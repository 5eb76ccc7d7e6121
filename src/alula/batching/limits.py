"""What an engine call and the queue hold, and what waits to go into one."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from math import inf

from alula.core.errors import InputError


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchPolicy:
    """Limits on one engine call, in rows, cells (rows x padded length) and bytes, and on the queue, in rows and tokens.

    A row has `row_bytes` of its own and `cell_bytes` for each cell; one goes however many it has.
    `steps` are pairs of a length and how many rows an engine takes at once up to it, where it takes fewer long rows.
    `lengths` are those that rows are padded to, ascending; a length beyond the last one is its own. Unless rows may
    be `mixed`, only those of one padded length go together. `packed`, the engine lays texts out in rows by itself.
    """

    max_rows: int = 32
    max_cells: int = 16_384
    max_bytes: int = 268_435_456
    row_bytes: int = 0
    cell_bytes: int = 0
    max_waiting_rows: int = 1_024
    max_waiting_tokens: int = 524_288
    steps: tuple[tuple[int, int], ...] = ()
    lengths: tuple[int, ...] = ()
    mixed: bool = True
    packed: bool = False

    def __post_init__(self) -> None:
        for name in ("max_rows", "max_cells", "max_bytes", "max_waiting_rows", "max_waiting_tokens"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; expected at least 1")

    def rows(self, longest: int) -> int:
        """How many rows go together whose longest has so many tokens; one goes always."""
        beside = max((rows for length, rows in self.steps if length >= longest), default=1)
        most = min(self.max_rows, beside) if self.steps else self.max_rows
        size = max(1, self.row_bytes + self.cell_bytes * longest)
        return max(1, min(most, self.max_cells // max(longest, 1), self.max_bytes // size))

    def padded(self, length: int) -> int:
        """The length that a row of so many tokens is padded to at least."""
        at = bisect_left(self.lengths, length)
        return self.lengths[at] if at < len(self.lengths) else length


@dataclass(frozen=True, kw_only=True, slots=True)
class Unit:
    """What runs together: a row, or several rows of one request.

    `longest` is padded, `worth` the seconds its rows cost in good company; `place` orders those who wait, `deadline` is
    when nobody waits for it any more. Until `turn` others go first: it is one of many of its request. `tokens` are
    those of all its rows.
    """

    rows: int
    longest: int
    worth: float
    place: float
    deadline: float = inf
    turn: float = -inf
    tokens: int = 0
