"""Pages taken from files by other processes, ahead and in order."""

from __future__ import annotations

import io
import os
import signal
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from pdfs import numbered, pages_of
from PIL import Image

from alula.codecs import count_sheets, decode_sheet, to_jpeg
from alula.core.errors import InputError
from alula.documents import Scan
from alula.ocr.loading import Files, Lost, Selection, Taking
from alula.ocr.pool import Pool, Taken, taken
from alula.ocr.worker import Task

FAST = Taking(dpi=72)


def _png(size: tuple[int, int], colour: object = "white") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, "PNG")  # type: ignore[arg-type] # a name or a triple
    return file.getvalue()


def _tiff(path: Path, count: int) -> Path:
    first, *others = [Image.new("L", (40 + at, 30), 200) for at in range(count)]
    first.save(path, save_all=True, append_images=others, dpi=(300, 300))
    return path


def _file(folder: Path, name: str, content: bytes) -> str:
    (folder / name).write_bytes(content)
    return str(folder / name)


def _pages(found: list[Taken]) -> list[tuple[str, int | None, str]]:
    """What came, in short: the file, the page, and its size or why it is lost."""
    return [
        (
            Path(one.source).name,
            one.index,
            f"{one.width}x{one.height}" if isinstance(one, Scan) else one.message.replace(one.source, "FILE"),
        )
        for one in found
    ]


