"""Results written beside their places and renamed when they are whole, and a log by which a second run goes on."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, Protocol

from alula.codecs import captioned, outlined, to_jpeg
from alula.core.errors import InputError
from alula.documents import TEXT_FORMATS, Page, Scan, SearchablePdf, Task, TextFormat

PDF = "pdf"
DRAWN = ".boxes.jpg"
FORMATS = (*TEXT_FORMATS, PDF)
LOG = ".alula-ocr.jsonl"
"""In the folder of results: a line for each that is whole."""

_ASIDE = re.compile(r"\..*\.([1-9][0-9]*)(\.[^.]+)?\.part", re.DOTALL)

_USUAL: Mapping[Task, str] = {
    "document": "md",
    "translate": "md",
    "table": "md",
    "chart": "md",
    "spotting": "json",
}


def usual_format(task: Task, *, video: bool = False) -> str:
    """What a task's results are written as where nothing is said."""
    return "srt" if video else _USUAL.get(task, "text")


def suffix_of(form: str) -> str:
    """What files of a format end in."""
    return ".pdf" if form == PDF else TEXT_FORMATS[form].suffix


class Writer(Protocol):
    """One document on its way out."""

    def add(self, page: Page, scan: Scan | None) -> None:
        """Write one page; without its scan it has no picture."""
        ...

    def finish(self) -> None:
        """Write what comes after the pages."""
        ...


class TextWriter:
    """A format of characters into a file that is open."""

    def __init__(self, file: IO[str], form: TextFormat, source: str, task: Task) -> None:
        self._file, self._form, self._task = file, form, task
        self._first = True
        file.write(form.head(source, task))

    def add(self, page: Page, scan: Scan | None) -> None:
        """Write one page."""
        picture = to_jpeg(scan.pixels) if scan is not None and self._form.pictures else None
        self._file.write(self._form.page(page, self._task, picture, self._first))
        self._file.flush()
        self._first = False

    def finish(self) -> None:
        """Write what comes after the pages."""
        self._file.write(self._form.tail)
        self._file.flush()


class PdfWriter:
    """A searchable PDF into a file that is open."""

    def __init__(self, file: IO[bytes], task: Task) -> None:
        self._task = task
        self._pdf = SearchablePdf(file)

    def add(self, page: Page, scan: Scan | None) -> None:
        """Write one page; one that could not be taken is empty, so that the others keep their numbers."""
        picture = None if scan is None else to_jpeg(scan.pixels)
        self._pdf.add(page, self._task, picture, None if scan is None else scan.dpi)

    def finish(self) -> None:
        """Write what comes after the pages."""
        self._pdf.close()


@contextmanager
def writing(to: Path | None, form: str, source: str, task: Task) -> Iterator[Writer]:
    """A writer to a file, which is there when the block is left well and is as it was when it raises.

    Without a path it goes to standard output as it comes.
    """
    if to is None:
        writer: Writer = TextWriter(sys.stdout, TEXT_FORMATS[form], source, task)
        yield writer
        writer.finish()
        return
    aside = _aside(to)
    try:
        if form == PDF:
            with aside.open("wb") as file:
                writer = PdfWriter(file, task)
                yield writer
                writer.finish()
        else:
            with aside.open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as text:
                writer = TextWriter(text, TEXT_FORMATS[form], source, task)
                yield writer
                writer.finish()
        aside.replace(to)
    finally:
        aside.unlink(missing_ok=True)


def _aside(to: Path) -> Path:
    """Beside a result, by a name that is allowed wherever the result's own is, however long that is."""
    return to.with_name(f".{to.stem[:40]}.{os.getpid()}{to.suffix}.part")


def remove_left(results: Iterable[Path | None]) -> list[Path]:
    """Remove what runs that were killed have left beside results, whose process is no more; gives what that was."""
    folders = {to.parent for to in results if to is not None}
    found = [path for folder in folders for path in folder.glob(".*.part") if _is_left(path)]
    for path in found:
        path.unlink(missing_ok=True)
    return sorted(found)


