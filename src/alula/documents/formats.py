"""Pages as text, Markdown, JSON, HTML and subtitles: each written page by page, so that no document is held whole."""

from __future__ import annotations

import base64
import html
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from alula.core.errors import InputError
from alula.documents.tables import clean, parts, to_rows
from alula.documents.values import Block, Document, Notice, Page, Table, Task

SCHEMA = 1
"""Of the JSON of documents; `schema.json` beside this file says what it is."""

PLAIN: tuple[Task, ...] = ("text", "spotting", "subtitle", "ask")
"""Tasks whose text is lines, and no Markdown."""

_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>#|~])")
_HEADING = re.compile(r"(#{1,6})\s+(.*)")


@dataclass(frozen=True, kw_only=True, slots=True)
class TextFormat:
    """A format of characters: what comes before the pages, for each page, and after them.

    `page` takes the page, the task and the page's picture as JPEG, which only formats with `pictures` use; `first` says
    whether one came before.
    """

    suffix: str
    head: Callable[[str, Task], str]
    page: Callable[[Page, Task, bytes | None, bool], str]
    tail: str
    pictures: bool = False


def written(document: Document, kind: str) -> str:
    """A whole document in a format of characters."""
    form = TEXT_FORMATS[kind]
    pages = (form.page(page, document.task, None, at == 0) for at, page in enumerate(document.pages))
    return form.head(document.source, document.task) + "".join(pages) + form.tail


def published_schema() -> dict[str, Any]:
    """The JSON schema of a document."""
    raw: dict[str, Any] = json.loads(resources.files("alula.documents").joinpath("schema.json").read_text())
    return raw


def document_to_json(document: Document) -> dict[str, Any]:
    """A document as the schema has it."""
    pages = [page_to_json(page) for page in document.pages]
    return {"schema": SCHEMA, "source": document.source, "task": document.task, "pages": pages}


def page_to_json(page: Page) -> dict[str, Any]:
    """A page as the schema has it; what is no number is null there."""
    return {
        "index": page.index,
        "width": page.width,
        "height": page.height,
        "text": page.text,
        "blocks": [_block_to_json(block) for block in page.blocks],
        "tables": [_table_to_json(table) for table in page.tables],
        "fields": None if page.fields is None else dict(page.fields),
        "span": None if page.span is None else list(page.span),
        "notices": [_notice_to_json(notice) for notice in page.notices],
        "timings": {name: _number(value) for name, value in page.timings.items()},
    }


def _block_to_json(block: Block) -> dict[str, Any]:
    return {"kind": block.kind, "text": block.text, "box": _box(block.box), "score": _number(block.score)}


def _table_to_json(table: Table) -> dict[str, Any]:
    return {"html": table.html, "rows": [list(row) for row in table.rows], "box": _box(table.box)}


def _notice_to_json(notice: Notice) -> dict[str, str]:
    return {"code": notice.code, "message": notice.message}


def _box(box: Sequence[tuple[float, float]] | None) -> list[list[float]] | None:
    return None if box is None else [[round(float(x), 2), round(float(y), 2)] for x, y in box]


def _number(value: float | None) -> float | None:
    return round(float(value), 4) if value is not None and math.isfinite(value) else None


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _json_head(source: str, task: Task) -> str:
    return f'{{"schema": {SCHEMA}, "source": {_dumped(source)}, "task": {_dumped(task)}, "pages": ['


def _json_page(page: Page, task: Task, picture: bytes | None, first: bool) -> str:
    return f"{'' if first else ','}\n{_dumped(page_to_json(page))}"


def _nothing(source: str, task: Task) -> str:
    return ""


def plain(text: str, task: Task) -> str:
    """A page's text without HTML: cells of tables between tabs, a line for each row."""
    if task in PLAIN:
        return text
    return "".join(
        "\n".join("\t".join(" ".join(cell.split()) for cell in row) for row in to_rows(part))
        if table
        else part
        for part, table in parts(text)
    )


def _text_page(page: Page, task: Task, picture: bytes | None, first: bool) -> str:
    """A form feed between pages, as other programs that print documents have it."""
    return f"{'' if first else chr(12)}{plain(page.text, task).rstrip()}\n"


def _markdown_page(page: Page, task: Task, picture: bytes | None, first: bool) -> str:
    failed = "".join(f": {notice.message}" for notice in page.notices if notice.code == "failed")
    mark = "" if first and not failed else f"<!-- page {page.index + 1}{failed.replace('--', '- -')} -->\n\n"
    return f"{'' if first else chr(10)}{mark}{_markdown(page, task).rstrip()}\n"


