"""Server-sent events, and lines of JSON: an answer that is sent while it is made."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from alula.serve.errors import Failure, failure_of
from alula.serve.records import LEFT, current

log = logging.getLogger(__name__)

END = b"data: [DONE]\n\n"
HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}

STALLED_S = 60.0
"""A client that takes nothing for so long is as good as gone, though its connection stands."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Events:
    """What is to be sent, some objects at a time; `close` is called when nobody wants more."""

    objects: AsyncIterator[list[Mapping[str, Any]]]
    close: Callable[[], None]


def event(value: Mapping[str, Any]) -> bytes:
    """One event. ASCII only, so that no line of a text can end it."""
    return b"data: " + json.dumps(value, allow_nan=False, separators=(",", ":")).encode("ascii") + b"\n\n"


class EventStream(Response):
    """The response of an `Events`; `done` is called once, whatever happens.

    An error of a stream that has begun is its last event, since the status is out by then.
    """

    media_type = "text/event-stream"

    @staticmethod
    def encoded(value: Mapping[str, Any]) -> bytes:
        """One object as it is sent."""
        return event(value)

    @staticmethod
    def last(failure: Failure | None) -> bytes:
        """What comes after all objects, or in place of the rest of them."""
        return END if failure is None else event(failure.body(openai=True))

    def __init__(self, events: Events, done: Callable[[], None]) -> None:
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._events = events
        self._done = done
        self._since: float | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until there is no more, or the client has left."""
        sending = asyncio.ensure_future(self._send(send))
        leaving = asyncio.ensure_future(receive())
        try:
            done: set[asyncio.Future[Any]] = set()
            while not done and not self._stalled:
                done, _ = await asyncio.wait(
                    {sending, leaving}, timeout=STALLED_S / 4, return_when=asyncio.FIRST_COMPLETED
                )
            if sending in done:
                sending.result()
            else:
                current().failed = LEFT
        finally:
            self._events.close()
            leaving.cancel()
            sending.cancel()
            await asyncio.wait({sending, leaving})
            self._done()

    @property
    def _stalled(self) -> bool:
        if self._since is None or monotonic() - self._since < STALLED_S:
            return False
        log.warning("a client took nothing of its stream for %g s: given up", STALLED_S)
        return True

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async for objects in self._events.objects:
                if objects:
                    await self._body(send, b"".join(map(self.encoded, objects)))
            last = self.last(None)
        except Exception as error:  # whatever it is becomes an event
            failure = failure_of(error)
            current().failed = failure.status
            last = self.last(failure)
        await self._body(send, last, more=False)

    async def _body(self, send: Send, body: bytes, *, more: bool = True) -> None:
        # Timed from outside: until Python 3.12 wait_for may lose a cancellation.
        self._since = monotonic()
        await send({"type": "http.response.body", "body": body, "more_body": more})
        self._since = None


class LineStream(EventStream):
    """The same as lines of JSON, each an object; an error is the last one, as it stands in a body elsewhere."""

    media_type = "application/x-ndjson"

    @staticmethod
    def encoded(value: Mapping[str, Any]) -> bytes:
        """One line. ASCII only, so that nothing in it ends it."""
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode("ascii") + b"\n"

    @staticmethod
    def last(failure: Failure | None) -> bytes:
        """Nothing, or the error."""
        return b"" if failure is None else LineStream.encoded(failure.body(openai=False))
