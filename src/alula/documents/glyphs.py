"""A font whose characters are plain rectangles: text that is there to be searched and copied, and never drawn."""

from __future__ import annotations

import struct
import unicodedata

EM = 1000
ASCENT, DESCENT = 800, -200
NARROW, WIDE = 500, 1000
"""What characters take, in thousandths of the font's size: half of it, and all of it for those of East Asia."""


def width_of(character: str) -> int:
    """In thousandths of the font's size; nothing for a mark that stands on the character before it."""
    if unicodedata.combining(character):
        return 0
    return WIDE if unicodedata.east_asian_width(character) in {"W", "F"} else NARROW


def glyph_of(width: int) -> int:
    """The glyph of a width, as the font numbers them."""
    return {NARROW: 1, WIDE: 2}.get(width, 0)


def font_file() -> bytes:
    """A TrueType file of three glyphs, nothing and two rectangles, with the tables that PDF asks of embedded ones."""
    outlines = [b"", _rectangle(NARROW), _rectangle(WIDE)]
    places = [0]
    for outline in outlines:
        places.append(places[-1] + len(outline))
    tables = {
        b"glyf": b"".join(outlines),
        b"head": struct.pack(
            ">IIIIHHqqhhhhHHhhh",
            0x00010000, 0x00010000, 0, 0x5F0F3CF5, 0, EM, 0, 0, 0, DESCENT, WIDE, ASCENT, 0, 8, 2, 1, 0,
        ),
        b"hhea": struct.pack(
            ">IhhhHhhhhhh8xhH", 0x00010000, ASCENT, DESCENT, 0, WIDE, 0, 0, WIDE, 1, 0, 0, 0, len(outlines)
        ),
        b"hmtx": struct.pack(">HhHhHh", 0, 0, NARROW, 0, WIDE, 0),
        b"loca": struct.pack(f">{len(places)}I", *places),
        b"maxp": struct.pack(">IH13H", 0x00010000, len(outlines), 4, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0),
    }  # fmt: skip
    return _assembled(tables)


def _rectangle(width: int) -> bytes:
    """One outline of four corners, clockwise from the lower left one; each point as its step from the one before."""
    ends = struct.pack(">hhhhhHH", 1, 0, DESCENT, width, ASCENT, 3, 0)
    across, up = (0, 0, width, 0), (DESCENT, ASCENT - DESCENT, 0, DESCENT - ASCENT)
    outline = ends + bytes([1] * 4) + struct.pack(">4h4h", *across, *up)
    return outline + bytes(-len(outline) % 4)


def _assembled(tables: dict[bytes, bytes]) -> bytes:
    count = len(tables)
    step = 1 << (count.bit_length() - 1)
    header = struct.pack(">IHHHH", 0x00010000, count, step * 16, step.bit_length() - 1, (count - step) * 16)
    at = len(header) + 16 * count
    entries, bodies = [], []
    for tag, body in tables.items():
        padded = body + bytes(-len(body) % 4)
        entries.append(tag + struct.pack(">III", _sum(padded), at, len(body)))
        bodies.append(padded)
        at += len(padded)
    file = bytearray(b"".join([header, *entries, *bodies]))
    head = struct.unpack_from(">I", file, len(header) + 16 * list(tables).index(b"head") + 8)[0]
    struct.pack_into(">I", file, head + 8, (0xB1B0AFBA - _sum(bytes(file))) & 0xFFFFFFFF)
    return bytes(file)


def _sum(padded: bytes) -> int:
    words: tuple[int, ...] = struct.unpack(f">{len(padded) // 4}I", padded)
    return sum(words) & 0xFFFFFFFF
