"""What is on a page and what the model is to say of it: lines, forms, tables, documents."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import groupby
from random import Random

from training.canvas import Canvas, length
from training.characters import CHINESE_KEYS, KEYS
from training.fonts import Fonts
from training.prompts import FIELDS, NO_TEXT, PROMPTS, fields_prompt
from training.words import Writer


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """A prompt, and the answer; None where the answer is what the lines say in the end."""

    prompt: str
    answer: str | None


LEAST_TYPE = 20
"""Pixels of the smallest type: a square of 32, one token of the language model, has three to four letters."""
LEAST_LEADING = 34.0
"""Pixels from one line to the next: where two lines shared a square, the first model made half of its errors."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Style:
    """How one page is written: font, its size in pixels, from one baseline to the next, and margins."""

    file: str
    size: int
    leading: float
    margin: float


class Scribe:
    """Writes one page from the top to the bottom, until it is full or `budget` characters are written."""

    def __init__(self, rng: Random, canvas: Canvas, fonts: Fonts, *, budget: int, line: int = 0) -> None:
        """`line` is what a line costs of the budget beside its characters."""
        self.rng, self.canvas, self._fonts = rng, canvas, fonts
        chinese = rng.random() < 0.4
        self.writer = Writer(rng, chinese=chinese)
        self.left, self._line = budget, line
        self.style = self._style(chinese)
        self.y = self.style.margin + self.style.size * rng.uniform(0.9, 1.4)
        if rng.random() < 0.3:
            self.y += rng.uniform(0, 0.35) * canvas.height

    def _style(self, chinese: bool) -> Style:
        rng, canvas = self.rng, self.canvas
        size = round(rng.triangular(LEAST_TYPE, 40, 25))
        size = min(size, max(LEAST_TYPE, canvas.width // 10))
        return Style(
            file=rng.choice(self._fonts.chinese if chinese else self._fonts.latin),
            size=size,
            leading=max(size * rng.uniform(1.25, 1.9), LEAST_LEADING),
            margin=max(6.0, min(canvas.width, canvas.height) * rng.uniform(0.03, 0.07)),
        )

    @property
    def room(self) -> bool:
        """Whether another line fits."""
        return self.left > 0 and self.y + self.style.size * 0.4 < self.canvas.height - self.style.margin

    @property
    def width(self) -> float:
        """From margin to margin."""
        return self.canvas.width - 2 * self.style.margin

    def measured(self, text: str) -> float:
        """How wide a text is in the font of the page."""
        return length(self.style.file, self.style.size, text)

    def text(self, wide: float) -> str:
        """Pieces that fill at most so many pixels, and the budget."""
        found = self.fitted(self.writer.piece(), wide)
        used = self.measured(found)
        while found and len(found) < self.left:
            piece = self.writer.piece()
            more = self.writer.between(found, piece) + piece
            used += self.measured(more)
            if used > wide:
                break
            found += more
        return found

    def fitted(self, text: str, wide: float) -> str:
        """As much of a text as so many pixels hold."""
        while text and self.measured(text) > wide:
            text = text[:-1].rstrip()
        return text

    def put(self, text: str, x: float | None = None) -> None:
        """Write a text at this height; at the left margin if no place is given."""
        if text:
            self.canvas.write(
                text, self.style.margin if x is None else x, self.y, self.style.file, self.style.size
            )
            self.left -= len(text) + self._line

    def down(self, lines: float = 1) -> None:
        """Move on by lines."""
        self.y += self.style.leading * lines

    def again(self, *, larger: float = 1) -> None:
        """Go on in another font, or larger."""
        old = self.style
        file = old.file if larger != 1 else self._style(self.writer.chinese).file
        size = round(old.size * larger)
        self.style = Style(file=file, size=size, leading=max(old.leading, size * 1.25), margin=old.margin)


Layout = Callable[[Scribe], Asked]


def _plain(scribe: Scribe) -> None:
    """Lines of any length, here and there in another font or not at the margin; now and then none at all."""
    rng = scribe.rng
    if rng.random() > 0.01:
        full, changing = rng.random() < 0.3, rng.random() < 0.3
        while scribe.room:
            if changing and rng.random() < 0.4:
                scribe.again()
            wide = scribe.width * (1 if full else rng.uniform(0.25, 1))
            text = scribe.text(wide)
            free = scribe.width - scribe.measured(text)
            x = scribe.style.margin + (rng.random() * max(0.0, free) if rng.random() < 0.25 else 0)
            scribe.put(text, x)
            scribe.down(rng.uniform(1.3, 2.5) if rng.random() < 0.15 else 1)


def text(scribe: Scribe) -> Asked:
    """All lines, one below the other."""
    return _lines(scribe, "text")


def spotting(scribe: Scribe) -> Asked:
    """All lines, each with its box."""
    return _lines(scribe, "spotting")


def _lines(scribe: Scribe, task: str) -> Asked:
    """Most pages are plain; some are a form, a receipt or a table, of which the lines are asked all the same."""
    rng = scribe.rng
    kind = rng.choices(("plain", "form", "receipt", "table"), (55, 15, 20, 10))[0]
    if kind == "form":
        _filled(scribe)
    elif kind == "receipt":
        _receipt(scribe)
    elif kind == "table":
        _table(scribe)
    else:
        _plain(scribe)
    return Asked(prompt=_prompt(rng, task), answer=None)


def _receipt(scribe: Scribe) -> None:
    """A title in the middle, then rows of something on the left and its price on the right, with rules between some."""
    rng, usual = scribe.rng, scribe.style
    scribe.again(larger=rng.uniform(1.2, 1.6))
    title = scribe.fitted(scribe.writer.heading(), scribe.width)
    scribe.y += scribe.style.size * 0.3
    scribe.put(title, scribe.style.margin + (scribe.width - scribe.measured(title)) / 2)
    scribe.down(1.2)
    scribe.style = usual
    right = scribe.style.margin + scribe.width
    while scribe.room:
        price = scribe.fitted(scribe.writer.cell(), scribe.width * 0.35)
        what = scribe.fitted(scribe.writer.heading(), scribe.width * 0.6 - scribe.style.size)
        scribe.put(what)
        scribe.put(price, right - scribe.measured(price))
        if rng.random() < 0.2:
            y = scribe.y + scribe.style.size * 0.45
            scribe.canvas.rule((scribe.style.margin, y), (right, y), rng.randint(1, 2))
            scribe.down(0.3)
        scribe.down(rng.uniform(1, 1.5))


def fields(scribe: Scribe) -> Asked:
    """A form; of some of its fields, and now and then of one that it does not have, the values as JSON."""
    rng, found = scribe.rng, _filled(scribe)
    keys = rng.sample(sorted(found), rng.randint(1, min(4, len(found))))
    if rng.random() < 0.15:
        keys.insert(rng.randrange(len(keys) + 1), _key(scribe, found))
    answer = json.dumps({key: found.get(key, "") for key in keys}, ensure_ascii=False)
    return Asked(prompt=fields_prompt(keys, _kind(rng, len(FIELDS))), answer=answer)


def _key(scribe: Scribe, taken: Mapping[str, str]) -> str:
    pool = CHINESE_KEYS if scribe.writer.chinese else KEYS
    key = scribe.rng.choice(pool) if scribe.rng.random() < 0.6 else scribe.writer.key()
    return _key(scribe, taken) if key in taken else key


def _filled(scribe: Scribe) -> dict[str, str]:
    """Write names and values, on a line each: behind a colon, or in columns."""
    rng, found = scribe.rng, {}  # type: Random, dict[str, str]
    colon = rng.choice((":", ": ", "：") if scribe.writer.chinese else (":", ": ", ": "))
    column = scribe.width * rng.uniform(0.35, 0.5) if rng.random() < 0.4 else None
    cased = rng.choice((str.title, str.title, str.lower, str.upper))
    while scribe.room and len(found) < 10:
        key, value = _key(scribe, found), scribe.writer.cell()
        shown = cased(key) + colon.rstrip()
        if column is None or scribe.measured(shown) > column - scribe.style.size:
            shown += colon[len(colon.rstrip()) :]
            value = scribe.fitted(value, scribe.width - scribe.measured(shown))
            scribe.put(shown + value if value else shown.rstrip())
        else:
            value = scribe.fitted(value, scribe.width - column)
            scribe.put(shown)
            scribe.put(value, scribe.style.margin + column)
        found[key] = value
        scribe.down()
    return found


def table(scribe: Scribe) -> Asked:
    """A table, perhaps below a line that does not belong to it."""
    rng = scribe.rng
    if rng.random() < 0.3:
        scribe.put(scribe.text(scribe.width * 0.7))
        scribe.down(1.6)
    return Asked(prompt=_prompt(rng, "table"), answer=_table(scribe))


def _table(scribe: Scribe) -> str:
    """Write a table with all its rules, with some or with none, and say it in HTML."""
    rng, canvas, style = scribe.rng, scribe.canvas, scribe.style
    columns = rng.randint(2, max(2, min(4, int(scribe.width / (style.size * 4)))))
    wide = scribe.width * rng.uniform(0.8, 1) / columns
    step = max(style.size * rng.uniform(1.5, 2.2), LEAST_LEADING)
    kind, thick = rng.choice(("grid", "grid", "rows", "none")), rng.randint(1, 2)
    top, rows = scribe.y - style.size * 1.1, []  # type: float, list[list[str]]
    scribe.y += (step - style.size * 1.5) / 2
    most = rng.randint(2, 6)
    while (scribe.room and len(rows) < most) or not rows:
        row = [_fitting(scribe, wide - style.size * 0.8) for _ in range(columns)]
        for number, cell in enumerate(row):
            scribe.put(cell, style.margin + number * wide + style.size * 0.4)
        rows.append(row)
        scribe.y += step
    right = style.margin + columns * wide
    if kind != "none":
        for number in range(len(rows) + 1):
            canvas.rule((style.margin, top + number * step), (right, top + number * step), thick)
    if kind == "grid":
        for number in range(columns + 1):
            x = style.margin + number * wide
            canvas.rule((x, top), (x, top + len(rows) * step), thick)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table>{body}</table>"


def _fitting(scribe: Scribe, wide: float) -> str:
    """A cell's text, cut to its column; now and then nothing."""
    if scribe.rng.random() < 0.05:
        return ""
    return scribe.fitted(scribe.writer.cell(), wide)


def document(scribe: Scribe) -> Asked:
    """A heading, paragraphs and perhaps a table, as Markdown; the number of the page below them is left out."""
    rng, parts = scribe.rng, []  # type: Random, list[str]
    heading, usual = scribe.writer.heading(), scribe.style
    scribe.again(larger=rng.uniform(1.25, 1.6))
    scribe.y += scribe.style.size * 0.3
    heading = scribe.fitted(heading, scribe.width)
    scribe.put(heading)
    scribe.down(1.2)
    scribe.style = usual
    parts.append(f"# {heading}")
    tabled = rng.random() < 0.35
    while scribe.room and len(parts) < 4:
        parts.append(_paragraph(scribe, rng.randint(1, 4)))
        scribe.down(0.7)
        if tabled and scribe.room and scribe.y + usual.size * 4 < scribe.canvas.height:
            scribe.down(0.4)
            parts.append(_table(scribe))
            break
    if rng.random() < 0.25:
        _numbered(scribe)
    return Asked(prompt=_prompt(rng, "document"), answer="\n\n".join(parts))


def _numbered(scribe: Scribe) -> None:
    """Write at the very end of the page which one it is, if there is room."""
    rng, last = scribe.rng, scribe.canvas.height - scribe.style.margin - scribe.style.size * 0.3
    page = rng.randint(1, 20)
    spelled = (
        (f"第{page}页", f"{page}")
        if scribe.writer.chinese
        else (f"Page {page} of {page + 3}", f"- {page} -", f"{page}")
    )
    note = rng.choice(spelled)
    if scribe.y + scribe.style.leading * 1.5 < last:
        scribe.y = last
        scribe.put(note, scribe.style.margin + (scribe.width - scribe.measured(note)) / 2)


def _paragraph(scribe: Scribe, most: int) -> str:
    """Full lines that belong together, said as one."""
    found = ""
    for _ in range(most):
        if not scribe.room:
            break
        line = scribe.text(scribe.width)
        scribe.put(line)
        scribe.down()
        found += (scribe.writer.between(found, line) if found else "") + line
    return found


def _kind(rng: Random, count: int) -> int:
    """Half of all prompts are the English one."""
    return 0 if rng.random() < 0.5 else rng.randrange(1, count)


def _prompt(rng: Random, task: str) -> str:
    return PROMPTS[task][_kind(rng, len(PROMPTS[task]))]


LAYOUTS: Mapping[str, Layout] = {
    "text": text,
    "spotting": spotting,
    "fields": fields,
    "table": table,
    "document": document,
}
SHARES: Mapping[str, float] = {"text": 0.3, "spotting": 0.25, "fields": 0.15, "table": 0.15, "document": 0.15}
"""How often each task is asked."""


def said(task: str, canvas: Canvas) -> str:
    """The answer that is what the lines say: below each other, or each with its corners from 0 to 1000."""
    if not canvas.lines:
        return NO_TEXT
    if task == "text":
        return "\n".join(_rows(canvas))
    return "".join(
        "{}({},{}),({},{})".format(line.text, *normalised(line.box, canvas.width, canvas.height))
        for line in canvas.lines
    )


def _rows(canvas: Canvas) -> list[str]:
    """Lines; what is written at one height, as in a form, is one."""
    return [" ".join(line.text for line in row) for _, row in groupby(canvas.lines, lambda line: line.row)]


def normalised(box: tuple[float, ...], width: int, height: int) -> tuple[int, int, int, int]:
    """A box in thousandths of the page's sides, within the page."""
    left, top, right, bottom = (
        min(1000, max(0, round(value * 1000 / side)))
        for value, side in zip(box, (width, height, width, height), strict=True)
    )
    return left, top, right, bottom
