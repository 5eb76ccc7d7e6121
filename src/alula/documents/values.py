"""What is read off pages, as values: a document, its pages, and of each the text, blocks in their places, tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from alula.core.errors import InputError

Task: TypeAlias = Literal[
    "document", "text", "spotting", "table", "formula", "chart", "fields", "subtitle", "translate", "ask"
]
"""What is asked of a page. `text` is its lines, `spotting` lines with places, `document` the whole as Markdown."""

TASKS: tuple[Task, ...] = (
    "document",
    "text",
    "spotting",
    "table",
    "formula",
    "chart",
    "fields",
    "subtitle",
    "translate",
    "ask",
)

BlockKind: TypeAlias = Literal["line", "text", "title", "table", "formula", "chart", "figure"]
"""`line` is one line of text, `text` a paragraph or whatever else is no other kind."""

Code: TypeAlias = Literal[
    "blank",  # nothing is on the page
    "blurred",  # too blurred to be read well
    "dark",  # too dark, or with too little between ink and paper
    "noisy",
    "skewed",
    "skipped",  # flagged before it was read, and not read
    "downscaled",  # had more pixels than are read
    "first-frame",  # of an animation, only the first picture was read
    "repaired",  # the file was damaged, and what could be read of it was
    "failed",  # this page could not be read; its text is empty
    "cut",  # the answer was ended at its most tokens
    "repetition",  # the answer ran into a loop, and was ended there
    "degenerate",  # the answer is no reading of the page
    "not-as-asked",  # the answer has not the form that the task asks for
    "unplaced",  # text without a place on the page, or places without text
    "miscounted",  # other rows were written than are printed
    "untaught",  # the model was not trained for this task
    "degraded",  # something cheaper read it, since the model that was asked for could not
    "unsure",  # the model's own probabilities say that it guessed
]
"""What a notice is about; these words are part of the published schema."""

Point: TypeAlias = tuple[float, float]
"""x from the left and y from the top, in pixels of the upright page."""

Quad: TypeAlias = tuple[Point, Point, Point, Point]
"""Four points clockwise, from the one where the text's upper left corner is."""

Pixels: TypeAlias = NDArray[np.uint8]
"""An upright page: height, width, and red, green and blue."""


def rectangle(left: float, top: float, right: float, bottom: float) -> Quad:
    """A box with level sides as four points."""
    return ((left, top), (right, top), (right, bottom), (left, bottom))


@dataclass(frozen=True, kw_only=True, slots=True)
class Notice:
    """What whoever reads the result should know, such as that a page is blurred."""

    code: Code
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """A piece of a page; `box` is missing where nothing says its place, `score` (0 to 1) where nothing was measured."""

    kind: BlockKind
    text: str
    box: Quad | None = None
    score: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """One table, as HTML and as rows of cells: every row is as long as the widest.

    A cell over several rows or columns has its text in the first of them; the others are empty.
    """

    html: str
    rows: tuple[tuple[str, ...], ...]
    box: Quad | None = None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Scan:
    """A page before it is read: its pixels, and what was noticed on the way here.

    `source` is the file's name as it was given and `index` the page's place in it, from 0. `dpi` says how large it is
    on paper, where that is known. `span` are the seconds of a video that the picture stands for. `timings` are in
    milliseconds.
    """

    source: str
    index: int
    pixels: Pixels
    dpi: float | None = None
    span: tuple[float, float] | None = None
    notices: tuple[Notice, ...] = ()
    timings: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.pixels.ndim != 3 or self.pixels.shape[2] != 3 or self.pixels.dtype != np.uint8:
            raise InputError(
                f"{self.source}, page {self.index + 1}: pixels are {self.pixels.dtype} of {self.pixels.shape}; "
                "expected uint8 of (height, width, 3)"
            )

    @property
    def width(self) -> int:
        """In pixels."""
        return int(self.pixels.shape[1])

    @property
    def height(self) -> int:
        """In pixels."""
        return int(self.pixels.shape[0])


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """What was read off one page.

    `text` is what the task asked for: plain text, Markdown of a document, LaTeX of a formula, HTML of a table, JSON of
    fields. Boxes are in pixels of the upright page, which is `width` x `height`. `fields` has a value, or None, for
    exactly the keys that were asked for. `span` is in seconds of a video; `timings` are in milliseconds.
    """

    index: int
    width: int
    height: int
    text: str = ""
    blocks: tuple[Block, ...] = ()
    tables: tuple[Table, ...] = ()
    fields: Mapping[str, Any] | None = None
    span: tuple[float, float] | None = None
    notices: tuple[Notice, ...] = ()
    timings: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, scan: Scan, **read: Any) -> Page:
        """A page of the size and place of its scan, whose notices and timings come before those that are given."""
        notices = (*scan.notices, *read.pop("notices", ()))
        timings = {**scan.timings, **read.pop("timings", {})}
        return cls(
            index=scan.index,
            width=scan.width,
            height=scan.height,
            span=scan.span,
            notices=notices,
            timings=timings,
            **read,
        )

    def noticed(self, code: Code) -> bool:
        """Whether there is a notice of this kind."""
        return any(notice.code == code for notice in self.notices)


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """All pages of one file as they were read."""

    source: str
    task: Task
    pages: tuple[Page, ...]
