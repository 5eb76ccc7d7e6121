"""GGUF files: settings and where tensors lie, read once; weights mapped into memory and unpacked one at a time."""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from alula.core.errors import InputError
from alula.families.ggml import BlockType, block_type, unpack
from alula.families.weights import Floats, Weight

Value: TypeAlias = int | float | bool | str | tuple[str, ...] | NDArray[np.generic]

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
# What no file of a model comes near; without them a small file could ask for any amount of memory.
_MOST_ENTRIES = 1 << 16
_MOST_ITEMS = 1 << 22
_LONGEST_TEXT = 1 << 24
_MOST_AXES = 4

_NUMBERS = {
    0: "u1",
    1: "i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_BOOL, _TEXT, _ARRAY = 7, 8, 9


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedWeight(Weight):
    """A tensor of a GGUF file.

    `pairs` is 0, or the number of heads whose rotated numbers lie side by side, as llama.cpp stores LLaMA's queries
    and keys; they are read with the two halves of a head apart.
    """

    kind: BlockType
    pairs: int = 0

    def read(self) -> Floats:
        """The values as fp32."""
        count = math.prod(self.shape) // self.kind.numbers
        blocks = np.memmap(self.path, np.uint8, "r", self.start, (count, self.kind.size))
        values = unpack(self.kind, np.asarray(blocks)).reshape(self.shape)
        if not self.pairs:
            return values
        return values.reshape(self.pairs, -1, 2, *self.shape[1:]).swapaxes(1, 2).reshape(self.shape)


@dataclass(frozen=True, kw_only=True, slots=True)
class Gguf:
    """What a file says of its model, and its tensors under the names it gives them."""

    path: Path
    metadata: Mapping[str, Value]
    tensors: Mapping[str, PackedWeight]


def read_gguf(path: Path) -> Gguf:
    """A file's settings and tensors, once every one of them is known to lie inside it."""
    with path.open("rb") as file:
        start = file.read(8)
        if start[:4] != _MAGIC:
            raise InputError(f"{path} is not a GGUF file: it begins with {start[:4]!r}, expected {_MAGIC!r}")
        version = int.from_bytes(start[4:], "little")
        if version not in _VERSIONS:
            swapped = int.from_bytes(start[4:], "big") in _VERSIONS
            what = "in big-endian order" if swapped else f"of version {version}"
            raise InputError(f"{path} is a GGUF file {what}, expected version 2 or 3, little-endian")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _parse(path, _Cursor(path, data))


class _Cursor:
    """Reads forward through the bytes behind the version, and says where a file that is cut short ends."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.at = 8
        self.size = len(data)
        self._data = data
        self._items = 0

    def number(self, form: str) -> int:
        return int(struct.unpack(form, self._take(struct.calcsize(form)))[0])

    def count(self, what: str) -> int:
        found = self.number("<Q")
        if found > _MOST_ENTRIES:
            raise InputError(f"{self.path} is malformed: {found} {what}, expected at most {_MOST_ENTRIES}")
        return found

    def text(self) -> str:
        length = self.number("<Q")
        if length > _LONGEST_TEXT:
            raise InputError(
                f"{self.path} is malformed: a text of {length} bytes at byte {self.at}, "
                f"expected at most {_LONGEST_TEXT}"
            )
        try:
            return self._take(length).decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{self.path} is malformed: a text before byte {self.at} is no UTF-8") from error

    def value(self, key: str) -> Value:
        kind = self.number("<I")
        if kind == _ARRAY:
            return self._array(key)
        if kind == _TEXT:
            return self.text()
        if kind == _BOOL:
            return self._take(1) != b"\0"
        item: int | float = self._numbers(key, kind, 1).tolist()[0]
        return item

    def _array(self, key: str) -> Value:
        kind, count = self.number("<I"), self.number("<Q")
        self._items += count
        if self._items > _MOST_ITEMS:
            raise InputError(
                f"{self.path} is malformed: {self._items} items in arrays up to {key}, expected at most {_MOST_ITEMS}"
            )
        if kind == _TEXT:
            return tuple(self.text() for _ in range(count))
        if kind == _BOOL:
            return self._numbers(key, 0, count).astype(np.bool_)
        return self._numbers(key, kind, count)

    def _numbers(self, key: str, kind: int, count: int) -> NDArray[np.generic]:
        if kind not in _NUMBERS:
            raise InputError(
                f"{self.path} is malformed: {key} is of type {kind}, which GGUF does not have here"
            )
        dtype = np.dtype(_NUMBERS[kind])
        return np.frombuffer(self._take(count * dtype.itemsize), dtype)

    def _take(self, count: int) -> bytes:
        if self.at + count > self.size:
            raise InputError(
                f"{self.path} is cut short: it ends at byte {self.size}, expected at least {self.at + count}"
            )
        self.at += count
        return self._data[self.at - count : self.at]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Info:
    """A tensor as the head of the file lists it; `offset` counts from where the data begins."""

    name: str
    shape: tuple[int, ...]
    kind: BlockType
    offset: int

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) // self.kind.numbers * self.kind.size


def _parse(path: Path, cursor: _Cursor) -> Gguf:
    tensors, entries = cursor.count("tensors"), cursor.count("settings")
    metadata: dict[str, Value] = {}
    for _ in range(entries):
        key = cursor.text()
        if key in metadata:
            raise InputError(f"{path} is malformed: {key} is set twice")
        metadata[key] = cursor.value(key)
    if (parts := metadata.get("split.count", 1)) not in (0, 1):
        raise InputError(
            f"{path} is one of {parts} files of a model, expected one; join them with llama-gguf-split"
        )
    infos = [_info(cursor) for _ in range(tensors)]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise InputError(f"{path} is malformed: general.alignment is {alignment}, expected a power of two")
    data = -(-cursor.at // alignment) * alignment
    weights: dict[str, PackedWeight] = {}
    for info in infos:
        if info.name in weights:
            raise InputError(f"{path} is malformed: it has two tensors {info.name}")
        weights[info.name] = _weight(path, info, data, alignment, cursor.size)
    return Gguf(path=path, metadata=metadata, tensors=weights)


def _info(cursor: _Cursor) -> _Info:
    name, axes = cursor.text(), cursor.number("<I")
    if not 1 <= axes <= _MOST_AXES:
        raise InputError(f"{cursor.path} is malformed: {name} has {axes} axes, expected 1 to {_MOST_AXES}")
    # The file names the axis that runs fastest first.
    shape = tuple(cursor.number("<Q") for _ in range(axes))[::-1]
    kind = block_type(cursor.number("<I"), f"{cursor.path.name}: {name}")
    if min(shape) < 1 or shape[-1] % kind.numbers:
        raise InputError(
            f"{cursor.path} is malformed: {name} is {list(shape)}, expected rows of whole blocks of {kind.numbers}"
        )
    return _Info(name=name, shape=shape, kind=kind, offset=cursor.number("<Q"))


def _weight(path: Path, info: _Info, data: int, alignment: int, size: int) -> PackedWeight:
    if info.offset % alignment:
        raise InputError(
            f"{path} is malformed: {info.name} lies at {info.offset}, not a multiple of {alignment}"
        )
    start = data + info.offset
    if start + info.bytes > size:
        raise InputError(
            f"{path} is cut short: {info.name} ends at byte {start + info.bytes}, the file at {size}"
        )
    return PackedWeight(
        name=info.name, path=path, dtype=info.kind.name, shape=info.shape, start=start, kind=info.kind
    )
