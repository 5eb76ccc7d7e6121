"""Pages over HTTP, read by a small HunyuanOCR with random weights: what it says means nothing, how it is asked does."""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import numpy as np
import pdfs
import pytest
from locked import locked
from PIL import Image
from served import Running, make_writer, running

from alula.bundles import Bundle
from alula.documents import Scan, page_to_json, published_schema
from alula.looking import Looker
from alula.ocr import Ask
from alula.ocr.hunyuan import ModelReader
from alula.ocr.loading import Taking, looked_at
from alula.serve.ocr_routes import PATHS, accepted

torch = pytest.importorskip("torch")
pytest.importorskip("transformers.models.hunyuan_vl")
pytest.importorskip("pypdfium2")
import tiny_hunyuan  # noqa: E402 - likewise

ENGINE = (sys.executable, "-m", "alula.serve.engine_process")
PNG = {"content-type": "image/png"}
PDF = {"content-type": "application/pdf"}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("tiny")
    tiny_hunyuan.checkpoint(folder / "model")
    return tiny_hunyuan.built(folder / "model", folder / "bundle")


@pytest.fixture(scope="module")
def server(bundle: Bundle) -> Iterator[Running]:
    limits: dict[str, Any] = {"max_sequences": 4, "max_waiting": 64, "cache_bytes": 1 << 26}
    limits |= {"max_image_bytes": 400_000, "max_body_bytes": 1_000}
    with running([bundle.root], engine_command=ENGINE, threads=1, **limits) as server:
        yield server


def pixels(seed: int = 0, height: int = 40, width: int = 60) -> Any:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3)).astype(np.uint8)


def file(*pages: Any, kind: str = "PNG") -> bytes:
    """Pages as one image file."""
    first, *more = map(Image.fromarray, pages)
    out = io.BytesIO()
    first.save(out, kind, **({"save_all": True, "append_images": more} if more else {}))
    return out.getvalue()


def tiff(count: int) -> bytes:
    return file(*map(pixels, range(count)), kind="TIFF")


def lines(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in response.text.splitlines()]


def metric(server: Running, name: str) -> float:
    found = [line for line in server.client.get("/metrics").text.splitlines() if line.startswith(name)]
    return sum(float(line.rpartition(" ")[2]) for line in found)


def until(true: Callable[[], bool], within_s: float = 15) -> None:
    begun = time.monotonic()
    while not true():
        assert time.monotonic() - begun < within_s
        time.sleep(0.02)


def test_an_image_is_read_as_the_command_line_reads_it(server: Running, bundle: Bundle) -> None:
    looker = Looker.open(bundle, cache_bytes=1 << 26, threads=1, sequences=1)
    reader = ModelReader(looker, "tiny")
    seen = looked_at(Scan(source="a", index=0, pixels=pixels()), Taking())
    [page] = reader.read([seen], Ask(task="text", max_tokens=8))
    reader.close()
    content = file(pixels())
    data = base64.b64encode(content).decode()
    answers = [
        server.client.post("/ocr?task=text&max_tokens=8", content=content, headers=PNG),
        server.client.post("/ocr", files={"page": ("p.png", content)}, data={"max_tokens": "8"}),
        server.post("/ocr", {"inputs": data, "max_tokens": 8}),
        server.post("/ocr", {"inputs": f"data:image/png;base64,{data}", "max_tokens": 8}),
    ]
    for answer in answers:
        assert answer.status_code == 200, answer.text
        jsonschema.validate(answer.json(), published_schema())
        assert answer.json()["pages"][0]["text"] == page.text
        assert answer.headers["x-request-id"]
    assert page.text
    assert [answer.json()["source"] for answer in answers] == ["the image", "p.png", "inputs", "inputs"]
    assert answers[0].json()["pages"][0]["notices"][-1] == page_to_json(page)["notices"][-1]


