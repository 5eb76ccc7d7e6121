"""Files through a reader: pages in their order, the ones that could not be taken in their places between them."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TypeGuard

from alula.core.errors import EngineError
from alula.documents import Notice, Page, Scan
from alula.ocr.loading import Lost
from alula.ocr.pool import Taken
from alula.ocr.reader import Ask, Reader


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """A page and the scan it was read from; one that could not be taken has no scan, no size, and says why."""

    source: str
    page: Page
    scan: Scan | None = None

    def placed(self, said: str) -> str:
        """What is said of the page, behind its file and number, with which it may begin."""
        place = f"{self.source}, page {self.page.index + 1}"
        for named in (place, self.source):
            if said.startswith(f"{named} "):
                return place + said.removeprefix(named)
        return f"{place}: {said}"


def read_pages(found: Iterable[Taken], reader: Reader, ask: Ask) -> Generator[Done | Lost]:
    """A page for each that was taken, in order, whoever of them the reader was given; a file that is lost stays `Lost`.

    As lazy as the reader: what is in memory are the scans that it has in flight. Closing it cancels those.
    """
    line: deque[Taken] = deque()

    def scans() -> Iterator[Scan]:
        for one in found:
            line.append(one)
            if readable(one):
                yield one

    with closing(_closable(reader.read(scans(), ask))) as pages:
        for page in pages:
            while line and not readable(line[0]):
                yield outcome(line.popleft())
            if not line:
                raise EngineError(
                    f"{reader.name} gave page {page.index + 1} of a file twice, or one too many"
                )
            scan = line.popleft()
            assert readable(scan)
            yield Done(source=scan.source, page=page, scan=scan)
    while line:
        yield outcome(line.popleft())


def _closable(pages: Iterator[Page]) -> Generator[Page]:
    """A reader may give any iterator; this one can be closed, and closes that."""
    try:
        yield from pages
    finally:
        if (close := getattr(pages, "close", None)) is not None:
            close()


def readable(one: Taken) -> TypeGuard[Scan]:
    """Whether it goes to the reader: what was taken, and not marked as too blurred."""
    return isinstance(one, Scan) and not any(notice.code == "skipped" for notice in one.notices)


def outcome(one: Taken) -> Done | Lost:
    """What becomes of a page that no reader was given."""
    if readable(one):
        raise EngineError(f"no page was read for page {one.index + 1} of {one.source}")
    if isinstance(one, Scan):
        return Done(source=one.source, page=Page.of(one), scan=one)
    if one.index is None:
        return one
    failed = Notice(code="failed", message=one.message)
    return Done(source=one.source, page=Page(index=one.index, width=0, height=0, notices=(failed,)))
