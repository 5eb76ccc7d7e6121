"""Around every request: its id, its place in the metrics, a line in the log."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from time import perf_counter, time
from uuid import uuid4

from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from alula.serve.metrics import Metrics
from alula.serve.options import LogFormat

# What may be echoed in a header and written to a log without a second look.
REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")


class Observed:
    """An ASGI application whose requests are seen."""

    def __init__(
        self, app: ASGIApp, metrics: Metrics, routes: Sequence[Route], log_format: LogFormat = "none"
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._routes = tuple(routes)
        self._log_format = log_format

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status, request_id = perf_counter(), 499, request_id_of(scope)

        async def seen(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", []), (b"x-request-id", request_id)]
            await send(message)

        try:
            await self._app(scope, receive, seen)
        finally:
            seconds = perf_counter() - started
            self._metrics.request(self._route(scope["path"]), status, seconds)
            if self._log_format != "none":
                line = log_line(self._log_format, scope, status, seconds, request_id.decode())
                sys.stderr.write(line + "\n")

    def _route(self, path: str) -> str:
        """The route of a path, so that no client can make up labels."""
        return next((route.path for route in self._routes if route.path_regex.match(path)), "other")


def request_id_of(scope: Scope) -> bytes:
    """The client's own id if it can be echoed, a new one otherwise."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and REQUEST_ID.fullmatch(value):
            return bytes(value)
    return uuid4().hex.encode()


def log_line(log_format: LogFormat, scope: Scope, status: int, seconds: float, request_id: str) -> str:
    """One request on one line, whatever its path holds."""
    record = {
        "time": round(time(), 3),
        "method": scope["method"],
        "path": scope["path"],
        "status": status,
        "ms": round(seconds * 1000, 2),
        "request_id": request_id,
        "client": (scope.get("client") or ("",))[0],
    }
    if log_format == "json":
        return json.dumps(record)
    return " ".join(f"{key}={json.dumps(value).strip(chr(34))}" for key, value in record.items())
