"""The paths of the Open Inference Protocol over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any, TypeAlias, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from alula.core.errors import InputError
from alula.serve import bodies, deadlines, v2
from alula.serve.deadlines import Deadline
from alula.serve.errors import Failure, failure_of
from alula.serve.inference import Asked, described, found, infer, server_metadata
from alula.serve.server import Server
from alula.serve.v2 import Wish

Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]
Unless: TypeAlias = Callable[[Request, Awaitable[Response], Deadline], Awaitable[Response]]
T = TypeVar("T")

STEM = "/v2/models/{model:path}"
VERSIONED = STEM + "/versions/{version}"

METHODS = ("DELETE", "GET", "OPTIONS", "PATCH", "POST", "PUT")

INLINE_BYTES = 65_536
"""Larger bodies are read and written in a thread, so that small ones do not stand behind them."""


def routes(server: Server, unless_gone: Unless) -> list[Route]:
    """Every path under /v2; `unless_gone` ends the work for a client who left or whose time is over."""
    infer_endpoint = _infer(server, unless_gone)
    return [
        Route("/v2", _got(server_metadata)),
        Route("/v2/health/live", _health(lambda: server.live, "live")),
        Route("/v2/health/ready", _health(lambda: server.ready, "ready")),
        # Of every method, since a GET of these would be taken for that of a model whose name ends so.
        *(Route(f"{stem}/infer", infer_endpoint, methods=METHODS) for stem in (VERSIONED, STEM)),
        *(Route(f"{stem}/ready", _model_ready(server)) for stem in (VERSIONED, STEM)),
        *(Route(stem, _metadata(server)) for stem in (VERSIONED, STEM)),
    ]


def refusal(failure: Failure) -> Response:
    """An error in the form of the protocol."""
    return _reply({"error": failure.message}, failure.status, failure.headers)


def _reply(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    body = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return Response(body, status_code=status, media_type="application/json", headers=headers)


def _got(value: Callable[[], Any]) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        return _reply(value())

    return endpoint


def _health(well: Callable[[], bool], name: str) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        good = well()
        return _reply({name: good}, 200 if good else 503)

    return endpoint


def _model_ready(server: Server) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        try:
            server.gate.refuse_unless_open()
            service = found(server.catalogue, *_named(request))
        except Exception as error:
            return refusal(failure_of(error))
        return _reply({"name": service.name, "ready": server.ready}, 200 if server.ready else 503)

    return endpoint


def _metadata(server: Server) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        try:
            return _reply(v2.metadata(described(found(server.catalogue, *_named(request)))))
        except InputError as error:
            return refusal(failure_of(error))

    return endpoint


def _infer(server: Server, unless_gone: Unless) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        if request.method != "POST":
            message = f"{request.url.path} takes POST, not {request.method}"
            response = refusal(Failure(status=405, kind="validation", message=message))
            response.headers["allow"] = "POST"
            return response
        with server.bodies.held() as take:
            try:
                server.gate.refuse_unless_open()
                limit = server.largest_tensors
                reading = bodies.read(request, limit, take)
                body = await server.gate.arrived(reading, server.options.body_timeout_s)
                server.gate.enter()
            except Exception as error:
                return refusal(failure_of(error))
            try:
                began = monotonic()
                body = v2.inflated(body, _encoding(request), limit, take)
                asked, wish = await _asked(request, body)
                within_s = deadlines.allowed(
                    deadlines.from_header(request.headers.get(deadlines.HEADER)),
                    asked.within_s,
                    default=server.options.timeout_s,
                )
                answer = _answer(server, asked, wish)
                return await unless_gone(request, answer, Deadline.after(within_s, began))
            except Exception as error:  # the edge of the process: whatever it is becomes an answer
                return refusal(failure_of(error))
            finally:
                server.gate.leave()

    return endpoint


async def _asked(request: Request, body: bytes) -> tuple[Asked, Wish]:
    length = request.headers.get(v2.HEADER_LENGTH)
    model, version = _named(request)
    return await _aside(len(body), lambda: v2.asked(body, length, model, version))


async def _answer(server: Server, asked: Asked, wish: Wish) -> Response:
    answered = await infer(server.catalogue, asked)
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


def _encoding(request: Request) -> str:
    return request.headers.get("content-encoding", "").strip().lower()
