"""Files through a reader."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pytest
from readers import InkReader

from alula.core.errors import EngineError
from alula.documents import Page, Scan
from alula.ocr import Ask
from alula.ocr.loading import Lost
from alula.ocr.pool import Taken
from alula.ocr.stream import Done, read_pages

ASK = Ask(task="text")


def scan(source: str, index: int, ink: int = 0) -> Scan:
    pixels = np.full((8, 8, 3), 255, np.uint8)
    pixels.reshape(-1, 3)[:ink] = 0
    return Scan(source=source, index=index, pixels=pixels)


def lost(source: str, index: int | None = None) -> Lost:
    return Lost(source=source, index=index, message=f"{source} is broken")


def short(outcomes: Iterable[Done | Lost]) -> list[str]:
    return [
        f"{one.source} {one.page.index} {one.page.text or one.page.notices[0].code}"
        if isinstance(one, Done)
        else f"{one.source} lost"
        for one in outcomes
    ]


@pytest.mark.parametrize("in_flight", [1, 2, 9])
def test_what_could_not_be_taken_keeps_its_place(in_flight: int) -> None:
    found: list[Taken] = [
        lost("a"),
        scan("b", 0, 1),
        lost("b", 1),
        scan("b", 2, 64),
        scan("c", 0, 3),
        lost("d"),
        lost("e"),
    ]
    reader = InkReader(in_flight)
    assert short(read_pages(found, reader, ASK)) == [
        "a lost",
        "b 0 1 dark pixels",
        "b 1 failed",
        "b 2 failed",
        "c 0 3 dark pixels",
        "d lost",
        "e lost",
    ]


def test_no_more_is_taken_than_the_reader_has_in_flight() -> None:
    given = []

    def found() -> Iterator[Taken]:
        for index in range(100):
            given.append(index)
            yield scan("a", index, 1)

    pages = read_pages(found(), InkReader(3), ASK)
    for read in range(1, 5):
        next(pages)
        assert len(given) == read + 2


class Late(InkReader):
    """Says when its reading is left, and gives a page too many or too few."""

    def __init__(self, pages: int) -> None:
        super().__init__()
        self.pages = pages
        self.left = False

    def read(self, scans: Iterable[Scan], ask: Ask) -> Iterator[Page]:
        try:
            for _ in scans:
                pass
            for index in range(self.pages):
                yield Page(index=index, width=1, height=1)
        finally:
            self.left = True


def test_a_reader_that_miscounts_is_found_out() -> None:
    with pytest.raises(EngineError, match="ink gave page 3 of a file twice, or one too many"):
        list(read_pages([scan("a", 0), scan("a", 1)], Late(3), ASK))
    with pytest.raises(EngineError, match="no page was read for page 2 of a"):
        list(read_pages([scan("a", 0), scan("a", 1)], Late(1), ASK))


def test_leaving_early_ends_the_reading() -> None:
    reader = Late(2)
    pages = read_pages([scan("a", 0), scan("a", 1)], reader, ASK)
    next(pages)
    assert not reader.left
    pages.close()
    assert reader.left