@pytest.mark.parametrize(("path", "wanted"), [("/ocr", "an image"), ("/ocr/pdf", "a PDF or an image")])
def test_a_body_with_nothing_in_it_is_told_what_belongs_there(
    server: Running, path: str, wanted: str
) -> None:
    empty = server.client.post(path, content=b"", headers=PNG)
    assert (empty.status_code, empty.json()["error"]) == (400, f"the body is empty; expected {wanted}")
    form = server.client.post(path, files={"page": ("p.png", b"")})
    assert (form.status_code, form.json()["error"]) == (400, f"p.png is empty; expected {wanted}")


def test_a_page_comes_in_the_format_that_is_asked_for(server: Running) -> None:
    content = file(pixels())
    asked = {"text": "text/plain", "md": "text/markdown", "html": "text/html"}
    for form, kind in asked.items():
        said = server.client.post(f"/ocr?format={form}&max_tokens=4", content=content, headers=PNG)
        rather = server.client.post("/ocr?max_tokens=4", content=content, headers={**PNG, "accept": kind})
        assert said.headers["content-type"] == rather.headers["content-type"] == f"{kind}; charset=utf-8"
        assert said.text == rather.text
    assert "data:image/jpeg;base64," in rather.text, "the page's picture"


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", "json"),
        ("*/*", "json"),
        ("text/html;q=0.4, text/markdown;q=0.8, */*", "md"),
        ("text/plain;q=x, application/json;q=0.1", "json"),
        ("text/html;q=0", "json"),
    ],
)
def test_accept_says_the_format(accept: str, form: str) -> None:
    assert accepted(accept) == form


def test_fields_have_exactly_the_keys_that_are_asked_for(server: Running) -> None:
    data = base64.b64encode(file(pixels())).decode()
    body = {"inputs": data, "task": "fields", "max_tokens": 4}
    for names in ("name, total", ["name", "total"]):
        answer = server.post("/ocr", {**body, "fields": names})
        assert list(answer.json()["pages"][0]["fields"]) == ["name", "total"]


def test_what_cannot_be_asked_is_refused_by_name(server: Running) -> None:
    data = base64.b64encode(file(pixels())).decode()
    for more, said in (
        ({"task": "poem"}, "task is 'poem'"),
        ({"task": "ask"}, "question is missing"),
        ({"to": "en"}, "to is not for"),
        ({"task": "translate", "to": "fr"}, "to is 'fr'"),
        ({"task": "fields", "fields": [1]}, "fields is no list of texts"),
        ({"format": "srt"}, "format is 'srt'"),
        ({"prompt": "de"}, "prompt is 'de'"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"colour": "red"}, "unknown field colour"),
        ({"inputs": "https://there/page.png"}, "fetches nothing"),
        ({"inputs": [data, data]}, "2 files"),
        ({"inputs": base64.b64encode(b"no image").decode()}, "inputs"),
        ({"inputs": base64.b64encode(pdfs.numbered(1)).decode()}, "/ocr/pdf takes PDFs"),
        ({"inputs": base64.b64encode(tiff(2)).decode()}, "2 pages"),
    ):
        answer = server.post("/ocr", {"inputs": data, **more})
        assert (answer.status_code, answer.json()["error_type"]) == (400, "validation"), more
        assert said in answer.json()["error"]
    assert server.post("/ocr", {"inputs": data, "model": "none"}).status_code == 404
    assert server.client.get("/ocr").headers["allow"] == "POST"


def test_a_page_too_blurred_is_not_given_to_the_model(server: Running) -> None:
    rows = np.linspace(60, 200, 400)[:, None, None]
    waves = rows + 40 * np.sin(np.arange(600) / 60)[None, :, None]
    blurred = file(np.broadcast_to(waves, (400, 600, 3)).astype(np.uint8))
    before = metric(server, "alula_prompt_tokens")
    page = server.client.post("/ocr", content=blurred, headers=PNG).json()["pages"][0]
    assert "skipped" in [notice["code"] for notice in page["notices"]]
    assert page["text"] == ""
    assert metric(server, "alula_prompt_tokens") == before
    asked = server.client.post("/ocr?task=ask&question=What?&max_tokens=2", content=blurred, headers=PNG)
    assert "skipped" not in asked.text
    assert metric(server, "alula_prompt_tokens") > before


