"""Tensors as requests bring them and answers carry them: datatypes, shapes and bytes. Knows no transport.

Names of datatypes and the layout of bytes are those of the Open Inference Protocol, version 2: elements in row-major
order, little-endian, a BYTES element behind its length in four bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from alula.core.errors import EngineError, InputError
from alula.core.tensor import Array, TensorSpec

BYTES = "BYTES"

DATATYPES: Mapping[str, str] = {
    "BOOL": "bool",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "float16",
    "FP32": "float32",
    "FP64": "float64",
}
_CALLED = {dtype: datatype for datatype, dtype in DATATYPES.items()}

MOST_AXES = 16
LENGTH = struct.Struct("<I")


@dataclass(frozen=True, kw_only=True, slots=True)
class Slot:
    """A tensor that a model takes or gives; -1 is an axis that varies."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, spec: TensorSpec) -> Slot:
        """A tensor of an engine."""
        shape = tuple(dim if isinstance(dim, int) else -1 for dim in spec.shape)
        return cls(name=spec.name, datatype=datatype_of(spec.dtype), shape=shape)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tensor:
    """A named array; of BYTES an array of objects, each of them `bytes`."""

    name: str
    values: Array

    @property
    def datatype(self) -> str:
        """What the protocol calls its elements."""
        return BYTES if self.values.dtype == np.object_ else datatype_of(str(self.values.dtype))


def datatype_of(dtype: str) -> str:
    """What the protocol calls elements of a numpy type."""
    return _CALLED[dtype]


def check_head(name: str, datatype: str, shape: Sequence[int]) -> None:
    """Refuse a datatype that nobody knows and a shape that no array has, before any element is read."""
    if datatype != BYTES and datatype not in DATATYPES:
        raise InputError(
            f"input {name!r} has datatype {datatype!r}; expected one of: {', '.join((*DATATYPES, BYTES))}"
        )
    if len(shape) > MOST_AXES:
        raise InputError(f"input {name!r} has {len(shape)} axes; expected at most {MOST_AXES}")
    for size in shape:
        if not 0 <= size < 1 << 31:
            raise InputError(f"input {name!r} has shape {list(shape)}; expected sizes of 0..{(1 << 31) - 1}")


def from_raw(name: str, datatype: str, shape: Sequence[int], raw: bytes | memoryview) -> Tensor:
    """A tensor from its bytes, which must be all of it and nothing else."""
    check_head(name, datatype, shape)
    if datatype == BYTES:
        return shaped(name, _strings(name, raw), shape)
    dtype = np.dtype(DATATYPES[datatype]).newbyteorder("<")
    if len(raw) != prod(shape) * dtype.itemsize:
        raise InputError(
            f"input {name!r} has {len(raw)} bytes; {datatype} of shape {list(shape)} has "
            f"{prod(shape) * dtype.itemsize}"
        )
    values = np.frombuffer(raw, dtype).astype(dtype.newbyteorder("="), copy=False)
    if datatype == "BOOL" and (np.frombuffer(raw, np.uint8) > 1).any():
        raise InputError(f"input {name!r} has bytes other than 0 and 1; expected BOOL")
    return shaped(name, values, shape)


def from_values(name: str, datatype: str, shape: Sequence[int], data: Any) -> Tensor:
    """A tensor from numbers, booleans or texts in lists, flat or nested, in row-major order."""
    check_head(name, datatype, shape)
    if not isinstance(data, list):
        raise InputError(f"the data of input {name!r} is no list; expected a list of {datatype}")
    if datatype == BYTES:
        return shaped(name, of_strings([_text(name, one) for one in _flat(name, data)]), shape)
    return shaped(name, _cast(name, _flat(name, data), datatype), shape)


def to_raw(tensor: Tensor) -> bytes:
    """The bytes of a tensor."""
    if tensor.datatype == BYTES:
        return b"".join(LENGTH.pack(len(one)) + one for one in strings(tensor.values))
    values = np.ascontiguousarray(tensor.values)
    return values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()


