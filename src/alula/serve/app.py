"""The HTTP application: which path answers what."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any, TypeAlias

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from alula.core.errors import InputError
from alula.serve import answering, bodies, deadlines, ocr_routes, openapi, v2_routes, written
from alula.serve.bodies import Fields
from alula.serve.catalogue import Catalogue
from alula.serve.deadlines import Deadline
from alula.serve.errors import Failure, failure_of
from alula.serve.events import Events, EventStream
from alula.serve.information import info, model, models
from alula.serve.metrics import CONTENT_TYPE_LATEST
from alula.serve.observed import Observed
from alula.serve.server import Server
from alula.serve.uploads import fields_of, is_upload

Answer: TypeAlias = Callable[[Catalogue, Fields], Awaitable[Any]]

CLIENT_GONE = 499
GONE = object()

MODEL = "/v1/models/{model:path}"

ANSWERS: dict[str, Answer] = {
    "/v1/chat/completions": written.chat,
    "/v1/completions": written.completion,
    "/v1/embeddings": answering.embeddings,
    "/embed": answering.embed,
    "/tokenize": answering.tokenize,
    "/predict": answering.predict,
    "/rerank": answering.rerank,
}

UPLOADS = frozenset({"/predict"})
"""Where a body may hold images as they are."""

IN_TIME = frozenset({"/v1/embeddings", "/embed", "/tokenize", "/predict", "/rerank"})
"""Where a request is answered by its deadline; answers that are written have a limit of their own."""

SHOWN = frozenset({"/v1/chat/completions"})
"""Where a body may hold images in its JSON."""


def application(server: Server) -> ASGIApp:
    """Everything that is served over HTTP."""
    routes = [
        *(Route(path, _posted(server, path, answer), methods=["POST"]) for path, answer in ANSWERS.items()),
        Route("/v1/models", _got(lambda: models(server))),
        Route(MODEL, _model(server)),
        *ocr_routes.routes(server, _unless_gone),
        *v2_routes.routes(server, _response_unless_gone),
        Route("/", _to_docs),
        Route("/info", _got(lambda: info(server))),
        *(Route(path, _live(server)) for path in ("/health/live", "/livez")),
        *(Route(path, _ready(server)) for path in ("/health/ready", "/readyz", "/health")),
        Route("/metrics", _metrics(server)),
        Route("/openapi.json", _got(openapi.document)),
        Route("/docs", _docs),
    ]
    app = Starlette(routes=routes, exception_handlers={404: _no_route, 405: _wrong_method})
    return Observed(app, server.metrics, routes, server.options.log_format)


def reply(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON answer. ASCII only, so that any text can be sent; NaN is a defect, never an answer."""
    body = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return Response(body, status_code=status, media_type="application/json", headers=headers)


def refusal(failure: Failure, path: str) -> Response:
    """An error in the dialect of the path it was met on."""
    if path == "/v2" or path.startswith("/v2/"):
        return v2_routes.refusal(failure)
    openai = path.startswith("/v1/")
    return reply(failure.body(openai=openai), failure.status, failure.headers)


def _posted(server: Server, path: str, answer: Answer) -> Callable[[Request], Awaitable[Response]]:
    uploads = path in UPLOADS

    async def endpoint(request: Request) -> Response:
        with server.bodies.held() as take:
            try:
                server.gate.refuse_unless_open()
                limit = server.largest_upload if uploads else server.largest_body(shown=path in SHOWN)
                reading = bodies.read(request, limit, take)
                body = await server.gate.arrived(reading, server.options.body_timeout_s)
                server.gate.enter()
            except Exception as error:
                return refusal(failure_of(error), path)
            return await answered(request, body)

    async def answered(request: Request, body: bytes) -> Response:
        leave: Callable[[], None] | None = server.gate.leave
        try:
            fields = _fields(request, body, uploads=uploads)
            deadline = _deadline(server, request, fields) if path in IN_TIME else None
            value = await _unless_gone(request, answer(server.catalogue, fields), deadline)
            if isinstance(value, Events):
                stream = EventStream(value, server.gate.leave)
                leave = None  # the request is answered once the stream has ended
                return stream
            return reply(value) if value is not GONE else Response(status_code=CLIENT_GONE)
        except Exception as error:  # the edge of the process: whatever it is becomes an answer
            return refusal(failure_of(error), path)
        finally:
            if leave:
                leave()

    return endpoint


def _fields(request: Request, body: bytes, *, uploads: bool) -> Fields:
    kind = request.headers.get("content-type", "")
    if uploads and is_upload(kind):
        return Fields(fields_of(body, kind, request.url.query))
    return Fields(bodies.parse(body))


def _deadline(server: Server, request: Request, fields: Fields) -> Deadline:
    """Until when the client waits: as it says, in the header or the body, or the server's word."""
    asked = fields.some((deadlines.FIELD,)).get(deadlines.FIELD)
    within_s = deadlines.allowed(
        deadlines.from_header(request.headers.get(deadlines.HEADER)),
        deadlines.from_field(asked),
        default=server.options.timeout_s,
    )
    return Deadline.after(within_s, monotonic())


async def _unless_gone(request: Request, answer: Awaitable[Any], deadline: Deadline | None = None) -> Any:
    """The answer; or `GONE`. Nothing more is done for a client who left, or whose time is over."""
    work = asyncio.ensure_future(answer)
    leaving = asyncio.ensure_future(request.receive())
    try:
        left = deadline.left(monotonic()) if deadline else None
        done, _ = await asyncio.wait({work, leaving}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        if deadline and not done:
            raise deadline.missed()
        return work.result() if work.done() else GONE
    finally:
        work.cancel()
        leaving.cancel()


async def _response_unless_gone(
    request: Request, answer: Awaitable[Response], deadline: Deadline
) -> Response:
    response = await _unless_gone(request, answer, deadline)
    return Response(status_code=CLIENT_GONE) if response is GONE else response


def _got(value: Callable[[], Any]) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        return reply(value())

    return endpoint


def _model(server: Server) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            return reply(model(server, request.path_params["model"]))
        except InputError as error:
            return refusal(failure_of(error), request.url.path)

    return endpoint


def _live(server: Server) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        live, health = server.live, server.health()
        return reply(health, 200 if live else 503)

    return endpoint


def _ready(server: Server) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        ready, health = server.ready, server.health()
        return reply(health, 200 if ready else 503)

    return endpoint


def _metrics(server: Server) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        return Response(server.metrics.text(), headers={"content-type": CONTENT_TYPE_LATEST})

    return endpoint


async def _to_docs(request: Request) -> Response:
    return RedirectResponse("docs")


async def _docs(request: Request) -> Response:
    return HTMLResponse(openapi.page())


async def _no_route(request: Request, error: Exception) -> Response:
    message = f"no endpoint {request.url.path}; /docs lists them"
    return refusal(Failure(status=404, kind="validation", message=message), request.url.path)


async def _wrong_method(request: Request, error: Exception) -> Response:
    wanted = "POST" if request.url.path in {*ANSWERS, *ocr_routes.PATHS} else "GET"
    message = f"{request.url.path} takes {wanted}, not {request.method}"
    answer = refusal(Failure(status=405, kind="validation", message=message), request.url.path)
    answer.headers["allow"] = wanted
    return answer
