"""Who waits in front of one engine: requests cut into what runs together, in their order, and how much that is."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf
from typing import Generic, TypeAlias, TypeVar

from alula.batching.arrangement import arranged
from alula.batching.costs import Costs
from alula.batching.limits import BatchPolicy, Unit
from alula.batching.policy import at_once, next_turn, packs
from alula.core.ending import AtEnd

In = TypeVar("In")
Out = TypeVar("Out")

Told: TypeAlias = Callable[[float, float, float], None]
"""Of a row that has run, or failed to: since when it waited, when its batch began, and when it ended."""


@dataclass(eq=False, kw_only=True, slots=True)
class Asked(Generic[In, Out]):
    """The rows of one caller: their results as they come, and who waits for all of them.

    They stand in the queue as though they had come `later_s` later. Of what runs together of them, so many have their
    turn, and so many have none yet.
    """

    rows: Sequence[In]
    lengths: Sequence[int]
    since: float
    reply: asyncio.Future[None]
    results: dict[int, Out]
    told: Told
    later_s: float = 0.0
    in_turn: int = 0
    later: int = 0

    def fail(self, error: Exception) -> None:
        """Hand the error over; rows that have not run are worthless now and need not."""
        if not self.reply.done():
            self.reply.set_exception(_own(error))

    def take(self, at: int, result: Out) -> None:
        """One row is answered."""
        self.results[at] = result
        if len(self.results) == len(self.rows) and not self.reply.done():
            self.reply.set_result(None)


@dataclass(frozen=True, eq=False, slots=True)
class Waiting(Generic[In, Out]):
    """Some rows of a request that run together."""

    request: Asked[In, Out]
    rows: Sequence[int]
    unit: Unit

    @property
    def lengths(self) -> list[int]:
        """Of its rows, before they are padded."""
        return [self.request.lengths[at] for at in self.rows]


class Queue(Generic[In, Out]):
    """Those who wait, by their places. `rows` and `tokens` are what they have, and what is kept for those who come."""

    def __init__(self, policy: BatchPolicy, costs: Costs) -> None:
        self._policy = policy
        self._costs = costs
        self._rows = arranged(policy, costs)
        self.waiting: list[Waiting[In, Out]] = []
        self.rows = self.tokens = 0
        self.expected_rows = self.expected_tokens = 0

    def expecting(self, rows: int, tokens: int) -> AtEnd:
        """Keep a place for so many from now on until the block ends."""
        self._expect(rows, tokens)
        return AtEnd(lambda: self._expect(-rows, -tokens))

    def _expect(self, rows: int, tokens: int) -> None:
        self.expected_rows += rows
        self.expected_tokens += tokens

    def has_room(self, rows: int, tokens: int, share: float) -> bool:
        """Whether so many may wait, too, in so much of the queue; where nobody waits there always is."""
        there = self.rows + self.expected_rows
        if not there:
            return True
        tokens += self.tokens + self.expected_tokens
        rows_fit = there + rows <= ceil(self._policy.max_waiting_rows * share)
        return rows_fit and tokens <= self._policy.max_waiting_tokens * share

    def add(self, request: Asked[In, Out], place: float, deadline: float) -> None:
        """Have the rows of a request wait, as what of them runs together."""
        cut = [
            self._cut(request, rows, place, deadline)
            for rows in packs(request.lengths, self._policy, self._costs)
        ]
        free = len(cut)
        if free > 1 and self._costs.known:  # before anything was measured, work is not in seconds
            free = at_once([each.unit.worth for each in cut])
        later = [replace(each, unit=replace(each.unit, turn=inf)) for each in cut[free:]]
        at = self.behind(place)
        self.waiting[at:at] = [*cut[:free], *later]
        request.in_turn, request.later = free, len(later)
        self.rows += len(request.lengths)
        self.tokens += sum(request.lengths)

    def _cut(
        self, request: Asked[In, Out], rows: Sequence[int], place: float, deadline: float
    ) -> Waiting[In, Out]:
        padded = [self._policy.padded(request.lengths[row]) for row in rows]
        unit = Unit(
            rows=len(rows),
            longest=max(padded),
            worth=sum(self._rows.row_s(length) for length in padded),
            place=place,
            deadline=deadline,
            tokens=sum(padded),
        )
        return Waiting(request, rows, unit)

    def behind(self, place: float) -> int:
        """Where a request of this place stands: behind all that go before it."""
        if not self.waiting or self.waiting[-1].unit.place <= place:
            return len(self.waiting)
        return bisect_right(self.waiting, place, key=lambda waiting: waiting.unit.place)

    def ahead(self, place: float) -> Sequence[Waiting[In, Out]]:
        """Those that go before a request of this place."""
        return [waiting for waiting in self.waiting[: self.behind(place)] if waiting.unit.turn < inf]

    def send(self, places: Sequence[int], start: float, lanes: int) -> list[Waiting[In, Out]]:
        """Those at these places wait no more, and begin then; what is next of a long list has its turn for it."""
        batch = [self.waiting[at] for at in places]
        self.leave(set(batch))
        for request in {each.request for each in batch if each.request.later}:
            sent = [each.unit for each in batch if each.request is request]
            begun = sum(unit.turn < inf for unit in sent)
            request.in_turn -= begun
            request.later -= len(sent) - begun
            if not request.in_turn and request.later:
                self._give_turn(request, next_turn(start, sum(unit.worth for unit in sent), lanes))
        return batch

    def _give_turn(self, request: Asked[In, Out], turn: float) -> None:
        at = next(at for at, each in enumerate(self.waiting) if each.request is request)
        waiting = self.waiting.pop(at)
        unit = replace(waiting.unit, turn=turn, place=max(waiting.unit.place, turn + request.later_s))
        self.waiting.insert(self.behind(unit.place), replace(waiting, unit=unit))
        request.in_turn, request.later = 1, request.later - 1

    def drop_answered(self) -> None:
        """Let go of rows whose request nobody waits for any more, or that has failed."""
        self.leave({waiting for waiting in self.waiting if waiting.request.reply.done()})

    def leave(self, gone: set[Waiting[In, Out]]) -> None:
        """These wait no more."""
        if gone:
            self.waiting = [waiting for waiting in self.waiting if waiting not in gone]
            self.rows -= sum(len(waiting.rows) for waiting in gone)
            self.tokens -= sum(sum(waiting.lengths) for waiting in gone)


def _own(error: Exception) -> Exception:
    """An equal error for one waiter: a raised exception collects the traceback of whoever awaits it."""
    own = type(error).__new__(type(error), *error.args)
    own.__dict__.update(vars(error))
    own.__cause__ = error
    return own