def to_values(tensor: Tensor) -> list[Any]:
    """The elements of a tensor for JSON, flat; what JSON cannot say is the engine's failure."""
    if tensor.datatype == BYTES:
        return [one.decode("utf-8", "replace") for one in strings(tensor.values)]
    if tensor.values.dtype.kind == "f" and not np.isfinite(tensor.values).all():
        raise EngineError(
            f"the engine gives infinity for {tensor.name!r}, which is no JSON number; ask for binary_data"
        )
    found: list[Any] = tensor.values.reshape(-1).tolist()
    return found


def strings(values: Array) -> list[bytes]:
    """The elements of a tensor of BYTES."""
    found: list[bytes] = values.reshape(-1).tolist()
    return found


def shaped(name: str, values: Array, shape: Sequence[int]) -> Tensor:
    """A tensor of so many elements, which must be all of them."""
    if values.size != prod(shape):
        raise InputError(f"input {name!r} has {values.size} elements; shape {list(shape)} has {prod(shape)}")
    return Tensor(name=name, values=values.reshape(tuple(shape)))


def _strings(name: str, raw: bytes | memoryview) -> Array:
    found: list[bytes] = []
    at, view = 0, memoryview(raw)
    while at < len(view):
        if at + LENGTH.size > len(view):
            raise InputError(f"input {name!r} ends within the length of element {len(found)}")
        (size,) = LENGTH.unpack_from(view, at)
        at += LENGTH.size
        if at + size > len(view):
            raise InputError(f"input {name!r} ends within element {len(found)}, which has {size} bytes")
        found.append(bytes(view[at : at + size]))
        at += size
    return of_strings(found)


def of_strings(found: list[bytes]) -> Array:
    """The elements of a tensor of BYTES, in one row."""
    values = np.empty(len(found), dtype=np.object_)
    values[:] = found
    return values


def _flat(name: str, data: list[Any]) -> list[Any]:
    found: list[Any] = []
    waiting = [iter(data)]
    while waiting:
        for one in waiting[-1]:
            if isinstance(one, list):
                waiting.append(iter(one))
                break
            found.append(one)
        else:
            waiting.pop()
        if len(waiting) > MOST_AXES:
            raise InputError(f"the data of input {name!r} are nested more than {MOST_AXES} deep")
    return found


def _text(name: str, one: Any) -> bytes:
    if not isinstance(one, str):
        raise InputError(f"the data of input {name!r} hold what is no string; expected BYTES as strings")
    # A lone surrogate, which JSON can spell and UTF-8 cannot, is refused where the text is read.
    return one.encode("utf-8", "surrogatepass")


_NUMBERS: Mapping[str, frozenset[type]] = {"f": frozenset({int, float}), "b": frozenset({bool})}


def _cast(name: str, data: list[Any], datatype: str) -> Array:
    """Numbers as the datatype, unless that would change them."""
    dtype = np.dtype(DATATYPES[datatype])
    kinds = _NUMBERS.get(dtype.kind, frozenset({int}))
    # Looked at before numpy is: one text among numbers would make texts of its length of all of them.
    if not kinds.issuperset(map(type, data)):
        raise InputError(f"the data of input {name!r} are not all {datatype}")
    if dtype.kind in "iu" and data:
        info, low, high = np.iinfo(dtype), min(data), max(data)
        if low < info.min or high > info.max:
            raise InputError(
                f"the data of input {name!r} are not all {datatype}, which holds {info.min}..{info.max}"
            )
    try:
        with np.errstate(over="ignore"):
            values = np.array(data, dtype)
    except OverflowError:
        values = np.array([np.inf], dtype)
    if dtype.kind == "f" and not np.isfinite(values).all():
        raise InputError(f"the data of input {name!r} hold a number that is too large for {datatype}")
    return values
