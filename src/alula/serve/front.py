"""uvicorn around the application, started and stopped from inside our own loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator

import uvicorn

from alula.serve.admission import HEALTH
from alula.serve.app import application
from alula.serve.connections import Bounds
from alula.serve.open_files import connections_within
from alula.serve.server import Server

HEAD_S = 5.0
"""So long the head of a request may take: nobody needs more, and it takes the place of one who asks."""
CUT_OFF_S = 2
"""What is still being answered when the grace time is over gets so many seconds more."""


class Front:
    """Listens as long as its block lasts."""

    def __init__(self, server: Server, sock: socket.socket) -> None:
        options = server.options
        bounds = Bounds(
            most=connections_within(options.max_connections),
            head_s=min(HEAD_S, options.body_timeout_s),
            unread_s=2 * options.body_timeout_s,
            refused=server.metrics.connection_refused,
            open=HEALTH,
        )
        config = uvicorn.Config(
            application(server),
            http=bounds.protocol(),
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            timeout_keep_alive=options.keep_alive_s,
            timeout_graceful_shutdown=CUT_OFF_S,
        )
        # Of bytes that are no request, and of upgrades, clients are told and nobody else.
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        self._uvicorn = _Unsignalled(config)
        self._sock = sock
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Front:
        self._task = asyncio.create_task(self._uvicorn.serve(sockets=[self._sock]), name="front")
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close idle connections, let answers be finished, and stop listening."""
        assert self._task is not None
        self._uvicorn.should_exit = True
        await asyncio.wait({self._task})

    async def ended(self) -> None:
        """Wait for the end of uvicorn, which does not end by itself unless something is wrong."""
        assert self._task is not None
        await asyncio.shield(self._task)


class _Unsignalled(uvicorn.Server):
    """uvicorn without its signal handlers: who hears a signal is decided where the drain is."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
