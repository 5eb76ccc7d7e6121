"""Whether a model's own engine answers or something cheaper, and when that ends. Pure: the time is an argument."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Reason = Literal["engine-away", "out-of-memory", "overloaded"]

LEAVE = 0.25
"""Of the wait from which on an engine counts as overloaded: below that it is no more."""

WELL_S = 1.0
"""So long an engine must have been well before it is asked again: what only just drained is soon full."""

NO_MEMORY_S = 5.0
"""So long an engine that had no memory for a request is not asked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Signs:
    """What is known of an engine: whether it is there, how long what waits for it takes, when it last had no memory."""

    there: bool = True
    wait_s: float = 0.0
    no_memory_at: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Course:
    """Why something cheaper answers, if it does, and since when there is no more reason for it."""

    reason: Reason | None = None
    well_since: float | None = None

    def after(self, signs: Signs, enter_s: float, now: float) -> Course:
        """The course by what is known now; an engine whose queue takes more than `enter_s` is overloaded."""
        trouble = _trouble(signs, enter_s, now)
        if trouble:
            return Course(reason=trouble)
        if self.reason is None:
            return self
        if signs.wait_s > LEAVE * enter_s:
            return replace(self, well_since=None)
        since = now if self.well_since is None else self.well_since
        return Course() if now - since >= WELL_S else replace(self, well_since=since)


def _trouble(signs: Signs, enter_s: float, now: float) -> Reason | None:
    if not signs.there:
        return "engine-away"
    if signs.no_memory_at is not None and now - signs.no_memory_at < NO_MEMORY_S:
        return "out-of-memory"
    return "overloaded" if signs.wait_s > enter_s else None
