"""Request bodies: bytes to typed values. Everything a client can get wrong is refused here, by name."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.requests import Request

from alula.core.errors import InputError
from alula.core.listing import twice
from alula.serve.errors import Refused

T = TypeVar("T")

LARGEST = 1 << 31
"""Beyond every count that a request may name; what comes after it need not think of larger ones."""

MOST_NESTED = 500_000
"""Objects and lists in a body: a server that reads more of them has no time for others meanwhile."""

Texts = str | list[str]

WINDOWS = {"gzip": 31, "deflate": 15}
"""What zlib calls the two ways a body may be compressed."""


async def read(request: Request, limit: int, take: Callable[[int], None]) -> bytes:
    """The body, refused as soon as it is known to be too large; `take` is told of every piece."""
    declared = header(request, b"content-length") or ""
    if declared.isascii() and declared.isdigit() and int(declared) > limit:
        raise _too_large(limit)
    chunks, size, more = [], 0, True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise InputError("the client left before the body was complete")
        chunk, more = message.get("body", b""), message.get("more_body", False)
        size += len(chunk)
        if size > limit:
            raise _too_large(limit)
        take(len(chunk))
        chunks.append(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def header(request: Request, name: bytes) -> str | None:
    """The first header of this name, in small letters; starlette's mapping takes five times as long."""
    return next((value.decode("latin-1") for its, value in request.scope["headers"] if its == name), None)


def inflated(body: bytes, encoding: str, limit: int) -> bytes:
    """The body as it was before it was compressed, at most `limit` bytes of it."""
    if encoding not in WINDOWS:
        raise Refused(
            f"content-encoding is {encoding!r}; expected one of: identity, {', '.join(WINDOWS)}",
            status=415,
        )
    stream = zlib.decompressobj(WINDOWS[encoding])
    try:
        found = stream.decompress(body, limit + 1)
    except zlib.error as error:
        raise InputError(f"the body is not {encoding}: {error}") from error
    if len(found) > limit:
        raise Refused(f"the body is larger than {limit} bytes once it is inflated", status=413)
    if not stream.eof or stream.unused_data:
        raise InputError(f"the body is not {encoding} in full, and nothing else")
    return found


def _too_large(limit: int) -> Refused:
    return Refused(f"the body is larger than {limit} bytes", status=413)