def _markdown(page: Page, task: Task) -> str:
    if page.fields is not None:
        return "\n".join(
            f"- **{_escaped(key)}**: {_escaped(_shown(value))}" for key, value in page.fields.items()
        )
    if task not in PLAIN:
        return page.text
    return "  \n".join(_escaped(line) for line in page.text.splitlines())


def _escaped(line: str) -> str:
    return _MARKDOWN.sub(r"\\\1", line)


def _shown(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else _dumped(value)


_PAGE_STYLE = (
    "body{font-family:sans-serif;max-width:60em;margin:1em auto}section{margin-bottom:3em}"
    "figure{position:relative;margin:0 0 1em}figure img,figure svg{display:block;width:100%}"
    "figure svg{position:absolute;top:0;left:0;height:100%}polygon{fill:#dc00000d;stroke:#dc0000;stroke-width:2}"
    "table{border-collapse:collapse}td,th{border:1px solid #999;padding:.2em .5em}.notice{color:#a40}"
)


def _html_head(source: str, task: Task) -> str:
    title = html.escape(source)
    return (
        f'<!doctype html>\n<html><head><meta charset="utf-8"><title>{title}</title><style>{_PAGE_STYLE}</style>'
        f"</head><body>\n<h1>{title}</h1>\n"
    )


def _html_page(page: Page, task: Task, picture: bytes | None, first: bool) -> str:
    notices = "".join(
        f'<p class="notice">{html.escape(f"{notice.code}: {notice.message}")}</p>' for notice in page.notices
    )
    figure = "" if picture is None else _figure(page, picture)
    return f'<section id="page-{page.index + 1}">{figure}{notices}\n{_html_body(page, task)}\n</section>\n'


def _figure(page: Page, picture: bytes) -> str:
    boxes = "".join(
        f'<polygon points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in block.box)}">'
        f"<title>{html.escape(block.text)}</title></polygon>"
        for block in page.blocks
        if block.box is not None
    )
    return (
        f'<figure><img alt="page {page.index + 1}" src="data:image/jpeg;base64,{base64.b64encode(picture).decode()}">'
        f'<svg viewBox="0 0 {page.width} {page.height}" preserveAspectRatio="none">{boxes}</svg></figure>'
    )


def _html_body(page: Page, task: Task) -> str:
    if page.fields is not None:
        rows = "".join(
            f"<dt>{html.escape(key)}</dt><dd>{html.escape(_shown(value))}</dd>"
            for key, value in page.fields.items()
        )
        return f"<dl>{rows}</dl>"
    if task in PLAIN:
        return _paragraph(page.text)
    return "\n".join(
        clean(part) if table else "\n".join(map(_markdown_block, re.split(r"\n\s*\n", part)))
        for part, table in parts(page.text)
    )


def _markdown_block(block: str) -> str:
    """Headings and paragraphs; all else of Markdown stays as it is written."""
    lines, found = block.strip().splitlines(), []
    while lines and (heading := _HEADING.fullmatch(lines[0].strip())):
        level = len(heading[1])
        found.append(f"<h{level}>{html.escape(heading[2])}</h{level}>")
        lines = lines[1:]
    return "\n".join([*found, _paragraph("\n".join(lines))] if lines else found)


def _paragraph(text: str) -> str:
    lines = "<br>\n".join(html.escape(line) for line in text.strip().splitlines())
    return f"<p>{lines}</p>" if lines else ""


def _srt_page(page: Page, task: Task, picture: bytes | None, first: bool) -> str:
    """One subtitle; `index` counts them."""
    if page.span is None:
        raise InputError(f"page {page.index + 1} has no times; srt is for videos: choose another format")
    begin, end = map(_time, page.span)
    # An empty line would end the subtitle.
    lines = "\n".join(line for line in page.text.splitlines() if line.strip())
    return f"{'' if first else chr(10)}{page.index + 1}\n{begin} --> {end}\n{lines}\n"


def _time(seconds: float) -> str:
    whole = round(seconds * 1000)
    minutes, rest = divmod(whole, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest // 1000:02},{rest % 1000:03}"


TEXT_FORMATS: Mapping[str, TextFormat] = {
    "text": TextFormat(suffix=".txt", head=_nothing, page=_text_page, tail=""),
    "md": TextFormat(suffix=".md", head=_nothing, page=_markdown_page, tail=""),
    "json": TextFormat(suffix=".json", head=_json_head, page=_json_page, tail="\n]}\n"),
    "html": TextFormat(
        suffix=".html", head=_html_head, page=_html_page, tail="</body></html>\n", pictures=True
    ),
    "srt": TextFormat(suffix=".srt", head=_nothing, page=_srt_page, tail=""),
}
"""By the word of the command line."""
