"""HunyuanOCR's words: what it is told, and what is made of its answers."""

# ruff: noqa: RUF001 - Chinese punctuation belongs to the prompts

from __future__ import annotations

import io
import json

import jsonschema
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alula.core.errors import InputError
from alula.documents import (
    TASKS,
    Block,
    Document,
    Notice,
    Scan,
    SearchablePdf,
    Task,
    document_to_json,
    published_schema,
    rectangle,
    written,
)
from alula.ocr import Ask
from alula.ocr.answers import Written, blocks_in, cleaned, degenerate, page_of, plainer
from alula.ocr.fields import read_fields
from alula.ocr.prompts import prompt
from alula.ocr.spotting import spotted

NO_OBJECT = "the answer is no JSON object with the fields asked for: "
TEXT = Ask(task="text")


def scan(width: int = 200, height: int = 100, *notices: Notice) -> Scan:
    return Scan(source="a.png", index=0, pixels=np.full((height, width, 3), 255, np.uint8), notices=notices)


def test_prompts_are_those_published() -> None:
    assert prompt(Ask(task="spotting")) == (
        "Detect and recognize text in the image, and output the text coordinates in a formatted manner."
    )
    assert prompt(Ask(task="fields", fields=("name", "it's"), language="zh")) == (
        "提取图片中的: ['name','it\\'s'] 的字段内容，并按照 JSON 格式返回。"
    )
    assert prompt(Ask(task="ask", question="How many {boxes}?")) == "How many {boxes}?"
    assert prompt(Ask(task="translate", to="zh")).startswith(
        "First extract the text, then translate the text content into Chinese."
    )
    assert "翻译为英文" in prompt(Ask(task="translate", to="en", language="zh"), "1.5")
    assert " HTML" in prompt(Ask(task="table", language="zh"))
    assert "解析为HTML" in prompt(Ask(task="table", language="zh"), "1.5"), "1.5 has no blanks there"
    assert prompt(Ask(task="table"), "1.5") == prompt(Ask(task="table"))
    with pytest.raises(InputError, match="to is 'fr'; HunyuanOCR translates into: en, zh"):
        prompt(Ask(task="translate", to="fr"))


def test_every_task_has_a_prompt() -> None:
    more = {"fields": {"fields": ("a",)}, "translate": {"to": "en"}, "ask": {"question": "?"}}
    for language in ("en", "zh"):
        told = [prompt(Ask(task=task, language=language, **more.get(task, {}))) for task in TASKS]  # type: ignore[arg-type] # of three kinds
        assert len(set(told)) == len(TASKS)
        assert not any("{" in words for words in told)


def test_boxes_are_thousandths_of_the_page() -> None:
    """Tencent-Hunyuan/HunyuanOCR#76: coordinates were taken for pixels."""
    assert spotted("a(156,68),(783,758)", 2000, 1500) == (
        Block(kind="line", text="a", box=rectangle(312, 102, 1566, 1137)),
    )


@pytest.mark.parametrize(
    ("answer", "lines"),
    [
        ("total (net)(0,0),(10,10)b(20,20),(30,30)", ["total (net)", "b"]),
        ("(1,2),(3,4)(0,0),(10,10)x(5,5),(6,6)", ["(1,2),(3,4)", "x"]),
        ("tel (030) 12(10, 20), (30, 40)\nnext(1,2),(3,4)", ["tel (030) 12", "next"]),
        ("<ref>a</ref><quad>(1,2),(3,4)</quad><ref>b</ref><quad>(5,6),(7,8)</quad>", ["a", "b"]),
        ("<quad><pos_1><pos_2><pos_3><pos_4></quad><ref>a</ref><quad>(5,6),(7,8)</quad><ref>b</ref>", ["a", "b"]),
        ('[{"box": [1, 2, 3, 4], "text": "a"}, {"box": [5, 6, 7, 8], "text": "b)"}]', ["a", "b)"]),
        ('```json\n[{"box": [1, 2, 3, 4], "text": "a"}, {"box": [5, 6, 7, 8], "te', ["a"]),
        ("没有文字", []),
        ("", []),
        ("[1] note(1,2),(3,4)", ["[1] note"]),
    ],
)  # fmt: skip
def test_records_end_at_their_corners(answer: str, lines: list[str]) -> None:
    """Tencent-Hunyuan/HunyuanOCR#76: brackets in the text were taken for corners."""
    found = spotted(answer, 1000, 1000)
    assert [block.text for block in found] == lines
    assert all(block.box is not None for block in found)


def test_equal_and_overlapping_coordinates_do_not_disturb_each_other() -> None:
    """The published helper replaced text: a box whose scaled value is another's raw one was converted twice."""
    found = spotted("a(100,100),(200,200)b(50,50),(100,100)b(50,50),(100,100)", 2000, 2000)
    assert [block.box for block in found] == [
        rectangle(200, 200, 400, 400),
        rectangle(100, 100, 200, 200),
        rectangle(100, 100, 200, 200),
    ]