def parse(body: bytes) -> dict[str, Any]:
    """A JSON object, or an error that says what is there instead."""
    if body.count(b"{") + body.count(b"[") > MOST_NESTED:
        raise Refused(f"the body has more than {MOST_NESTED} objects and lists", status=413)
    try:
        # Not json.loads(bytes), which would guess UTF-16 from NUL bytes.
        raw = _JSON.decode(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InputError(f"the body is not UTF-8: byte {error.start} is 0x{body[error.start]:02x}") from error
    except RecursionError as error:
        raise InputError("the body is not JSON that can be read: nested too deeply") from error
    except json.JSONDecodeError as error:
        what = "empty" if not body.strip() else str(error)
        raise InputError(f"the body is not JSON: {what}") from error
    except ValueError as error:  # what int() says of thousands of digits is for programmers
        raise InputError("the body is not JSON that can be read: a number has too many digits") from error
    if not isinstance(raw, dict):
        raise InputError(f"the body is {_json_name(raw)}, expected an object")
    return raw


def _constant(name: str) -> float:
    raise InputError(f"the body is not JSON: {name} is no JSON number")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        name = twice(name for name, _ in pairs)
        raise InputError(f"the body has {name[:40]!r} twice in one object; expected each name once")
    return made


_JSON = json.JSONDecoder(parse_constant=_constant, object_pairs_hook=_object)


def whole(value: Any) -> Any:
    """A number without a fraction as a whole one: JSON does not tell 4 from 4.0."""
    return int(value) if type(value) is float and value.is_integer() else value


NAMES = {
    dict: "an object",
    list: "a list",
    str: "a string",
    bool: "a boolean",
    int: "a whole number",
    float: "a float",
    type(None): "null",
}


def _json_name(value: object) -> str:
    return NAMES.get(type(value), "an upload")


class Fields:
    """The fields of one object; null counts as left out, and what nobody asked for is refused at the end."""

    def __init__(self, raw: Mapping[str, Any], where: str = "") -> None:
        self._raw = {key: value for key, value in raw.items() if value is not None}
        self._where = where
        self._asked: set[str] = set()
        self._untold: set[str] = set()

    def get(self, key: str, kind: type[T], default: T | None = None) -> T:
        """The field as a `kind`, or the default; without one it must be there."""
        self._asked.add(key)
        if key not in self._raw:
            if default is None:
                raise InputError(f"{self._where}{key} is missing")
            return default
        value = whole(self._raw[key]) if kind is int else self._raw[key]
        if type(value) is not kind:
            raise InputError(f"{self._where}{key} is {_json_name(value)}, expected {NAMES[kind]}")
        if isinstance(value, int) and abs(value) >= LARGEST:
            raise InputError(
                f"{self._where}{key} is a number of {len(str(abs(value)))} digits, which is too large"
            )
        return value

    def maybe(self, key: str, kind: type[T]) -> T | None:
        """The field as a `kind`, or None where it is left out."""
        self._asked.add(key)
        return self.get(key, kind) if key in self._raw else None

    def word(self, key: str, allowed: tuple[str, ...]) -> str:
        """The field as one of a few words; the first is the default."""
        word = self.get(key, str, allowed[0])
        if word.lower() not in allowed:
            raise InputError(f"{self._where}{key} is {word!r}, expected one of: {', '.join(allowed)}")
        return word.lower()

    def any(self, key: str) -> Any:
        """The field whatever it is; it must be there."""
        self._asked.add(key)
        if key not in self._raw:
            raise InputError(f"{self._where}{key} is missing")
        return self._raw[key]

    def some(self, keys: Iterable[str], *, told: bool = True) -> dict[str, Any]:
        """Those of the fields that are there, for another reader who checks them; `told` are those of use here."""
        self._asked.update(keys)
        if not told:
            self._untold.update(keys)
        return {key: self._raw[key] for key in keys if key in self._raw}

    def within(self, key: str) -> Fields:
        """The fields of an object in a field; empty where it is left out."""
        return Fields(self.maybe(key, dict) or {}, f"{self._where}{key}.")

    def done(self) -> None:
        """Refuse fields that nobody asked for: an option that is ignored is a wrong answer."""
        if unknown := sorted(set(self._raw) - self._asked):
            takes = ", ".join(sorted(self._asked - self._untold))
            raise InputError(f"unknown field {self._where}{unknown[0]}; this endpoint takes {takes}")


def texts(value: Any, key: str) -> list[str]:
    """A string or a list of strings, as a list."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise InputError(f"{key} is {_json_name(value)}, expected a string or a list of strings")
    for at, item in enumerate(value):
        if not isinstance(item, str):
            raise InputError(f"{key}[{at}] is {_json_name(item)}, expected a string")
    return value


def inputs(value: Any, key: str) -> list[str] | list[list[int]]:
    """What OpenAI takes as input: a string, strings, a list of token ids, or lists of them."""
    if isinstance(value, list) and value and type(whole(value[0])) is int:
        return [_ids(value, key)]
    if isinstance(value, list) and set(map(type, value)) == {list}:
        return [_ids(ids, key, at) for at, ids in enumerate(value)]
    return texts(value, key)


def _ids(value: list[Any], key: str, at: int | None = None) -> list[int]:
    if set(map(type, value)) <= {int}:
        return value
    where = key if at is None else f"{key}[{at}]"
    ids = [whole(token) for token in value]
    if not all(type(token) is int for token in ids):
        raise InputError(f"{where} is not a list of token ids")
    return ids


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """One text or two."""

    first: str
    second: str | None = None

    @property
    def characters(self) -> int:
        """Of both together."""
        return len(self.first) + len(self.second or "")


def pairs(value: Any, key: str) -> tuple[list[Pair], bool]:
    """What text-embeddings-inference predicts on, and whether it is a batch.

    A string, a pair [string, string], or a batch [[string], [string, string], ...] of either.
    """
    if isinstance(value, list) and value and all(isinstance(item, list) for item in value):
        return [_pair(item, f"{key}[{at}]") for at, item in enumerate(value)], True
    if value == []:
        return [], True
    return [_pair(value, key)], False


def _pair(value: Any, key: str) -> Pair:
    both = texts(value, key)
    if not 1 <= len(both) <= 2:
        raise InputError(
            f"{key} has {len(both)} strings, expected one text or a pair of them; "
            "a batch is a list of lists: [[text], [text, text], ...]"
        )
    return Pair(first=both[0], second=both[1] if len(both) > 1 else None)
