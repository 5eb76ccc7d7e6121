"""What was read, and the digest it is known by."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

Span: TypeAlias = tuple[int, int, str]
"""Start, end (code points of the text) and what it is."""

Label: TypeAlias = str | float | tuple[str, ...] | tuple[Span, ...] | None
"""By task: a class or a tuple of classes, a score, spans, accepted answers; None where no label was given."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """One row: one text or two, or an image (its file, or its bytes); its label, and the line it begins on.

    Of a model that takes arrays it is one call: their file, and its name as the text. A model that writes may be asked
    by the `messages` of a chat, whose last one is the text; a `plain` text is no message, whatever the model takes.
    """

    texts: tuple[str, ...] = ()
    messages: tuple[Mapping[str, Any], ...] = ()
    plain: bool = False
    image: Path | bytes | None = None
    arrays: Path | None = None
    label: Label = None
    line: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Dataset:
    """The rows of a file or folder that are used, alike in texts and labels, and why the others are not.

    `digest` is the SHA-256 over texts, bytes of images and of arrays, and labels in their order: another file with the
    same rows has the same one.
    """

    path: Path
    examples: tuple[Example, ...]
    skipped: tuple[str, ...]
    digest: str

    @property
    def labelled(self) -> bool:
        """Whether the rows have labels; all have or none has."""
        return self.examples[0].label is not None

    @property
    def paired(self) -> bool:
        """Whether each row has two texts; all have or none has."""
        return len(self.examples[0].texts) == 2

    def without(self, left_out: Mapping[int, str]) -> Dataset:
        """The same rows but for some, by their places, each with the reason."""
        kept = tuple(each for at, each in enumerate(self.examples) if at not in left_out)
        skipped = (*self.skipped, *left_out.values())
        return Dataset(path=self.path, examples=kept, skipped=skipped, digest=digest_of(kept))


def digest_of(examples: Iterable[Example]) -> str:
    """SHA-256 over texts, messages, images, arrays and labels, one line of JSON for each example."""
    total = hashlib.sha256()
    for example in examples:
        row: list[object] = [example.texts, example.label]
        row += [value for value in (example.messages, example.plain) if value]
        row += [_digest_of(content) for content in (example.image, example.arrays) if content is not None]
        total.update(json.dumps(row).encode() + b"\n")
    return total.hexdigest()


def _digest_of(content: Path | bytes) -> str:
    return hashlib.sha256(content if isinstance(content, bytes) else content.read_bytes()).hexdigest()
