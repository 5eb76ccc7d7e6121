"""From the first socket to the exit: the process around a server."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import socket
import threading
from collections.abc import Callable, Iterator

from alula.core.errors import InputError, MissingExtraError
from alula.serve.named import Named
from alula.serve.options import ServeOptions
from alula.serve.process import EngineProcess

PACKAGES = ("httptools", "orjson", "prometheus_client", "starlette", "tokenizers", "uvicorn")
"""What no server does without; looked for, and not imported yet."""


def serve_until_told(options: ServeOptions, on_ready: Callable[[str], None]) -> None:
    """Serve until told to stop."""
    if threading.current_thread() is not threading.main_thread():
        raise InputError("serve was called outside the main thread, where signals do not arrive")
    if not all(map(importlib.util.find_spec, PACKAGES)):
        raise MissingExtraError("serving", "serve")
    with listening(options.host, options.port) as sock:
        # Before anything else is imported here: the engine process loads its own libraries meanwhile.
        bundles = Named.all_at(options.bundles)
        first = EngineProcess.start(options.engine_command, dict(enumerate(bundles)), options.opening)
        from alula.serve.running import run_until_told  # noqa: PLC0415 - while the engine process starts

        run_until_told(options, bundles, first, sock, on_ready)


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
        # Connections inherit it. asyncio sets it only where a socket names its protocol, which these do not; without
        # it the body of an answer waits behind its head for the client's delayed acknowledgement, 40 ms.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield sock