def test_a_document_comes_page_by_page_in_order(server: Running) -> None:
    content = tiff(7)
    got = lines(server.client.post("/ocr/pdf?max_tokens=4", content=content, headers=PNG))
    *pages, last = got
    assert [page["index"] for page in pages] == list(range(7))
    one = {"schema": 1, "source": "the image", "task": "text"}
    jsonschema.validate({**one, "pages": pages}, published_schema())
    seconds = last["summary"].pop("seconds")
    assert seconds > 0
    counted = {"model": last["summary"]["model"], "pages": 7, "failed": 0, "skipped": 0, "degraded": 0}
    assert last == {"summary": {**one, **counted}}
    alone = server.client.post("/ocr?max_tokens=4", content=file(pixels(3)), headers=PNG).json()
    assert pages[3]["text"] == alone["pages"][0]["text"]
    some = lines(server.client.post("/ocr/pdf?max_tokens=4&pages=2,6-", content=content, headers=PNG))
    assert [page["index"] for page in some[:-1]] == [1, 5, 6]


@pytest.mark.parametrize("content", ["PDF", "TIFF"])
def test_each_page_comes_behind_its_picture_where_that_is_asked_for(server: Running, content: str) -> None:
    document = pdfs.numbered(3) if content == "PDF" else tiff(3)
    form = {"pictures": "true", "max_tokens": "2"}
    answered = lines(server.client.post("/ocr/pdf", data=form, files={"f": ("s", document)}))
    assert [next(iter(line)) for line in answered] == [*("picture", "index") * 3, "summary"]
    for at in range(3):
        picture, page = answered[2 * at : 2 * at + 2]
        assert picture["picture"]["index"] == page["index"] == at
        head, data = picture["picture"]["data"].split(",")
        assert head == "data:image/jpeg;base64"
        with Image.open(io.BytesIO(base64.b64decode(data))) as drawn:
            assert max(drawn.size) <= 1_600
            assert drawn.width / drawn.height == pytest.approx(page["width"] / page["height"], rel=0.02)
    refused = server.client.post("/ocr/pdf?pictures=yes", content=document, headers=PDF)
    assert (refused.status_code, refused.json()["error"]) == (
        400,
        "pictures is 'yes', expected true or false",
    )


def test_the_page_shows_what_is_read_of_a_pdf(server: Running) -> None:
    pytest.importorskip("playwright", reason="NO BROWSER: pip install playwright")
    import browser  # noqa: PLC0415 - needs playwright
    from playwright.sync_api import FilePayload  # noqa: PLC0415

    with browser.chromium() as chromium:
        visit = browser.Visit(chromium.new_page(), server.url)
        visit.go("pages")
        visit.page.get_by_label("Tokens a page").fill("4")
        file = FilePayload(name="s.pdf", mimeType="application/pdf", buffer=pdfs.numbered(2))
        visit.page.set_input_files("main input[type=file]", file)
        visit.page.wait_for_selector(".drop-row > .told:not(.dim)")
        assert "s.pdf: 2 pages in" in visit.page.inner_text(".drop-row > .told")
        assert visit.page.locator(".sheet .page-image").count() == 2
        assert visit.page.locator(".sheet .markdown").count() == 2
        assert (visit.complaints, visit.elsewhere) == ([], [])


def test_a_broken_page_loses_no_other(server: Running) -> None:
    """nyxtron/paperless-aissist#45: a page that failed looked like an empty one."""
    sizes = (b"200 300", b"1 300000000", b"200 300")
    content = pdfs.pages_of([b"/MediaBox [0 0 %s]" % size for size in sizes])
    form = {"task": "ask", "question": "What?", "max_tokens": "2"}
    *pages, last = lines(server.client.post("/ocr/pdf", files={"f": ("s.pdf", content)}, data=form))
    failed = [[notice for notice in page["notices"] if notice["code"] == "failed"] for page in pages]
    assert [len(notices) for notices in failed] == [0, 1, 0]
    assert "alula-" not in failed[1][0]["message"], "where the file lies is nobody's business"
    assert last["summary"]["failed"] == 1
    assert last["summary"]["source"] == "s.pdf"


