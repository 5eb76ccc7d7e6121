"""Around every request: its id, its place in the metrics, a line in the log."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import monotonic, time
from typing import TYPE_CHECKING, Any

from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from alula.core.errors import MissingExtraError
from alula.serve.logs import line
from alula.serve.metrics import Metrics
from alula.serve.options import LogFormat, ServeOptions
from alula.serve.records import Record, Recording

if TYPE_CHECKING:
    from alula.serve.tracing import Traces

# What may be echoed in a header and written to a log without a second look.
REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")

TRACE_HEADERS = frozenset({b"traceparent", b"tracestate", b"baggage"})

DEGRADED = "x-alula-degraded"
"""Why something cheaper answered; over gRPC it stands in the trailing metadata."""

ALWAYS = frozenset({"status", "ms", "queue_ms", "compute_ms"})
"""What is written though it be nought."""


@dataclass(frozen=True, slots=True)
class Observer:
    """Who is told of every request, whatever carries it."""

    metrics: Metrics
    log_format: LogFormat
    traces: Traces | None = None

    @classmethod
    def of(cls, options: ServeOptions, metrics: Metrics) -> Observer:
        """As the options say; whoever has it must close it."""
        return cls(metrics, options.log_format, _traces() if options.traces else None)

    def close(self) -> None:
        """Send what is not sent yet. Safe to call twice."""
        if self.traces:
            self.traces.close()

    def observed(self, record: Record) -> Observation:
        """Counts and logs a request once it is answered, whatever came of it."""
        record.digests = self.log_format != "none" or self.traces is not None
        return Observation(record, self.told)

    def told(self, record: Record) -> None:
        """A request was answered."""
        record.ended = monotonic()
        for done in record.then:
            done()
        self.metrics.request(record.route, record.ending, record.seconds, record.model)
        if record.degraded:
            self.metrics.degraded(record.model, record.degraded)
        if self.traces:
            self.traces.told(record)
        if self.log_format != "none":
            sys.stderr.write(log_line(self.log_format, record) + "\n")


class Observation(Recording):
    """Has a request's record at hand as long as its block lasts, and tells of it then."""

    __slots__ = ("_told",)

    def __init__(self, record: Record, told: Callable[[Record], None]) -> None:
        super().__init__(record)
        self._told = told

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._told(self._record)


class Observed:
    """An ASGI application whose requests are seen."""

    def __init__(self, app: ASGIApp, observer: Observer, routes: Sequence[Route]) -> None:
        self._app = app
        self._observer = observer
        self._routes = tuple(routes)
        self._plain = {route.path for route in routes if "{" not in route.path}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def seen(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                message["headers"] = [*message.get("headers", []), *_told(record)]
            await send(message)

        with self._observer.observed(self._record(scope, request_id_of(scope).decode())) as record:
            await self._app(scope, receive, seen)

    def _record(self, scope: Scope, request_id: str) -> Record:
        path = scope["path"]
        route = path if path in self._plain else self._matching(path)
        return record_of(scope, route, request_id)

    def _matching(self, path: str) -> str:
        return next((route.path for route in self._routes if route.path_regex.match(path)), "other")


def _told(record: Record) -> Iterator[tuple[bytes, bytes]]:
    """What every answer says in its head."""
    yield b"x-request-id", record.id.encode()
    if record.because:
        yield DEGRADED.encode(), record.because.encode()


def _traces() -> Traces:
    try:
        from alula.serve.tracing import traces  # noqa: PLC0415 - an extra, which most servers do without
    except ModuleNotFoundError as error:
        raise MissingExtraError("traces", "otel") from error
    return traces()


def record_of(scope: Scope, route: str, request_id: str) -> Record:
    """What is known of a request by its head; `route` is one of ours, so that no client can make up labels."""
    return Record(
        id=request_id,
        method=scope["method"],
        route=route,
        path=scope["path"],
        client=str((scope.get("client") or ("",))[0]),
        trace=tuple(
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in scope["headers"]
            if name in TRACE_HEADERS
        ),
        time=time(),
        began=monotonic(),
    )


def request_id_of(scope: Scope) -> bytes:
    """The client's own id if it can be echoed, a new one otherwise."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and REQUEST_ID.fullmatch(value):
            return bytes(value)
    return os.urandom(16).hex().encode()


def log_line(log_format: LogFormat, record: Record) -> str:
    """One request on one line, whatever its path holds; what is not known of it, or not there, is left out."""
    known = {key: value for key, value in _described(record) if value or (value == 0 and key in ALWAYS)}
    return line(log_format, known)


def _described(record: Record) -> Iterator[tuple[str, Any]]:
    yield "time", round(record.time, 3)
    yield "request_id", record.id
    yield "method", record.method
    yield "route", record.route
    yield "path", record.path
    yield "status", record.status
    yield "outcome", record.outcome
    yield "ms", _ms(record.seconds)
    yield "model", record.model
    yield "items", record.items
    yield "tokens", record.tokens
    yield "written", record.written
    yield "pixels", record.pixels
    yield "bytes", record.body_bytes
    yield "input", record.input
    yield "queue_ms", _ms(record.queue_s)
    yield "compute_ms", _ms(record.compute_s)
    yield "first_token_ms", _ms(record.first_s)
    yield "degraded", record.degraded
    yield "because", record.because
    yield "caller", record.caller
    yield "client", record.client
    yield "trace_id", record.trace_id
    yield "span_id", record.span_id


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 2)
