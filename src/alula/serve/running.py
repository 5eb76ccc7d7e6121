"""A server in its event loop: load, announce, answer, drain, stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence

from alula.core.errors import MissingExtraError
from alula.serve.front import Front
from alula.serve.logs import log_as, unwaited
from alula.serve.memory import collect_seldom
from alula.serve.named import Named
from alula.serve.open_files import OutOfFiles
from alula.serve.options import ServeOptions
from alula.serve.process import EngineProcess
from alula.serve.server import Server

log = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT)
RELOAD = signal.SIGHUP
"""Has bundles that were changed loaded again, where there is a repository."""


def run_until_told(
    options: ServeOptions,
    bundles: Sequence[Named],
    first: EngineProcess,
    sock: socket.socket,
    on_ready: Callable[[str], None],
) -> None:
    """Serve until SIGTERM or SIGINT."""
    with unwaited():
        log_as(options.log_format)
        collect_seldom()
        asyncio.run(_serve(options, bundles, first, sock, on_ready))


def url_of(sock: socket.socket) -> str:
    """Where the socket is reached."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def _serve(
    options: ServeOptions,
    bundles: Sequence[Named],
    first: EngineProcess,
    sock: socket.socket,
    on_ready: Callable[[str], None],
) -> None:
    server = Server(options, bundles, first)
    asyncio.get_running_loop().set_exception_handler(OutOfFiles())
    # Who has no repository has nothing to load again: a terminal that is closed ends the server as it should.
    signals = SIGNALS if options.repository else (*SIGNALS, RELOAD)
    with _told_to_stop(signals) as stop:
        try:
            async with grpc_front(server), Front(server, sock) as front:
                loading = asyncio.ensure_future(server.load())
                if await _first(loading, stop.wait()) is loading:
                    loading.result()
                    if options.repository:
                        asyncio.get_running_loop().add_signal_handler(RELOAD, server.models.reload_later)
                    on_ready(url_of(sock))
                    await _first(front.ended(), stop.wait())
                    await _drain(server, options.grace_s)
        finally:
            await server.stop()


def grpc_front(server: Server) -> contextlib.AbstractAsyncContextManager[object]:
    """The front that speaks gRPC, where it is asked for."""
    if server.options.grpc_port is None:
        return contextlib.nullcontext()
    try:
        from alula.serve.grpc_front import GrpcFront  # noqa: PLC0415 - loads what most servers do without
    except ModuleNotFoundError as error:
        raise MissingExtraError("gRPC (--grpc-port)", "grpc") from error
    return GrpcFront(server, server.options.grpc_port)


@contextlib.contextmanager
def _told_to_stop(signals: Sequence[int]) -> Iterator[asyncio.Event]:
    """An event that is set by the signals that end a server."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in signals:
        loop.add_signal_handler(number, stop.set)
    try:
        yield stop
    finally:
        for number in signals:
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
        # Now, while there is somebody to tell them: without an engine they are answered 503.
        await server.stop()
