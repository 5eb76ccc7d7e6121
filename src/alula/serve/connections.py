"""What holds for a connection before anything is understood of it: how many there may be, and how slow."""

from __future__ import annotations

import asyncio
import fcntl
import json
import math
import socket
import struct
import termios
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any, cast

from alula.core.ending import AtEnd
from alula.serve.errors import Failure
from alula.serve.parsing import FRAMED, HEAD_END, MOST_HEAD_BYTES, Http

LINGER_S = 1.0
"""So long a connection too many may take to ask and to read why it gets no answer."""

LOOKED_AT = 64
"""Bytes of what came last: enough to see whose path it asks for."""


PHRASES = {400: "Bad Request", 431: "Request Header Fields Too Large", 503: "Service Unavailable"}

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
"""What may be sent before any answer, and means nothing to a client that did not ask for it."""

GIVES_WAY_S = 0.25
"""So long nobody has to give way who has sent no head: it may be on its way, or not read yet."""

IDLE_S = 1.0
"""The same of who has sent one before, whose next one is likelier to be on its way."""

SLOW_S, SLOW_BYTES = 2.0, 1_000
"""A body that has come with fewer bytes a second for so long gives way, too."""

SLOW_BODY = (
    "the server has {most} connections, which is its limit, and the body came too slowly to keep one of them"
)

LOOK_S = 0.001
"""So soon it is looked again whether a client that sends no more still listens; then ever more seldom."""


@dataclass(kw_only=True, slots=True)
class Bounds:
    """How many connections there are and may be, how long the head of a request may take, and an answer be left unread.

    Where there are as many as may be, one gives way to the next: who has been in a head for longest, else who has been
    idle for longest, else whose body comes slowly. Paths that are `open` are answered all the same.
    """

    most: int
    head_s: float
    unread_s: float
    refused: Callable[[], None]
    open: frozenset[str] = frozenset()
    count: int = 0
    headless: dict[Connection, float] = field(default_factory=dict)
    idle: dict[Connection, float] = field(default_factory=dict)
    arriving: dict[Connection, float] = field(default_factory=dict)

    def has_room(self) -> bool:
        """Whether one more may come; one that had its time to send a head, or its body, gives way to it."""
        if self.count >= self.most and (gives := self._who_gives_way(monotonic())):
            gives.give_way()
        return self.count < self.most

    def _who_gives_way(self, now: float) -> Connection | None:
        for waiting, after_s in ((self.headless, GIVES_WAY_S), (self.idle, IDLE_S)):
            longest, since = next(iter(waiting.items()), (None, now))
            if now - since >= after_s:
                return longest
        return next((each for each, since in self.arriving.items() if each.is_slow(now - since)), None)

    def protocol(self) -> type[asyncio.Protocol]:
        """What uvicorn makes for every connection."""
        return cast("type[asyncio.Protocol]", partial(Connection, self))


def told_of_leaving(told: Callable[[], None]) -> AbstractContextManager[None]:
    """`told` is called when the client of the request at hand leaves; soon, if it has left already."""
    connection = _CURRENT.get()
    if connection is None:
        return nullcontext()
    if connection.lost:
        asyncio.get_running_loop().call_soon(told)
    connection.leaving.add(told)
    return AtEnd(lambda: connection.leaving.discard(told))


def body_is_here() -> bool:
    """Whether the body of the request at hand has come in full; false where that is not known."""
    connection = _CURRENT.get()
    return connection is not None and connection.has_body


