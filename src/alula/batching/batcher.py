"""The queue in front of one engine, and the loop that empties it."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from time import monotonic
from typing import Generic, TypeAlias, TypeVar

from alula.batching.pace import Pace
from alula.batching.policy import BatchPolicy, take
from alula.core.errors import InputError, Overloaded

In = TypeVar("In")
Out = TypeVar("Out")


@dataclass(frozen=True, slots=True)
class _Waiting(Generic[In, Out]):
    row: In
    length: int
    since: float
    place: float
    reply: asyncio.Future[Out]
    siblings: list[asyncio.Future[Out]]
    told: Told

    def fail(self, error: Exception) -> None:
        """Hand the error over; the other rows of the request are worthless now and need not run."""
        if not self.reply.done():
            self.reply.set_exception(_own(error))
            for sibling in self.siblings:
                sibling.cancel()


@dataclass(frozen=True, kw_only=True, slots=True)
class Ran:
    """What is to be known of one batch after it ran: sizes, seconds of work, seconds each row waited before it."""

    rows: int
    tokens: int
    longest: int
    seconds: float
    waited: tuple[float, ...]
    failed: bool


Told: TypeAlias = Callable[[float, float, float], None]
"""Of a row that has run, or failed to: since when it waited, when its batch began, and when it ended."""


def _ignore(*_: object) -> None:
    pass


class Batcher(Generic[In, Out]):
    """Runs `call` on batches of rows; `await submit(rows, lengths)` returns the results of those rows.

    While one batch runs, the next one collects. That is the whole of the batching: an idle engine waits for nobody.
    """

    def __init__(
        self,
        call: Callable[[list[In]], Awaitable[Sequence[Out]]],
        policy: BatchPolicy,
        *,
        observe: Callable[[Ran], None] = _ignore,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._call = call
        self._policy = policy
        self._observe = observe
        self._clock = clock
        self._queue: deque[_Waiting[In, Out]] = deque()
        self._tokens = 0
        self._expected_rows = self._expected_tokens = 0
        self._pace = Pace()
        self._arrived = asyncio.Event()
        self._closing = False
        self._worker: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Batcher[In, Out]:
        self._worker = asyncio.create_task(self._work(), name="batcher")
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop admitting, and finish what was admitted."""
        self._closing = True
        self._arrived.set()
        assert self._worker is not None
        await self._worker

    @property
    def waiting(self) -> int:
        """Rows in the queue; those whose request was cancelled have left it."""
        return len(self._queue)

    def wait_s(self, rows: int = 0) -> float | None:
        """How long what waits takes, and so many rows more, by what was measured; None before the first batch."""
        return self._pace.seconds_for(self.waiting + rows)

    @contextmanager
    def expecting(self, rows: int, tokens: int = 0, *, share: float = 1.0) -> Iterator[None]:
        """Refuse a request of so many rows as `submit` would, before anybody works on it, or keep a place for them.

        The place is kept as long as this lasts, which must end before `submit`. `tokens` are as many as are expected;
        `share` is that of the queue which the request may fill, unless it is empty.
        """
        tokens = max(tokens, rows)
        self._admit(rows, tokens, share)
        self._expected_rows += rows
        self._expected_tokens += tokens
        try:
            yield
        finally:
            self._expected_rows -= rows
            self._expected_tokens -= tokens

    async def submit(
        self, rows: Sequence[In], lengths: Sequence[int], *, later_s: float = 0.0, told: Told = _ignore
    ) -> list[Out]:
        """Queue the rows of one request, all of them or none, and wait for their results in order.

        They stand in the queue as though they had come so many seconds later, or, where that is negative, sooner: so
        some go before others, and nobody is passed by those who come more than that after them. `told` hears of each
        row's times before its result is here.
        """
        if (longest := max(lengths, default=0)) > self._policy.max_cells:
            raise InputError(f"a row has {longest} tokens; a batch holds {self._policy.max_cells}")
        self._admit(len(lengths), sum(lengths))
        loop, now = asyncio.get_running_loop(), self._clock()
        replies: list[asyncio.Future[Out]] = []
        at = bisect_right(self._queue, now + later_s, key=lambda waiting: waiting.place)
        last = at == len(self._queue)
        for row, length in zip(rows, lengths, strict=True):
            replies.append(loop.create_future())
            waiting = _Waiting(row, length, now, now + later_s, replies[-1], replies, told)
            if last:
                self._queue.append(waiting)
            else:
                self._queue.insert(at, waiting)
                at += 1
        self._tokens += sum(lengths)
        self._arrived.set()
        try:
            return list(await asyncio.gather(*replies))
        except asyncio.CancelledError:
            # Whoever left, or came to the end of its time, makes room at once.
            self._drop_cancelled()
            raise
        finally:
            for reply in replies:
                reply.cancel()

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
        if not self._has_room(rows, tokens, share):
            self._drop_cancelled()
            if not self._has_room(rows, tokens, share):
                there, held = len(self._queue) + self._expected_rows, self._tokens + self._expected_tokens
                raise Overloaded(f"{there} rows with {held} tokens are waiting", retry_s=self.wait_s())

    def _has_room(self, rows: int, tokens: int, share: float) -> bool:
        there = len(self._queue) + self._expected_rows
        if not there:
            return True
        tokens += self._tokens + self._expected_tokens
        rows_fit = there + rows <= ceil(self._policy.max_waiting_rows * share)
        return rows_fit and tokens <= self._policy.max_waiting_tokens * share

    def _drop_cancelled(self) -> None:
        self._queue = deque(waiting for waiting in self._queue if not waiting.reply.done())
        self._tokens = sum(waiting.length for waiting in self._queue)

    async def _work(self) -> None:
        while batch := await self._next():
            started = self._clock()
            failed: Exception | None = None
            try:
                results = await self._call([waiting.row for waiting in batch])
                assert len(results) == len(batch), f"{len(batch)} rows in, {len(results)} out"
            except Exception as error:  # the waiters get it, and the loop must live
                failed, results = error, ()
            ended = self._clock()
            for waiting in batch:
                waiting.told(waiting.since, started, ended)
                if failed:
                    waiting.fail(failed)
            for waiting, result in zip(batch, results, strict=not failed):
                if not waiting.reply.done():
                    waiting.reply.set_result(result)
            ran = _ran(batch, started, ended, failed=bool(failed))
            if not failed:
                self._pace = self._pace.after(ran.rows, ran.seconds)
            self._observe(ran)

    async def _next(self) -> list[_Waiting[In, Out]]:
        """The next batch, or an empty list once closed and drained."""
        while True:
            self._drop_cancelled()
            if count := take((waiting.length for waiting in self._queue), self._policy):
                batch = [self._queue.popleft() for _ in range(count)]
                self._tokens -= sum(waiting.length for waiting in batch)
                return batch
            if self._closing:
                return []
            self._arrived.clear()
            await self._arrived.wait()


def _ran(batch: Sequence[_Waiting[In, Out]], started: float, ended: float, *, failed: bool) -> Ran:
    return Ran(
        rows=len(batch),
        tokens=sum(waiting.length for waiting in batch),
        longest=max(waiting.length for waiting in batch),
        seconds=ended - started,
        waited=tuple(started - waiting.since for waiting in batch),
        failed=failed,
    )


def _own(error: Exception) -> Exception:
    """An equal error for one waiter: a raised exception collects the traceback of whoever awaits it."""
    own = type(error).__new__(type(error), *error.args)
    own.__dict__.update(vars(error))
    own.__cause__ = error
    return own
