"""Weights in safetensors files, mapped into memory and read one at a time."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from alula.core.errors import InputError

Floats = NDArray[np.float32]

# BF16 is read as its bits: numpy has no such type.
_READ_AS: Mapping[str, str] = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_BYTES: Mapping[str, int] = {
    "F64": 8,
    "I64": 8,
    "F32": 4,
    "I32": 4,
    "F16": 2,
    "BF16": 2,
    "U8": 1,
    "I8": 1,
    "BOOL": 1,
}
_LONGEST_HEADER = 100_000_000

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Weight:
    """Where one tensor lies; nothing of it is in memory."""

    name: str
    path: Path
    dtype: str
    shape: tuple[int, ...]
    start: int

    def read(self) -> Floats:
        """The values as fp32: a view into the mapped file where it holds fp32 already."""
        if self.dtype not in _READ_AS:
            raise InputError(
                f"{self.path.name}: {self.name} is {self.dtype}, expected one of {', '.join(_READ_AS)}; "
                "quantised checkpoints have to be dequantised first"
            )
        # A mapping of its own for every read: its pages are given back as soon as the caller is done.
        mapped = np.memmap(self.path, np.dtype(_READ_AS[self.dtype]), "r", self.start, self.shape)
        values = np.asarray(mapped)
        if self.dtype == "BF16":
            return (values.astype(np.uint32) << 16).view(np.float32)
        return values.astype(np.float32, copy=False)

    def read_transposed(self) -> Floats:
        """The values of a matrix the other way round, copied."""
        return np.ascontiguousarray(self.read().T)


Weights = Mapping[str, Weight]


def weight_files(folder: Path) -> tuple[Path, ...]:
    """The safetensors files of a folder: one, or the shards its index names."""
    if (folder / SINGLE).is_file():
        return (folder / SINGLE,)
    index = folder / INDEX
    if not index.is_file():
        return ()
    try:
        shards = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise InputError(f"{index} is not an index of shards: {error!r}") from error
    paths = tuple(folder / str(shard) for shard in shards)
    if missing := [path.name for path in paths if not path.is_file()]:
        raise InputError(f"{index} names shards that are not there: {', '.join(missing)}")
    return paths


def read_weights(folder: Path) -> Weights:
    """Every tensor of a folder by name, from the headers alone."""
    weights: dict[str, Weight] = {}
    for path in weight_files(folder):
        weights.update(read_header(path))
    return weights


def read_header(path: Path) -> Weights:
    """The tensors of one file, once every one of them is known to lie inside it."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _LONGEST_HEADER):
            raise InputError(f"{path} is cut short or not a safetensors file: {_look(path)}")
        raw = file.read(length)
    try:
        header: dict[str, Any] = json.loads(raw)
        header.pop("__metadata__", None)
        weights = {name: _weight(path, name, entry, 8 + length, size) for name, entry in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} has a malformed safetensors header: {error!r}") from error
    return weights


def _weight(path: Path, name: str, entry: Mapping[str, Any], data: int, size: int) -> Weight:
    dtype, shape, (begin, end) = (
        str(entry["dtype"]),
        tuple(int(n) for n in entry["shape"]),
        entry["data_offsets"],
    )
    if data + end > size:
        raise InputError(f"{path} is cut short: {name} ends at byte {data + end}, the file at {size}")
    expected = math.prod(shape) * _BYTES[dtype] if dtype in _BYTES else end - begin
    if not 0 <= begin <= end or end - begin != expected:
        raise InputError(f"{path} is malformed: {name} is {dtype} {list(shape)} in {end - begin} bytes")
    return Weight(name=name, path=path, dtype=dtype, shape=shape, start=data + begin)


def _look(path: Path) -> str:
    with path.open("rb") as file:
        start = file.read(64)
    if start.startswith(b"version https://git-lfs"):
        return "it is a git-lfs pointer, run 'git lfs pull'"
    return f"{path.stat().st_size} bytes"
