from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from alula.serve.patience import Patience


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 5))


def test_work_that_takes_too_long_is_given_up() -> None:
    async def scenario() -> None:
        patience = Patience(0.01)
        with pytest.raises(asyncio.CancelledError), patience:
            await asyncio.sleep(3)
        assert patience.ended == "late"
        await asyncio.sleep(0)  # the task itself goes on

    run(scenario)


def test_work_that_nobody_waits_for_is_given_up() -> None:
    async def scenario() -> None:
        patience = Patience(3)
        asyncio.get_running_loop().call_soon(patience.left)
        with pytest.raises(asyncio.CancelledError), patience:
            await asyncio.sleep(3)
        assert patience.ended == "left"
        patience.left()  # of a block that is over, nothing

    run(scenario)


def test_work_that_is_done_in_time_is_left_alone() -> None:
    async def scenario() -> None:
        patience = Patience(0.02)
        with patience:
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)
        assert patience.ended is None

    run(scenario)


def test_who_cancels_the_task_from_outside_is_told_apart() -> None:
    async def scenario() -> None:
        patience = Patience(3)

        async def work() -> None:
            with patience:
                await asyncio.sleep(3)

        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert patience.ended is None

    run(scenario)
