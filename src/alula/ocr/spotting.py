"""Lines and their places out of what HunyuanOCR writes, whose coordinates are thousandths of the page's sides."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from alula.documents import Block, Quad, rectangle

NO_TEXT = ("没有文字", "没有文字。", "No text", "No text.")
"""What it writes of a page without text."""

_FULL = 1000
CORNERS = re.compile(r"\((\d{1,4}), ?(\d{1,4})\), ?\((\d{1,4}), ?(\d{1,4})\)")
"""Two corners, behind the text of a record."""

_TAGS = re.compile(r"</?(?:ref|quad|box)>")
_FENCE = re.compile(r"\s*```\w*\s*\n(.*?)\n?\s*(?:```\s*)?", re.DOTALL)


def spotted(text: str, width: int, height: int) -> tuple[Block, ...]:
    """The lines of an answer with their boxes on a page of this size; what has no coordinates is a line without a box.

    A record is text and behind it two corners, `total (net)(156,68),(783,758)`: it ends at its corners, so text may
    have brackets itself. Tags around either, and a JSON list of `{"box": [x0, y0, x1, y1], "text": ...}`, are read too.
    """
    text = unfenced(text).strip()
    if text in NO_TEXT:
        return ()
    records = _listed(text)
    return tuple(
        Block(kind="line", text=line, box=None if corners is None else _box(corners, width, height))
        for line, corners in (_records(_bare(text)) if records is None else records)
    )


def unfenced(text: str) -> str:
    """Without a fence of Markdown around the whole, such as ```json."""
    found = _FENCE.fullmatch(text)
    return found[1] if found else text


Corners = tuple[float, float, float, float]
"""Left, top, right and bottom, in thousandths of the page's sides."""


def _records(text: str) -> Iterator[tuple[str, Corners | None]]:
    at = 0
    for tail in CORNERS.finditer(text):
        line = text[at : tail.start()].strip()
        if not line and CORNERS.match(text, tail.end()):
            continue  # it is text that looks like corners: the corners come behind it
        if line:
            yield line, _corners(tail.groups())
        at = tail.end()
    if rest := text[at:].strip():
        yield rest, None


def _bare(text: str) -> str:
    """Without tags, and corners in the one way of writing them: `<pos_1><pos_2><pos_3><pos_4>` is (1,2),(3,4)."""
    text = re.sub(r"<pos_(\d{1,4})><pos_(\d{1,4})><pos_(\d{1,4})><pos_(\d{1,4})>", r"(\1,\2),(\3,\4)", text)
    swapped = re.sub(r"<quad>(.*?)</quad>\s*<ref>(.*?)</ref>", r"\2\1", text) if _quad_first(text) else text
    return _TAGS.sub("", swapped)


def _quad_first(text: str) -> bool:
    quad, ref = text.find("<quad>"), text.find("<ref>")
    return 0 <= quad < ref


def _listed(text: str) -> list[tuple[str, Corners | None]] | None:
    """The records of a JSON list; None where the text is none."""
    if not text.startswith("["):
        return None
    raw = _objects(text)
    if not raw:
        return None
    return [
        (line.strip(), _corners(item.get("box")))
        for item in raw
        if (line := str(item.get("text", ""))).strip()
    ]


def _objects(text: str) -> list[dict[str, Any]]:
    """The objects of a list, one by one, so that a list that is cut off gives those before the cut."""
    found, at, decoder = [], 1, json.JSONDecoder()
    while (at := text.find("{", at)) >= 0:
        try:
            item, at = decoder.raw_decode(text, at)
        except ValueError:
            break
        found.append(item)
    return [item for item in found if "text" in item]


def _corners(said: Any) -> Corners | None:
    try:
        left, top, right, bottom = (float(number) for number in said)
    except (TypeError, ValueError):
        return None
    return left, top, right, bottom


def _box(corners: Corners, width: int, height: int) -> Quad:
    """In pixels: corners in either order, never outside the page."""
    x0, y0, x1, y1 = (min(max(corner, 0.0), _FULL) for corner in corners)
    xs, ys = (
        sorted((x0 * width / _FULL, x1 * width / _FULL)),
        sorted((y0 * height / _FULL, y1 * height / _FULL)),
    )
    return rectangle(xs[0], ys[0], xs[1], ys[1])