def test_what_is_no_document_is_refused_before_anything_is_sent(server: Running) -> None:
    for content, query, said in (
        (b"%PDF-1.4\nno more", "", "the document is no PDF that can be read"),
        (
            b"no image",
            "",
            "the document cannot be decoded: it is none of BMP, GIF, JPEG, PNG, TIFF, WEBP, PDF",
        ),
        (b"RIFF    AVI     ", "", "is a video"),
        (pdfs.numbered(2), "?pages=5", "none of those"),
        (pdfs.numbered(2), "?pages=0", "pages is '0'"),
        (pdfs.numbered(2), "?format=md", "unknown field format"),
    ):
        answer = server.client.post(f"/ocr/pdf{query}", content=content, headers=PDF)
        assert (answer.status_code, answer.json()["error_type"]) == (400, "validation"), answer.text
        assert said in answer.json()["error"]
        assert "/document" not in answer.json()["error"]
    big = server.client.post("/ocr/pdf", content=bytes(400_001), headers=PDF)
    assert (big.status_code, big.json()["error_type"]) == (413, "validation")


def test_whoever_leaves_has_the_rest_cancelled(server: Running) -> None:
    cancelled, prompts = "alula_answers_cancelled_total{", "alula_prompt_tokens_total{"
    asking: dict[str, Any] = {"content": tiff(30), "headers": {**PNG, "x-request-id": "mine"}}
    one = metric(server, prompts)
    assert server.client.post("/ocr", content=file(pixels()), headers=PNG).status_code == 200
    one = metric(server, prompts) - one

    def left() -> float:
        """The answers that are cancelled when somebody leaves after a page; some end just before by themselves."""
        before, read = metric(server, cancelled), metric(server, prompts)
        with server.client.stream("POST", "/ocr/pdf?max_tokens=400", **asking) as answer:
            assert answer.headers["x-request-id"] == "mine"
            assert json.loads(next(answer.iter_lines()))["index"] == 0
        until(lambda: metric(server, "alula_requests_active") == 0)
        assert metric(server, prompts) - read < 25 * one, "all pages were read"
        return metric(server, cancelled) - before

    until(lambda: left() > 0)
    until(lambda: metric(server, "alula_answers_running") + metric(server, "alula_answers_waiting") == 0)


def test_too_many_documents_are_refused_for_now(server: Running) -> None:
    asking: dict[str, Any] = {"content": tiff(30), "headers": PNG}
    with ExitStack() as open_ones:
        client = open_ones.enter_context(httpx.Client(base_url=server.url, timeout=20))
        for _ in range(4):
            one = open_ones.enter_context(client.stream("POST", "/ocr/pdf?max_tokens=300", **asking))
            assert one.status_code == 200
        answer = server.client.post("/ocr/pdf", **asking)
    assert (answer.status_code, answer.json()["error_type"]) == (429, "overloaded")
    assert "4 documents" in answer.json()["error"]
    assert answer.headers["retry-after"]
    until(lambda: metric(server, "alula_requests_active") == 0)
    until(lambda: server.client.post("/ocr/pdf?max_tokens=2&pages=1", **asking).status_code == 200)


def test_a_full_line_is_told_before_anything_is_decoded(server: Running) -> None:
    chat = {"messages": [{"role": "user", "content": "a"}], "n": 68, "max_tokens": 500, "ignore_eos": True}
    no_image: dict[str, Any] = {"content": b"no image", "headers": PNG}
    with (  # the client first: to make one takes a while, and the line is full for as long as four answers are written
        httpx.Client(base_url=server.url, timeout=20) as client,
        server.client.stream("POST", "/v1/chat/completions", json={**chat, "stream": True}) as answer,
    ):
        assert answer.status_code == 200
        refused = [client.post(path, **no_image) for path in ("/ocr", "/ocr/pdf")]
    assert [one.status_code for one in refused] == [429, 429]
    until(lambda: metric(server, "alula_requests_active") == 0)
    until(lambda: server.client.post("/ocr", **no_image).status_code == 400)
    assert all("answers are being written" in one.json()["error"] for one in refused)


