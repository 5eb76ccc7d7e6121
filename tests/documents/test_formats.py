"""Documents in the formats of characters."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from html.parser import HTMLParser
from typing import get_args

import jsonschema
import pytest
from pages import TABLE, full

from alula.core.errors import InputError
from alula.documents import (
    TASKS,
    TEXT_FORMATS,
    BlockKind,
    Code,
    Document,
    Page,
    Task,
    document_to_json,
    published_schema,
    written,
)


def _checker() -> jsonschema.Draft202012Validator:
    jsonschema.Draft202012Validator.check_schema(published_schema())
    return jsonschema.Draft202012Validator(published_schema())


def test_written_json_follows_the_published_schema_page_by_page() -> None:
    document = full()
    text = written(document, "json")
    raw = json.loads(text)
    _checker().validate(raw)
    assert raw == document_to_json(document)
    assert raw["pages"][0]["blocks"][0] == {
        "kind": "line",
        "text": 'to "you" & me',
        "box": [[10, 20], [90, 20], [90, 40], [10, 40]],
        "score": 0.5,
    }
    assert raw["pages"][0]["blocks"][1]["score"] is None, "not a number is no number of JSON"
    assert raw["pages"][0]["timings"] == {"read_ms": 12.3457}
    assert len(text.splitlines()) == 1 + len(document.pages) + 1


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("index", -1),
        ("text", None),
        ("notices", [{"code": "odd", "message": ""}]),
        ("span", [1]),
        ("more", 1),
    ],
)
def test_the_schema_refuses_what_is_no_page(where: str, value: object) -> None:
    raw = document_to_json(full())
    raw["pages"][0][where] = value
    assert not _checker().is_valid(raw)


def test_the_schema_knows_every_word() -> None:
    schema = published_schema()
    assert tuple(schema["properties"]["task"]["enum"]) == TASKS == get_args(Task)
    assert tuple(schema["$defs"]["block"]["properties"]["kind"]["enum"]) == get_args(BlockKind)
    assert tuple(schema["$defs"]["notice"]["properties"]["code"]["enum"]) == get_args(Code)


def test_no_pages_are_a_document_too() -> None:
    empty = Document(source="a", task="text", pages=())
    _checker().validate(json.loads(written(empty, "json")))
    assert written(empty, "text") == ""


def test_text_has_cells_between_tabs_and_a_form_feed_between_pages() -> None:
    assert written(full(), "text") == "# Receipt\n\ntotal <b>\n\nitem\tprice\npen\t1.50\n\f\n"


def test_markdown_says_where_pages_begin_and_which_failed() -> None:
    said = "<!-- page 2: it is - - gone -->"
    assert written(full(), "md") == f"# Receipt\n\ntotal <b>\n\n{TABLE}\n\n{said}\n\n\n"


def test_lines_and_fields_become_markdown_that_shows_them() -> None:
    lines = Page(index=0, width=9, height=9, text="1 * 2\n[x]")
    fields = Page(index=0, width=9, height=9, text="{}", fields={"na_me": "Bo", "total": None, "n": 2})
    assert written(Document(source="", task="text", pages=(lines,)), "md") == "1 \\* 2  \n\\[x\\]\n"
    document = Document(source="", task="fields", pages=(fields,))
    assert written(document, "md") == "- **na\\_me**: Bo\n- **total**: \n- **n**: 2\n"
    assert "<dt>total</dt><dd></dd>" in written(document, "html")


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_html_is_one_file_that_runs_nothing() -> None:
    document = full()
    form = TEXT_FORMATS["html"]
    page = replace(document.pages[0], text=f"# A <script>x</script>\nb\n\n{TABLE}<img src=x onerror=y>")
    text = form.head(document.source, "document") + form.page(page, "document", b"jpeg", True) + form.tail
    tags = _Tags()
    tags.feed(text)
    names = [name for name, _ in tags.seen]
    assert "script" not in names
    assert names.count("img") == 1
    (image,) = (said for name, said in tags.seen if name == "img")
    assert image["src"] == f"data:image/jpeg;base64,{base64.b64encode(b'jpeg').decode()}"
    assert not any("href" in said or "onerror" in said for _, said in tags.seen)
    assert "A <script>x</script>" in tags.text
    assert ("polygon", {"points": "10.0,20.0 90.0,20.0 90.0,40.0 10.0,40.0"}) in tags.seen
    assert names.count("td") == 2
    assert names.count("h1") == 2


def test_subtitles_are_numbered_and_timed_and_only_of_videos() -> None:
    pages = (
        Page(index=0, width=9, height=9, text="one\n\ntwo", span=(0.0, 1.25)),
        Page(index=1, width=9, height=9, text="three", span=(3661.0009, 3662.9996)),
    )
    assert written(Document(source="a.mp4", task="subtitle", pages=pages), "srt") == (
        "1\n00:00:00,000 --> 00:00:01,250\none\ntwo\n\n2\n01:01:01,001 --> 01:01:03,000\nthree\n"
    )
    with pytest.raises(InputError, match="page 1 has no times; srt is for videos"):
        written(full(), "srt")
