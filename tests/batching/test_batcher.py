from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alula.batching import Answered, Batcher, BatchPolicy, Pace, Ran
from alula.core.errors import InputError, Overloaded, RunError, TooLong


class Gate:
    """An engine that multiplies by ten, and holds its calls until it is opened."""

    def __init__(self, *, open_: bool = False) -> None:
        self.open = asyncio.Event()
        self.calls: list[list[int]] = []
        if open_:
            self.open.set()

    async def __call__(self, rows: list[int]) -> Answered[int]:
        self.calls.append(rows)
        await self.open.wait()
        if -1 in rows:
            raise RunError("bad kernel")
        return Answered(results=[row * 10 for row in rows])


class Seconds(Gate):
    """One whose calls take a second each of a clock of its own, which nobody waits for."""

    now = 0.0

    async def __call__(self, rows: list[int]) -> Answered[int]:
        answered = await super().__call__(rows)
        self.now += 1.0
        return answered


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 10))
    gc.collect()  # a future whose error nobody took would warn here


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def ask(batcher: Batcher[int, int], *rows: int, length: int = 1) -> asyncio.Task[list[int]]:
    return asyncio.create_task(batcher.submit(rows, [length] * len(rows)))


def test_requests_that_arrive_during_a_run_share_the_next_one() -> None:
    async def scenario() -> None:
        gate = Gate()
        async with Batcher(gate, BatchPolicy(max_rows=3)) as batcher:
            tasks = [ask(batcher, 1)]
            await settle()
            tasks += [ask(batcher, row) for row in (2, 3, 4, 5)]
            await settle()
            gate.open.set()
            assert await asyncio.gather(*tasks) == [[10], [20], [30], [40], [50]]
        assert gate.calls == [[1], [2, 3, 4], [5]]

    run(scenario)


def test_a_request_that_is_cancelled_leaves_the_queue_at_once() -> None:
    async def scenario() -> None:
        gate = Gate()
        async with Batcher(gate, BatchPolicy(max_rows=1, max_waiting_rows=2)) as batcher:
            running = ask(batcher, 1)
            await settle()
            late = ask(batcher, 2, 3)
            await settle()
            assert batcher.waiting == 2
            late.cancel()
            await settle()
            assert batcher.waiting == 0
            gate.open.set()
            assert await running == [10]
        assert gate.calls == [[1]]

    run(scenario)


def test_requests_that_arrive_together_run_together() -> None:
    async def scenario() -> None:
        gate = Gate(open_=True)
        async with Batcher(gate, BatchPolicy()) as batcher:
            assert list(await asyncio.gather(ask(batcher, 1), ask(batcher, 2, 3))) == [[10], [20, 30]]
        assert gate.calls == [[1, 2, 3]]

    run(scenario)


def test_an_idle_engine_waits_for_nobody() -> None:
    async def scenario() -> None:
        gate = Gate()
        async with Batcher(gate, BatchPolicy()) as batcher:
            task = ask(batcher, 1)
            await settle()
            assert gate.calls == [[1]]
            gate.open.set()
            await task

    run(scenario)


def test_a_cancelled_request_never_runs() -> None:
    async def scenario() -> None:
        gate = Gate()
        async with Batcher(gate, BatchPolicy()) as batcher:
            first = ask(batcher, 1)
            await settle()
            second, third = ask(batcher, 2, 3), ask(batcher, 4)
            await settle()
            second.cancel()
            await settle()
            gate.open.set()
            assert list(await asyncio.gather(first, third)) == [[10], [40]]
        assert gate.calls == [[1], [4]]

    run(scenario)


def test_a_failed_run_fails_its_own_requests_only() -> None:
    async def scenario() -> None:
        async with Batcher(Gate(open_=True), BatchPolicy(max_rows=1)) as batcher:
            tasks = [ask(batcher, row) for row in (1, -1, 2)]
            done = await asyncio.gather(*tasks, return_exceptions=True)
        assert done[0] == [10]
        assert done[2] == [20]
        assert isinstance(done[1], RunError)

    run(scenario)


def test_one_failed_row_fails_its_request_and_spares_the_engine_the_rest() -> None:
    async def scenario() -> None:
        gate = Gate(open_=True)
        async with Batcher(gate, BatchPolicy(max_rows=2)) as batcher:
            with pytest.raises(RunError, match="bad kernel"):
                await batcher.submit([-1, 1, 2, 3, 4], [1] * 5)
        assert gate.calls == [[-1, 1]]

    run(scenario)


