"""Rows as they lie in files: where each stands, and its fields or why it has none."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from alula.core.errors import InputError

Fields: TypeAlias = Mapping[str, object]

MAX_BYTES = 1 << 30
"""Rows are held in memory; a set to calibrate or to judge with is thousands of rows, not millions."""


class BadRow(InputError):  # noqa: N818 - it names the row, not the failure
    """One row cannot be used; whoever knows where it stands says so."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One row: its place in messages, its short name beside others of the set, its number, what it holds."""

    where: str
    name: str
    line: int
    fields: Fields | BadRow


Rows: TypeAlias = Iterator[Row]


def numbered(path: Path, line: int, fields: Fields | BadRow, *, unit: str = "line") -> Row:
    """A row of a file that has no better name than its number."""
    return Row(where=f"{shown(path)}:{line}", name=f"{unit} {line}", line=line, fields=fields)


def words(value: object, name: str) -> str:
    """A string that can be tokenised: not empty, no NUL, Unicode throughout."""
    if not isinstance(value, str):
        raise mistyped(name, value, "str")
    if not value.strip():
        raise BadRow(f"field {name!r} is empty")
    if "\0" in value:
        raise BadRow(f"field {name!r} has a NUL at character {value.index(chr(0))}")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        code = ord(value[error.start])
        raise BadRow(
            f"field {name!r} has the lone surrogate U+{code:04X} at character {error.start}"
        ) from None
    return value


def mistyped(name: str, value: object, expected: str) -> BadRow:
    """The error for a field of another type."""
    return BadRow(f"field {name!r} is {type(value).__name__}, expected {expected}")


def listed(names: Mapping[str, object] | tuple[str, ...]) -> str:
    """Names of fields, as many and as long as a message can hold."""
    short = [name if len(name) <= 40 else f"{name[:37]}..." for name in names]
    return ", ".join(short[:8]) + (", ..." if len(short) > 8 else "") if short else "none"


def shown(path: Path | str) -> str:
    """A path that can be printed: bytes of its names that are not UTF-8 are escaped."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def refuse_beyond(path: Path, size: int) -> None:
    """Refuse more bytes than are held in memory."""
    if size > MAX_BYTES:
        raise InputError(
            f"{shown(path)} has {size} bytes, and data may have {MAX_BYTES}; draw some rows from it"
        )
