"""The process that owns the engines: opens bundles, runs batches, and ends when the front does.

Started as `python -m alula.serve.engine_process FD THREADS first|again BUNDLE IDENTITY ...`, where FD is one end of a
socket pair and IDENTITY that of the bundle the front read.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from alula.core.engine import Session
from alula.core.errors import AlulaError, DeviceLostError
from alula.serve import wire
from alula.serve.named import Named
from alula.serve.process import AGAIN
from alula.serve.wire import Kind, Message

log = logging.getLogger(__name__)

Opener = Callable[[Path, int, bool], Session]
"""(root of a bundle, threads, whether to prove its files) to a session that has answered once."""


def main(argv: Sequence[str], opener: Opener | None = None) -> None:
    """Open the bundles named, then work until the other end of the socket is closed."""
    # The front decides when this process ends; a signal to the whole group must not cut a drain short.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    connection = socket.socket(fileno=int(argv[0]))
    inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(connection, inbox), daemon=True).start()
    engines = Engines(opener or _opener(), threads=int(argv[1]), again=argv[2] == AGAIN)
    for model, (root, identity) in enumerate(zip(argv[3::2], argv[4::2], strict=True)):
        _send(connection, engines.open(model, Named(root=Path(root), identity=identity)))
    while True:
        _send(connection, engines.run(inbox.get()))
        if engines.lost:
            # Whoever sees this process end starts another one, for which the device works again.
            os._exit(1)


def _opener() -> Opener:
    from alula.serve.opening import open_bundle  # noqa: PLC0415 - the listener runs already while this loads

    return open_bundle


class Engines:
    """The sessions of this process, by the place of their bundle; every failure is an answer.

    `lost` says that the last one ended the use of this process.
    """

    def __init__(self, opener: Opener, *, threads: int = 0, again: bool = False) -> None:
        self._opener = opener
        self._threads = threads
        self._again = again
        self._sessions: dict[int, Session] = {}
        self.lost = False

    def open(self, model: int, bundle: Named) -> Message:
        """Open one bundle, if it is the one the front read; one that changes meanwhile is no better."""
        try:
            bundle.refuse_if_replaced()
            session = self._opener(bundle.root, self._threads, self._again)
            bundle.refuse_if_replaced()
            self._sessions[model] = session
        except Exception as error:
            return _failure(model, error)
        return Message(kind=Kind.READY, number=model)

    def run(self, message: Message) -> Message:
        """Run one batch."""
        try:
            if message.kind is not Kind.RUN:
                raise wire.WireError(f"{message.kind.name} is for the front to receive")  # noqa: TRY301
            outputs = self._sessions[message.meta["model"]].run(message.arrays)
        except Exception as error:
            self.lost = isinstance(error, DeviceLostError)
            return _failure(message.number, error)
        return Message(kind=Kind.RESULT, number=message.number, arrays=outputs)


def _failure(number: int, error: Exception) -> Message:
    if not isinstance(error, AlulaError):
        log.error("message %d failed", number, exc_info=error)
    return wire.failure(number, error)


def _listen(connection: socket.socket, inbox: queue.SimpleQueue[Message]) -> None:
    """Read messages beside the work, so that the end of the front ends this process in the middle of a run too."""
    code = 0
    try:
        while header := _read(connection, wire.HEADER.size):
            envelope = wire.unpack_header(header)
            body = _read(connection, envelope.meta_bytes + envelope.payload_bytes)
            inbox.put(wire.unpack(envelope, body))
    except (OSError, wire.WireError, ValueError) as error:
        code = 1
        log.error("engine process stops: %s", error)  # noqa: TRY400 - no traceback for a closed socket
    os._exit(code)


def _read(connection: socket.socket, count: int) -> bytearray:
    """Exactly `count` bytes, or none if the other end is closed before the first."""
    body = bytearray(count)
    view, at = memoryview(body), 0
    while at < count:
        got = connection.recv_into(view[at:])
        if got == 0:
            return bytearray()
        at += got
    return body


def _send(connection: socket.socket, message: Message) -> None:
    try:
        for buffer in wire.pack(message):
            connection.sendall(buffer)
    except OSError:
        os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