def test_a_document_ends_with_the_time_of_its_client(server: Running) -> None:
    asking: dict[str, Any] = {
        "content": pdfs.numbered(500),
        "headers": {**PDF, "x-request-timeout-ms": "4000"},
    }
    *pages, last = lines(server.client.post("/ocr/pdf?task=ask&question=What?&max_tokens=4", **asking))
    assert last == {"error": "no answer within 4 s", "error_type": "timeout"}
    assert [page["index"] for page in pages] == list(range(len(pages)))
    soon = {**PNG, "x-request-timeout-ms": "1"}
    answer = server.client.post("/ocr", content=file(pixels()), headers=soon)
    assert (answer.status_code, answer.json()["error_type"]) == (504, "timeout")


def test_a_number_of_seconds_may_stand_behind_the_question_mark(server: Running) -> None:
    late = server.client.post("/ocr/pdf?timeout=0.001", content=tiff(2), headers=PNG)
    assert late.status_code == 504
    answer = server.client.post("/ocr?timeout=20&max_tokens=2", content=file(pixels()), headers=PNG)
    assert answer.status_code == 200
    wrong = server.client.post("/ocr?timeout=soon", content=file(pixels()), headers=PNG)
    assert (wrong.status_code, wrong.json()["error"]) == (400, "timeout is 'soon', expected seconds")


def test_the_description_lists_every_field_and_its_example_is_answered(server: Running) -> None:
    paths = server.get("/openapi.json")["paths"]
    for path in PATHS:
        described = paths[path]["post"]["requestBody"]["content"]["application/json"]
        answer = server.post(path, described["example"])
        assert answer.status_code == 200
        assert answer.headers["content-type"] in paths[path]["post"]["responses"]["200"]["content"]
        unknown = server.post(path, {**described["example"], "zzz": 1}).json()["error"]
        known = unknown.removeprefix("unknown field zzz; this endpoint takes ").split(", ")
        assert set(known) == set(described["schema"]["properties"])


def test_a_locked_document_opens_with_its_password(server: Running) -> None:
    """jztan/pdf-mcp#59: a locked document was an error of the server's own."""
    form = {"task": "ask", "question": "What?", "max_tokens": "2"}
    content = {"f": ("s.pdf", locked(pdfs.numbered(1), user="sesame", owner="door"))}
    answer = server.client.post("/ocr/pdf", files=content, data=form)
    assert answer.status_code == 400
    assert answer.json()["error"] == "s.pdf is locked: a password is needed; give it as the option password"
    [page, _] = lines(server.client.post("/ocr/pdf", files=content, data={**form, "password": "sesame"}))
    assert not [notice for notice in page["notices"] if notice["code"] == "failed"]


def test_what_a_model_was_not_taught_is_noticed_on_its_pages(bundle: Bundle, tmp_path: Path) -> None:
    shutil.copytree(bundle.root, tmp_path / "small")
    manifest = tmp_path / "small" / "manifest.json"
    said = json.loads(manifest.read_text("utf-8"))
    said["model"]["taught"] = ["text", "table"]
    manifest.write_text(json.dumps(said), "utf-8")
    with running([tmp_path / "small"], engine_command=ENGINE, threads=1, cache_bytes=1 << 26) as server:
        assert server.client.get("/info").json()["pages"]["tasks"] == ["text", "table"]
        for task, codes in (("chart", {"untaught", "unsure"}), ("text", {"unsure"})):
            form = {"task": task, "max_tokens": "4"}
            files = {"page": ("p.png", file(pixels()))}
            answer = server.client.post("/ocr", files=files, data=form).json()
            jsonschema.validate(answer, published_schema())
            page, _ = lines(server.client.post("/ocr/pdf", files=files, data=form))
            for read in (answer["pages"][0], page):
                found = {notice["code"] for notice in read["notices"]}
                assert found & {"untaught", "unsure"} == codes, "its weights are random"


