"""What the engine process says of one batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from alula.batching import Answered
from alula.core.tensor import Feeds

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Outputs of a batch, how many seconds the engine worked on them, and whether it replayed a recorded graph.

    What the engine does not say is None.
    """

    outputs: Feeds
    seconds: float | None = None
    replayed: bool | None = None

    def answered(self, results: Sequence[T]) -> Answered[T]:
        """The same of the rows that were made of the outputs."""
        return Answered(results=results, seconds=self.seconds, replayed=self.replayed)


def answered(results: Sequence[T], ran: Sequence[Outcome]) -> Answered[T]:
    """Rows that took several calls of the engine."""
    told = [each.seconds for each in ran if each.seconds is not None]
    replays = [each.replayed for each in ran if each.replayed is not None]
    return Answered(
        results=results,
        seconds=sum(told) if told else None,
        replayed=all(replays) if replays else None,
    )
