"""The HTTP application: which path answers what."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from alula.core.errors import InputError
from alula.serve import (
    answering,
    bodies,
    ocr_routes,
    openapi_served,
    records,
    unpooled,
    v2_routes,
    web,
    written,
)
from alula.serve.admission import Admitted
from alula.serve.bodies import Fields
from alula.serve.catalogue import Catalogue
from alula.serve.errors import Failure, failure_of
from alula.serve.events import Events
from alula.serve.information import info, model, models
from alula.serve.jsons import Numbers
from alula.serve.metrics import CONTENT_TYPE_LATEST
from alula.serve.observed import Observed
from alula.serve.posting import Endpoint, Made, deadline_of, hurried, posted, reply, unless_gone
from alula.serve.server import Server
from alula.serve.unpooled import Matrices
from alula.serve.uploads import fields_of, is_upload

Answer: TypeAlias = Callable[[Catalogue, Fields], Awaitable[Any]]

MODEL = "/v1/models/{model:path}"

ANSWERS: dict[str, Answer] = {
    "/v1/chat/completions": written.chat,
    "/v1/completions": written.completion,
    "/v1/embeddings": answering.embeddings,
    "/embed": answering.embed,
    "/embed_all": unpooled.embed_all,
    "/tokenize": answering.tokenize,
    "/predict": answering.predict,
    "/rerank": answering.rerank,
}

UPLOADS = frozenset({"/predict"})
"""Where a body may hold images as they are."""

IN_TIME = frozenset({"/v1/embeddings", "/embed", "/embed_all", "/tokenize", "/predict", "/rerank"})
"""Where a request is answered by its deadline; answers that are written have a limit of their own."""

SHOWN = frozenset({"/v1/chat/completions"})
"""Where a body may hold images in its JSON."""


def application(server: Server) -> ASGIApp:
    """Everything that is served over HTTP."""
    answers = {path: _posted(server, path, answer) for path, answer in ANSWERS.items()}
    routes = [
        *(Route(path, endpoint, methods=["POST"]) for path, endpoint in answers.items()),
        Route("/v1/models", _got(lambda: models(server))),
        Route(MODEL, _model(server)),
        *ocr_routes.routes(server),
        *v2_routes.routes(server),
        *web.routes(),
        Route("/info", _got(lambda: info(server))),
        *(Route(path, _live(server)) for path in ("/health/live", "/livez")),
        *(Route(path, _ready(server)) for path in ("/health/ready", "/readyz", "/health")),
        Route("/metrics", _metrics(server)),
        Route(
            "/openapi.json", _got(lambda: openapi_served.document(server.catalogue.services, server.options))
        ),
    ]
    app = Starlette(routes=routes, exception_handlers={404: _no_route, 405: _wrong_method})
    admitted = Admitted(
        Direct(app, answers), server.admission, lambda error, path: refusal(failure_of(error), path)
    )
    return Observed(admitted, server.observer, routes)


class Direct:
    """An ASGI application whose busiest paths are answered without a look at the others: they handle every error."""

    def __init__(self, app: ASGIApp, answers: Mapping[str, Endpoint]) -> None:
        self._app = app
        self._answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        asks = scope["type"] == "http" and scope["method"] == "POST"
        endpoint = self._answers.get(scope["path"]) if asks else None
        if endpoint is None:
            await self._app(scope, receive, send)
            return
        response = await endpoint(Request(scope, receive, send))
        await response(scope, receive, send)


def refusal(failure: Failure, path: str) -> Response:
    """An error in the dialect of the path it was met on."""
    if path == "/v2" or path.startswith("/v2/"):
        return v2_routes.refusal(failure)
    openai = path.startswith("/v1/")
    return reply(failure.body(openai=openai), failure.status, failure.headers)


def _posted(server: Server, path: str, answer: Answer) -> Endpoint:
    uploads = path in UPLOADS

    def limit() -> int:
        return server.largest_upload if uploads else server.largest_body(shown=path in SHOWN)

    def refused(error: Exception) -> Response:
        return refusal(failure_of(error), path)

    async def answered(request: Request, body: bytes, take: Callable[[int], None]) -> Made:
        fields = _fields(request, body, uploads=uploads)
        hurried(fields)
        deadline = deadline_of(request, fields, server.options.timeout_s) if path in IN_TIME else None
        made = _made(server, path, lambda: answer(server.catalogue, fields))
        return await unless_gone(made, deadline)

    return posted(server, limit, answered, refused)


async def _made(server: Server, path: str, answer: Callable[[], Awaitable[Any]]) -> Made:
    value = await server.answered(answer)
    if path.startswith("/v1/") and (because := records.current().because):
        said = value.value if isinstance(value, Numbers) else value
        if isinstance(said, dict):
            said["degraded"] = because
    if isinstance(value, Matrices):
        return await value.response()
    return value if isinstance(value, Events) else reply(value)


def _fields(request: Request, body: bytes, *, uploads: bool) -> Fields:
    kind = (bodies.header(request, b"content-type") or "") if uploads else ""
    if is_upload(kind):
        return Fields(fields_of(body, kind, request.url.query))
    return Fields(bodies.parse(body))


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


async def _no_route(request: Request, error: Exception) -> Response:
    message = f"no endpoint {request.url.path}; /docs lists them"
    return refusal(Failure(status=404, kind="validation", message=message), request.url.path)


async def _wrong_method(request: Request, error: Exception) -> Response:
    path = request.url.path
    wanted = "POST" if path in {*ANSWERS, *ocr_routes.PATHS} or path.startswith("/v2/repository/") else "GET"
    message = f"{request.url.path} takes {wanted}, not {request.method}"
    answer = refusal(Failure(status=405, kind="validation", message=message), request.url.path)
    answer.headers["allow"] = wanted
    return answer
