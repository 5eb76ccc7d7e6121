"""How long a request may take, and what becomes of it when that is over. The time is an argument."""

from __future__ import annotations

import re
from contextvars import ContextVar
from dataclasses import dataclass
from math import inf
from sys import float_info

from alula.core.errors import InputError
from alula.serve.errors import Refused

HEADER = "x-request-timeout-ms"
"""The header in which a client says how many milliseconds it waits."""

FIELD = "timeout"
"""The field of a JSON body that says so in seconds."""

SHORTEST_S, LONGEST_S = 0.001, 3_600.0

_MILLISECONDS = re.compile(r"[0-9]{1,10}(\.[0-9]{1,6})?", re.ASCII)


@dataclass(frozen=True, kw_only=True, slots=True)
class Deadline:
    """Until when, in seconds of the monotonic clock, and how long that was when the request was let in."""

    at: float
    within_s: float

    @classmethod
    def after(cls, within_s: float, now: float) -> Deadline:
        """So long from now on."""
        return cls(at=now + within_s, within_s=within_s)

    def left(self, now: float) -> float:
        """Seconds that are left; none once it has passed."""
        return max(0.0, self.at - now)

    def missed(self, done: int = 0, rows: int = 0) -> Refused:
        """What a request is told that was not answered by then; of a list, how much of it was done."""
        so_far = f"; {done} of {rows} rows were done" if rows > 1 else ""
        return Refused(f"no answer within {self.within_s:g} s{so_far}", status=504, code="timeout")


_CURRENT: ContextVar[float] = ContextVar("until", default=inf)


def until() -> float:
    """When nobody waits any more for the request that is being answered, in seconds of the monotonic clock."""
    return _CURRENT.get()


def set_until(deadline: Deadline | None) -> None:
    """It holds from now on in the task that answers the request, and in those it begins."""
    _CURRENT.set(deadline.at if deadline else inf)


def allowed(*asked: float | None, default: float) -> float:
    """The shortest of the times that were asked for, in seconds; the default where none was."""
    return min((each for each in asked if each is not None), default=default)


def from_header(text: str | None) -> float | None:
    """Seconds from the header's milliseconds."""
    if text is None:
        return None
    if not _MILLISECONDS.fullmatch(text.strip()):
        raise InputError(f"{HEADER} is {text[:20]!r}, expected milliseconds")
    return within(float(text) / 1_000, HEADER)


def from_field(value: object) -> float | None:
    """Seconds from the field of a body."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{FIELD} is no number, expected seconds")
    # A whole number may have more digits than any float.
    return within(max(-float_info.max, min(value, float_info.max)), FIELD)


def within(seconds: float, name: str) -> float:
    """Seconds, unless nobody can wait so long, or nobody answer so soon."""
    if not SHORTEST_S <= seconds <= LONGEST_S:
        raise InputError(f"{name} is {float(seconds):g} s; expected {SHORTEST_S:g} to {LONGEST_S:g}")
    return float(seconds)
