"""The paths of the Open Inference Protocol over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from alula.core.errors import InputError
from alula.serve import deadlines, repository_routes, v2
from alula.serve.deadlines import Deadline
from alula.serve.errors import Failure, failure_of
from alula.serve.inference import Asked, described, found, infer, server_metadata
from alula.serve.posting import Endpoint, Made, in_header, posted, reply, unless_gone
from alula.serve.server import Server
from alula.serve.v2 import Wish

T = TypeVar("T")

STEM = "/v2/models/{model:path}"
VERSIONED = STEM + "/versions/{version}"

METHODS = ("DELETE", "GET", "OPTIONS", "PATCH", "POST", "PUT")

INLINE_BYTES = 65_536
"""Larger bodies are read and written in a thread, so that small ones do not stand behind them."""


def routes(server: Server) -> list[Route]:
    """Every path under /v2."""
    infer_endpoint = _infer(server)
    return [
        Route("/v2", _got(server_metadata)),
        Route("/v2/health/live", _health(lambda: server.live, "live")),
        Route("/v2/health/ready", _health(lambda: server.ready, "ready")),
        *repository_routes.routes(server, lambda error: refusal(failure_of(error))),
        # Of every method, since a GET of these would be taken for that of a model whose name ends so.
        *(Route(f"{stem}/infer", infer_endpoint, methods=METHODS) for stem in (VERSIONED, STEM)),
        *(Route(f"{stem}/ready", _model_ready(server)) for stem in (VERSIONED, STEM)),
        *(Route(stem, _metadata(server)) for stem in (VERSIONED, STEM)),
    ]


def refusal(failure: Failure) -> Response:
    """An error in the form of the protocol."""
    return reply({"error": failure.message}, failure.status, failure.headers)


def _got(value: Callable[[], Any]) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        return reply(value())

    return endpoint


def _health(well: Callable[[], bool], name: str) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        good = well()
        return reply({name: good}, 200 if good else 503)

    return endpoint


def _model_ready(server: Server) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        try:
            server.gate.refuse_unless_open()
            service = found(server.catalogue, *_named(request))
        except Exception as error:
            return refusal(failure_of(error))
        return reply({"name": service.name, "ready": server.ready}, 200 if server.ready else 503)

    return endpoint


def _metadata(server: Server) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        try:
            return reply(v2.metadata(described(found(server.catalogue, *_named(request)))))
        except InputError as error:
            return refusal(failure_of(error))

    return endpoint


def _infer(server: Server) -> Endpoint:
    async def answered(request: Request, body: bytes, take: Callable[[int], None]) -> Made:
        began = monotonic()
        asked, wish = await _asked(request, body)
        default_s = server.options.timeout_s
        within_s = deadlines.allowed(in_header(request), asked.within_s, default=default_s)
        return await unless_gone(_answer(server, asked, wish), Deadline.after(within_s, began))

    def refused(error: Exception) -> Response:
        return refusal(failure_of(error))

    post = posted(server, lambda: server.largest_tensors, answered, refused)

    async def endpoint(request: Request) -> Response:
        if request.method == "POST":
            return await post(request)
        message = f"{request.url.path} takes POST, not {request.method}"
        response = refusal(Failure(status=405, kind="validation", message=message))
        response.headers["allow"] = "POST"
        return response

    return endpoint


async def _asked(request: Request, body: bytes) -> tuple[Asked, Wish]:
    length = request.headers.get(v2.HEADER_LENGTH)
    model, version = _named(request)
    return await _aside(len(body), lambda: v2.asked(body, length, model, version))


async def _answer(server: Server, asked: Asked, wish: Wish) -> Response:
    answered = await server.answered(lambda: infer(server.catalogue, asked))
    size = sum(tensor.values.nbytes for tensor in answered.outputs)
    content, head = await _aside(size, lambda: v2.written(answered, wish))
    if head is None:
        return Response(content, media_type="application/json")
    return Response(content, media_type="application/octet-stream", headers={v2.HEADER_LENGTH: str(head)})


async def _aside(size: int, work: Callable[[], T]) -> T:
    """Done here where it is little, else in a thread."""
    if size <= INLINE_BYTES:
        return work()
    return await asyncio.get_running_loop().run_in_executor(None, work)


def _named(request: Request) -> tuple[str, str]:
    return request.path_params["model"], request.path_params.get("version", "")
