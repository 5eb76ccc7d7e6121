"""What every path that takes a body has in common: it is let in, answered as long as somebody waits, and let go."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from time import monotonic
from typing import Any, TypeAlias

from starlette.requests import Request
from starlette.responses import Response

from alula.serve import bodies, deadlines, terms
from alula.serve.bodies import Fields
from alula.serve.connections import body_is_here, told_of_leaving
from alula.serve.deadlines import Deadline
from alula.serve.events import Events, EventStream
from alula.serve.jsons import Numbers
from alula.serve.patience import Patience
from alula.serve.records import LEFT, current
from alula.serve.server import Server

Made: TypeAlias = Response | Events
Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]
Answer: TypeAlias = Callable[[Request, bytes, Callable[[int], None]], Awaitable[Made]]
"""Of a request and its body; the third is told of bytes that are held beside them."""


def reply(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON answer. ASCII only, so that any text can be sent; NaN is a defect, never an answer."""
    body = value.json() if isinstance(value, Numbers) else _dumped(value)
    return Response(body, status_code=status, media_type="application/json", headers=headers)


def _dumped(value: Any) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def posted(
    server: Server,
    limit: Callable[[], int],
    answer: Answer,
    refused: Callable[[Exception], Response],
    stream: type[EventStream] = EventStream,
) -> Endpoint:
    """A path whose bodies have `limit` bytes at most; `refused` says how errors look, `stream` how events go out."""

    async def endpoint(request: Request) -> Response:
        with server.bodies.held() as take:
            try:
                server.gate.refuse_unless_open()
                reading = bodies.read(request, limit(), take)
                within_s = None if body_is_here() else server.options.body_timeout_s
                body = await server.gate.arrived(reading, within_s)
                server.gate.enter()
                current().body(body)
            except Exception as error:
                return refused(error)
            return await answered(request, body, take)

    async def answered(request: Request, body: bytes, take: Callable[[int], None]) -> Response:
        leave: Callable[[], None] | None = server.gate.leave
        try:
            made = await answer(request, await _inflated(request, body, limit(), take), take)
            if isinstance(made, Events):
                made = stream(made, server.gate.leave)
                leave = None  # the request is answered once the stream has ended
        except Exception as error:  # the edge of the process: whatever it is becomes an answer
            return refused(error)
        else:
            return made
        finally:
            if leave:
                leave()

    return endpoint


async def _inflated(request: Request, body: bytes, limit: int, take: Callable[[int], None]) -> bytes:
    """The body as it was before it was compressed, which holds up nobody else meanwhile."""
    encoding = (bodies.header(request, b"content-encoding") or "").strip().lower()
    if encoding in {"", "identity"}:
        return body
    loop = asyncio.get_running_loop()
    found = await loop.run_in_executor(None, bodies.inflated, body, encoding, limit)
    take(len(found))
    return found


async def unless_gone(work: Awaitable[Made], deadline: Deadline | None = None) -> Made:
    """What is made. Nothing more is done for a client who left, or whose time is over."""
    deadlines.set_until(deadline)
    patience = Patience(deadline.left(monotonic()) if deadline else None)
    try:
        with told_of_leaving(patience.left), patience:
            return await work
    except asyncio.CancelledError:
        if patience.ended == "left":
            return Response(status_code=LEFT)
        if patience.ended == "late" and deadline:
            raise deadline.missed(current().done, current().rows) from None
        raise


def deadline_of(request: Request, fields: Fields, default_s: float) -> Deadline:
    """Until when the client waits: as it says, in the header or the body, or so long."""
    said = in_header(request)
    asked = deadlines.from_field(fields.some((deadlines.FIELD,)).get(deadlines.FIELD))
    return Deadline.after(deadlines.allowed(said, asked, default=default_s), monotonic())


def hurried(fields: Fields) -> None:
    """Take from a body how urgent it is."""
    terms.ask(terms.from_field(fields.some((terms.FIELD,)).get(terms.FIELD)))


def in_header(request: Request) -> float | None:
    """How many seconds the client waits, by its header."""
    return deadlines.from_header(bodies.header(request, _HEADER))


_HEADER = deadlines.HEADER.encode()