def test_each_waiter_of_a_failed_batch_gets_its_own_error() -> None:
    async def scenario() -> None:
        async with Batcher(Gate(open_=True), BatchPolicy(max_rows=2)) as batcher:
            first, second = await asyncio.gather(ask(batcher, -1), ask(batcher, 2), return_exceptions=True)
        assert isinstance(first, RunError)
        assert isinstance(second, RunError)
        assert first is not second
        assert str(first) == str(second) == "bad kernel"

    run(scenario)


def test_an_error_keeps_what_it_carries() -> None:
    async def refuse(_: list[int]) -> Answered[int]:
        raise Overloaded("engine is away", draining=True)

    async def scenario() -> None:
        async with Batcher(refuse, BatchPolicy()) as batcher:
            with pytest.raises(Overloaded, match="engine is away") as caught:
                await batcher.submit([1], [1])
        assert caught.value.draining

    run(scenario)


@pytest.mark.parametrize(
    "policy",
    [
        BatchPolicy(max_rows=1, max_waiting_rows=2),
        BatchPolicy(max_rows=1, max_waiting_tokens=8),
    ],
)
def test_a_full_queue_refuses_whole_requests_until_it_has_room(policy: BatchPolicy) -> None:
    async def scenario() -> None:
        gate = Gate()
        async with Batcher(gate, policy) as batcher:
            first = ask(batcher, 1, length=4)
            await settle()
            second = ask(batcher, 2, length=4)
            await settle()
            with pytest.raises(Overloaded, match="1 rows with 4 tokens are waiting") as caught:
                await batcher.submit([3, 4], [4, 4])
            assert not caught.value.draining
            second.cancel()
            await settle()
            third = ask(batcher, 3, 4, length=4)
            await settle()
            assert batcher.waiting == 2
            gate.open.set()
            assert list(await asyncio.gather(first, third)) == [[10], [30, 40]]
        assert gate.calls == [[1], [3], [4]]

    run(scenario)


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([9], "a row has 9 tokens; a batch holds 8"),
        ([1] * 5, "the request has 5 rows and 5 tokens; the queue holds 4 rows and 20 tokens"),
        ([8, 8, 8], "the request has 3 rows and 24 tokens; the queue holds 4 rows and 20 tokens"),
    ],
)
def test_what_could_never_run_is_the_callers_fault(lengths: list[int], message: str) -> None:
    async def scenario() -> None:
        policy = BatchPolicy(max_cells=8, max_waiting_rows=4, max_waiting_tokens=20)
        async with Batcher(Gate(open_=True), policy) as batcher:
            with pytest.raises(InputError, match=message):
                await batcher.submit(list(range(len(lengths))), lengths)

    run(scenario)


def test_leaving_the_block_drains_what_was_admitted_and_admits_no_more() -> None:
    async def scenario() -> None:
        gate = Gate()
        batcher = Batcher(gate, BatchPolicy(max_rows=1))
        async with batcher:
            tasks = [ask(batcher, 1), ask(batcher, 2)]
            await settle()
            leaving = asyncio.create_task(batcher.__aexit__())
            await settle()
            with pytest.raises(Overloaded, match="the server is stopping") as caught:
                await batcher.submit([3], [1])
            assert caught.value.draining
            gate.open.set()
            await leaving
        assert [task.result() for task in tasks] == [[10], [20]]

    run(scenario)


def test_every_batch_is_told_of_with_its_sizes_and_waits() -> None:
    seen: list[Ran] = []
    now = 0.0

    async def call(rows: list[int]) -> Answered[int]:
        nonlocal now
        now += 1.0
        return Answered(results=rows, seconds=0.5, replayed=True)

    async def scenario() -> None:
        nonlocal now
        policy = BatchPolicy(lengths=(4, 8))
        async with Batcher(call, policy, observe=seen.append, clock=lambda: now) as batcher:
            asking = ask(batcher, 1, 2, length=5)
            await asyncio.sleep(0)
            now = 0.25
            await asking
            await batcher.submit([1, 2], [3, 5])
            assert batcher.costs.seconds(2, 8) == pytest.approx(0.5)

    run(scenario)
    first = Ran(
        rows=2, tokens=10, longest=8, cells=16, seconds=1.0, waited=(0.25, 0.25), failed=False, replayed=True
    )
    assert seen == [first, replace(first, tokens=8, waited=(0.0, 0.0), ran_before=True)]


