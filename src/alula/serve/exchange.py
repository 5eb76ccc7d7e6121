"""Messages to an engine process and their answers: each has a number, and whoever asked waits for that."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence

from alula.core.errors import EngineError
from alula.serve import wire
from alula.serve.opened import unless_failed
from alula.serve.process import EngineProcess
from alula.serve.wire import Buffer, Message


class EngineAway(EngineError):  # noqa: N818 - a state, not a defect
    """The engine process is gone or not there yet; another try later may well work."""


MODELS = 1 << 32
"""Below this are the numbers under which models report that they are open."""


class Exchange:
    """Numbers messages, sends them whole and one after the other, and hands each answer to whoever waits for it."""

    def __init__(self) -> None:
        self._number = MODELS
        self._pending: dict[int, asyncio.Future[Message]] = {}
        self._sending = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def next(self) -> int:
        """A number that no message had."""
        self._number += 1
        return self._number

    def expect(self, number: int) -> asyncio.Future[Message]:
        """The answer of this number, once it comes."""
        reply: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._pending[number] = reply
        return reply

    def answered(self, message: Message) -> None:
        """Hand an answer over, if somebody waits for it."""
        waiting = self._pending.get(message.number)
        if waiting and not waiting.done():
            waiting.set_result(message)

    def fail(self, error: Callable[[], EngineError]) -> None:
        """Nobody who waits will be answered."""
        for waiting in self._pending.values():
            if not waiting.done():
                waiting.set_exception(error())

    def forget(self) -> None:
        """Expect nothing any more."""
        self._pending.clear()

    async def ask(
        self, current: EngineProcess, messages: Sequence[Message], within_s: float
    ) -> list[Message]:
        """The answers to some messages, in their order. Raises what one of them is, and TimeoutError of asyncio."""
        replies = [self.expect(message.number) for message in messages]
        try:
            for message in messages:
                # Shielded: whoever waits may be cancelled, and half a message would be the end of all.
                if sending := self.send_later(current, message):
                    await asyncio.shield(sending)
            # Not wait_for, which before Python 3.12 goes on where an answer comes together with a cancellation.
            done, missing = await asyncio.wait(replies, timeout=within_s, return_when=asyncio.FIRST_EXCEPTION)
            for reply in done:
                reply.result()  # raises, if one of them did
            if missing:
                raise asyncio.TimeoutError
            answers = [reply.result() for reply in replies]
        finally:
            for message, reply in zip(messages, replies, strict=True):
                self._pending.pop(message.number, None)
                if not reply.cancel() and not reply.cancelled():
                    reply.exception()  # taken note of, should nobody have come to wait for it
        return [unless_failed(answer) for answer in answers]

    def send_later(self, current: EngineProcess, message: Message) -> asyncio.Task[None] | None:
        """Have a message sent that need not be waited for; what the socket does not take at once is left to a task."""
        left = wire.pack(message)
        if not self._tasks:
            left = _sent(current.connection, left)
        if not left:
            return None
        task = asyncio.create_task(self._write(current, left))
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # taken note of: nobody waits for what is cancelled to be sent

    async def _write(self, current: EngineProcess, buffers: Sequence[Buffer]) -> None:
        loop = asyncio.get_running_loop()
        async with self._sending:
            try:
                for buffer in buffers:
                    await loop.sock_sendall(current.connection, buffer)
            except OSError as error:
                raise EngineAway("the engine process ended before it took the request") from error


def _sent(connection: socket.socket, buffers: Sequence[Buffer]) -> list[Buffer]:
    """What is left of buffers once a socket has taken what it takes at once."""
    for at, buffer in enumerate(buffers):
        try:
            taken = connection.send(buffer)
        except OSError:  # full, or closed, which whoever writes the rest is told
            taken = 0
        if taken < len(buffer):
            return [memoryview(buffer)[taken:], *buffers[at + 1 :]]
    return []
