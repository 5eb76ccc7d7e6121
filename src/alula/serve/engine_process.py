"""The process that owns the engines: opens bundles, runs batches, writes answers, and ends when the front does.

Started as `python -m alula.serve.engine_process FD OPENING NUMBER BUNDLE IDENTITY ...`, where FD is one end of a socket
pair, OPENING an `Opening`, NUMBER what the front calls the bundle by, and IDENTITY that of the bundle it read.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from alula.serve import wire
from alula.serve.engines import Engines, Opener
from alula.serve.logs import log_as
from alula.serve.memory import collect_seldom
from alula.serve.named import Named
from alula.serve.process import LOST_DEVICE, Opening
from alula.serve.wire import Message

log = logging.getLogger(__name__)


def main(argv: Sequence[str], opener: Opener | None = None) -> None:
    """Open the bundles named, then work until the other end of the socket is closed."""
    # The front decides when this process ends; a signal to the whole group must not cut a drain short.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    opening = Opening.parse(argv[1])
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    log_as(opening.log_format)
    collect_seldom()
    connection = socket.socket(fileno=int(argv[0]))
    inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(connection, inbox), daemon=True).start()
    engines = Engines(opener or _opener(), opening, post=inbox.put)
    for number, root, identity in zip(argv[2::3], argv[3::3], argv[4::3], strict=True):
        _send(connection, engines.open(int(number), Named(root=Path(root), identity=identity)))
    while not engines.lost:
        for message in engines.turn(_new(inbox, wait=not engines.busy)):
            _send(connection, message)
    # Whoever sees this process end starts another one, for which the device may work again.
    os._exit(LOST_DEVICE)


def _new(inbox: queue.SimpleQueue[Message], *, wait: bool) -> Iterator[Message]:
    """What has come meanwhile; with `wait`, one message at least."""
    if wait:
        yield inbox.get()
    while not inbox.empty():
        yield inbox.get()


def _opener() -> Opener:
    from alula.serve.opening import open_bundle  # noqa: PLC0415 - the listener runs already while this loads

    return open_bundle


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
