"""The block formats that llama.cpp packs weights in, unpacked to fp32."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from alula.core.errors import InputError
from alula.families.weights import Floats

Bytes = NDArray[np.uint8]

# Of 16 MB at most as fp32, so that what is made on the way stays small beside a large tensor.
_AT_ONCE = 1 << 22
_FIFTH = np.uint8(16)


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockType:
    """A row is cut into blocks of `numbers`, each packed in `size` bytes and unpacked by `unpack`, many at a time."""

    name: str
    numbers: int
    size: int
    unpack: Callable[[Bytes], Floats]


def unpack(kind: BlockType, blocks: Bytes) -> Floats:
    """The numbers of many blocks, [blocks, numbers]."""
    values = np.empty((len(blocks), kind.numbers), np.float32)
    step = max(1, _AT_ONCE // kind.numbers)
    for at in range(0, len(blocks), step):
        values[at : at + step] = kind.unpack(blocks[at : at + step])
    return values


def block_type(number: int, tensor: str) -> BlockType:
    """The type that a file gives by number; others are refused by name."""
    if number in TYPES:
        return TYPES[number]
    named = _REFUSED.get(number, "not known")
    expected = ", ".join(kind.name for kind in TYPES.values())
    raise InputError(f"{tensor} is of type {number} ({named}), expected one of {expected}")


def _f32(b: Bytes) -> Floats:
    return np.ascontiguousarray(b).view("<f4")


def _f16(b: Bytes) -> Floats:
    return np.ascontiguousarray(b).view("<f2").astype(np.float32)


def _bf16(b: Bytes) -> Floats:
    return (np.ascontiguousarray(b).view("<u2").astype(np.uint32) << 16).view(np.float32)


def _halves(b: Bytes) -> Bytes:
    """Four bits each: the low halves of all bytes, then the high ones."""
    return np.concatenate([b & 15, b >> 4], axis=-1)


def _fifth_bits(b: Bytes) -> Bytes:
    """Bit n of 32 as the fifth bit of number n."""
    return np.unpackbits(np.ascontiguousarray(b), axis=-1, bitorder="little") * _FIFTH


def _q4_0(b: Bytes) -> Floats:
    return _f16(b[:, :2]) * (_halves(b[:, 2:]).astype(np.float32) - 8)


def _q4_1(b: Bytes) -> Floats:
    return _f16(b[:, :2]) * _halves(b[:, 4:]) + _f16(b[:, 2:4])


def _q5_0(b: Bytes) -> Floats:
    numbers = _halves(b[:, 6:]) | _fifth_bits(b[:, 2:6])
    return _f16(b[:, :2]) * (numbers.astype(np.float32) - 16)


def _q5_1(b: Bytes) -> Floats:
    numbers = _halves(b[:, 8:]) | _fifth_bits(b[:, 4:8])
    return _f16(b[:, :2]) * numbers + _f16(b[:, 2:4])


def _q8_0(b: Bytes) -> Floats:
    return _f16(b[:, :2]) * np.ascontiguousarray(b[:, 2:]).view(np.int8)


def _scales(b: Bytes) -> tuple[Bytes, Bytes]:
    """Eight scales and eight minima of six bits from twelve bytes.

    Four of each lie in the low six bits of the first eight bytes; of the others, four bits lie in the last four bytes
    and the top two in what the first eight leave.
    """
    low, high, rest = b[:, :4], b[:, 4:8], b[:, 8:]
    scales = np.concatenate([low & 63, (rest & 15) | (low >> 6 << 4)], axis=1)
    minima = np.concatenate([high & 63, (rest >> 4) | (high >> 6 << 4)], axis=1)
    return scales, minima


def _scaled(b: Bytes, numbers: NDArray[np.integer]) -> Floats:
    """Eight groups of 32, each with a scale and a minimum in units that the first four bytes give."""
    scales, minima = _scales(b[:, 4:16])
    scale, least = _f16(b[:, :2]) * scales, _f16(b[:, 2:4]) * minima
    values: Floats = scale[:, :, None] * numbers.reshape(-1, 8, 32) - least[:, :, None]
    return values.reshape(-1, 256)


def _q4_k(b: Bytes) -> Floats:
    return _scaled(b, _halves(b[:, 16:].reshape(-1, 4, 32)))


def _q5_k(b: Bytes) -> Floats:
    fifth = (b[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1) * _FIFTH
    return _scaled(b, _halves(b[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32) | fifth)


def _q6_k(b: Bytes) -> Floats:
    # Two halves of 128 numbers: 64 bytes of low bits and 32 of high ones, from which four rows of 32 are made.
    low = _halves(b[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    high = (b[:, 128:192].reshape(-1, 2, 1, 32) >> shifts & 3) << 4
    numbers = (low | high).reshape(-1, 16, 16).astype(np.float32) - 32
    scale = _f16(b[:, 208:]) * np.ascontiguousarray(b[:, 192:208]).view(np.int8)
    return (scale[:, :, None] * numbers).reshape(-1, 256)


def _type(name: str, numbers: int, size: int, by: Callable[[Bytes], Floats]) -> BlockType:
    return BlockType(name=name, numbers=numbers, size=size, unpack=by)


TYPES: Mapping[int, BlockType] = {
    0: _type("F32", 1, 4, _f32),
    1: _type("F16", 1, 2, _f16),
    30: _type("BF16", 1, 2, _bf16),
    8: _type("Q8_0", 32, 34, _q8_0),
    2: _type("Q4_0", 32, 18, _q4_0),
    3: _type("Q4_1", 32, 20, _q4_1),
    6: _type("Q5_0", 32, 22, _q5_0),
    7: _type("Q5_1", 32, 24, _q5_1),
    12: _type("Q4_K", 256, 144, _q4_k),
    13: _type("Q5_K", 256, 176, _q5_k),
    14: _type("Q6_K", 256, 210, _q6_k),
}
_REFUSED: Mapping[int, str] = {
    **{4: "Q4_2", 5: "Q4_3", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS"},
    **{18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8"},
    **{25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4"},
}