def test_a_failed_batch_teaches_nothing_of_what_batches_cost() -> None:
    async def scenario() -> None:
        async with Batcher(Gate(open_=True), BatchPolicy()) as batcher:
            with pytest.raises(RunError, match="bad kernel"):
                await batcher.submit([-1], [1])
            assert not batcher.costs.known
            assert batcher.wait_s() is None

    run(scenario)


def test_one_batch_is_ready_when_the_one_before_it_ends_and_no_sooner_than_it_must() -> None:
    """The clock stands still, so the running batch has all of its time before it until the clock is moved."""
    now = 0.0

    async def scenario() -> None:
        nonlocal now
        gate = Gate()
        async with Batcher(gate, BatchPolicy(max_rows=2), clock=lambda: now) as batcher:
            for _ in range(2):
                batcher.costs.learn(1, 1, 1.0, warm=True)
            tasks = [ask(batcher, 1)]
            await settle()
            tasks += [ask(batcher, row) for row in (2, 3)]
            await settle()
            assert gate.calls == [[1]]
            now = 0.999
            tasks += [ask(batcher, row) for row in (4, 5)]
            batcher._changed.set()  # what a timer does
            await settle()
            assert gate.calls == [[1], [2, 3]]
            assert batcher.waiting == 2, "two batches are with the engine, and no third one"
            gate.open.set()
            assert await asyncio.gather(*tasks) == [[10], [20], [30], [40], [50]]

    run(scenario)


def test_the_timer_before_the_end_of_a_batch_is_set() -> None:
    async def scenario() -> None:
        gate = Gate()
        async with Batcher(gate, BatchPolicy(max_rows=2)) as batcher:
            for _ in range(2):
                batcher.costs.learn(1, 1, 0.05, warm=True)
            first = ask(batcher, 1)
            await settle()
            second = ask(batcher, 2)
            await asyncio.sleep(0.2)
            assert gate.calls == [[1], [2]]
            gate.open.set()
            assert await first == [10]
            assert await second == [20]

    run(scenario)


def test_what_a_client_packed_runs_as_it_is_and_what_does_not_fit_by_length() -> None:
    async def scenario() -> None:
        gate = Gate(open_=True)
        async with Batcher(gate, BatchPolicy(max_rows=4)) as batcher:
            assert await batcher.submit([1, 2, 3], [8, 7, 8]) == [10, 20, 30]
            assert gate.calls == [[1, 2, 3]]
            gate.calls.clear()
            assert await batcher.submit([1, 2, 3, 4, 5, 6], [90, 5, 90, 5, 90, 5]) == [10, 20, 30, 40, 50, 60]
            assert sorted(map(sorted, gate.calls)) == [[1, 3, 5], [2, 4, 6]]

    run(scenario)


@settings(max_examples=30, deadline=None)
@given(
    requests=st.lists(st.lists(st.integers(1, 64), min_size=1, max_size=6), min_size=1, max_size=20),
    fails=st.sets(st.integers(0, 19)),
)
def test_every_row_goes_to_its_own_caller_in_batches_within_the_limits(
    requests: list[list[int]], fails: set[int]
) -> None:
    policy = BatchPolicy(max_rows=5, max_cells=200, lengths=(8, 16, 32, 64))
    sizes: list[tuple[int, int]] = []

    async def call(rows: list[tuple[int, int, int]]) -> Answered[tuple[int, int]]:
        await asyncio.sleep(0)
        sizes.append((len(rows), max(policy.padded(length) for _, _, length in rows)))
        if any(caller in fails for caller, _, _ in rows):
            raise RunError("bad kernel")
        return Answered(results=[(caller, at) for caller, at, _ in rows])

    async def scenario() -> None:
        async with Batcher(call, policy) as batcher:
            answers = await asyncio.gather(
                *(
                    batcher.submit([(caller, at, length) for at, length in enumerate(lengths)], lengths)
                    for caller, lengths in enumerate(requests)
                ),
                return_exceptions=True,
            )
            assert batcher.waiting == 0
        for caller, (answer, lengths) in enumerate(zip(answers, requests, strict=True)):
            if isinstance(answer, BaseException):
                assert fails & set(range(len(requests)))
            else:
                assert caller not in fails
                assert answer == [(caller, at) for at in range(len(lengths))]
        assert all(rows <= 5 and rows * longest <= 200 for rows, longest in sizes)

    run(scenario)


