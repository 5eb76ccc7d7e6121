"""Who is let in over gRPC: asked of the metadata, before a message is read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from alula.core.errors import AlulaError
from alula.serve.admission import Admission
from alula.serve.callers import Caller

Refuse = Callable[[Exception, str, Any], Awaitable[None]]
"""Ends a call with an error, of which it is told the path and the context."""


class Admitting(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Refuses calls without a key before anything of them is read; `is_open` tells which need none by their path."""

    def __init__(self, admission: Admission, is_open: Callable[[str], bool], refuse: Refuse) -> None:
        self._admission = admission
        self._is_open = is_open
        self._refuse = refuse

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        """The handler of a call, or one that refuses it."""
        if not self._is_open(details.method):
            try:
                identified(self._admission, details.invocation_metadata)
            except AlulaError as error:
                return self._refusing(error, details.method)
        return await continuation(details)

    def _refusing(self, error: Exception, path: str) -> Any:
        async def refused(requests: Any, context: Any) -> None:
            await self._refuse(error, path, context)

        # As a stream, whatever the method is: the message of a unary call would be read before its handler is asked.
        return grpc.stream_stream_rpc_method_handler(refused)


def identified(admission: Admission, metadata: Any) -> Caller:
    """Who calls, by the metadata; its terms hold for the call from now on."""
    return admission.identified({key: value for key, value in metadata or () if isinstance(value, str)})
