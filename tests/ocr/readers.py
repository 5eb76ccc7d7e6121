"""A reader without a model: it says how much ink is on each page."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from alula.documents import Block, Notice, Page, Scan, Task, rectangle
from alula.ocr import Ask


class InkReader:
    """Reads `in_flight` pages at a time; a page that is black all over fails."""

    name = "ink"
    tasks: Collection[Task] = ("text", "spotting", "document", "subtitle")

    def __init__(self, in_flight: int = 2) -> None:
        self.in_flight = in_flight
        self.most_held = 0
        self.closed = False

    def read(self, scans: Iterable[Scan], ask: Ask) -> Iterator[Page]:
        """Pages in their order."""
        waiting: list[Scan] = []
        for scan in scans:
            waiting.append(scan)
            self.most_held = max(self.most_held, len(waiting))
            if len(waiting) == self.in_flight:
                yield _read(waiting.pop(0), ask)
        for scan in waiting:
            yield _read(scan, ask)

    def close(self) -> None:
        """Nothing is held."""
        self.closed = True


def _read(scan: Scan, ask: Ask) -> Page:
    dark = scan.pixels.min(axis=2) < 128
    if dark.all():
        return Page.of(scan, notices=(Notice(code="failed", message="black all over"),))
    text = f"{int(dark.sum())} dark pixels"
    ys, xs = dark.nonzero()
    box = rectangle(*map(float, (xs.min(), ys.min(), xs.max() + 1, ys.max() + 1))) if len(ys) else None
    blocks = (Block(kind="line", text=text, box=box),) if ask.task == "spotting" else ()
    return Page.of(scan, text=text, blocks=blocks)
