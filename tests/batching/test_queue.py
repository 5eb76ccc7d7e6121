"""Long lists and single requests in one queue, on a clock of the test's own and without an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from math import inf

import pytest

from alula.batching import BatchPolicy, Costs, choose
from alula.batching.queue import Asked, Queue

LENGTHS = (8, 16, 32, 64, 128, 256)
POLICY = BatchPolicy(max_rows=16, max_cells=2_048, lengths=LENGTHS)


def costs(cell_s: float = 3e-5) -> Costs:
    found = Costs()
    for _ in range(20):
        for rows, length in ((1, 8), (1, 64), (4, 32), (8, 128)):
            found.learn(rows, length, 0.001 + cell_s * rows * length, warm=True)
    return found


class Clocked:
    """A queue in front of an engine that takes `slow` times as long as is expected of it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, slow: float = 1.0) -> None:
        self.now, self.slow, self._loop = 0.0, slow, loop
        self.costs = costs()
        self.queue: Queue[int, int] = Queue(POLICY, self.costs)
        self.done: dict[int, float] = {}

    def ask(self, *lengths: int, came: float | None = None, deadline: float = inf) -> Asked[int, int]:
        came = self.now if came is None else came
        reply: asyncio.Future[None] = self._loop.create_future()
        request: Asked[int, int] = Asked(
            rows=lengths, lengths=lengths, since=came, reply=reply, results={}, told=lambda *_: None
        )
        self.queue.add(request, came, deadline)
        return request

    def run(self) -> None:
        """One batch."""
        units = [each.unit for each in self.queue.waiting]
        batch = self.queue.send(choose(units, self.now, POLICY, self.costs), self.now, 1)
        rows, longest = sum(each.unit.rows for each in batch), max(each.unit.longest for each in batch)
        self.now += self.slow * self.costs.seconds(rows, longest)
        for each in batch:
            for row in each.rows:
                each.request.take(row, 0)
            if each.request.reply.done():
                self.done[id(each.request)] = self.now


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


@pytest.mark.parametrize("deadline", [inf, 30.0])
@pytest.mark.parametrize("slow", [1.0, 3.0])
def test_single_requests_do_not_wait_for_a_long_list(
    loop: asyncio.AbstractEventLoop, slow: float, deadline: float
) -> None:
    """Also where the engine is slower than anybody expects."""
    engine = Clocked(loop, slow)
    list_ = engine.ask(*[256] * 512, deadline=deadline)
    alone = slow * 4.0
    singles: list[Asked[int, int]] = []
    while engine.queue.waiting:
        while len(singles) < 60 and 0.05 * len(singles) <= engine.now:
            came = 0.05 * len(singles)
            singles.append(engine.ask(16, came=came, deadline=came + deadline))
        engine.run()
    waited = [engine.done[id(each)] - each.since for each in singles]
    assert max(waited) < 0.3 * slow
    assert alone < engine.done[id(list_)] < 1.2 * alone + 0.2


def test_a_list_is_served_however_many_others_come(loop: asyncio.AbstractEventLoop) -> None:
    engine = Clocked(loop)
    work = engine.costs.seconds(1, 128)
    list_ = engine.ask(*[256] * 64)
    came = 0
    while id(list_) not in engine.done:
        while came * work <= engine.now:
            engine.ask(128, came=came * work)
            came += 1
        engine.run()
        assert engine.now < 4, "a list of half a second"


def test_a_list_has_the_engine_for_itself_where_nobody_else_is(loop: asyncio.AbstractEventLoop) -> None:
    engine = Clocked(loop)
    work = sum(each.unit.worth for each in (engine.ask(*[256] * 512), engine.queue)[1].waiting)
    while engine.queue.waiting:
        engine.run()
    assert engine.now < 1.1 * work
    assert (engine.queue.rows, engine.queue.tokens) == (0, 0)


def test_two_lists_share(loop: asyncio.AbstractEventLoop) -> None:
    engine = Clocked(loop)
    both = [engine.ask(*[256] * 300), engine.ask(*[256] * 300)]
    while engine.queue.waiting:
        engine.run()
    first, second = sorted(engine.done[id(each)] for each in both)
    assert first > 0.9 * second


def test_short_lists_wait_as_one(loop: asyncio.AbstractEventLoop) -> None:
    engine = Clocked(loop)
    engine.ask(*[8] * 40, *[128] * 4)
    assert all(each.unit.turn == -inf for each in engine.queue.waiting)


def test_of_a_list_that_left_nothing_waits(loop: asyncio.AbstractEventLoop) -> None:
    engine = Clocked(loop)
    list_ = engine.ask(*[256] * 100)
    engine.run()
    list_.reply.cancel()
    engine.queue.drop_answered()
    assert not engine.queue.waiting
    assert (engine.queue.rows, engine.queue.tokens) == (0, 0)