def test_rows_queue_as_though_they_had_come_later_or_sooner() -> None:
    async def scenario() -> None:
        gate, now = Gate(), 0.0
        async with Batcher(gate, BatchPolicy(max_rows=2), clock=lambda: now) as batcher:
            tasks = [ask(batcher, 1)]
            await settle()
            for at, (rows, later_s) in enumerate(
                [((2, 3), 0.0), ((4, 5), 5.0), ((6, 7), -5.0), ((8, 9), 0.0)]
            ):
                now = float(at)
                tasks.append(asyncio.create_task(batcher.submit(rows, [1] * len(rows), later_s=later_s)))
                await settle()
            now = 9.0  # the one that is in no hurry is not passed by who comes later than that
            tasks.append(ask(batcher, 10, 11))
            await settle()
            gate.open.set()
            assert await asyncio.gather(*tasks) == [
                [10], [20, 30], [40, 50], [60, 70], [80, 90], [100, 110]
            ]  # fmt: skip
        assert gate.calls == [[1], [6, 7], [2, 3], [8, 9], [4, 5], [10, 11]]

    run(scenario)


def test_a_share_of_the_queue_is_kept_for_others_and_none_of_an_empty_one() -> None:
    async def scenario() -> None:
        gate = Gate()
        async with Batcher(gate, BatchPolicy(max_rows=1, max_waiting_rows=4)) as batcher:
            running = ask(batcher, 1)
            await settle()
            with batcher.expecting(4, share=0.5):
                pass
            waiting = ask(batcher, 2)
            await settle()
            with batcher.expecting(1, share=0.5), batcher.expecting(1):
                pass
            with (
                pytest.raises(Overloaded, match="1 rows with 1 tokens are waiting"),
                batcher.expecting(2, share=0.5),
            ):
                pass
            gate.open.set()
            await asyncio.gather(running, waiting)

    run(scenario)


def test_what_is_expected_keeps_its_place_before_anybody_counts_its_tokens() -> None:
    async def scenario() -> None:
        gate = Gate()
        policy = BatchPolicy(max_rows=1, max_cells=90, max_waiting_tokens=100, max_waiting_rows=3)
        async with Batcher(gate, policy) as batcher:
            running = ask(batcher, 1)
            await settle()
            with batcher.expecting(2, 90), batcher.expecting(1, 10):
                for rows, tokens in ((1, 0), (1, 1)):
                    with (
                        pytest.raises(Overloaded, match="3 rows with 100 tokens are waiting"),
                        batcher.expecting(rows, tokens),
                    ):
                        pass
                with pytest.raises(Overloaded):
                    await batcher.submit([3], [1])
            after = ask(batcher, 3, 4, length=50)
            gate.open.set()
            assert [*await asyncio.gather(running, after)] == [[10], [30, 40]]

    run(scenario)


def test_a_full_queue_says_how_long_what_waits_takes() -> None:
    async def scenario() -> None:
        now = 0.0

        async def slow(rows: list[int]) -> Answered[int]:
            nonlocal now
            now += 3.0
            await asyncio.sleep(0)
            return Answered(results=rows)

        gate = Gate()
        async with Batcher(slow, BatchPolicy(max_rows=1, max_waiting_rows=2), clock=lambda: now) as batcher:
            assert batcher.wait_s(1) is None
            await batcher.submit([1], [1])
            assert batcher.wait_s(4) == 12.0
            tasks = [ask(batcher, row) for row in (1, 2, 3)]
            await asyncio.sleep(0)
            with pytest.raises(Overloaded) as caught:
                await batcher.submit([4], [1])
            assert caught.value.retry_s == 6.0
            await asyncio.gather(*(task for task in tasks if not task.cancelled()), return_exceptions=True)
        assert gate.calls == []

    run(scenario)


