"""The model repository of the Open Inference Protocol over HTTP, and what it shares with that over gRPC."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from alula.core.errors import InputError
from alula.serve import bodies, terms
from alula.serve.bodies import Fields
from alula.serve.errors import Refused
from alula.serve.inference import VERSION
from alula.serve.posting import Endpoint, Made, posted, reply, unless_gone
from alula.serve.server import Server

Change: TypeAlias = Callable[[str], Awaitable[None]]

INDEX = "/v2/repository/index"
LOAD = "/v2/repository/models/{model:path}/load"
UNLOAD = "/v2/repository/models/{model:path}/unload"

DEPENDENTS = "unload_dependents"
"""A parameter that clients send along; nothing here depends on another model."""


def routes(server: Server, refused: Callable[[Exception], Response]) -> list[Route]:
    """The three paths."""

    async def told(request: Request, fields: Fields) -> Response:
        ready = fields.get("ready", bool, default=False)
        fields.done()
        return reply(index(server, ready=ready))

    def changing(change: Change) -> Callable[[Request, Fields], Awaitable[Response]]:
        async def changed(request: Request, fields: Fields) -> Response:
            refuse_parameters(fields.maybe("parameters", dict) or {})
            fields.done()
            await change(request.path_params["model"])
            return Response(status_code=200)

        return changed

    endpoints = {INDEX: told, LOAD: changing(server.models.load), UNLOAD: changing(server.models.unload)}
    return [
        Route(path, _posted(server, answer, refused), methods=["POST"]) for path, answer in endpoints.items()
    ]


def index(server: Server, *, ready: bool = False) -> list[dict[str, str]]:
    """Every bundle that may be served, or only those that are `ready`."""
    return [
        {"name": entry.name, "version": VERSION, "state": entry.state, "reason": entry.reason}
        for entry in server.models.index()
        if entry.state == "READY" or not ready
    ]


def refuse_unless_allowed(server: Server) -> None:
    """Refuse whoever has a key that is no administrator's, and everybody where no folder was named."""
    server.models.repository.refuse_unless_open()
    if not terms.current().admin:
        raise Refused(
            "this key may not load and unload models; its line in the file of keys has no 'admin'",
            status=403,
            code="admin_only",
        )


def refuse_parameters(given: Mapping[str, Any]) -> None:
    """Refuse what would change a bundle; only its name is taken from a client."""
    if others := sorted(set(given) - {DEPENDENTS}):
        raise InputError(
            f"parameter {others[0]!r} is not supported: a bundle is served as it lies in its folder"
        )


def _posted(
    server: Server,
    answer: Callable[[Request, Fields], Awaitable[Response]],
    refused: Callable[[Exception], Response],
) -> Endpoint:
    async def answered(request: Request, body: bytes, take: Callable[[int], None]) -> Made:
        refuse_unless_allowed(server)
        fields = Fields(bodies.parse(body or b"{}"))
        return await unless_gone(answer(request, fields))

    return posted(server, lambda: server.options.max_body_bytes, answered, refused)
