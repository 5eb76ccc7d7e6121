"""PDFs as pixels: turned, odd, huge, locked and broken ones."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from locked import locked
from pdfs import MARKER, numbered, pages_of, pdf

from alula.core.errors import InputError
from alula.documents.pdf import Pdf, Rendered, scale_within

BOX = b"/MediaBox [0 0 200 300]"


def rendered(raw: bytes, index: int = 0, *, dpi: float = 72, most_pixels: int = 10**7) -> Rendered:
    with closing(Pdf(raw)) as opened:
        return opened.render(index, dpi=dpi, most_pixels=most_pixels)


@pytest.mark.parametrize(
    ("turn", "size", "corner"),
    [
        (0, (300, 200), "TL"),
        (90, (200, 300), "TR"),
        (180, (300, 200), "BR"),
        (270, (200, 300), "BL"),
        (-90, (200, 300), "BL"),
    ],
)
def test_a_page_is_turned_once(turn: int, size: tuple[int, int], corner: str) -> None:
    """Unstructured-IO/unstructured-inference#514: rotation was applied twice, or boxes were left unrotated."""
    pixels = rendered(pages_of([BOX + b" /Rotate %d" % turn])).pixels
    assert pixels.shape == (*size, 3)
    ink = {"TL": pixels[0, 0], "TR": pixels[0, -1], "BR": pixels[-1, -1], "BL": pixels[-1, 0]}
    assert [name for name, place in ink.items() if place.max() < 128] == [corner]


def test_colours_are_red_green_and_blue_in_this_order() -> None:
    pixels = rendered(pages_of([BOX], b"1 0 0 rg 0 0 200 300 re f")).pixels
    assert pixels[150, 100].tolist() == [255, 0, 0]


@pytest.mark.parametrize(
    "box", [b"", b"/MediaBox []", b"/MediaBox [0 0 0 0]", b"/MediaBox [0 0 595 842 0 0 595 842]"]
)
def test_a_page_without_a_size_is_read_as_letter_and_says_so(box: bytes) -> None:
    """pymupdf/PyMuPDF#3663 and others: no box, an empty one, one of eight numbers."""
    page = rendered(pages_of([box]))
    assert page.pixels.shape == (792, 612, 3)
    assert [notice.code for notice in page.notices] == ["repaired"]
    assert "may be cut" in page.notices[0].message


def test_a_page_that_is_letter_is_no_odd_page() -> None:
    own = pages_of([b"/MediaBox [0 0 612 792]", b"/MediaBox [0 0 792 612.0]"])
    inherited = pages_of([b""]).replace(b"/Type /Pages", b"/MediaBox [0 0 612 792] /Type /Pages")
    cropped = pages_of([b"/MediaBox [0 0 700 900] /CropBox [10 10 622 802]"])
    for raw, count in ((own, 2), (inherited, 1), (cropped, 1)):
        for index in range(count):
            page = rendered(raw, index)
            assert sorted(page.pixels.shape) == [3, 612, 792]
            assert page.notices == ()


def test_no_pages_and_no_pdf_are_refused() -> None:
    """pymupdf/PyMuPDF#3663 and its kin: documents without a page."""
    empty = pdf([b"<< /Type /Catalog /Pages 2 0 R >>", b"<< /Type /Pages /Kids [] /Count 0 >>"])
    with pytest.raises(InputError, match=r"a\.pdf has no pages; expected at least one"):
        Pdf(empty, "a.pdf")
    for raw in (b"", b"%PDF-1.4", b"hello", pages_of([BOX])[:60]):
        with pytest.raises(InputError, match=r"b\.pdf is no PDF that can be read"):
            Pdf(raw, "b.pdf")
    with pytest.raises(InputError, match=r"c\.pdf: there is no such file"):
        Pdf(Path("c.pdf"))


def test_no_pages_is_said_whatever_failed_before(tmp_path: Path) -> None:
    """pymupdf/PyMuPDF#3663: PDFium keeps its last error: behind a locked file, this was called locked."""
    empty = pdf([b"<< /Type /Catalog /Pages 2 0 R >>", b"<< /Type /Pages /Kids [] /Count 0 >>"])
    file = tmp_path / "bär.pdf"
    file.write_bytes(empty)
    for before in (b"%PDF-1.4", locked(pages_of([BOX]), user="secret", owner="boss")):
        with pytest.raises(InputError):
            Pdf(before, "before.pdf")
        for password in (None, "any"):
            for given in (empty, file):
                with pytest.raises(InputError, match=r"has no pages; expected at least one"):
                    Pdf(given, "a.pdf", password=password)


def test_a_broken_page_does_not_lose_the_others() -> None:
    raw = pages_of([BOX, BOX]).replace(b"/Count 2", b"/Count 3").replace(b"5 0 R]", b"9 0 R 5 0 R]")
    with closing(Pdf(raw, "a.pdf")) as opened:
        assert opened.render(0, dpi=72).pixels.shape == (300, 200, 3)
        with pytest.raises(InputError, match=r"a\.pdf, page 2 cannot be rendered"):
            opened.render(1, dpi=72)
        assert opened.render(2, dpi=72).pixels.shape == (300, 200, 3)


@pytest.mark.parametrize("size", [b"200000 200000", b"1 200000", b"200000 0.5", b"14400 3"])
def test_a_huge_page_is_bounded_before_it_is_rendered(size: bytes) -> None:
    """xberg-io/xberg#576: sheets of 24 x 36 inches took 300 MB each, at 300 dpi."""
    page = rendered(pages_of([b"/MediaBox [0 0 %s]" % size]), dpi=300, most_pixels=1_000_000)
    assert page.pixels.size <= 3 * 1_001_000
    assert [notice.code for notice in page.notices] == ["downscaled"]
    assert page.dpi < 300


def test_a_scale_keeps_within_its_budget() -> None:
    assert scale_within(100, 200, 2.0, 10**6) == 2.0
    assert scale_within(1000, 1000, 2.0, 10**6) == 1.0
    assert scale_within(0, 0, 2.0, 10**6) == 2.0


def test_locked_files_say_that_they_are() -> None:
    """jztan/pdf-mcp#59: a locked file answered in the library's own words, or with a server error."""
    raw = locked(numbered(1), user="secret", owner="boss")
    with pytest.raises(
        InputError, match=r"a\.pdf is locked: a password is needed; give it as the option password"
    ):
        Pdf(raw, "a.pdf")
    with pytest.raises(InputError, match=r"a\.pdf is locked: the password is not its password"):
        Pdf(raw, "a.pdf", password="wrong")
    for password in ("secret", "boss"):
        with closing(Pdf(raw, password=password)) as opened:
            assert opened.render(0, dpi=72).pixels[5, 0].max() < 128
    with closing(Pdf(locked(numbered(1), user="", owner="boss"))) as opened:
        assert opened.render(0, dpi=72).pixels[5, 0].max() < 128, (
            "only an owner's password: anyone may read it"
        )
    with pytest.raises(InputError, match=r"a\.pdf is locked: the password is not its password"):
        Pdf(locked(numbered(1), user="", owner="boss"), "a.pdf", password="wrong")


def test_every_page_is_its_own() -> None:
    with closing(Pdf(numbered(5))) as opened:
        for index in (3, 0, 4):
            dark = opened.render(index, dpi=72).pixels.max(axis=2) < 128
            assert int(dark[10].sum()) == index + 1
        with pytest.raises(InputError, match="has 5 pages; there is no page 6"):
            opened.render(5)
    assert np.array_equal(rendered(pages_of([BOX], MARKER)).pixels, rendered(pages_of([BOX], MARKER)).pixels)
