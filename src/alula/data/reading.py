"""From a file to a data set, or to an error that names file and line."""

from __future__ import annotations

from pathlib import Path

from alula.core.errors import InputError
from alula.core.words import TASKS, choice
from alula.data.dataset import Dataset, Example, digest_of
from alula.data.fields import BadRow, Fields, example_of
from alula.data.forms import FORMS, Rows

ENDINGS = tuple(FORMS)

MAX_BYTES = 1 << 30
"""Rows are held in memory; a set to calibrate or to judge with is thousands of rows, not millions."""


def read(path: Path, task: str, *, skip_bad: bool = False) -> Dataset:
    """The rows of a file as examples of a task.

    A row that cannot be used refuses the file, or with `skip_bad` is left out and named in `skipped`; a set with
    nothing in it is refused.
    """
    choice("task", task, TASKS)
    try:
        rows = FORMS[_ending_of(path)](path, task)
        examples, skipped = _examples(path, rows, task, skip_bad=skip_bad)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    if not examples:
        raise InputError(_nothing(path, skipped))
    return Dataset(path=path, examples=tuple(examples), skipped=tuple(skipped), digest=digest_of(examples))


def _ending_of(path: Path) -> str:
    if path.is_dir():
        raise InputError(f"{path} is a folder; data is read from a file: {', '.join(ENDINGS)}")
    if not path.exists():
        raise InputError(f"{path} does not exist; expected a file of data: {', '.join(ENDINGS)}")
    if not path.is_file():
        raise InputError(f"{path} is no ordinary file; expected one of: {', '.join(ENDINGS)}")
    ending = path.suffix.lower()
    if ending not in FORMS:
        raise InputError(f"{path}: ending {path.suffix!r} is not one of: {', '.join(ENDINGS)}")
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise InputError(f"{path} has {size} bytes, and data may have {MAX_BYTES}; draw some rows from it")
    return ending


def _examples(path: Path, rows: Rows, task: str, *, skip_bad: bool) -> tuple[list[Example], list[str]]:
    examples: list[Example] = []
    skipped: list[str] = []
    for line, fields in rows:
        example = _example(fields, task, line, examples)
        if isinstance(example, Example):
            examples.append(example)
        elif skip_bad:
            skipped.append(f"{path}:{line}: {example}")
        else:
            raise InputError(f"{path}:{line}: {example}; correct the row, or have bad rows skipped")
    return examples, skipped


def _example(fields: Fields | BadRow, task: str, line: int, before: list[Example]) -> Example | BadRow:
    if isinstance(fields, BadRow):
        return fields
    try:
        example = example_of(fields, task, line)
    except BadRow as error:
        return error
    return (before and _unlike(example, before[0])) or example


def _unlike(example: Example, first: Example) -> BadRow | None:
    """What a row lacks or has beyond the first one: a metric over some of the rows would not say which."""
    if len(example.texts) != len(first.texts):
        return BadRow(f"has {_count(example)}, and line {first.line} has {_count(first)}")
    if (example.label is None) != (first.label is None):
        has, had = ("no label", "one") if example.label is None else ("a label", "none")
        return BadRow(f"has {has}, and line {first.line} has {had}")
    return None


def _count(example: Example) -> str:
    return "one text" if len(example.texts) == 1 else "two texts"


def _nothing(path: Path, skipped: list[str]) -> str:
    if not skipped:
        return f"{path} holds no rows; expected at least one"
    return f"{path} holds no rows that can be used; {len(skipped)} are bad, the first: {skipped[0]}"
