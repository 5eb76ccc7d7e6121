"""Which reader a folder holds: the one place that knows all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from alula.bundles import Bundle
from alula.core.errors import InputError
from alula.core.words import MANIFEST, PIPELINE
from alula.ocr.reader import Reader

PARTS = PIPELINE


@dataclass(frozen=True, kw_only=True, slots=True)
class ReaderKind:
    """One kind of reader: what its folder is called in messages, how it is told, and what opens it.

    `holds` looks at names and small files only; `open` takes the folder and a number of threads, 0 for all cores.
    """

    called: str
    holds: Callable[[Path], bool]
    open: Callable[[Path, int], Reader]


def _reads_images(folder: Path) -> bool:
    """Whether a bundle is of a model that is told what to read."""
    try:
        return (folder / MANIFEST).is_file() and Bundle.read(folder).model.sees
    except InputError:  # another program's file
        return False


def _finds_and_reads(folder: Path) -> bool:
    """Whether a folder holds the bundles of a pipeline."""
    return all((folder / part / MANIFEST).is_file() for part in PARTS)


def _hunyuan(folder: Path, threads: int) -> Reader:
    from alula.ocr.hunyuan import ModelReader  # noqa: PLC0415 - processes that open files need no model

    return ModelReader.open(folder, threads)


def _pipeline(folder: Path, threads: int) -> Reader:
    from alula.ocr.pipeline import Pipeline  # noqa: PLC0415 - likewise

    return Pipeline.open(folder, threads=threads)


READERS: dict[str, ReaderKind] = {
    "hunyuan": ReaderKind(called="a bundle of HunyuanOCR", holds=_reads_images, open=_hunyuan),
    "pipeline": ReaderKind(
        called="a pipeline (alula build rapidocr -o FOLDER)", holds=_finds_and_reads, open=_pipeline
    ),
}
"""The kinds there are, by name."""


def open_reader(folder: Path, *, threads: int = 0, readers: Mapping[str, ReaderKind] | None = None) -> Reader:
    """The reader of a folder, which its caller owns and closes."""
    known = READERS if readers is None else readers
    if not folder.is_dir():
        raise InputError(f"{folder}: expected the folder of a model that reads pages; there is none")
    for kind in known.values():
        if kind.holds(folder):
            return kind.open(folder, threads)
    raise InputError(
        f"{folder} reads no pages; expected {' or '.join(kind.called for kind in known.values())}"
    )