def test_pages_of_all_files_come_in_order_and_what_cannot_be_read_loses_nothing_else(tmp_path: Path) -> None:
    """rom1504/clip-retrieval#257: a truncated image stalled the whole run."""
    photo = io.BytesIO()
    Image.effect_noise((64, 48), 90).save(photo, "JPEG")
    sources = [
        _file(tmp_path, "a.pdf", numbered(3)),
        _file(tmp_path, "cut.jpg", photo.getvalue()[: len(photo.getvalue()) // 2]),
        str(tmp_path / "missing.png"),
        str(_tiff(tmp_path / "t.tif", 3)),
        _file(tmp_path, "b.png", _png((8, 9))),
        _file(tmp_path, "broken.pdf", b"%PDF-1.7 nothing"),
        _file(tmp_path, "empty.png", b""),
        _file(tmp_path, "junk.pdf", b"a letter"),
        str(tmp_path / "pipe.png"),
    ]
    os.mkfifo(sources[-1])
    found = list(taken(sources, Selection(), FAST, jobs=2))
    assert isinstance(found[3], Lost)
    assert found[3].message.startswith(f"{sources[1]} cannot be decoded: ")
    lost = _pages(found[3:4])
    assert _pages(found) == [
        ("a.pdf", 0, "200x300"),
        ("a.pdf", 1, "200x300"),
        ("a.pdf", 2, "200x300"),
        *lost,
        ("missing.png", None, "FILE: there is no such file"),
        ("t.tif", 0, "40x30"),
        ("t.tif", 1, "41x30"),
        ("t.tif", 2, "42x30"),
        ("b.png", 0, "8x9"),
        (
            "broken.pdf",
            None,
            "FILE is no PDF that can be read: Failed to load document (PDFium: Data format error).",
        ),
        ("empty.png", None, "FILE is empty; expected an image, a PDF or a video"),
        ("junk.pdf", None, "FILE cannot be decoded: it is none of BMP, GIF, JPEG, PNG, TIFF, WEBP, PDF"),
        (
            "pipe.png",
            None,
            "FILE is a pipe or a device; write what comes of it to a file, and name that",
        ),
    ]
    assert [scan.dpi for scan in found if isinstance(scan, Scan)] == [72, 72, 72, 300, 300, 300, None]
    for index in range(3):
        assert int((found[index].pixels[10].max(axis=1) < 128).sum()) == index + 1  # type: ignore[union-attr]


def test_chosen_pages_are_read_and_no_others(tmp_path: Path) -> None:
    sources = [_file(tmp_path, "a.pdf", numbered(9)), _file(tmp_path, "b.pdf", numbered(2))]
    found = _pages(list(taken(sources, Selection.parse("2-3,7,3"), FAST)))
    assert [(name, index) for name, index, _ in found] == [
        ("a.pdf", 1),
        ("a.pdf", 2),
        ("a.pdf", 6),
        ("b.pdf", 1),
        ("b.pdf", 2),
        ("b.pdf", 6),
    ]
    (lost,) = _pages(list(taken(sources[1:], Selection.parse("3-"), FAST)))
    assert lost == ("b.pdf", None, "FILE has 2 pages, and none of those that were asked for")


def test_a_page_that_was_asked_for_and_is_not_there_is_lost_and_a_span_is_cut(tmp_path: Path) -> None:
    source = _file(tmp_path, "b.pdf", numbered(2))
    *read, third, ninth = taken([source], Selection.parse("9-,1-7,3,9"), FAST)
    assert [(name, index) for name, index, _ in _pages(read)] == [("b.pdf", 0), ("b.pdf", 1)]
    assert third == Lost(
        source=source,
        index=2,
        message=f"{source}, page 3 was asked for and is not there: the file has 2 pages",
    )
    assert isinstance(ninth, Lost)
    assert ninth.index == 8


def test_processes_are_begun_as_work_waits(tmp_path: Path) -> None:
    source = _file(tmp_path, "a.pdf", numbered(2))
    with closing(Pool(FAST, 100)) as pool:
        assert pool.processes == []
        assert pool.result(pool.submit(Task(source=source))) == 2
        tickets = [pool.submit(Task(source=source, index=index)) for index in range(2)]
        assert len(pool.processes) == 2
        assert all(isinstance(pool.result(ticket), Scan) for ticket in tickets)
        pool.result(pool.submit(Task(source=source)))
        assert len(pool.processes) == 2


@pytest.mark.parametrize(
    ("said", "places"),
    [
        ("1", [0]),
        ("1-3,7", [0, 1, 2, 6]),
        ("8-", [7, 8]),
        ("-2", [0, 1]),
        (" 3 , 2-2", [1, 2]),
        ("9-99999999", [8]),
    ],
)
def test_pages_are_counted_from_one(said: str, places: list[int]) -> None:
    assert Selection.parse(said).of(9) == places


@pytest.mark.parametrize("said", ["", "0", "a", "1,,2", "3-1", "-", "1-2-3", "1;2"])
def test_what_are_no_pages_is_refused(said: str) -> None:
    with pytest.raises(InputError, match="pages is"):
        Selection.parse(said)


def test_a_process_that_crashes_or_takes_too_long_costs_one_page(tmp_path: Path) -> None:
    slow = b"0 0 m " + b"200 300 l 0 150 l " * 400_000 + b"S"
    sources = [
        _file(tmp_path, "slow.pdf", pages_of([b"/MediaBox [0 0 200 300]"], slow)),
        _file(tmp_path, "a.pdf", numbered(2)),
    ]
    with closing(Pool(Taking(dpi=200, page_s=0.3), 1)) as pool:
        assert pool.result(pool.submit(Task(source=sources[1]))) == 2
        late = pool.result(pool.submit(Task(source=sources[0], index=0)))
        assert isinstance(late, Lost)
        assert late.message == f"{sources[0]}, page 1 takes more than 0.3 s"
        first = pool.processes[0]
        ticket = pool.submit(Task(source=sources[0], index=0))
        os.kill(first, signal.SIGKILL)
        with ThreadPoolExecutor(1) as beside:
            beside.submit(_kill_the_next, pool, first)
            crashed = pool.result(ticket)
        assert isinstance(crashed, Lost)
        assert crashed.message == f"{sources[0]}, page 1 cannot be opened: it crashes what opens it"
        page = pool.result(pool.submit(Task(source=sources[1], index=1)))
        assert isinstance(page, Scan)
        last = pool.processes
    for process in last:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def _kill_the_next(pool: Pool, first: int) -> None:
    while pool.processes[0] == first:
        time.sleep(0.001)
    os.kill(pool.processes[0], signal.SIGKILL)


def test_a_process_that_somebody_kills_costs_nothing(tmp_path: Path) -> None:
    source = _file(tmp_path, "a.pdf", numbered(2))
    with closing(Pool(FAST, 1)) as pool:
        assert pool.result(pool.submit(Task(source=source))) == 2
        ticket = pool.submit(Task(source=source, index=1))
        os.kill(pool.processes[0], signal.SIGKILL)
        assert isinstance(pool.result(ticket), Scan)


def test_a_document_that_needs_more_memory_than_it_may_take_is_refused(tmp_path: Path) -> None:
    source = _file(tmp_path, "a.pdf", numbered(1, b"5000 5000"))
    small = Taking(dpi=72, memory_bytes=32 << 20)
    (lost,) = taken([source], Selection(), small)
    assert isinstance(lost, Lost)
    assert "a.pdf" in lost.message
    assert isinstance(next(iter(taken([source], Selection(), FAST))), Scan)


def test_a_long_document_takes_no_more_memory_than_a_short_one(tmp_path: Path) -> None:
    """xberg-io/xberg#576: all pages of a document were rendered before the first was read."""
    source = _file(tmp_path, "a.pdf", numbered(1000))
    page = 200 * 300 * 3
    tracemalloc.start()
    try:
        seen = 0
        for scan in taken([source], Selection(), FAST, jobs=1, ahead=3):
            assert isinstance(scan, Scan)
            assert scan.index == seen
            seen += 1
            if seen == 50:
                tracemalloc.reset_peak()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert seen == 1000
    assert peak < 8 * page


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_the_process_that_opens_a_long_document_keeps_none_of_its_pages(tmp_path: Path) -> None:
    """xberg-io/xberg#576: what is rendered must be let go of where it was rendered, too."""
    source, held = _file(tmp_path, "a.pdf", numbered(300)), []
    with closing(Pool(FAST, 1)) as pool:
        for index in range(300):
            assert isinstance(pool.result(pool.submit(Task(source=source, index=index))), Scan)
            pages = Path(f"/proc/{pool.processes[0]}/statm").read_text("ascii").split()[1]
            held.append(int(pages) * os.sysconf("SC_PAGE_SIZE"))
    assert held[-1] - held[50] < 40 * (200 * 300 * 3)


def test_no_more_is_taken_ahead_than_allowed(tmp_path: Path) -> None:
    source = _file(tmp_path, "a.png", _png((8, 9)))
    given: list[str] = []

    def sources() -> Iterator[str]:
        for _ in range(40):
            given.append(source)
            yield source

    pages = taken(sources(), Selection(), FAST, jobs=2, ahead=4)
    with closing(pages):
        for read in range(1, 6):
            assert isinstance(next(pages), Scan)
            assert len(given) == read + 3


def test_an_animation_is_read_as_its_first_picture_and_says_so(tmp_path: Path) -> None:
    """tesseract-ocr/tesseract#3369: a GIF of 125 pictures never finished, a TIFF gave one page in silence."""
    frames = [Image.new("L", (20, 10), at) for at in range(125)]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    with closing(Files(FAST)) as files:
        assert files.count(str(tmp_path / "a.gif")) == 1
        scan = files.load(str(tmp_path / "a.gif"), 0)
    assert (scan.width, scan.height) == (20, 10)
    assert scan.notices[0].code == "first-frame"
    assert scan.notices[0].message.startswith("the first of 125 pictures")


def test_a_large_page_is_made_smaller_and_a_vast_one_refused_by_its_header(tmp_path: Path) -> None:
    """vllm-project/vllm#47010: a small file with an enormous raster exhausted the memory."""
    source = _file(tmp_path, "a.png", _png((400, 300)))
    with closing(Files(Taking(page_pixels=30_000))) as files:
        scan = files.load(source, 0)
        assert (scan.width, scan.height) == (200, 150)
        assert "400 x 300 pixels are more than are read; made 200 x 150" in scan.notices[0].message
    with closing(Files(Taking(most_pixels=100_000))) as files:
        assert files.count(source) == 1
        with pytest.raises(InputError, match=r"a\.png has 400 x 300 pixels; expected at most 100000"):
            files.load(source, 0)


def test_a_page_of_a_tiff_is_turned_by_itself(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    first = Image.new("RGB", (24, 16), "white")
    first.save(tmp_path / "a.tif", save_all=True, append_images=[first], exif=exif)
    assert count_sheets(tmp_path / "a.tif") == 2
    assert decode_sheet(tmp_path / "a.tif", 0).pixels.shape == (24, 16, 3)
    with pytest.raises(InputError, match="cannot be decoded"):
        decode_sheet(tmp_path / "a.tif", 5)


def test_a_page_of_a_tiff_is_taken_without_looking_at_those_behind_it(tmp_path: Path) -> None:
    """Each page of a TIFF of 3000 took a quarter of a second, in which all of them were counted again."""
    pages = [Image.new("L", (20, 10), 255)] * 3
    pages[0].save(tmp_path / "a.tif", save_all=True, append_images=pages[1:])
    raw = bytearray((tmp_path / "a.tif").read_bytes())
    first = int.from_bytes(raw[4:8], "little")
    second = first + 2 + 12 * int.from_bytes(raw[first : first + 2], "little")
    raw[second : second + 4] = len(raw).to_bytes(4, "little")
    raw += bytes(6)  # the second page says nothing of itself
    with pytest.raises(InputError, match="cannot be decoded"):
        count_sheets(bytes(raw))
    assert decode_sheet(bytes(raw), 0).pixels.shape == (10, 20, 3)


def test_a_page_as_jpeg_is_the_page() -> None:
    pixels = np.full((16, 24, 3), 255, np.uint8)
    pixels[:8, :8] = (255, 0, 0)
    again = np.asarray(Image.open(io.BytesIO(to_jpeg(pixels))))
    assert np.abs(again.astype(int) - pixels).mean() < 6