class _Joining:
    """A transport that sends what is written to it in one turn of the loop together: head and body of an answer."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self._transport = transport
        self._close = close
        self._waiting: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._send)
        self._waiting.append(data)

    def close(self) -> None:
        self._send()
        self._close()

    def _send(self) -> None:
        if self._waiting:
            waiting, self._waiting = b"".join(self._waiting), []
            self._transport.write(waiting)


class Connection(asyncio.Protocol):
    """uvicorn's protocol, unless there are too many connections; closed where no request comes of it."""

    def __init__(self, bounds: Bounds, **given: Any) -> None:
        self._bounds = bounds
        self._http = cast("Any", Http(**given))
        self._http.send_400_response = self._malformed
        self._http.idle = self._waits_idle
        self._refused = self._counted = self._told = False
        self.lost = False
        self.leaving: set[Callable[[], None]] = set()
        self._begins = b""
        self._timer: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count it or refuse it."""
        self._transport = cast("asyncio.Transport", transport)
        self._refused = not self._bounds.has_room()
        if self._refused:
            self._wait(LINGER_S)
        else:
            self._bounds.count += 1
            self._counted = True
            self._http.connection_made(_Joining(self._transport, self._close))
            self._wait(self._bounds.head_s)

    def data_received(self, data: bytes) -> None:
        """Hand it on, and begin or end to wait for the head of a request."""
        if self._refused:
            self._answer_one_too_many(data)
            return
        self._begins = data[:LOOKED_AT]
        _CURRENT.set(self)  # for the task that answers what begins here
        if self._http.head_bytes + self._http.of_head(data) > MOST_HEAD_BYTES:
            self._malformed(f"the head of a request has more than {MOST_HEAD_BYTES} bytes", 431)
            return
        self._http.data_received(data)
        if self._http.is_framed_too_much:
            self._malformed(FRAMED)
        elif not self._waits:
            self._unwait()
        elif self._timer is None:
            self._wait(self._bounds.head_s)
        self._note_body()

    def _note_body(self) -> None:
        """Since when a body is on its way."""
        if self._http.in_body and self._counted and not self._waits:
            self._bounds.arriving.setdefault(self, monotonic())
        else:
            self._bounds.arriving.pop(self, None)

    def is_slow(self, seconds: float) -> bool:
        """Whether so little of a body has come in this time that it may give way; what came before it is answered."""
        return seconds >= SLOW_S and self._http.body_bytes < SLOW_BYTES * seconds and not self._http.pipeline

    @property
    def has_body(self) -> bool:
        """Whether nothing is to come of the request that came last."""
        return not self._http.in_head and not self._http.in_body

    def eof_received(self) -> bool:
        """Whether who sends no more is to be answered: whoever has asked in full, and has nothing of the answer yet.

        A client that left altogether looks the same until something is sent to it, which HTTP/1.0 has no bytes for.
        """
        if self._refused or self._waits or not self.has_body or self._http.cycle.response_started:
            return False
        if self._http.cycle.scope["http_version"] != "1.1":
            return False
        self._http.cycle.keep_alive = False
        self._look(LOOK_S)
        return True

    def _look(self, again_s: float) -> None:
        """Send what needs no answer: where nobody listens the system says so, and the connection is lost."""
        if self._transport and not self.lost and not self._http.cycle.response_started:
            if not self._http.pipeline:
                self._transport.write(CONTINUE)
            asyncio.get_running_loop().call_later(again_s, self._look, 2 * again_s)

    def give_way(self) -> None:
        """Be closed for one that may have more to say; whose body is half here is told so."""
        self._bounds.refused()
        self._unwait()
        self._uncount()
        if self._waits:
            self._close()
        else:
            said = SLOW_BODY.format(most=self._bounds.most)
            self._refuse(Failure(status=503, kind="overloaded", message=said, code="overloaded"))

    def connection_lost(self, exc: Exception | None) -> None:
        """One connection less."""
        self._unwait()
        self._read_on()
        self.lost = True
        for told in tuple(self.leaving):
            told()
        self._uncount()
        if self._refused:
            self._bounds.refused()
        else:
            self._http.connection_lost(exc)

    def _uncount(self) -> None:
        self._bounds.count -= self._counted
        self._counted = False
        self._bounds.arriving.pop(self, None)

    def pause_writing(self) -> None:
        """Hand it on, and see to it that what is to be sent becomes less."""
        self._look_unread(math.inf)
        if not self._refused:
            self._http.pause_writing()

    def resume_writing(self) -> None:
        """Hand it on; whose connection is to be closed is looked after until all of its answer is gone."""
        if self._transport and not self._transport.is_closing():
            self._read_on()
        if not self._refused:
            self._http.resume_writing()

    def _look_unread(self, before: float) -> None:
        """Leave a client who took nothing of its answer since there were so many bytes of it."""
        assert self._transport is not None
        left = self._transport.get_write_buffer_size() + _unsent(self._transport.get_extra_info("socket"))
        if left < before:
            loop = asyncio.get_running_loop()
            self._unread = loop.call_later(self._bounds.unread_s, self._look_unread, left)
        else:
            self._transport.abort()

    def _read_on(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    @property
    def _waits(self) -> bool:
        """Whether the next thing to come is the head of a request."""
        cycle = self._http.cycle
        return cycle is None or bool(cycle.response_complete)

    def _wait(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._late)
        self._bounds.idle.pop(self, None)
        if self._counted:
            self._bounds.headless[self] = monotonic()

    def _waits_idle(self) -> None:
        if self._counted and self._timer is None:
            self._bounds.idle[self] = monotonic()

    def _unwait(self) -> None:
        self._bounds.headless.pop(self, None)
        self._bounds.idle.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._unwait()
        if self._refused or self._waits:
            self._close()

    def _close(self) -> None:
        """Once what is written is sent: a client who takes nothing of it is left as any other."""
        if self._transport is not None:
            self._transport.close()
            if self._unread is None and self._transport.get_write_buffer_size():
                self._look_unread(math.inf)

    def _malformed(self, message: str, status: int = 400) -> None:
        """What uvicorn would say in plain text of bytes that are no request."""
        self._refuse(Failure(status=status, kind="validation", message=message))

    def _refuse(self, failure: Failure) -> None:
        """Answer and close; nothing in the middle of an answer, in place of another one, or behind its own."""
        if self._transport is None or self._transport.is_closing():
            return
        if self._may_answer:
            path = self._http.scope["path"] if self._http.in_body else ""
            openai = path.startswith("/v1/") or _is_openai(self._begins)
            self._transport.write(_answer(failure, PHRASES[failure.status], openai=openai))
        self._close()

    @property
    def _may_answer(self) -> bool:
        cycle = self._http.cycle
        if cycle is None or self._http.pipeline:
            return cycle is None
        return not (self._http.in_body if cycle.response_complete else cycle.response_started)

    def _answer_one_too_many(self, data: bytes) -> None:
        """Answer the first bytes, and read on: to close on unread bytes would take the answer back."""
        if not self._transport or self._told:
            return
        self._told = True
        if self._is_open(data):
            self._refused = False
            self._http.connection_made(_Joining(self._transport, self._close))
            self.data_received(data)
            if self._http.cycle:
                self._http.cycle.keep_alive = False
        else:
            message = f"the server has {self._bounds.most} connections, which is its limit"
            failure = Failure(status=503, kind="overloaded", message=message, code="overloaded")
            self._transport.write(_answer(failure, PHRASES[503], openai=_is_openai(data)))
            self._transport.write_eof()

    def _is_open(self, data: bytes) -> bool:
        """Whether it is one request, whole and without a body, for a path that is always answered."""
        method, _, rest = data.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0].decode("latin-1")
        whole = data.find(HEAD_END) == len(data) - len(HEAD_END)
        return method == b"GET" and whole and path in self._bounds.open


def _unsent(sock: socket.socket) -> int:
    """Bytes that the system holds for the other side, which it hands on in large pieces."""
    (held,) = struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)))
    return int(held)


def _is_openai(data: bytes) -> bool:
    """Whether bytes ask for a path of OpenAI's API."""
    return b" /v1/" in data.partition(b"\r\n")[0]


def _answer(failure: Failure, phrase: str, *, openai: bool) -> bytes:
    """An answer without an application, after which the connection is closed."""
    body = json.dumps(failure.body(openai=openai)).encode()
    headers = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        "connection": "close",
        **failure.headers,
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {failure.status} {phrase}\r\n{head}\r\n".encode() + body


_CURRENT: ContextVar[Connection | None] = ContextVar("connection", default=None)
