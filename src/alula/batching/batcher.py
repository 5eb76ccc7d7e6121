"""The queue in front of one engine, and the loop that empties it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import inf
from time import monotonic
from typing import Generic, TypeVar

from alula.batching.arrangement import Formed, arranged
from alula.batching.costs import Costs
from alula.batching.limits import BatchPolicy
from alula.batching.pace import Pace
from alula.batching.policy import choose
from alula.batching.queue import Asked, Queue, Told, Waiting
from alula.core.ending import AtEnd
from alula.core.errors import InputError, Overloaded, TooLong

In = TypeVar("In")
Out = TypeVar("Out")

AHEAD = 2
"""Batches that are with the engine for each lane at most: one that runs, and one that is ready when that ends."""
EARLY = 0.5
"""The next batch is chosen once so much of the expected time of one that runs is over: nobody knows when it ends."""
OVERRUN = 2.0
"""A batch that takes so many times longer than expected may take any time: nothing is sent ahead then, so that who
leaves meanwhile is not run.
"""

AIM = 0.85
"""Of the time that a request has, so much is planned with: batches take longer than expected, and whoever waits has to
hear of the answer in time, too.
"""
IN_TIME = 0.75
"""Whoever is expected to wait for more of what is planned with is refused: what is expected is off by as much."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answered(Generic[Out]):
    """The results of a batch's rows, in their order; those at the places in `failed` have an error instead.

    `seconds` is how long the engine worked, where it says so; `replayed` whether it replayed what it had recorded of
    this shape, where it records any.
    """

    results: Sequence[Out]
    seconds: float | None = None
    replayed: bool | None = None
    failed: Mapping[int, Exception] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class _Flight:
    """A batch that is with the engine: how long it is expected to take, and since when it runs, if it does."""

    seconds: float
    began: float | None

    @property
    def end(self) -> float:
        return inf if self.began is None else self.began + self.seconds

    def left_s(self, now: float) -> float:
        """Seconds until it ends, from when it runs; one that takes longer than expected may end any time."""
        return self.seconds if self.began is None else max(0.0, self.end - now)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ran:
    """What is to be known of one batch after it ran: sizes, seconds of work, seconds each row waited before it.

    `longest` is what rows were padded to, `cells` what that makes of all of them; `ran_before` says whether one of the
    same shape did, `profile` in which of several it ran, for whoever knows them.
    """

    rows: int
    tokens: int
    longest: int
    cells: int
    seconds: float
    waited: tuple[float, ...]
    failed: bool
    ran_before: bool = False
    replayed: bool | None = None
    profile: str = ""


def _ignore(*_: object) -> None:
    pass


