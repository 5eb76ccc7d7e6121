"""PDFs written by hand, so that each is broken in exactly one way."""

from __future__ import annotations

from collections.abc import Sequence

MARKER = b"0 0 0 rg 0 270 20 30 re f"
"""A black rectangle in the upper left corner of a page of 200 x 300 points."""


def pdf(objects: Sequence[bytes]) -> bytes:
    """A file of these objects, the first of which is the catalogue."""
    out, places = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, start=1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    count = len(objects) + 1
    rows = b"".join(b"%010d 00000 n \n" % place for place in places)
    xref = b"xref\n0 %d\n0000000000 65535 f \n%s" % (count, rows)
    return out + xref + b"trailer << /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF" % (count, len(out))


def pages_of(pages: Sequence[bytes], content: bytes = MARKER) -> bytes:
    """Pages with these entries, all with one content."""
    kids = b" ".join(b"%d 0 R" % (at + 4) for at in range(len(pages)))
    return pdf(
        [
            b"<< /Type /Catalog /Pages 2 0 R >>",
            b"<< /Type /Pages /Kids [%s] /Count %d >>" % (kids, len(pages)),
            b"<< /Length %d >>\nstream\n%s\nendstream" % (len(content), content),
            *(b"<< /Type /Page /Parent 2 0 R /Contents 3 0 R %s >>" % page for page in pages),
        ]
    )


def numbered(count: int, size: bytes = b"200 300") -> bytes:
    """Pages that differ in the width of their black rectangle: page n (from 0) has n + 1 points of it."""
    bodies = [b"0 0 0 rg 0 270 %d 30 re f" % (at + 1) for at in range(count)]
    kids = b" ".join(b"%d 0 R" % (3 + 2 * at) for at in range(count))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [%s] /Count %d >>" % (kids, count),
    ]
    for at, body in enumerate(bodies):
        objects += [
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 %s] /Contents %d 0 R >>" % (size, 4 + 2 * at),
            b"<< /Length %d >>\nstream\n%s\nendstream" % (len(body), body),
        ]
    return pdf(objects)
