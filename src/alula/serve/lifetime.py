"""From the first socket to the exit: the process around a server."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING

from alula.core.errors import InputError
from alula.serve.options import ServeOptions
from alula.serve.supervisor import EngineProcess

if TYPE_CHECKING:
    from alula.serve.server import Server

log = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT)


def serve_until_told(options: ServeOptions, on_ready: Callable[[str], None]) -> None:
    """Serve until told to stop."""
    if threading.current_thread() is not threading.main_thread():
        raise InputError("serve was called outside the main thread, where signals do not arrive")
    with listening(options.host, options.port) as sock:
        # Before anything else is imported here: the engine process loads its own libraries meanwhile.
        first = EngineProcess.start(options.engine_command)
        asyncio.run(_serve(options, first, sock, on_ready))


@contextlib.contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that listens, or an error that says what to change."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        sock = socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise InputError(f"port {port} on {host} is in use; name another with --port") from error
        raise InputError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    with sock:
        yield sock


def url_of(sock: socket.socket) -> str:
    """Where the socket is reached."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def _serve(
    options: ServeOptions, first: EngineProcess, sock: socket.socket, on_ready: Callable[[str], None]
) -> None:
    from alula.serve.front import Front  # noqa: PLC0415 - imported while the engine process starts
    from alula.serve.server import Server as Running  # noqa: PLC0415

    server = Running(options, first)
    with _told_to_stop() as stop:
        try:
            async with Front(server, sock) as front:
                loading = asyncio.ensure_future(server.load())
                if await _first(loading, stop.wait()) is loading:
                    loading.result()
                    on_ready(url_of(sock))
                    await _first(front.ended(), stop.wait())
                    await _drain(server, options.grace_s)
        finally:
            await server.stop()


@contextlib.contextmanager
def _told_to_stop() -> Iterator[asyncio.Event]:
    """An event that is set by the signals that end a server."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, stop.set)
    try:
        yield stop
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)


async def _first(*awaitables: Awaitable[object]) -> asyncio.Future[object]:
    """The one that is done first; the others are cancelled."""
    futures = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    done, others = await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
    for other in others:
        other.cancel()
    if others:
        await asyncio.wait(others)
    return next(future for future in futures if future in done)


async def _drain(server: Server, grace_s: float) -> None:
    try:
        await asyncio.wait_for(server.drain(), grace_s)
    except asyncio.TimeoutError:
        log.warning("requests were not answered within the grace time of %g s", grace_s)
