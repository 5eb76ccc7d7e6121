"""From a file or folder to a data set, or to an error that names file and line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from alula.core.errors import InputError
from alula.core.tensor import TensorSpec
from alula.core.words import IMAGE_TASKS, TASKS, TENSORS, choice
from alula.data import arrays, folders, layouts
from alula.data.dataset import Dataset, Example, digest_of
from alula.data.fields import example_of
from alula.data.forms import FORMS
from alula.data.images import MAX_IMAGES
from alula.data.rows import BadRow, Row, Rows, refuse_beyond, shown

ENDINGS = (*FORMS, *layouts.ENDINGS)


def read(path: Path, task: str, *, skip_bad: bool = False, inputs: Sequence[TensorSpec] = ()) -> Dataset:
    """The rows of a file or folder as examples of a task; `inputs` are what a call holds where the task is tensors.

    A row that cannot be used refuses the set, or with `skip_bad` is left out and named in `skipped`; a set with
    nothing in it is refused.
    """
    choice("task", task, TASKS)
    try:
        base = path if path.is_dir() else path.parent
        examples, skipped = _examples(_rows(path, task, inputs), task, base, skip_bad=skip_bad)
        if not examples:
            raise InputError(_nothing(path, skipped))
        digest = digest_of(examples)
    except OSError as error:
        raise InputError(f"{shown(error.filename or path)} cannot be read: {error.strerror}") from error
    return Dataset(path=path, examples=tuple(examples), skipped=tuple(skipped), digest=digest)


def _rows(path: Path, task: str, inputs: Sequence[TensorSpec]) -> Rows:
    if task == TENSORS:
        return arrays.calls(path, inputs)
    files = layouts.files_of(path)
    if files:
        from alula.data import tables  # noqa: PLC0415 - it imports pyarrow

        return tables.rows_of(path, files, task)
    if path.is_dir():
        if task in IMAGE_TASKS:
            return folders.images(path, task)
        raise InputError(
            f"{shown(path)} is a folder without tables ({', '.join(layouts.ENDINGS)}); "
            f"{task} reads such a folder or a file: {', '.join(ENDINGS)}"
        )
    return FORMS[_ending_of(path)](path, task)


def _ending_of(path: Path) -> str:
    if not path.exists():
        raise InputError(f"{shown(path)} does not exist; expected a file of data: {', '.join(ENDINGS)}")
    if not path.is_file():
        raise InputError(f"{shown(path)} is no ordinary file; expected one of: {', '.join(ENDINGS)}")
    ending = path.suffix.lower()
    if ending not in FORMS:
        raise InputError(f"{shown(path)}: ending {path.suffix!r} is not one of: {', '.join(ENDINGS)}")
    refuse_beyond(path, path.stat().st_size)
    return ending


def _examples(rows: Rows, task: str, base: Path, *, skip_bad: bool) -> tuple[list[Example], list[str]]:
    examples: list[Example] = []
    skipped: list[str] = []
    first: Row | None = None
    for row in rows:
        example = _example(row, task, base)
        if isinstance(example, Example) and first:
            example = _unlike(example, examples[0], first.name) or example
        if isinstance(example, Example):
            first = first or row
            examples.append(example)
            _refuse_many(examples)
        elif skip_bad:
            skipped.append(f"{row.where}: {example}")
        else:
            raise InputError(
                f"{row.where}: {example}; correct the row, or leave out such rows with --skip-bad-rows"
            )
    return examples, skipped


def _refuse_many(examples: list[Example]) -> None:
    if len(examples) > MAX_IMAGES and examples[0].image is not None:
        raise InputError(f"data may have {MAX_IMAGES} images, and there are more; draw some from them")


def _example(row: Row, task: str, base: Path) -> Example | BadRow:
    if isinstance(row.fields, BadRow):
        return row.fields
    try:
        return example_of(row.fields, task, row.line, base)
    except BadRow as error:
        return error


def _unlike(example: Example, first: Example, name: str) -> BadRow | None:
    """What a row lacks or has beyond the first one: a metric over some of the rows would not say which."""
    if len(example.texts) != len(first.texts):
        return BadRow(f"has {_count(example)}, and {name} has {_count(first)}")
    if (example.image is None) != (first.image is None):
        has, had = ("no image", "one") if example.image is None else ("an image", "none")
        return BadRow(f"has {has}, and {name} has {had}")
    if (example.label is None) != (first.label is None):
        has, had = ("no label", "one") if example.label is None else ("a label", "none")
        return BadRow(f"has {has}, and {name} has {had}")
    return None


def _count(example: Example) -> str:
    return "one text" if len(example.texts) == 1 else "two texts"


def _nothing(path: Path, skipped: list[str]) -> str:
    if not skipped:
        return f"{shown(path)} holds no rows; expected at least one"
    return f"{shown(path)} holds no rows that can be used; {len(skipped)} are bad, the first: {skipped[0]}"