def test_who_would_wait_in_vain_is_refused_at_once_and_who_goes_before_is_not() -> None:
    """A row takes a second, and two wait."""
    now = 0.0

    async def scenario() -> None:
        nonlocal now
        gate = Gate()
        async with Batcher(gate, BatchPolicy(max_rows=1), clock=lambda: now) as batcher:
            tasks = [asyncio.create_task(batcher.submit([1], [1], deadline=0.5))]
            await settle()
            now = 1.0
            gate.open.set()
            assert await tasks.pop() == [10]
            gate.open.clear()
            # One runs, one is with the engine and ready, two wait.
            tasks = [ask(batcher, row) for row in (2, 3, 4, 5)]
            await settle()
            now = 1.6
            batcher._changed.set()
            await settle()
            assert batcher.waiting == 2
            with pytest.raises(
                Overloaded, match=r"what goes before takes about 3\.4 s, and the request has 2\.5 s"
            ) as refused:
                await batcher.submit([6], [1], deadline=now + 2.5)
            assert refused.value.retry_s == pytest.approx(3.4 - 0.75 * 0.85 * 2.5)
            tasks.append(asyncio.create_task(batcher.submit([7], [1], deadline=now + 2.5, later_s=-5)))
            tasks.append(asyncio.create_task(batcher.submit([8], [1], deadline=now + 9)))
            await settle()
            gate.open.set()
            assert await asyncio.gather(*tasks) == [[20], [30], [40], [50], [70], [80]]

    run(scenario)


def test_a_list_too_long_for_its_time_is_refused_for_good_or_for_now() -> None:
    """A row takes a second; four in a list take three seconds more than one, however soon they begin."""

    async def scenario() -> None:
        seconds = Seconds()
        async with Batcher(seconds, BatchPolicy(max_rows=1), clock=lambda: seconds.now) as batcher:
            batcher.costs.learn(1, 1, 1.0, warm=True)
            seconds.open.set()
            await batcher.submit([1], [1])  # so that there is a pace
            seconds.open.clear()
            now = seconds.now
            with pytest.raises(
                TooLong, match=r"4 rows take about 4\.0 s, and the request has 3\.9 s; expected"
            ):
                await batcher.submit([1, 2, 3, 4], [1] * 4, deadline=now + 3.9)
            busy = ask(batcher, 5)
            await settle()
            with pytest.raises(
                Overloaded,
                match=r"takes about 1\.0 s and its 4 rows about 4\.0 s, and the request has 4\.9 s",
            ) as refused:
                await batcher.submit([1, 2, 3, 4], [1] * 4, deadline=now + 4.9)
            assert refused.value.retry_s == pytest.approx(0.1)
            taken = asyncio.create_task(batcher.submit([1, 2, 3, 4], [1] * 4, deadline=now + 5.1))
            await settle()
            seconds.open.set()
            assert await taken == [10, 20, 30, 40]
            await busy

    run(scenario)


def test_who_could_only_just_be_answered_in_time_goes_behind_who_surely_can() -> None:
    """A row takes a second, and the engine is held up until the first could be done half a second before its time."""

    async def scenario() -> None:
        seconds = Seconds()
        async with Batcher(seconds, BatchPolicy(max_rows=1), clock=lambda: seconds.now) as batcher:
            batcher.costs.learn(1, 1, 1.0, warm=True)
            busy = ask(batcher, 1)
            await settle()
            late = asyncio.create_task(batcher.submit([2], [1], deadline=10.0))
            await settle()
            sure = asyncio.create_task(batcher.submit([3], [1], deadline=20.0))
            await settle()
            seconds.now = 7.5  # long over time, so that nothing is sent ahead
            seconds.open.set()
            await asyncio.gather(busy, late, sure)
        assert seconds.calls == [[1], [3], [2]]

    run(scenario)


def test_the_pace_is_that_of_the_last_batches() -> None:
    pace = Pace()
    assert pace.seconds_for(3) is None
    for _ in range(40):
        pace = pace.after(4, 1.0)
    assert pace.seconds_for(8) == pytest.approx(2.0)
    for _ in range(10):
        pace = pace.after(1, 1.0)
    assert 6.0 < (pace.seconds_for(8) or 0) < 8.0


def test_who_comes_later_does_not_wait_for_all_of_a_list() -> None:
    """A row takes a second; one of the list runs and one is with the engine when another request comes."""

    async def scenario() -> None:
        seconds = Seconds()
        async with Batcher(seconds, BatchPolicy(max_rows=1), clock=lambda: seconds.now) as batcher:
            for _ in range(9):
                batcher.costs.learn(1, 1, 1.0, warm=True)
            list_ = ask(batcher, *range(20))
            await settle()
            single = ask(batcher, 99)
            await settle()
            seconds.open.set()
            assert await single == [990]
            assert not list_.done()
            assert await list_ == [10 * row for row in range(20)]
        assert seconds.calls.index([99]) <= 8
        assert len(seconds.calls) == 21

    run(scenario)
