"""Messages of an engine process as they come, without holding up the loop."""

from __future__ import annotations

import asyncio
import socket

from alula.serve import wire
from alula.serve.wire import Message


async def receive(connection: socket.socket) -> Message | None:
    """The next message, or None once the other end is closed."""
    header = await _exactly(connection, wire.HEADER.size)
    if header is None:
        return None
    envelope = wire.unpack_header(header)
    body = await _exactly(connection, envelope.meta_bytes + envelope.payload_bytes)
    return None if body is None else wire.unpack(envelope, body)


async def _exactly(connection: socket.socket, count: int) -> bytearray | None:
    """`count` bytes, or None once the other end is closed."""
    loop = asyncio.get_running_loop()
    body = bytearray(count)
    view, at = memoryview(body), 0
    while at < count:
        got = await loop.sock_recv_into(connection, view[at:])
        if got == 0:
            return None
        at += got
    return body
