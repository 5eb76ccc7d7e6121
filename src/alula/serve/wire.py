"""Messages between front and engine process: a fixed header, a little JSON, and the raw bytes of arrays.

Nothing here can run code on arrival, and a message says its size before it is read.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from math import prod
from typing import Any, TypeAlias

import numpy as np

from alula.core.errors import EngineError, InputError, OutOfMemoryError, Overloaded, RunError
from alula.core.tensor import Array, Feeds
from alula.serve.named import BundleReplaced

Buffer: TypeAlias = bytes | memoryview

MAGIC = b"ALUL"
VERSION = 1
HEADER = struct.Struct("<4sBBHQIQ")
MAX_META = 1 << 20
MAX_PAYLOAD = 1 << 32
JOINED = 1 << 18
"""Bytes of arrays that are copied to be written at once: each write wakes the other side up."""
DTYPES = frozenset(
    {
        *("bool", "float16", "float32", "float64", "int8", "int16", "int32", "int64"),
        *("uint8", "uint16", "uint32", "uint64"),
    }
)

ERRORS: dict[str, type[InputError | Overloaded | EngineError]] = {
    "input": InputError,
    "overloaded": Overloaded,
    "memory": OutOfMemoryError,
    "run": RunError,
    "replaced": BundleReplaced,
}


class Kind(IntEnum):
    """What a message is."""

    READY = 1
    RUN = 2
    RESULT = 3
    FAILED = 4
    GENERATE = 5
    CANCEL = 6
    PIECES = 7
    OPEN = 8
    CLOSE = 9


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """One message; `number` ties an answer to its question, and READY, OPEN and PIECES to their model."""

    kind: Kind
    number: int
    meta: Mapping[str, Any] = field(default_factory=dict)
    arrays: Feeds = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Envelope:
    """A header that was read: what is coming and how much of it."""

    kind: Kind
    number: int
    meta_bytes: int
    payload_bytes: int


class WireError(EngineError):
    """What arrived is no message of this version."""


def pack(message: Message) -> list[Buffer]:
    """The buffers of a message, to be written one after the other; one if it is small.

    Otherwise arrays are not copied if contiguous.
    """
    arrays = {name: np.ascontiguousarray(array) for name, array in message.arrays.items()}
    shapes = [[name, str(array.dtype), list(array.shape)] for name, array in arrays.items()]
    meta = json.dumps({**message.meta, "arrays": shapes}).encode()
    if len(meta) > MAX_META:
        raise WireError(f"a message of {len(meta)} bytes beside its arrays; at most {MAX_META}")
    payload = sum(array.nbytes for array in arrays.values())
    header = HEADER.pack(MAGIC, VERSION, message.kind, 0, message.number, len(meta), payload)
    buffers: list[Buffer] = [
        header + meta,
        *(array.reshape(-1).view(np.uint8).data for array in arrays.values() if array.size),
    ]
    return buffers if payload > JOINED else [b"".join(buffers)]


def unpack_header(header: bytes | bytearray) -> Envelope:
    """Read a header, refusing what this version does not speak."""
    magic, version, kind, _, number, meta, payload = HEADER.unpack(header)
    if magic != MAGIC or version != VERSION or kind not in Kind.__members__.values():
        raise WireError(f"not a message of version {VERSION}: {bytes(header[:8]).hex()}")
    if meta > MAX_META or payload > MAX_PAYLOAD:
        raise WireError(f"a message of {meta} + {payload} bytes; at most {MAX_META} + {MAX_PAYLOAD}")
    return Envelope(kind=Kind(kind), number=number, meta_bytes=meta, payload_bytes=payload)


def unpack(envelope: Envelope, body: bytearray) -> Message:
    """Read what followed the header; the arrays are views of `body`."""
    meta = json.loads(body[: envelope.meta_bytes])
    arrays: dict[str, Array] = {}
    at = envelope.meta_bytes
    for name, dtype, shape in meta.pop("arrays"):
        if dtype not in DTYPES:
            raise WireError(f"array {name!r} is {dtype}; messages carry {sorted(DTYPES)}")
        count = prod(shape)
        arrays[name] = np.frombuffer(body, dtype=dtype, count=count, offset=at).reshape(shape)
        at += arrays[name].nbytes
    if at != len(body):
        raise WireError(f"a message of {len(body)} bytes whose arrays end at {at}")
    return Message(kind=envelope.kind, number=envelope.number, meta=meta, arrays=arrays)


def failure(number: int, error: BaseException) -> Message:
    """An error as a message that keeps who can act on it."""
    kind = next((word for word, known in ERRORS.items() if isinstance(error, known)), "engine")
    kind = "memory" if isinstance(error, MemoryError) else kind
    known = isinstance(error, InputError | Overloaded | EngineError)
    text = str(error) if known else f"{type(error).__name__}: {error}"
    return Message(kind=Kind.FAILED, number=number, meta={"error": kind, "message": text})


def error_of(message: Message) -> InputError | Overloaded | EngineError:
    """The error that `failure` described."""
    return ERRORS.get(message.meta["error"], EngineError)(message.meta["message"])
