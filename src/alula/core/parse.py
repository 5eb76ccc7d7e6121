"""JSON into typed values; an error names the path of the field."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from alula.core.errors import ManifestError

T = TypeVar("T")


def get(raw: Mapping[str, Any], kind: type[T], key: str) -> T:
    """`raw[key]`, which must be there and be exactly a `kind` (a float may be written as a whole number)."""
    if key not in raw:
        raise ManifestError("is missing", key)
    value = raw[key]
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise ManifestError(f"is {type(value).__name__}, expected {kind.__name__}", key)
    return value


def get_one(raw: Mapping[str, Any], key: str, parse: Callable[[Mapping[str, Any]], T]) -> T:
    """`raw[key]`, an object, parsed; an error inside it names the whole path."""
    item: dict[str, Any] = get(raw, dict, key)
    try:
        return parse(item)
    except ManifestError as error:
        raise error.under(key) from error


def get_each(raw: Mapping[str, Any], key: str, parse: Callable[[Mapping[str, Any]], T]) -> tuple[T, ...]:
    """`raw[key]`, a list of objects, each parsed; an error names the index."""
    items: list[Any] = get(raw, list, key)
    parsed = []
    for index, item in enumerate(items):
        where = f"{key}[{index}]"
        if not isinstance(item, dict):
            raise ManifestError("is not an object", where)
        try:
            parsed.append(parse(item))
        except ManifestError as error:
            raise error.under(where) from error
    return tuple(parsed)


def get_words(raw: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """`raw[key]`, a list of strings."""
    return _get_all(raw, str, key)


def get_ints(raw: Mapping[str, Any], key: str) -> tuple[int, ...]:
    """`raw[key]`, a list of whole numbers."""
    return _get_all(raw, int, key)


def _get_all(raw: Mapping[str, Any], kind: type[T], key: str) -> tuple[T, ...]:
    items: list[Any] = get(raw, list, key)
    for index, item in enumerate(items):
        if type(item) is not kind:
            raise ManifestError(f"is {type(item).__name__}, expected {kind.__name__}", f"{key}[{index}]")
    return tuple(items)
