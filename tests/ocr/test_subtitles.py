"""Subtitles of videos: when they are seen, and each once."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from clips import HEIGHT, WIDTH, BarReader, Cue, clip

from alula.core.errors import InputError
from alula.documents import Page, Scan, Task
from alula.documents.video import Video, is_video
from alula.ocr import Ask
from alula.ocr.loading import Lost, Selection, Taking
from alula.ocr.pool import taken
from alula.ocr.stream import Done, read_pages
from alula.ocr.subtitles import alike, joined, still, with_subtitles

SUBTITLE = Ask(task="subtitle")
CUES = (Cue(0.5, 1.5, "AC"), Cue(2.0, 3.0, "BD"))


def page(text: str, begin: float, end: float) -> Page:
    return Page(index=9, width=9, height=9, text=text, span=(begin, end))


def shown(pages: list[Page]) -> list[tuple[str, float, float]]:
    return [(each.text, *(each.span or (0, 0))) for each in pages]


def test_what_a_video_shows_is_read_with_its_times(tmp_path: Path) -> None:
    source = clip(tmp_path / "a.mp4", CUES)
    reader = BarReader()
    outcomes = list(read_pages(still(taken([source], Selection(), Taking(every_s=0.25))), reader, SUBTITLE))
    pages = [outcome.page for outcome in outcomes if isinstance(outcome, Done)]
    assert reader.seen == len(pages) == 16
    assert shown(list(joined(pages, gap_s=0.25))) == [("AC", 0.5, 1.5), ("BD", 2.0, 3.0)]


def test_pictures_that_stay_are_read_once(tmp_path: Path) -> None:
    source = clip(tmp_path / "a.mp4", CUES, moving=False)
    reader = BarReader()
    outcomes = read_pages(still(taken([source], Selection(), Taking(every_s=0.25), jobs=2)), reader, SUBTITLE)
    pages = [outcome.page for outcome in outcomes if isinstance(outcome, Done)]
    assert reader.seen == 5
    assert shown(list(joined(pages, gap_s=0.25))) == [("AC", 0.5, 1.5), ("BD", 2.0, 3.0)]


def test_a_reader_of_places_finds_subtitles_low_in_the_picture() -> None:
    pixels = np.full((HEIGHT, WIDTH, 3), 40, np.uint8)
    pixels[90:110, 10:30] = 255
    scan = Scan(source="a", index=0, pixels=pixels, span=(0.0, 1.0))
    tasks: tuple[Task, ...] = ("spotting",)
    reader = with_subtitles(BarReader(tasks))
    (found,) = reader.read([scan], SUBTITLE)
    assert found.text == "A"
    assert [block.text for block in found.blocks] == ["A"]
    (whole,) = reader.read([scan], Ask(task="spotting"))
    assert whole.text == "sign\nA"
    able = BarReader()
    assert with_subtitles(able) is able


def test_one_subtitle_read_in_several_ways_is_one() -> None:
    pages = [
        page("", 0, 1),
        page("Where are we?", 1, 2),
        page("Where are we?", 2, 3),
        page("Where ars we?", 3, 4),
        page("", 4, 5),
        page("Where are we?", 5, 6),
        page("", 6, 7),
        page("", 7, 8),
        page("Where are we?", 8, 9),
        page("10", 9, 10),
        page("16", 10, 11),
    ]
    found = list(joined(pages, gap_s=1.0))
    assert shown(found) == [("Where are we?", 1, 6), ("Where are we?", 8, 9), ("10", 9, 10), ("16", 10, 11)]
    assert [each.index for each in found] == [0, 1, 2, 3]
    assert list(joined([], gap_s=1)) == list(joined([page("  ", 0, 1)], gap_s=1)) == []


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("Good bye", "good  bye", True),
        ("Good bye", "Good bve", True),
        ("Good bye", "Hello you", False),
        ("No", "Yo", False),
    ],
)
def test_texts_are_alike_but_for_what_is_misread(one: str, other: str, same: bool) -> None:
    assert alike(one, other) is same


def test_pictures_are_those_of_their_times_in_any_order(tmp_path: Path) -> None:
    source = clip(tmp_path / "a.mkv", [Cue(1.0, 2.0, "A"), Cue(2.0, 4.0, "B")])
    with closing(Video(Path(source), every_s=0.5)) as video:
        assert video.pictures == 8
        assert video.span(7) == (3.5, 4.0)
        bright = [
            [int(video.picture(at)[95:105, left : left + 10].mean() > 190) for left in (15, 55)]
            for at in (2, 3, 4, 0, 7, 2)
        ]
        assert bright == [[1, 0], [1, 0], [0, 1], [0, 0], [0, 1], [1, 0]]
    with closing(Video(Path(source), every_s=0.5, most_pixels=WIDTH * HEIGHT // 4)) as video:
        assert video.picture(0).shape == (HEIGHT // 2, WIDTH // 2, 3)


def test_what_is_no_video_is_told(tmp_path: Path) -> None:
    source = Path(clip(tmp_path / "a.mp4", CUES))
    raw = source.read_bytes()
    assert is_video(raw[:1024])
    assert not is_video(b"\0\0\0\x18ftypheic")
    assert not is_video(b"RIFF\0\0\0\0WEBP")
    assert not is_video(b"")
    source.write_bytes(raw[:200])
    with pytest.raises(InputError, match=r"a\.mp4 cannot be read as a video"):
        Video(source)
    (lost,) = taken([str(source)], Selection(), Taking())
    assert isinstance(lost, Lost)


def test_a_video_that_breaks_off_keeps_what_can_be_seen(tmp_path: Path) -> None:
    source = Path(clip(tmp_path / "a.mkv", CUES, seconds=8))
    source.write_bytes(source.read_bytes()[: source.stat().st_size // 2])
    found = list(taken([str(source)], Selection(), Taking(every_s=0.25)))
    assert all(isinstance(one, Scan) for one in found)
    read = read_pages(still(found), BarReader(), SUBTITLE)
    pages = [one.page for one in read if isinstance(one, Done)]
    assert shown(list(joined(pages, gap_s=0.25)))[0] == ("AC", 0.5, 1.5)
    [ends] = [notice for page in pages for notice in page.notices]
    assert (ends.code, ends.message.startswith("the pictures end at ")) == ("repaired", True)
    assert "though the file states 8.00 s" in ends.message
    assert pages[-1].span is not None
    assert pages[-1].span[1] < 6, "what it shows last is not shown for ever"


def test_a_video_that_is_whole_has_no_notice(tmp_path: Path) -> None:
    for name, every_s in (("a.mkv", 0.25), ("a.mp4", 2.0)):
        source = clip(tmp_path / name, CUES, seconds=4)
        assert not [one for one in taken([source], Selection(), Taking(every_s=every_s)) if one.notices]  # type: ignore[union-attr]
