"""How many requests go into a batch. Pure: no clock, no queue, no engine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from alula.core.errors import InputError


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchPolicy:
    """Limits on one engine call, in rows and cells (rows x padded length), and on the queue, in rows and tokens.

    `steps` are pairs of a length and how many rows an engine takes at once up to it, where it takes fewer long rows.
    """

    max_rows: int = 32
    max_cells: int = 16_384
    max_waiting_rows: int = 1_024
    max_waiting_tokens: int = 524_288
    steps: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        for name in ("max_rows", "max_cells", "max_waiting_rows", "max_waiting_tokens"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; expected at least 1")

    def rows(self, longest: int) -> int:
        """How many rows go together whose longest has so many tokens; one goes always."""
        beside = max((rows for length, rows in self.steps if length >= longest), default=1)
        return min(self.max_rows, beside) if self.steps else self.max_rows


def take(lengths: Iterable[int], policy: BatchPolicy) -> int:
    """How many of the waiting requests, oldest first, to run together now.

    A batch is padded to its longest row, so it costs rows * longest cells.
    The first request always fits: admission has already refused what no batch could hold.
    """
    longest = 0
    count = 0
    for length in lengths:
        longest = max(longest, length)
        if count and (count >= policy.rows(longest) or (count + 1) * longest > policy.max_cells):
            break
        count += 1
    return count