def test_odd_corners_stay_on_the_page_and_text_without_any_has_no_box() -> None:
    first, second = spotted("a(900,800),(100,1200)cut off (1", 100, 100)
    assert first.box == rectangle(10, 80, 90, 100)
    assert second == Block(kind="line", text="cut off (1")


_LINE = (
    st.text("abc (),12:;$x", min_size=1, max_size=12)
    .map(str.strip)
    .filter(lambda text: text and "(" not in text[-8:])
)


@given(st.lists(st.tuples(_LINE, st.tuples(*[st.integers(0, 499)] * 2)), max_size=6))
def test_what_is_written_as_records_is_read_again(records: list[tuple[str, tuple[int, int]]]) -> None:
    answer = "".join(f"{text}({x},{y}),({x + 500},{y + 400})" for text, (x, y) in records)
    found = spotted(answer, 1000, 1000)
    assert [(block.text, block.box) for block in found] == [
        (text, rectangle(x, y, x + 500, y + 400)) for text, (x, y) in records
    ]


@pytest.mark.parametrize(
    ("answer", "fields", "amiss"),
    [
        ('{"name": "Bo", "total": 12.5}', {"name": "Bo", "total": 12.5}, []),
        ('```json\n{"total": "1", "name": null}\n```', {"name": None, "total": "1"}, ["fields not found: name"]),
        ("Here: {'Name ': 'Bo', 'total': ['1', '2']}.", {"name": "Bo", "total": ["1", "2"]}, []),
        ('{"name": "Bo"}', {"name": "Bo", "total": None}, ["fields missing: total"]),
        (
            '{"name": " ", "total": "", "date": ""}',
            {"name": None, "total": None},
            ["fields not found: name, total", "fields not asked for: date"],
        ),
        ("Bo, 12", {"name": None, "total": None}, [f"{NO_OBJECT}'Bo, 12'"]),
        ('{"name": NaN, "total": 1}', {"name": "NaN", "total": 1}, []),
        ("{1: 2}", {"name": None, "total": None}, [NO_OBJECT + "'{1: 2}'"]),
        ("{'name': {1}}", {"name": None, "total": None}, [NO_OBJECT + "\"{'name': {1}}\""]),
    ],
)  # fmt: skip
def test_fields_have_exactly_the_keys_asked_for(
    answer: str, fields: dict[str, object], amiss: list[str]
) -> None:
    found, notices = read_fields(answer, ("name", "total"))
    assert found == fields
    assert list(found) == ["name", "total"]
    assert [notice.message for notice in notices] == amiss


def test_an_answer_of_coordinates_alone_is_flagged() -> None:
    """Tencent-Hunyuan/HunyuanOCR#118: a slide with a figure and a line gave `(x,y),(x,y)` as its document."""
    ask = Ask(task="document")
    page = page_of(scan(), Written(text="(133,75),(879,934)"), ask)
    assert page.text == ""
    assert [notice.code for notice in page.notices] == ["degenerate"]
    assert (
        page_of(scan(), Written(text="Figure 1: growth(133,75),(879,934)\n\ntext"), ask).text
        == "Figure 1: growth\n\ntext"
    )
    assert page_of(scan(), Written(text="at (1,2),(3,4)"), TEXT).text == "at (1,2),(3,4)", (
        "other tasks keep their text"
    )


@pytest.mark.parametrize(
    ("text", "task", "again"),
    [
        ("(133,75),(879,934)", "document", True),
        ("(1,2),(3,4)\n" * 300, "document", True),
        ("```markdown\n|-|\n```", "document", True),
        ("(133,75),(879,934)\n\nFigure 1", "document", False),
        ("No text", "document", False),
        ("", "document", False),
        ("(133,75),(879,934)", "text", False),
        ("(133,75),(879,934)", "spotting", False),
    ],
)
def test_a_document_of_coordinates_alone_is_asked_for_its_text(text: str, task: str, again: bool) -> None:
    """Tencent-Hunyuan/HunyuanOCR#118: a plain prompt reads what the one for documents does not."""
    ask = Ask(task=task, max_tokens=7, language="zh")  # type: ignore[arg-type] # a task
    other = plainer(ask, Written(text=text))
    assert (other is not None) is again
    if other is not None:
        assert other[0] == Ask(task="text", max_tokens=7, language="zh")
        assert other[1].code == "not-as-asked"


@pytest.mark.parametrize(
    ("text", "task", "blank", "flagged"),
    [
        ("Hello", "text", False, False),
        ("", "text", False, True),
        ("", "text", True, False),
        ("没有文字", "text", False, False),
        ("<table><tr><td></td></tr></table>", "table", False, True),
        ("| --- | --- |", "document", False, True),
        ("提取图中的文字。", "text", False, False),
        ("Extract the text in the image", "text", False, True),
        ("\ufffd\ufffda", "text", False, True),
        ("7", "text", False, False),
        ("中", "text", False, False),
        ("words", "text", True, True),
        ("graph TD", "chart", True, False),
    ],
)
def test_answers_that_are_no_reading_are_told(text: str, task: str, blank: bool, flagged: bool) -> None:
    """nyxtron/paperless-aissist#45: an empty page and one that was not read looked alike."""
    assert (degenerate(text, Ask(task=task), blank=blank) is not None) is flagged  # type: ignore[arg-type] # a task


