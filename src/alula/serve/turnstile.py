"""How much each caller has asked for, and whether it may ask for more. Decisions are pure: the time is an argument."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from alula.core.ending import AtEnd
from alula.core.errors import Overloaded
from alula.serve.callers import Caller

MINUTE_S = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Allowance:
    """Requests that may still be made, as it stood at a time; it grows by `per_minute`, up to that many."""

    left: float
    at: float

    @classmethod
    def full(cls, per_minute: int, now: float) -> Allowance:
        """Of somebody who has asked for nothing yet."""
        return cls(left=float(per_minute), at=now)

    def grown(self, per_minute: int, now: float) -> Allowance:
        """The same at a later time."""
        left = self.left + (now - self.at) * per_minute / MINUTE_S
        return Allowance(left=min(left, float(per_minute)), at=now)

    def taken(self) -> Allowance:
        """One request less."""
        return Allowance(left=self.left - 1, at=self.at)

    def seconds_to_one(self, per_minute: int) -> float:
        """How long until one request may be made."""
        return max(0.0, (1 - self.left) * MINUTE_S / per_minute)


class Turnstile:
    """Counts the requests of each caller, of which there are as many as there are keys."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._active: dict[str, int] = {}
        self._allowed: dict[str, Allowance] = {}

    def passed(self, caller: Caller) -> AtEnd:
        """One request of a caller, in flight from now on until the block ends; or why there may be none for now."""
        name = caller.name
        active = self._active.get(name, 0)
        if caller.at_once and active >= caller.at_once:
            raise Overloaded(
                f"{active} requests with this key are being answered, and {caller.at_once} is its limit"
            )
        if caller.per_minute:
            self._count(caller)
        self._active[name] = active + 1
        return AtEnd(lambda: self._left(name))

    def _left(self, name: str) -> None:
        self._active[name] -= 1

    def _count(self, caller: Caller) -> None:
        now, rate = self._clock(), caller.per_minute
        allowed = self._allowed.get(caller.name, Allowance.full(rate, now)).grown(rate, now)
        self._allowed[caller.name] = allowed
        if allowed.left < 1:
            raise Overloaded(
                f"{rate} requests a minute are the limit of this key", retry_s=allowed.seconds_to_one(rate)
            )
        self._allowed[caller.name] = allowed.taken()
