"""GGUF files written byte by byte, as the format's description has it."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

U32, F32, BOOL, TEXT, ARRAY, U64 = 4, 6, 7, 8, 9, 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Packed:
    """A tensor as it lies in a file: its axes as numpy counts them, its type by number, its bytes."""

    shape: tuple[int, ...]
    kind: int
    data: bytes


def floats(array: NDArray[np.float32]) -> Packed:
    return Packed(shape=array.shape, kind=0, data=array.astype("<f4").tobytes())


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def setting(value: object) -> bytes:
    """The type of a value by number, and the value."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, bool):
        return struct.pack("<I?", BOOL, value)
    if isinstance(value, int):
        return struct.pack("<II", U32, value)
    if isinstance(value, float):
        return struct.pack("<If", F32, value)
    if isinstance(value, str):
        return struct.pack("<I", TEXT) + text(value)
    assert isinstance(value, Sequence)
    kind = TEXT if all(isinstance(item, str) for item in value) else U32
    items = b"".join(setting(item)[4:] for item in value)
    return struct.pack("<IIQ", ARRAY, kind, len(value)) + items


def gguf(
    settings: Mapping[str, object], tensors: Mapping[str, Packed], version: int = 3, alignment: int = 32
) -> bytes:
    """A whole file."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(settings))
    head += b"".join(text(key) + setting(value) for key, value in settings.items())
    body = b""
    for name, tensor in tensors.items():
        body += bytes(-len(body) % alignment)
        head += text(name) + struct.pack("<I", len(tensor.shape))
        head += b"".join(struct.pack("<Q", size) for size in tensor.shape[::-1])
        head += struct.pack("<IQ", tensor.kind, len(body))
        body += tensor.data
    return head + bytes(-len(head) % alignment) + body


def written(to: Path, data: bytes) -> Path:
    to.write_bytes(data)
    return to
