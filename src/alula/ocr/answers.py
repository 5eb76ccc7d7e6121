"""What HunyuanOCR wrote, as a page: cleaned, parsed by its task, and flagged where it is no reading of the page."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from alula.documents import Block, BlockKind, Notice, Page, Scan, Task, tables_in
from alula.documents.tables import parts
from alula.ocr.fields import fields_to_text, read_fields
from alula.ocr.odds import Odds, unsure
from alula.ocr.places import misplaced
from alula.ocr.prompts import prompt
from alula.ocr.reader import PICTURES, Ask
from alula.ocr.repetition import Loop, loop_at_end, without_loop
from alula.ocr.rows import miscounted
from alula.ocr.spotting import NO_TEXT, spotted, unfenced

_COORDINATES = re.compile(r"\(\d{1,4}, ?\d{1,4}\)(?:, ?\(\d{1,4}, ?\d{1,4}\))?")
_TRAILING = re.compile(r"(?:\(\d{1,4}, ?\d{1,4}\), ?\(\d{1,4}, ?\d{1,4}\))+[ \t]*$", re.MULTILINE)
_TAG = re.compile(r"<[^<>]{0,100}>")
_MOST_UNKNOWN = 0.3
_HEADING = re.compile(r"#{1,6}\s+(.*)")
_DISPLAYED = re.compile(r"\$\$(.+?)\$\$|\\\[(.+?)\\\]", re.DOTALL)
_LATEX_EDGES = (("$$", "$$"), ("\\[", "\\]"), ("\\(", "\\)"), ("$", "$"))
_SHOWN = 40


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """An answer: its text, whether its end is where its tokens ran out, its loop, and its odds."""

    text: str
    cut: bool = False
    loop: Loop | None = None
    odds: Odds = field(default_factory=Odds)


def page_of(scan: Scan, written: Written, ask: Ask, *, known: Sequence[Notice] = (), **more: Any) -> Page:
    """The page that an answer makes, with what is `known` of it before; `more` goes to `Page.of`, such as timings."""
    loop, raw = _unlooped(written)
    text = cleaned(raw, ask.task)
    notices = [*known, *_ended(written, loop)]
    if (
        why := degenerate(raw, ask, blank=any(notice.code == "blank" for notice in scan.notices))
    ) is not None:
        notices.append(Notice(code="degenerate", message=why))
    printed_alone = written.odds.mean is not None  # taught a part of the tasks, on pages of nothing but print
    read: dict[str, Any] = {"text": text}
    if ask.task == "spotting":
        blocks = spotted(raw, scan.width, scan.height)
        read = {"text": "\n".join(block.text for block in blocks), "blocks": blocks}
        if any(block.box is None for block in blocks):
            notices.append(Notice(code="unplaced", message="a part of the text came without its place"))
        if printed_alone:
            notices += misplaced(scan.pixels, blocks)
    elif ask.task == "fields":
        fields, amiss = read_fields(raw, ask.fields)
        read = {"text": fields_to_text(fields), "fields": fields}
        notices += amiss
    elif ask.task in {"document", "table", "translate"}:
        read |= {"blocks": tuple(blocks_in(text)), "tables": tables_in(text)}
        if ask.task == "table" and not read["tables"]:
            notices.append(Notice(code="not-as-asked", message="the answer has no table"))
    elif ask.task in {"formula", "chart"} and text:
        read["blocks"] = (Block(kind="formula" if ask.task == "formula" else "chart", text=text),)
    if printed_alone and loop is None and not written.cut:
        notices += miscounted(scan.pixels, text, ask.task)
    notices += unsure(written.text, written.odds, read.get("fields"))
    return Page.of(scan, notices=notices, **read, **more)


def untaught(name: str, taught: Sequence[str], ask: Ask) -> tuple[Notice, ...]:
    """That a model was trained for other tasks than the one that is asked of it, where it says for which it was."""
    if not taught or ask.task in taught:
        return ()
    said = f"{name} was not taught the task {ask.task}, but: {', '.join(taught)}; its answer may mean nothing"
    return (Notice(code="untaught", message=said),)


def plainer(ask: Ask, written: Written) -> tuple[Ask, Notice] | None:
    """What to ask of a page instead, and what to say of it then, if its document is coordinates and marks alone. Pure.

    The same page is read where its text alone is asked for: Tencent-Hunyuan/HunyuanOCR#118.
    """
    _, raw = _unlooped(written)
    text = unfenced(raw).strip()
    if ask.task != "document" or not text or text in NO_TEXT or not _wordless(text):
        return None
    said = f"asked for the document, the model gave coordinates and marks alone ({text[:_SHOWN]!r}); this is its text"
    return replace(ask, task="text"), Notice(code="not-as-asked", message=said)


def _unlooped(written: Written) -> tuple[Loop | None, str]:
    """The loop of an answer, and its text with the piece of that once."""
    loop = written.loop or loop_at_end(written.text)
    return loop, without_loop(written.text, loop) if loop else written.text


def _wordless(text: str) -> bool:
    """Whether a text is nothing but coordinates, tags and marks."""
    left = _TAG.sub("", _COORDINATES.sub("", text))
    return not left.strip(" \t\n.,;:()[]{}|-#*`'\"")


def cleaned(text: str, task: Task) -> str:
    """Without a fence around the whole, the words for no text, and what a task's answers carry besides."""
    text = unfenced(text).replace("\r\n", "\n").strip()
    if text in NO_TEXT:
        return ""
    if task == "document":
        # Figures come as their coordinates alone, and some lines with theirs; no other task may lose such text.
        return re.sub(r"\n{3,}", "\n\n", _TRAILING.sub("", text)).strip()
    return _without_edges(text) if task == "formula" else text


