"""The model repository of the Open Inference Protocol over gRPC."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from alula.serve.errors import Refused
from alula.serve.grpc_tensors import MESSAGES
from alula.serve.repository_routes import index, refuse_parameters, refuse_unless_allowed
from alula.serve.server import Server


def methods(server: Server) -> Mapping[str, Callable[[Any], Awaitable[Any]]]:
    """The three methods, by name: of a message, whose sender has been identified, to another one."""

    async def told(request: Any) -> Any:
        _begin(server, request)
        return MESSAGES["RepositoryIndexResponse"](models=index(server, ready=request.ready))

    async def load(request: Any) -> Any:
        _begin(server, request)
        refuse_parameters(request.parameters)
        await server.models.load(request.model_name)
        return MESSAGES["RepositoryModelLoadResponse"]()

    async def unload(request: Any) -> Any:
        _begin(server, request)
        refuse_parameters(request.parameters)
        await server.models.unload(request.model_name)
        return MESSAGES["RepositoryModelUnloadResponse"]()

    return {"RepositoryIndex": told, "RepositoryModelLoad": load, "RepositoryModelUnload": unload}


def _begin(server: Server, request: Any) -> None:
    server.gate.refuse_unless_open()
    refuse_unless_allowed(server)
    if request.repository_name:
        raise Refused(f"no repository {request.repository_name!r}; there is one, without a name", status=404)
