"""On what terms a request is answered: in whose name, and how urgently. Set at the edge, read where it queues."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Literal, get_args

from alula.core.errors import InputError
from alula.serve.errors import Refused

Priority = Literal["high", "normal", "low"]
PRIORITIES: tuple[Priority, ...] = get_args(Priority)
"""The most urgent one first."""

HEADER = "x-priority"
"""The header, or key of metadata, that names one."""

FIELD = "priority"
"""The field of a JSON body that does."""

LATER_S: dict[Priority, float] = {"high": -5.0, "normal": 0.0, "low": 5.0}
"""A request queues as though it had come so many seconds later. So nobody is passed for longer than ten seconds,
however many urgent requests come, and a queue of a few seconds is left by the most urgent ones first."""

SHARE: dict[Priority, float] = {"high": 1.0, "normal": 0.9, "low": 0.5}
"""Of a queue that it may fill: the rest is kept for those who are more urgent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """In whose name a request came, what it asked to be, and `highest`, as urgent as it may be.

    An `admin` may change what is served.
    """

    caller: str = ""
    asked: Priority | None = None
    highest: Priority = "high"
    admin: bool = False

    @property
    def priority(self) -> Priority:
        """How urgent it is: as it asked, or as is usual."""
        return self.asked or _lower("normal", self.highest)

    @property
    def later_s(self) -> float:
        """By how many seconds its place in a queue is moved."""
        return LATER_S[self.priority]

    @property
    def share(self) -> float:
        """How much of a queue it may fill."""
        return SHARE[self.priority]

    def asking(self, priority: Priority | None) -> Terms:
        """The same, as urgent as is asked for; of two that are asked for the lower one holds."""
        if priority is None:
            return self
        if _lower(priority, self.highest) != priority:
            raise Refused(
                f"this key may not ask for priority {priority!r}; its highest is {self.highest!r}",
                status=403,
                code="priority_not_allowed",
            )
        return replace(self, asked=_lower(priority, self.asked or priority))


def _lower(one: Priority, other: Priority) -> Priority:
    return max(one, other, key=PRIORITIES.index)


USUAL = Terms()
_TERMS: ContextVar[Terms] = ContextVar("terms", default=USUAL)


def current() -> Terms:
    """Those of the request that is being answered."""
    return _TERMS.get()


def set_current(terms: Terms) -> None:
    """These hold from now on in the task that answers the request, and in those it begins."""
    _TERMS.set(terms)


def ask(priority: Priority | None) -> None:
    """Take what a body says of its priority, if it says anything."""
    set_current(current().asking(priority))


def from_field(value: object) -> Priority | None:
    """What the field of a JSON body says."""
    return None if value is None else named(value, FIELD)


def named(value: object, where: str) -> Priority:
    """A priority by its name."""
    for known in PRIORITIES:
        if value == known:
            return known
    raise InputError(f"{where} is {str(value)[:20]!r}, expected one of: {', '.join(PRIORITIES)}")


def numbered(value: int | None) -> Priority | None:
    """A priority as Triton counts them, where 1 is the highest, and 0 leaves it to the server."""
    if not value:
        return None
    if not 1 <= value <= len(PRIORITIES):
        raise InputError(f"priority is {value}, expected 1 (high) to {len(PRIORITIES)} (low)")
    return PRIORITIES[value - 1]
