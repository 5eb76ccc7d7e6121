"""How fast a queue is emptied, and so how long what waits in it will take. Pure: what was measured is an argument."""

from __future__ import annotations

from dataclasses import dataclass

KEPT = 0.8
"""Of what was measured before, with each measurement more: the last five or so decide."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """Seconds of work, and what was finished in them; recent work counts most."""

    finished: float = 0.0
    seconds: float = 0.0

    def after(self, finished: float, seconds: float) -> Pace:
        """The pace once so much more was finished in so many seconds."""
        return Pace(finished=KEPT * self.finished + finished, seconds=KEPT * self.seconds + seconds)

    def seconds_for(self, waiting: float) -> float | None:
        """How long it takes to finish what waits; None while nothing was measured."""
        return waiting * self.seconds / self.finished if self.finished > 0 else None
