"""Tables between HTML and rows. What a model writes may be cut off, nested, or anything: nothing is trusted."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser

from alula.documents.values import Table

MOST_CELLS = 100_000
"""Of one table; a span that would need more is cut to what is left."""

_MOST_SPAN = 1_000
_TABLE = re.compile(r"<table\b", re.IGNORECASE)
_EDGE = re.compile(r"<(/?)table\b[^>]*>", re.IGNORECASE)


@dataclass(slots=True)
class Cell:
    """One cell as it is written: its text, how many columns and rows it takes, and whether it is a heading."""

    text: str = ""
    columns: int = 1
    rows: int = 1
    heading: bool = False


def tables_in(text: str) -> tuple[Table, ...]:
    """Every table of a text, in order."""
    return tuple(_table(part) for part, is_table in parts(text) if is_table)


def parts(text: str) -> list[tuple[str, bool]]:
    """A text cut where tables begin and end: each piece, and whether it is one. One that never ends goes to the end."""
    found: list[tuple[str, bool]] = []
    at = 0
    while begin := _TABLE.search(text, at):
        end = _end(text, begin.start())
        found += [(text[at : begin.start()], False), (text[begin.start() : end], True)]
        at = end
    found.append((text[at:], False))
    return [(part, is_table) for part, is_table in found if part]


def to_rows(source: str) -> tuple[tuple[str, ...], ...]:
    """The first table of some HTML as rows, all as long as the widest; what a span covers is empty."""
    grid: list[dict[int, str]] = []
    cells = 0
    for at, row in enumerate(written_rows(source)):
        column = 0
        for cell in row:
            while at < len(grid) and column in grid[at]:
                column += 1
            room = max(1, MOST_CELLS - cells)
            columns = min(cell.columns, room)
            rows = min(cell.rows, max(1, room // columns))
            cells += columns * rows
            while len(grid) < at + rows:
                grid.append({})
            for down in range(rows):
                for right in range(columns):
                    grid[at + down].setdefault(column + right, "" if down or right else cell.text)
            column += columns
        if at >= len(grid):
            grid.append({})
    width = max((max(row, default=-1) + 1 for row in grid), default=0)
    if width * len(grid) > MOST_CELLS:
        grid = grid[: max(1, MOST_CELLS // width)]
    return tuple(tuple(row.get(column, "") for column in range(width)) for row in grid)


def to_html(rows: Sequence[Sequence[str]]) -> str:
    """Rows as a table of plain cells."""
    return cells_to_html([[Cell(text=text) for text in row] for row in rows])


def clean(source: str) -> str:
    """A table written again with nothing but rows, cells and their spans: no attribute or script survives."""
    return cells_to_html(written_rows(source))


def cells_to_html(rows: Sequence[Sequence[Cell]]) -> str:
    """Rows of cells as HTML, all text escaped."""
    written = ("".join(map(_cell, row)) for row in rows)
    return f"<table>{''.join(f'<tr>{cells}</tr>' for cells in written)}</table>"


def written_rows(source: str) -> list[list[Cell]]:
    """The rows of the first table, cells as written."""
    reading = _Reading()
    reading.feed(source)
    reading.close()
    return [row for row in reading.rows if row]


def _table(source: str) -> Table:
    return Table(html=source, rows=to_rows(source))


def _end(text: str, begin: int) -> int:
    """Where the table that begins there ends, tables within it counted."""
    depth = 0
    for edge in _EDGE.finditer(text, begin):
        depth += -1 if edge[1] else 1
        if depth == 0:
            return edge.end()
    return len(text)


def _cell(cell: Cell) -> str:
    spans = "".join(
        f' {name}="{count}"'
        for name, count in (("colspan", cell.columns), ("rowspan", cell.rows))
        if count > 1
    )
    kind = "th" if cell.heading else "td"
    text = html.escape(cell.text, quote=False).replace("\n", "<br>")
    return f"<{kind}{spans}>{text}</{kind}>"


@dataclass(slots=True)
class _Open:
    """Which tags are open."""

    tables: int = 0
    cell: Cell | None = None
    done: bool = False
    pieces: list[str] = field(default_factory=list)


class _Reading(HTMLParser):
    """Collects rows; a row or cell begins where its tag is, and ends where the next begins, closed or not."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.rows: list[list[Cell]] = []
        self._open = _Open()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        now = self._open
        if tag == "table":
            now.tables += 1
        if now.done or now.tables != 1:
            return
        if tag == "tr":
            self._end_cell()
            self.rows.append([])
        elif tag in {"td", "th"}:
            self._end_cell()
            if not self.rows:
                self.rows.append([])
            said = dict(attrs)
            now.cell = Cell(
                columns=_span(said.get("colspan")), rows=_span(said.get("rowspan")), heading=tag == "th"
            )
        elif tag == "br":
            now.pieces.append("\n")

    def handle_endtag(self, tag: str) -> None:
        now = self._open
        if tag == "table":
            now.tables -= 1
            if now.tables == 0:
                self._end_cell()
                now.done = True
        elif tag in {"td", "th", "tr"} and now.tables == 1:
            self._end_cell()

    def handle_data(self, data: str) -> None:
        if self._open.cell is not None and not self._open.done:
            self._open.pieces.append(data)

    def close(self) -> None:
        super().close()
        self._end_cell()

    def _end_cell(self) -> None:
        now = self._open
        if now.cell is not None:
            lines = (" ".join(line.split()) for line in "".join(now.pieces).split("\n"))
            now.cell.text = "\n".join(lines).strip()
            self.rows[-1].append(now.cell)
        now.cell, now.pieces = None, []


def _span(said: str | None) -> int:
    """What a browser makes of it: anything that is no number is one."""
    digits = (said or "").strip()
    return (
        min(max(int(digits), 1), _MOST_SPAN)
        if digits.isascii() and digits.isdigit() and len(digits) < 9
        else 1
    )