def degenerate(text: str, ask: Ask, *, blank: bool = False) -> str | None:
    """Why an answer is no reading of the page, if it is none. Pure.

    Tencent-Hunyuan/HunyuanOCR#118: of a page with a figure and one line, only `(x,y),(x,y)` came.
    """
    text = unfenced(text).strip()
    if not text or text in NO_TEXT:
        return None if text or blank else "the answer is empty, and the page is not"
    if _wordless(text):
        return f"the answer has no text but coordinates and marks: {text[:_SHOWN]!r}"
    if blank and ask.task not in {*PICTURES, "fields"}:
        return "the answer has words, and nothing is on the page"
    if text.count("\ufffd") > _MOST_UNKNOWN * len(text):
        return "the answer is mostly bytes that are no characters"
    if text.rstrip(".。") == prompt(ask).rstrip(".。"):
        return "the answer repeats the question"
    return None


def blocks_in(text: str) -> Iterator[Block]:
    """Titles, paragraphs, tables and displayed formulas of Markdown, in order; where they stand is not said there."""
    for part, is_table in parts(text):
        if is_table:
            yield Block(kind="table", text=part)
            continue
        at = 0
        for formula in _DISPLAYED.finditer(part):
            yield from _paragraphs(part[at : formula.start()])
            yield Block(kind="formula", text=(formula[1] or formula[2]).strip())
            at = formula.end()
        yield from _paragraphs(part[at:])


def _paragraphs(text: str) -> Iterator[Block]:
    for paragraph in re.split(r"\n\s*\n", text):
        lines: list[str] = []
        for line in paragraph.splitlines():
            if heading := _HEADING.fullmatch(line.strip()):
                yield from _block("text", lines)
                lines = []
                yield Block(kind="title", text=heading[1])
            else:
                lines.append(line)
        yield from _block("text", lines)


def _block(kind: BlockKind, lines: list[str]) -> Iterator[Block]:
    if text := "\n".join(lines).strip():
        yield Block(kind=kind, text=text)


def _ended(written: Written, loop: Loop | None) -> Iterator[Notice]:
    if loop is not None:
        said = f"{loop.unit[:_SHOWN]!r} came {loop.times} times in a row; it is kept once, and the rest is not read"
        yield Notice(code="repetition", message=said)
    elif written.cut:
        yield Notice(code="cut", message="the answer was ended at its most tokens; the rest is not read")


def _without_edges(text: str) -> str:
    for begin, end in _LATEX_EDGES:
        inner = text[len(begin) : len(text) - len(end)]
        if (
            text.startswith(begin)
            and text.endswith(end)
            and len(text) >= len(begin) + len(end)
            and begin not in inner
        ):
            return inner.strip()
    return text
