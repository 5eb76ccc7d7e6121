"""Who asks an engine process is answered, told of failures and of silence, and may be cancelled at any moment."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from alula.core.errors import InputError
from alula.serve import wire
from alula.serve.exchange import Exchange
from alula.serve.named import Named
from alula.serve.process import EngineProcess, Opening
from alula.serve.supervisor import Supervisor
from alula.serve.wire import Kind, Message


@pytest.fixture
def silent() -> Iterator[EngineProcess]:
    """A process that says nothing; tests answer in its place."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs, subprocess.Popen([sys.executable, "-c", ""]) as process:
        yield EngineProcess(process=process, connection=ours)


def asked(
    silent: EngineProcess,
    meanwhile: Callable[[Exchange, asyncio.Task[list[Message]]], Awaitable[None]],
    within_s: float = 10.0,
) -> list[Message]:
    """What two messages, 1 and 2, are answered while something else happens."""

    async def run() -> list[Message]:
        exchange = Exchange()
        messages = [Message(kind=Kind.GENERATE, number=number) for number in (1, 2)]
        task = asyncio.create_task(exchange.ask(silent, messages, within_s))
        await asyncio.sleep(0.01)
        await meanwhile(exchange, task)
        return await task

    return asyncio.run(run())


def result(number: int) -> Message:
    return Message(kind=Kind.RESULT, number=number)


def test_answers_come_in_the_order_of_their_messages(silent: EngineProcess) -> None:
    async def answer(exchange: Exchange, task: asyncio.Task[list[Message]]) -> None:
        exchange.answered(result(2))
        await asyncio.sleep(0.01)
        assert not task.done()
        exchange.answered(result(1))

    assert [message.number for message in asked(silent, answer)] == [1, 2]


def test_who_is_cancelled_together_with_the_answer_is_cancelled(silent: EngineProcess) -> None:
    """Before Python 3.12 asyncio.wait_for gives the answer then: a request went on for a client who had left."""

    async def both(exchange: Exchange, task: asyncio.Task[list[Message]]) -> None:
        exchange.answered(result(1))
        exchange.answered(result(2))
        task.cancel()

    with pytest.raises(asyncio.CancelledError):
        asked(silent, both)


def test_what_one_message_is_refused_for_is_raised(silent: EngineProcess) -> None:
    async def refuse(exchange: Exchange, task: asyncio.Task[list[Message]]) -> None:
        exchange.answered(wire.failure(1, InputError("no such model")))
        exchange.answered(result(2))

    with pytest.raises(InputError, match="no such model"):
        asked(silent, refuse)


def test_one_answer_of_two_in_time_is_too_late(silent: EngineProcess) -> None:
    async def one(exchange: Exchange, task: asyncio.Task[list[Message]]) -> None:
        exchange.answered(result(1))

    with pytest.raises(asyncio.TimeoutError):
        asked(silent, one, within_s=0.05)


def test_who_is_cancelled_as_the_process_comes_back_is_cancelled() -> None:
    async def run() -> None:
        supervisor = Supervisor(("true",), [Named(root=Path("one"), identity="")], Opening())
        supervisor._enter("restarting", "it ended")
        task = asyncio.create_task(supervisor.run(0, {}))
        await asyncio.sleep(0.01)
        supervisor._enter("ready", "")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