def test_a_document_of_marks_alone_is_asked_again_for_its_text(tmp_path: Path) -> None:
    """Tencent-Hunyuan/HunyuanOCR#118: by a model that knows nothing but brackets, so that its text is none either."""
    tiny_hunyuan.checkpoint(tmp_path / "model")
    words = tmp_path / "model" / "tokenizer.json"
    said = json.loads(words.read_text("utf-8"))
    known = said["model"]["vocab"].values()
    said["model"] |= {"vocab": {"(" * at or "-": at for at in known}, "unk_token": "-"}
    words.write_text(json.dumps(said), "utf-8")
    bracketed = tiny_hunyuan.built(tmp_path / "model", tmp_path / "bundle")
    files = {"page": ("p.png", file(pixels()))}
    with running([bracketed.root], engine_command=ENGINE, threads=1, cache_bytes=1 << 26) as server:
        for task, expected in (("text", []), ("document", ["not-as-asked"])):
            form = {"task": task, "max_tokens": "6"}
            whole = server.client.post("/ocr", files=files, data=form).json()["pages"][0]
            page, _ = lines(server.client.post("/ocr/pdf", files=files, data=form))
            for read in (whole, page):
                codes = [notice["code"] for notice in read["notices"]]
                assert [code for code in codes if code in {"not-as-asked", "degenerate"}] == [
                    *expected,
                    "degenerate",
                ]


def test_an_engine_that_dies_loses_only_the_pages_it_wrote(server: Running) -> None:
    asking: dict[str, Any] = {"content": tiff(30), "headers": PNG}
    with server.client.stream("POST", "/ocr/pdf?max_tokens=40", **asking) as answer:
        got = answer.iter_lines()
        next(got)
        os.kill(server.engine_pid(), signal.SIGKILL)
        *pages, last = map(json.loads, got)
    assert last["summary"]["pages"] == 30
    assert 1 <= last["summary"]["failed"] <= 12
    assert pages[-1]["notices"][-1]["code"] != "failed"


def test_pages_of_documents_wait_for_room_that_others_took(bundle: Bundle) -> None:
    limits: dict[str, Any] = {"max_sequences": 1, "max_waiting": 1, "cache_bytes": 1 << 26}
    with (
        running([bundle.root], engine_command=ENGINE, threads=1, **limits) as server,
        ThreadPoolExecutor(3) as threads,
    ):

        def summary(_: int) -> dict[str, Any]:
            answers: list[httpx.Response] = []

            def answered() -> bool:
                answers.append(server.client.post("/ocr/pdf?max_tokens=30", content=tiff(8), headers=PNG))
                return answers[-1].status_code != 429

            until(answered)
            found: dict[str, Any] = lines(answers[-1])[-1]["summary"]
            return found

        for found in threads.map(summary, range(3)):
            assert (found["pages"], found["failed"]) == (8, 0)


def test_models_that_read_no_pages_say_so(tmp_path: Path) -> None:
    with running([make_writer(tmp_path / "writer")]) as server:
        answer = server.client.post("/ocr", content=file(pixels()), headers=PNG)
        named = server.client.post("/ocr?model=writer", content=file(pixels()), headers=PNG)
    assert answer.status_code == 404
    assert named.status_code == 400
    assert "reads no pages" in named.json()["error"]


def test_a_document_that_the_end_of_the_server_cuts_short_says_so(bundle: Bundle) -> None:
    limits: dict[str, Any] = {"max_sequences": 4, "cache_bytes": 1 << 26, "grace_s": 0.2}
    with running([bundle.root], engine_command=ENGINE, threads=1, **limits) as server:
        url = f"{server.url}/ocr/pdf?max_tokens=200"
        with httpx.stream("POST", url, content=tiff(40), headers=PNG, timeout=30) as response:
            found = []
            for line in response.iter_lines():
                found.append(json.loads(line))
                if len(found) == 1:
                    server.process.send_signal(signal.SIGTERM)
    assert len(found) < 40
    assert found[-1]["error_type"] == "unhealthy"
    assert "was not read, nor were those after it: the server was stopped" in found[-1]["error"]
    assert not any("summary" in line for line in found)
    told = [notice["code"] for page in found[:-1] for notice in page["notices"]]
    assert "failed" not in told, "pages that were sent are whole"
