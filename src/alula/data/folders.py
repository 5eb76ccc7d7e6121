"""Folders of images: a class a folder, a list of labels beside the images, or images alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from alula.core.errors import InputError
from alula.data.forms import FORMS
from alula.data.images import MAX_IMAGES
from alula.data.rows import BadRow, Fields, Row, Rows, refuse_beyond, shown

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".gif")

LISTS = ("metadata.csv", "metadata.jsonl", "labels.csv")
"""Files that label the images beside them; a folder has one of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Found:
    """Something in a folder: where, the class whose folder it is in, and why it is no image, if it is none."""

    path: Path
    kind: str | None = None
    wrong: str = ""
    is_folder: bool = False


def images(folder: Path, task: str) -> Rows:
    """The images of a folder, in the order of its list or of their paths."""
    lists = [folder / name for name in LISTS if (folder / name).is_file()]
    if len(lists) > 1:
        names = " and ".join(path.name for path in lists)
        raise InputError(f"{shown(folder)} has {names}; expected one list of labels")
    found = _bounded(folder)
    if lists:
        refuse_beyond(lists[0], lists[0].stat().st_size)
        return _listed(lists[0], found, task)
    if not found:
        raise InputError(
            f"{shown(folder)} holds no images; expected FOLDER/CLASS/IMAGE, or images and a list"
        )
    inside = next((item for item in found if item.path.parent != folder), None)
    if task == "text-recognition" and inside:
        raise InputError(
            f"{shown(folder)} has the folder {shown(inside.path.parent.name)}, and a folder's name is no text to read; "
            f"{task} takes its texts from a list beside the images: {', '.join(LISTS)}"
        )
    return _alone(folder, found)


def _listed(path: Path, found: list[_Found], task: str) -> Rows:
    """The rows of a list, and as bad rows the files beside it that it leaves out."""
    named = {str(path)}
    for row in FORMS[path.suffix](path, task):
        if not isinstance(row.fields, BadRow):
            given = (row.fields.get("image"), row.fields.get("file_name"))
            named.update(os.path.normpath(path.parent / name) for name in given if isinstance(name, str))
        yield row
    for at, item in enumerate(found, start=1):
        if not item.is_folder and os.path.normpath(item.path) not in named:
            yield _row(path.parent, at, item, BadRow(f"is not in {path.name}"))


def _alone(folder: Path, found: list[_Found]) -> Rows:
    for at, item in enumerate(found, start=1):
        fields = {"image": item.path, "label": item.kind}
        yield _row(folder, at, item, BadRow(item.wrong) if item.wrong else fields)


def _row(folder: Path, at: int, item: _Found, fields: Fields | BadRow) -> Row:
    return Row(where=shown(item.path), name=shown(item.path.relative_to(folder)), line=at, fields=fields)


def _bounded(folder: Path) -> list[_Found]:
    """What lies in the folder and one folder down, sorted by path, if it is not too much."""
    found: list[_Found] = []
    for item in _walk(folder):
        found.append(item)
        if len(found) > MAX_IMAGES:
            raise InputError(f"{shown(folder)} holds more than {MAX_IMAGES} images; draw some from it")
    return found


def _walk(folder: Path) -> Iterator[_Found]:
    """Links are followed, and cannot lead in circles, since nothing is looked for deeper than a class."""
    for path in _inside(folder):
        if not _is_folder(path):
            yield _judged(path, None)
            continue
        try:
            inside = _inside(path)
        except OSError as error:
            yield _Found(path=path, wrong=f"cannot be read: {error.strerror}", is_folder=True)
            continue
        if not inside:
            yield _Found(path=path, wrong="is a folder without images", is_folder=True)
        for deeper in inside:
            if _is_folder(deeper):
                wrong = "is a folder within one; expected FOLDER/CLASS/IMAGE"
                yield _Found(path=deeper, wrong=wrong, is_folder=True)
            else:
                yield _judged(deeper, path.name)


def _inside(folder: Path) -> list[Path]:
    """What is not hidden, sorted; a folder of more than what is taken at all is not listed to its end."""
    paths: list[Path] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith("."):
                paths.append(folder / entry.name)
            if len(paths) > MAX_IMAGES:
                break
    return sorted(paths)


def _is_folder(path: Path) -> bool:
    """Whether it is a folder that can be asked; a link that leads nowhere is none."""
    try:
        return path.is_dir()
    except OSError:
        return False


def _judged(path: Path, kind: str | None) -> _Found:
    wrong = ""
    if path.suffix.lower() not in ENDINGS:
        wrong = f"is no image file; expected one of: {', '.join(ENDINGS)}"
    elif kind is not None and shown(kind) != kind:
        wrong = "lies in a folder whose name is not UTF-8, so it is no label"
    return _Found(path=path, kind=kind, wrong=wrong)
