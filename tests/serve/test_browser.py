"""The page at `/` in a real browser, on a server whose scripted engines answer at once."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image, ImageDraw
from served import Running, make_arrays, make_bundle, make_reader, picture, running

pytest.importorskip("playwright", reason="NO BROWSER: pip install playwright")
from browser import Visit, chromium
from playwright.sync_api import Browser, FilePayload

READERS = ("image-classification", "image-embeddings", "text-detection", "text-recognition")

pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


@pytest.fixture(scope="module")
def everything(
    bundles: dict[str, Path], writers: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """A server with a model of every task."""
    root = tmp_path_factory.mktemp("readers")
    readers = [make_reader(root / task, task) for task in READERS]
    given = [*bundles.values(), *writers.values(), *readers, make_arrays(root / "arrays")]
    with running(given, max_client_batch=64) as server:
        yield server


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def opened(browser: Browser, everything: Running) -> Visit:
    return Visit(browser.new_page(viewport={"width": 1300, "height": 900}), everything.url)


@pytest.fixture
def visit(opened: Visit) -> Iterator[Visit]:
    """The page, which must neither complain nor ask anybody else."""
    yield opened
    complaints, opened.complaints = opened.complaints, []
    assert (complaints, opened.elsewhere) == ([], [])


def page_of_text() -> bytes:
    """A dark page with two bright places."""
    page = Image.new("RGB", (128, 96), (50, 50, 50))
    pen = ImageDraw.Draw(page)
    pen.rectangle((16, 16, 96, 32), "white")
    pen.rectangle((16, 56, 64, 72), "white")
    file = io.BytesIO()
    page.save(file, "PNG")
    return file.getvalue()


def png(name: str, content: bytes) -> FilePayload:
    return FilePayload(name=name, mimeType="image/png", buffer=content)


def test_every_model_that_is_served_has_its_place(visit: Visit, everything: Running) -> None:
    keys = [link.get_attribute("data-key") for link in visit.page.query_selector_all("nav a")]
    served = [f"model/{one['id']}" for one in everything.get("/v1/models")["data"]]
    assert keys == [*served, "pages", "live"]
    for key in keys:
        assert key
        visit.go(key)
        assert visit.page.inner_text("h1") in {key.removeprefix("model/"), "Read pages", "Live"}
    visit.page.wait_for_selector(".health.good")


@pytest.mark.parametrize(
    ("task", "shown"),
    [
        ("embeddings", "4 vectors of 4 numbers"),
        ("sequence-classification", "What a wonderful morning."),
        ("token-classification", "Nothing found."),
        ("question-answering", "Candidates"),
        ("reranking", "Parrots can imitate speech."),
        ("arrays", "sum: FP32"),
        ("text2text-generation", ""),
    ],
)
def test_models_of_texts_and_arrays_are_tried(visit: Visit, task: str, shown: str) -> None:
    assert shown in visit.ask(f"model/tiny/{task}")
    request = visit.page.locator(".behind details").first
    request.click()
    assert "curl http://127.0.0.1" in request.inner_text()


def test_entities_stand_where_they_are_also_after_an_emoji(visit: Visit) -> None:
    visit.go("model/tiny/token-classification")
    visit.page.get_by_label("Text", exact=True).fill("\U0001f600 a lives in rome")
    visit.page.keyboard.press("Control+Enter")
    visit.answered()
    marks = visit.page.locator("mark").all_inner_texts()
    assert any(mark.startswith("rome") for mark in marks), marks


def test_an_error_is_said_and_the_form_stays(visit: Visit) -> None:
    visit.go("model/tiny/embeddings")
    visit.page.get_by_label("Texts, one a line").fill("broken")
    visit.page.click("main .primary")
    visit.page.wait_for_selector(".told.bad")
    assert "bad kernel" in visit.page.inner_text(".told.bad")
    assert visit.page.input_value("main textarea") == "broken"
    visit.page.fill("main textarea", "a")
    visit.page.click("main .primary")
    visit.answered()
    # The browser itself notes that an answer was a 500.
    assert all("500 (Internal Server Error)" in said for said in visit.complaints)
    visit.complaints.clear()


def test_a_chat_is_written_and_remembered(visit: Visit) -> None:
    visit.go("model/tiny/text-generation")
    for said, answered in (("hello", 1), ("again", 2)):
        visit.page.get_by_label("Message", exact=True).fill(said)
        visit.page.keyboard.press("Enter")
        visit.page.locator(".said.assistant .markdown").nth(answered - 1).wait_for()
        assert "tokens" in visit.page.inner_text(".talk > .told")
    # The parrot says what it was told, and the second time that is all of the conversation.
    first, second = visit.page.locator(".said.assistant .text").all_inner_texts()
    assert first.startswith("hello")
    assert second.startswith("hello")
    visit.page.get_by_role("button", name="New chat").click()
    assert visit.page.locator(".said").count() == 0


def test_images_are_labelled_embedded_and_read(visit: Visit) -> None:
    for task, shown in (("image-classification", "red"), ("image-embeddings", "4 numbers")):
        visit.go(f"model/tiny/{task}")
        visit.page.set_input_files("main input[type=file]", [png("red.png", picture((255, 0, 0)))])
        visit.answered()
        assert shown in visit.page.inner_text(".looked")
    visit.page.set_input_files(
        "main input[type=file]",
        [png("a.png", picture((255, 0, 0))), png("b.png", picture((0, 255, 0)))],
    )
    visit.page.wait_for_selector(".looked:nth-child(2)")


def test_a_page_is_shown_with_its_boxes_and_its_lines(visit: Visit) -> None:
    visit.go("pages")
    visit.page.set_input_files("main input[type=file]", [png("page.png", page_of_text())])
    visit.page.wait_for_selector(".drop-row > .told:not(.dim)")
    assert "2 lines" in visit.page.inner_text(".drop-row > .told")
    assert visit.page.locator(".boxes polygon").count() == 2
    visit.page.hover(".read li:nth-child(2)")
    assert visit.page.locator(".boxes polygon.on").count() == 1
    assert visit.page.locator(".boxes polygon").nth(1).get_attribute("class") == "on"
    assert visit.page.locator(".sheet .markdown").inner_text()


def test_the_charts_draw_what_happens(visit: Visit, everything: Running) -> None:
    for _ in range(3):
        everything.post("/embed", {"inputs": "a"})
    visit.go("live")
    visit.page.wait_for_timeout(2_500)
    everything.post("/embed", {"inputs": "a"})
    visit.page.wait_for_timeout(2_500)
    drawn = visit.page.locator(".chart", has_text="Latency").locator("path.s1").get_attribute("d")
    assert drawn
    assert drawn.startswith("M")
    tile = visit.page.locator(".tile", has_text="Requests so far").locator("b").inner_text()
    assert int(tile) >= 4


def test_the_keyboard_is_enough(visit: Visit) -> None:
    visit.anew()
    visit.page.keyboard.press("Tab")
    assert visit.page.locator(":focus").inner_text() == "Skip to the model"
    visit.page.keyboard.press("Enter")
    visit.page.keyboard.press("Tab")
    assert visit.page.locator(":focus").get_attribute("name") == "texts"
    visit.page.keyboard.press("Tab")
    assert visit.page.locator(":focus").inner_text() == "Embed"
    visit.page.keyboard.press("Enter")
    visit.answered()


def test_a_key_is_asked_for_and_kept_in_the_page_alone(browser: Browser, bundles: dict[str, Path]) -> None:
    with running([bundles["embeddings"]], api_keys="secret-of-ann") as server:
        page = browser.new_page()
        page.goto(server.url)
        page.get_by_role("heading", name="A key is needed").wait_for()
        page.get_by_label("API key").fill("secret-of-ann")
        page.keyboard.press("Enter")
        page.wait_for_selector("main[data-key]")
        page.click("main .primary")
        page.wait_for_selector(".matrix")
        request = page.locator(".behind details").first
        request.click()
        assert '"Authorization: Bearer $KEY"' in request.inner_text()
        assert "secret-of-ann" not in page.content()
        assert page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [0, 0, ""]
        page.reload()
        page.get_by_role("heading", name="A key is needed").wait_for()
        page.close()


def test_an_answer_by_something_cheaper_says_so(browser: Browser, tmp_path: Path) -> None:
    own, cheap = (make_bundle(tmp_path / name) for name in ("own", "cheap"))
    full = tmp_path / "full"
    with running([own], env={"SCRIPTED_FULL": str(full)}, fallback=[str(cheap)]) as server:
        visit = Visit(browser.new_page(), server.url)
        full.write_text("own")
        visit.page.click("main .primary")
        visit.answered()
        assert "degraded: out-of-memory" in visit.page.inner_text(".answer .told")
        visit.page.close()


NAMED = re.compile(r'\s*- (textbox|spinbutton|combobox|checkbox|button|link|img|navigation)( ".+")?')


def test_every_field_and_button_has_a_name(visit: Visit) -> None:
    seen: set[str] = set()
    for link in visit.page.query_selector_all("nav a"):
        key = link.get_attribute("data-key")
        assert key
        visit.go(key)
        for line in visit.page.locator("body").aria_snapshot().splitlines():
            if found := NAMED.match(line):
                assert found[2], (key, line)
                seen.add(found[1])
    assert seen == {"textbox", "spinbutton", "button", "link", "img", "navigation"}


MARKDOWN = """
# Invoice <script>alert(1)</script>

| item | sum |
|---|---|
| **pen** | 3 |

<table><tr><td colspan="2" onclick="x()">wide &lt;b&gt;</td></tr>
<tr><td>a</td><td><img src=x onerror=y()>b</td></tr></table>

1. one
2. `two`
"""


def test_what_a_model_writes_is_text_and_never_more(visit: Visit) -> None:
    shown = visit.page.evaluate(
        """async text => {
            const {markdown} = await import("/page/markdown.js"), made = markdown(text);
            document.querySelector("main").append(made);
            const names = one => [...one.attributes].map(each => each.name).join();
            return [...made.querySelectorAll("*")].map(one => [one.tagName, names(one)]);
        }""",
        MARKDOWN,
    )
    tags = {tag for tag, _ in shown}
    assert tags == {"H3", "TABLE", "THEAD", "TBODY", "TR", "TH", "TD", "STRONG", "OL", "LI", "CODE", "DIV"}
    assert {name for _, names in shown for name in names.split(",")} <= {
        "",
        "class",
        "scope",
        "colspan",
        "rowspan",
    }
    text = visit.page.inner_text("main .markdown")
    assert "<script>alert(1)</script>" in text
    assert "wide <b>" in text
