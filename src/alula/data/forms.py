"""File forms: each gives numbered rows of fields, and in place of a row it cannot read the reason.

Lines end at a line feed alone (a carriage return before it goes too), since texts may hold Unicode's other line ends.
"""

from __future__ import annotations

import codecs
import csv
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from alula.core.errors import InputError
from alula.core.listing import twice
from alula.core.words import IMAGE_TASKS, WRITING_TASKS
from alula.data.fields import LABELS, SCORED, TWO_TEXTS, check_columns, fields_of, keys_of
from alula.data.rows import BadRow, Fields, Rows, numbered, shown

LISTS = frozenset({"labels", "answers", "messages"})
"""Columns whose cells hold JSON."""


def lines_of(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 file with their ends, without a byte order mark.

    One wrong byte refuses the file: skipping such rows would drop every text that is not English.
    """
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            line = raw
            if number == 1:
                if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                    raise InputError(
                        f"{shown(path)} is UTF-16, expected UTF-8: iconv -f UTF-16 -t UTF-8 converts it"
                    )
                line = raw.removeprefix(codecs.BOM_UTF8)
            try:
                yield line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise InputError(
                    f"{shown(path)}:{number}: byte 0x{line[error.start]:02X} at {error.start} is not UTF-8; "
                    "convert the file, such as by iconv -f LATIN1 -t UTF-8"
                ) from error


def jsonl(path: Path, task: str) -> Rows:
    """One JSON object a line; blank lines are nothing."""
    for number, line in enumerate(lines_of(path), start=1):
        if line.strip():
            yield numbered(path, number, _object(line.removesuffix("\n").removesuffix("\r"), task))


def text(path: Path, task: str) -> Rows:
    """One text a line, or one prompt; blank lines are nothing."""
    if task in TWO_TEXTS:
        raise InputError(
            f"{shown(path)}: {task} takes two texts a row, which lines of text cannot hold; use .jsonl"
        )
    if task in IMAGE_TASKS:
        raise InputError(
            f"{shown(path)}: {task} takes images, which lines of text cannot hold; use .jsonl, .csv or a folder"
        )
    name = "prompt" if task in WRITING_TASKS else "text"
    for number, line in enumerate(lines_of(path), start=1):
        if line.strip():
            yield numbered(path, number, {name: line.removesuffix("\n").removesuffix("\r")})


def comma_separated(path: Path, task: str) -> Rows:
    """Cells under a header, commas between them, quotes doubled inside quotes."""
    header: tuple[str, ...] | None = None
    for number, cells in _records(path):
        if header is None:
            if isinstance(cells, BadRow):
                raise InputError(f"{shown(path)}:{number}: {cells}")
            header = tuple(cell.strip() for cell in cells)
            check_columns(f"{shown(path)}:{number}", header, task, "the first line must name the columns")
        elif isinstance(cells, BadRow):
            yield numbered(path, number, cells)
        else:
            yield numbered(path, number, _cells(header, cells, task))


FORMS: Mapping[str, Callable[[Path, str], Rows]] = {
    ".jsonl": jsonl,
    ".ndjson": jsonl,
    ".txt": text,
    ".csv": comma_separated,
}


def _object(line: str, task: str) -> Fields | BadRow:
    try:
        value = json.loads(line, object_pairs_hook=_once_each, parse_constant=_no_number)
    except BadRow as error:
        return error
    except json.JSONDecodeError as error:
        return BadRow(f"is not JSON: {error.msg} at character {error.pos}")
    except (ValueError, RecursionError) as error:
        return BadRow(f"is not JSON that can be read: {error}")
    if not isinstance(value, dict):
        key = keys_of(task)[0]
        return BadRow(f'is {type(value).__name__}, expected an object such as {{"{key}": "..."}}')
    return value


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise BadRow(f"has the field {twice(name for name, _ in pairs)[:40]!r} twice")
    return fields


def _no_number(word: str) -> float:
    raise BadRow(f"is not JSON: {word} is no number")


def _records(path: Path) -> Iterator[tuple[int, list[str] | BadRow]]:
    """The rows of a CSV file and the lines they begin on, blank ones left out."""
    reader = csv.reader(lines_of(path), strict=True)
    usual = csv.field_size_limit(
        path.stat().st_size + 1
    )  # a cell is as long as it is; the default is 128 KiB
    try:
        while True:
            begins = reader.line_num + 1
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield begins, BadRow(f"is not CSV: {error}")
                continue
            if any(cell.strip() for cell in cells):
                yield begins, cells
    finally:
        csv.field_size_limit(usual)


def _cells(header: tuple[str, ...], cells: list[str], task: str) -> Fields | BadRow:
    if len(cells) != len(header):
        return BadRow(f"has {len(cells)} cells, expected {len(header)} as in the header")
    fields: dict[str, object] = {}
    for name, cell in zip(header, cells, strict=True):
        if cell == "" and name not in keys_of(task):
            continue
        try:
            fields[name] = _cell(name, cell, task)
        except BadRow as error:
            return error
    return fields


def _cell(name: str, cell: str, task: str) -> object:
    """A cell as the value that JSON would have."""
    if name in LISTS & fields_of(task):
        try:
            return json.loads(cell, parse_constant=_no_number)
        except (ValueError, RecursionError):
            raise BadRow(f"field {name!r} is not JSON; expected a list") from None
    if name in LABELS[task] and (name == "score" or task in SCORED):
        try:
            return float(cell)
        except ValueError:
            raise BadRow(f"field {name!r} is not a number") from None
    return cell