def _is_left(path: Path) -> bool:
    ours = _ASIDE.fullmatch(path.name)
    if ours is None or not path.is_file():
        return False
    try:
        os.kill(int(ours[1]), 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:  # another user's
        return False
    return False


def draw(page: Page, scan: Scan, beside: Path) -> None:
    """Write the page with its boxes, as JPEG, into the folder of its result: `NAME-NUMBER.boxes.jpg`.

    What should be known of it stands below.
    """
    to = beside.with_name(f"{beside.stem}-{page.index + 1}{DRAWN}")
    aside = _aside(to)
    boxes = [block.box for block in page.blocks if block.box is not None]
    try:
        aside.write_bytes(to_jpeg(captioned(outlined(scan.pixels, boxes), _caption(page, len(boxes)))))
        aside.replace(to)
    finally:
        aside.unlink(missing_ok=True)


def _caption(page: Page, boxes: int) -> list[str]:
    said = [f"{notice.code}: {notice.message}" for notice in page.notices]
    return (
        said
        if boxes or not page.text
        else [*said, "what was read came without places: --task spotting asks for them"]
    )


def places(sources: Sequence[str], output: Path | None, form: str) -> list[Path | None]:
    """Where the results of each file go: into a folder, by the file's name; one file's also to a file of the format."""
    if len(set(sources)) < len(sources):
        raise InputError(f"{next(name for name in sources if sources.count(name) > 1)} is given twice")
    if output is None:
        if form == PDF:
            raise InputError("a pdf goes to a file or a folder: say which with -o")
        return [None] * len(sources)
    suffix = suffix_of(form)
    if len(sources) == 1 and output.suffix.lower() == suffix and not output.is_dir():
        if not output.parent.is_dir():
            raise InputError(f"-o {output}: the folder {output.parent} is not there")
        _keep_apart(output, sources[0])
        return [output]
    taken: dict[Path, str] = {}
    for source in sources:
        to = output / f"{Path(source).stem}{suffix}"
        if to in taken:
            raise InputError(f"{taken[to]} and {source} would both be written to {to}: read them apart")
        _keep_apart(to, source)
        if to.is_dir():
            raise InputError(
                f"what is read from {source} would be written to {to}, which is a folder: use another -o"
            )
        taken[to] = source
    if output.exists() and not output.is_dir():
        raise InputError(f"-o {output}: there is a file of this name; expected a folder")
    output.mkdir(parents=True, exist_ok=True)
    return list(taken)


def _keep_apart(to: Path, source: str) -> None:
    if to.exists() and Path(source).exists() and to.samefile(source):
        raise InputError(f"-o {to}: that is the file to read; its results would replace it")


def keep_drawings_apart(goals: Mapping[str, Path | None]) -> None:
    """Refuse files to read that lie where `draw` would write a page of one of them."""
    stems = {(to.parent.resolve(), to.stem) for to in goals.values() if to is not None}
    for source in map(Path, goals):
        stem, _, number = source.name.removesuffix(DRAWN).rpartition("-")
        if number.isdecimal() and source.name.endswith(DRAWN) and (source.parent.resolve(), stem) in stems:
            raise InputError(
                f"--draw would write a page of {stem} to {source}, which is a file to read: use another folder for -o"
            )


class Log:
    """Which results in a folder are whole, and of what: what has not changed is not read again."""

    def __init__(self, folder: Path, asked: str) -> None:
        self._file = folder / LOG
        self._asked = asked
        self._kept: dict[str, dict[str, Any]] = {}
        if self._file.is_file():
            for line in self._file.read_text("utf-8", errors="replace").splitlines():
                self._remember(line)

    def whole(self, source: str, to: Path) -> bool:
        """Whether the result is there, and of this file as it is now, asked the same way."""
        return to.is_file() and self._kept.get(to.name) == self._entry(source, to)

    def keep(self, source: str, to: Path) -> None:
        """Note that a result is whole."""
        entry = self._entry(source, to)
        self._kept[to.name] = entry
        with self._file.open("a", encoding="utf-8") as file:
            # A crash may have left a line without its end, which would swallow this one.
            file.write(f"\n{json.dumps(entry)}\n")

    def _entry(self, source: str, to: Path) -> dict[str, Any]:
        found = Path(source).stat() if Path(source).exists() else None
        return {
            "output": to.name,
            "source": str(Path(source).absolute()),
            "bytes": None if found is None else found.st_size,
            "changed_ns": None if found is None else found.st_mtime_ns,
            "asked": self._asked,
        }

    def _remember(self, line: str) -> None:
        """A line that was cut off by a crash is no entry."""
        try:
            entry = json.loads(line)
            self._kept[entry["output"]] = entry
        except (ValueError, TypeError, KeyError):
            return


def asked(model: Path, *values: Any) -> str:
    """A digest of a model's files, by name, size and time, and of whatever else results depend on."""
    files = sorted(path for path in model.rglob("*") if path.is_file())
    stats = [(str(path.relative_to(model)), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    raw = [stats, *(asdict(value) if hasattr(value, "__dataclass_fields__") else value for value in values)]
    return hashlib.sha256(json.dumps(raw, sort_keys=True, default=str).encode()).hexdigest()