def test_documents_become_blocks_in_order() -> None:
    text = "# Title\nfirst\nline\n\n$$a = b$$\nafter <table><tr><td>1</td></tr></table>\n\n\\[c\\]"
    assert [(block.kind, block.text) for block in blocks_in(text)] == [
        ("title", "Title"),
        ("text", "first\nline"),
        ("formula", "a = b"),
        ("text", "after"),
        ("table", "<table><tr><td>1</td></tr></table>"),
        ("formula", "c"),
    ]


def test_answers_are_cleaned_by_their_task() -> None:
    assert cleaned("```markdown\n# A\r\n\n\n\nb\n```", "document") == "# A\n\nb"
    assert cleaned("$$ x^2 $$", "formula") == "x^2"
    assert cleaned("\\[x\\]", "formula") == "x"
    assert cleaned("$a$ and $b$", "formula") == "$a$ and $b$"
    assert cleaned("  two\n\n\n\nlines ", "text") == "two\n\n\n\nlines"
    assert cleaned("没有文字。", "spotting") == ""


def test_pages_of_every_task_follow_the_published_schema() -> None:
    table = "<table><tr><td>a</td></tr></table>"
    asked = {
        Ask(task="spotting"): ("a(0,0),(500,500)rest", ["unplaced"]),
        Ask(task="fields", fields=("a", "b")): ('{"a": 1}', ["not-as-asked"]),
        Ask(task="document"): (f"# x\n\n{table}", []),
        Ask(task="table"): ("no table", ["not-as-asked"]),
        Ask(task="formula"): ("$$x$$", []),
        Ask(task="chart"): ("a --> b", []),
        Ask(task="translate", to="en"): ("text", []),
        TEXT: ("text", []),
    }
    for ask, (answer, codes) in asked.items():
        page = page_of(scan(), Written(text=answer), ask, timings={"read_ms": 1.5})
        assert [notice.code for notice in page.notices] == codes, ask
        raw = json.loads(json.dumps(document_to_json(Document(source="a", task=ask.task, pages=(page,)))))
        jsonschema.Draft202012Validator(published_schema()).validate(raw)
    spotting = page_of(scan(), Written(text="a(0,0),(500,500)"), Ask(task="spotting"))
    assert spotting.text == "a"
    assert spotting.blocks[0].box == rectangle(0, 0, 100, 50)
    assert page_of(scan(), Written(text=table), Ask(task="table")).tables[0].rows == (("a",),)


def test_an_answer_that_was_cut_or_looped_says_so() -> None:
    """nyxtron/paperless-aissist#45: an answer that was cut off looked whole."""
    assert [n.code for n in page_of(scan(), Written(text="abc", cut=True), TEXT).notices] == ["cut"]
    page = page_of(scan(), Written(text="begin: " + "and so on " * 300, cut=True), TEXT)
    assert page.text == "begin: and so on"
    assert [notice.code for notice in page.notices] == ["repetition"]
    assert "' and so on' came 300 times in a row" in page.notices[0].message


_PIECES = st.sampled_from(
    [
        *(
            "<table>",
            "</table>",
            "<tr>",
            "<td colspan=3>",
            "</td>",
            "<pos_1>",
            "<ref>",
            "<quad>",
            "|",
            "$$",
            "\\[",
            "\\]",
        ),
        *("(1,2),(30,999)", "(", "{", "}", '"a"', ":", "[", "]", "```json\n", "```", "# ", "\n", "\n\n"),
        *("a", "中", "0", "\ud800", "\ufffd", "\0"),
    ]
)
_PLAIN: tuple[Task, ...] = ("document", "text", "spotting", "table", "formula", "chart", "subtitle")
_ASKS = st.sampled_from(
    [
        *(Ask(task=task) for task in _PLAIN),
        *(Ask(task="fields", fields=("a",)), Ask(task="translate", to="en"), Ask(task="ask", question="?")),
    ]
)


@given(st.lists(_PIECES, max_size=40).map("".join), _ASKS)
def test_whatever_a_model_writes_becomes_a_page_in_every_format(text: str, ask: Ask) -> None:
    page = page_of(scan(), Written(text=text), ask)
    document = Document(source="a", task=ask.task, pages=(page,))
    jsonschema.Draft202012Validator(published_schema()).validate(document_to_json(document))
    for form in ("text", "md", "json", "html"):
        assert isinstance(written(document, form), str)
    file = io.BytesIO()
    searchable = SearchablePdf(file)
    searchable.add(page, ask.task, b"", None)
    searchable.close()
    assert file.getvalue().endswith(b"%%EOF\n")