class Batcher(Generic[In, Out]):
    """Runs `call` on batches of rows; `await submit(rows, lengths)` returns the results of those rows.

    While batches run, in as many `lanes` as the engine has, the next one collects, and is sent before one of them
    ends. An idle engine waits for nobody.
    """

    def __init__(
        self,
        call: Callable[[list[In]], Awaitable[Answered[Out]]],
        policy: BatchPolicy,
        *,
        observe: Callable[[Ran], None] = _ignore,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._call = call
        self._policy = policy
        self._observe = observe
        self._clock = clock
        self.costs = Costs()
        self._rows = arranged(policy, self.costs)
        self._pace = Pace()
        self._queue: Queue[In, Out] = Queue(policy, self.costs)
        self.lanes = 1
        self._flying: dict[asyncio.Task[None], _Flight] = {}
        self._changed = asyncio.Event()
        self._closing = False
        self._worker: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Batcher[In, Out]:
        self._worker = asyncio.create_task(self._work(), name="batcher")
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop admitting, and finish what was admitted."""
        self._closing = True
        self._changed.set()
        assert self._worker is not None
        await self._worker

    @property
    def waiting(self) -> int:
        """Rows in the queue; those whose request was cancelled have left it."""
        return self._queue.rows

    def wait_s(self, rows: int = 0) -> float | None:
        """How long what waits takes, and so many rows more, by what was measured; None before the first batch."""
        return self._pace.seconds_for(self._queue.rows + rows)

    def expecting(self, rows: int, tokens: int = 0, *, share: float = 1.0) -> AtEnd:
        """Refuse a request of so many rows as `submit` would, before anybody works on it, or keep a place for them.

        The place is kept from now on until the block ends, which must be before `submit`. `tokens` are as many as are
        expected; `share` is that of the queue which the request may fill, unless it is empty.
        """
        tokens = max(tokens, rows)
        self._admit(rows, tokens, share)
        return self._queue.expecting(rows, tokens)

    async def submit(
        self,
        rows: Sequence[In],
        lengths: Sequence[int],
        *,
        later_s: float = 0.0,
        deadline: float = inf,
        told: Told = _ignore,
    ) -> list[Out]:
        """Queue the rows of one request, all of them or none, and wait for their results in order.

        They stand in the queue as though they had come so many seconds later, or, where that is negative, sooner: so
        some go before others, and nobody is passed by those who come more than that after them. By the `deadline`, on
        the batcher's clock, nobody waits any more, and who could only be answered later is refused; what runs when is
        planned for a sixth of the time sooner. `told` hears of each row's times before its result is here.
        """
        if (longest := max(lengths, default=0)) > self._policy.max_cells:
            raise InputError(f"a row has {longest} tokens; a batch holds {self._policy.max_cells}")
        self._admit(len(lengths), sum(lengths))
        now = self._clock()
        self._refuse_late(lengths, now + later_s, now, deadline)
        reply: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        request: Asked[In, Out] = Asked(
            rows=rows, lengths=lengths, since=now, reply=reply, results={}, told=told, later_s=later_s
        )
        self._queue.add(request, now + later_s, now + AIM * (deadline - now))
        if not self._flying or len(rows) == self._queue.rows:
            self._changed.set()
        try:
            await reply
        except BaseException:
            # Whoever left, or came to the end of its time, makes room at once.
            self._queue.drop_answered()
            raise
        return [request.results[at] for at in range(len(rows))]

    def _admit(self, rows: int, tokens: int, share: float = 1.0) -> None:
        """Refuse for good what the queue could never hold, and for now what it has no room for."""
        policy = self._policy
        if rows > policy.max_waiting_rows or tokens > policy.max_waiting_tokens:
            raise InputError(
                f"the request has {rows} rows and {tokens} tokens; "
                f"the queue holds {policy.max_waiting_rows} rows and {policy.max_waiting_tokens} tokens"
            )
        if self._closing:
            raise Overloaded("the server is stopping", draining=True)
        if not self._queue.has_room(rows, tokens, share):
            self._queue.drop_answered()
        if not self._queue.has_room(rows, tokens, share):
            queue = self._queue
            there, held = queue.rows + queue.expected_rows, queue.tokens + queue.expected_tokens
            raise Overloaded(f"{there} rows with {held} tokens are waiting", retry_s=self.wait_s())

    def _refuse_late(self, lengths: Sequence[int], place: float, now: float, deadline: float) -> None:
        """Refuse at once who would wait in vain: whoever goes before takes longer than there is time left.

        By the pace of late or by the costs, whichever promises more. A list may also be too long for its time, for
        good where nobody goes before.
        """
        left_s, all_s = max(0.0, deadline - now), self.wait_s()
        most_s = IN_TIME * AIM * left_s
        if all_s is None or not self.costs.known:
            return
        own_s = self._alone_s(lengths) if len(lengths) > 1 else 0.0
        if own_s > left_s:
            raise TooLong(
                f"{len(lengths)} rows take about {own_s:.1f} s, and the request has {left_s:.1f} s; "
                "expected fewer rows, or a longer timeout"
            )
        most_s = min(most_s, left_s - own_s)
        flying_s = sum(flight.left_s(now) for flight in self._flying.values() if flight.seconds < inf)
        if all_s + flying_s / self.lanes <= most_s:
            return  # all who wait take no longer, so who goes before need not be added up
        ahead = self._queue.ahead(place)
        pace_s = self._pace.seconds_for(sum(len(waiting.rows) for waiting in ahead))
        assert pace_s is not None, "a pace is known"
        wait_s = (
            min(pace_s, sum(waiting.unit.worth for waiting in ahead) / self.lanes) + flying_s / self.lanes
        )
        if wait_s > most_s:
            own = f" and its {len(lengths)} rows about {own_s:.1f} s" if own_s else ""
            raise Overloaded(
                f"what goes before takes about {wait_s:.1f} s{own}, and the request has {left_s:.1f} s",
                retry_s=wait_s - most_s,
            )

    def _alone_s(self, lengths: Sequence[int]) -> float:
        """What rows take at least, on all lanes and with nobody beside them."""
        each = (self._rows.row_s(self._policy.padded(length)) for length in lengths)
        return sum(each) / self.lanes

    async def _work(self) -> None:
        while await self._is_due():
            now = self._clock()
            start = now if self._idle else max(now, self._first_end().end)
            batch = self._next(start)
            formed = self._formed(batch)
            seconds = self.costs.seconds(*formed.shape) if self.costs.known else inf
            flight = _Flight(seconds, now if self._idle else None)
            self._flying[asyncio.create_task(self._run(batch, formed, flight), name="batch")] = flight
        if self._flying:
            await asyncio.wait(self._flying)

    @property
    def _idle(self) -> bool:
        """Whether a lane has nothing to do."""
        return len(self._flying) < self.lanes

    def _first_end(self) -> _Flight:
        """Of the batches that run the one that is expected to end first."""
        return min(self._flying.values(), key=lambda flight: flight.end)

    async def _is_due(self) -> bool:
        """Wait until a batch is to be sent; false once closed and drained."""
        while True:
            early: float | None = None
            self._queue.drop_answered()
            if not self._queue.waiting and self._closing:
                return False
            if self._queue.waiting and self._idle:
                return True
            if self._queue.waiting and len(self._flying) < AHEAD * self.lanes:
                first = self._first_end()
                early = first.end - EARLY * first.seconds - self._clock()
                if -(EARLY + OVERRUN) * first.seconds < early <= 0:
                    return True
            self._changed.clear()
            timer = None
            if early is not None and 0 < early < inf:
                timer = asyncio.get_running_loop().call_later(early, self._changed.set)
            await self._changed.wait()
            if timer:
                timer.cancel()

    def _next(self, start: float) -> list[Waiting[In, Out]]:
        """The batch that is best at that time; it leaves the queue."""
        units = [each.unit for each in self._queue.waiting]
        return self._queue.send(choose(units, start, self._policy, self.costs), start, self.lanes)

    def _formed(self, batch: Sequence[Waiting[In, Out]]) -> Formed:
        lengths = chain.from_iterable(waiting.lengths for waiting in batch)
        return self._rows.formed([self._policy.padded(length) for length in lengths])

    async def _run(self, batch: list[Waiting[In, Out]], formed: Formed, flight: _Flight) -> None:
        places = [(waiting.request, at) for waiting in batch for at in waiting.rows]
        answered: Answered[Out] | None = None
        failed: Exception | None = None
        try:
            answered = await self._call([request.rows[at] for request, at in places])
            assert len(answered.results) == len(places), f"{len(places)} rows in, {len(answered.results)} out"
        except Exception as error:  # the waiters get it, and the loop must live
            answered, failed = None, error
        now = self._clock()
        began = flight.began if flight.began is not None else now
        self._landed(flight, now)
        for at, (request, row) in enumerate(places):
            request.told(request.since, began, now)
            if failed:
                request.fail(failed)
            elif answered:
                if why := answered.failed.get(at):
                    request.fail(why)
                else:
                    request.take(row, answered.results[at])
        ran = Ran(
            rows=len(places),
            tokens=sum(chain.from_iterable(waiting.lengths for waiting in batch)),
            longest=formed.longest,
            cells=formed.cells,
            seconds=now - began,
            waited=tuple(began - request.since for request, _ in places),
            failed=bool(failed),
            ran_before=self.costs.ran_before(*formed.shape),
            replayed=answered.replayed if answered else None,
        )
        if answered:
            self.costs.learn(*formed.shape, answered.seconds or ran.seconds)
            self._pace = self._pace.after(ran.rows, ran.seconds / self.lanes)
        self._observe(ran)

    def _landed(self, landed: _Flight, now: float) -> None:
        """One batch less is with the engine; the oldest of those that do not run yet begins."""
        self._flying = {task: flight for task, flight in self._flying.items() if flight is not landed}
        waiting = next((flight for flight in self._flying.values() if flight.began is None), None)
        if waiting:
            waiting.began = now
        self._changed.set()
