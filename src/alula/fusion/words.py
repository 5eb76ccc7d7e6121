"""The runtimes' words for element types and operators, as the words that this package uses."""

from __future__ import annotations

import re
from collections.abc import Iterable

_TYPES = {
    "fp32": ("float", "float32", "f32", "fp32"),
    "fp16": ("half", "float16", "f16", "fp16"),
    "bf16": ("bfloat16", "bf16"),
    "fp8": ("fp8", "float8", "float8e4m3fn", "float8e5m2", "f8e4m3", "f8e5m2"),
    "fp4": ("fp4", "float4e2m1", "f4e2m1"),
    "fp64": ("double", "float64", "f64"),
    "int8": ("int8", "i8"),
    "uint8": ("uint8", "u8"),
    "int4": ("int4", "i4"),
    "uint4": ("uint4", "u4"),
    "int16": ("int16", "i16"),
    "int32": ("int32", "i32"),
    "int64": ("int64", "i64"),
    "uint32": ("uint32", "u32"),
    "uint64": ("uint64", "u64"),
    "bool": ("bool", "boolean"),
}
_BY_WORD = {word: name for name, words in _TYPES.items() for word in words}
_WORD = re.compile(r"[a-z]+\d*[a-z0-9]*", re.IGNORECASE)

FLOATING = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp4")
INTEGER_ARITHMETIC = ("int8", "uint8", "int4", "uint4")


def type_named(word: str) -> str:
    """Our name for an element type; empty for a word that is none."""
    return _BY_WORD.get(word.lower(), "")


def type_in(text: str) -> str:
    """The element type that a description names, such as "Row major Int8 format"; empty if none."""
    for word in _WORD.findall(text):
        if found := type_named(word):
            return found
    return ""


def precision_of(inputs: Iterable[str], outputs: Iterable[str]) -> str:
    """What a layer computes in, by the types of what it reads and gives.

    Integers of eight bits that are read say so; then the first floating type that is read, or given; then any type.
    """
    read, given = [each for each in inputs if each], [each for each in outputs if each]
    for wanted, among in ((INTEGER_ARITHMETIC, read), (FLOATING, read), (FLOATING, given)):
        for each in among:
            if each in wanted:
                return each.removeprefix("u") if each in INTEGER_ARITHMETIC else each
    return next(iter((*given, *read)), "")


def split_camel(text: str) -> list[str]:
    """`CastReshMul` as its parts."""
    return re.findall(r"[A-Z][a-z0-9]*|[a-z0-9]+", text)
