"""The queue in front of one engine, and the loop that empties it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Generic, TypeVar

from alula.batching.policy import BatchPolicy, take
from alula.core.errors import InputError, Overloaded

In = TypeVar("In")
Out = TypeVar("Out")


@dataclass(frozen=True, slots=True)
class _Waiting(Generic[In, Out]):
    row: In
    length: int
    since: float
    reply: asyncio.Future[Out]
    siblings: list[asyncio.Future[Out]]

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


def _ignore(_: Ran) -> None:
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

    def refuse_unless_room(self, rows: int) -> None:
        """Refuse a request of so many rows as `submit` would, before anybody works on it."""
        self._admit([1] * rows)

    async def submit(self, rows: Sequence[In], lengths: Sequence[int]) -> list[Out]:
        """Queue the rows of one request, all of them or none, and wait for their results in order."""
        self._admit(lengths)
        loop, now = asyncio.get_running_loop(), self._clock()
        replies: list[asyncio.Future[Out]] = []
        for row, length in zip(rows, lengths, strict=True):
            replies.append(loop.create_future())
            self._queue.append(_Waiting(row, length, now, replies[-1], replies))
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

    def _admit(self, lengths: Sequence[int]) -> None:
        """Refuse for good what could never run, and for now what the queue has no room for."""
        policy, tokens = self._policy, sum(lengths)
        if (longest := max(lengths, default=0)) > policy.max_cells:
            raise InputError(f"a row has {longest} tokens; a batch holds {policy.max_cells}")
        if len(lengths) > policy.max_waiting_rows or tokens > policy.max_waiting_tokens:
            raise InputError(
                f"the request has {len(lengths)} rows and {tokens} tokens; "
                f"the queue holds {policy.max_waiting_rows} rows and {policy.max_waiting_tokens} tokens"
            )
        if self._closing:
            raise Overloaded("the server is stopping", draining=True)
        if not self._has_room(len(lengths), tokens):
            self._drop_cancelled()
            if not self._has_room(len(lengths), tokens):
                raise Overloaded(f"{len(self._queue)} rows with {self._tokens} tokens are waiting")

    def _has_room(self, rows: int, tokens: int) -> bool:
        rows_fit = len(self._queue) + rows <= self._policy.max_waiting_rows
        return rows_fit and self._tokens + tokens <= self._policy.max_waiting_tokens

    def _drop_cancelled(self) -> None:
        self._queue = deque(waiting for waiting in self._queue if not waiting.reply.done())
        self._tokens = sum(waiting.length for waiting in self._queue)

    async def _work(self) -> None:
        while batch := await self._next():
            started = self._clock()
            failed = False
            try:
                results = await self._call([waiting.row for waiting in batch])
                assert len(results) == len(batch), f"{len(batch)} rows in, {len(results)} out"
            except Exception as error:  # the waiters get it, and the loop must live
                failed = True
                for waiting in batch:
                    waiting.fail(error)
            else:
                for waiting, result in zip(batch, results, strict=True):
                    if not waiting.reply.done():
                        waiting.reply.set_result(result)
            self._observe(self._ran(batch, started, failed))

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

    def _ran(self, batch: list[_Waiting[In, Out]], started: float, failed: bool) -> Ran:
        return Ran(
            rows=len(batch),
            tokens=sum(waiting.length for waiting in batch),
            longest=max(waiting.length for waiting in batch),
            seconds=self._clock() - started,
            waited=tuple(started - waiting.since for waiting in batch),
            failed=failed,
        )


def _own(error: Exception) -> Exception:
    """An equal error for one waiter: a raised exception collects the traceback of whoever awaits it."""
    own = type(error).__new__(type(error), *error.args)
    own.__dict__.update(vars(error))
    own.__cause__ = error
    return own
