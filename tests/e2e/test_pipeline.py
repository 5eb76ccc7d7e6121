"""A package's models as a reader of pages: built once, then asked about pages whose text is known."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import av
import httpx
import numpy as np
import packaged as tests_packages
import pdfs
import pytest
import served
from PIL import Image, ImageDraw, ImageFont

from alula.cli import main
from alula.codecs import Raster
from alula.core.errors import InputError
from alula.core.progress import Silent
from alula.documents import Page, Scan, page_to_json
from alula.documents.pdf import Pdf
from alula.ocr import Ask, open_reader, pipeline
from alula.ocr.pipeline import Pipeline
from alula.packaged import PACKAGES, build_pipeline, model_files
from alula.verify.characters import edit_distance

TEXTS = (
    "Invoice No. 20488 of 2026-03-14",
    "Delivery within seven days, carriage paid",
    "Total amount $1,734.60",
    "Please quote the number above in all letters",
)
pytestmark = pytest.mark.timeout(300)  # three models are built once

SMALL = PACKAGES["rapidocr-onnxruntime"]


def drawn(texts: tuple[str, ...] = TEXTS) -> Image.Image:
    page = Image.new("RGB", (1000, 700), "white")
    drawing = ImageDraw.Draw(page)
    for at, text in enumerate(texts):
        drawing.text((80, 80 + 90 * at), text, font=ImageFont.load_default(34), fill="black")
    return page


def scan(page: Image.Image, turns: int = 0) -> Scan:
    return Scan(source="page.png", index=0, pixels=np.ascontiguousarray(np.rot90(np.asarray(page), turns)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tests_packages.package(SMALL.module)
    to = tmp_path_factory.mktemp("pipeline") / "pages"
    made = build_pipeline(SMALL, to, Silent(), target="onnxruntime", precision="fp32", use_cache=False)
    assert all(bundle.verified for bundle in made.values())
    return to


@pytest.fixture(scope="module")
def reader(folder: Path) -> Iterator[Pipeline]:
    with closing(open_reader(folder, threads=2)) as opened:
        assert isinstance(opened, Pipeline)
        yield opened


def read(reader: Pipeline, *scans: Scan) -> list[Page]:
    return list(reader.read(scans, Ask(task="text")))


def alula(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr("sys.argv", ["alula", *words])
    return main()


def letters(text: str) -> str:
    return "".join(text.split())


def test_every_line_is_read_in_order_and_its_box_lies_around_it(reader: Pipeline) -> None:
    [page] = read(reader, scan(drawn()))
    assert [letters(line) for line in page.text.splitlines()] == [letters(text) for text in TEXTS]
    for at, block in enumerate(page.blocks):
        assert block.kind == "line"
        assert block.score is not None
        assert block.score > 0.9
        assert block.box is not None
        xs, ys = zip(*block.box, strict=True)
        assert min(xs) < 100
        assert min(ys) < 100 + 90 * at < max(ys) < 80 + 90 * (at + 1)
    assert set(page.timings) == {"find", "recognise"}


def test_no_row_of_a_long_receipt_is_lost(reader: Pipeline) -> None:
    """Seen as a whole at 736 pixels its letters are five pixels high."""
    texts = [f"Item {at} of the list {100 * at + 7}.50" for at in range(1, 76)]
    page = Image.new("RGB", (450, 2700), "white")
    for at, text in enumerate(texts):
        ImageDraw.Draw(page).text((30, 20 + 35 * at), text, font=ImageFont.load_default(20), fill="black")
    [read_page] = read(reader, scan(page))
    lines = read_page.text.splitlines()
    assert len(lines) == len(texts)
    right = [letters(line) == letters(text) for line, text in zip(lines, texts, strict=True)]
    assert right.count(True) > 0.9 * len(texts), lines


def test_a_sliver_is_looked_at_a_few_times_or_refused(
    reader: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PaddlePaddle/PaddleX#5087: a page of 1 x 1000 was cut into a thousand pieces, and took minutes."""
    look = Mock(side_effect=reader._look)
    monkeypatch.setattr(reader, "_look", look)
    slivers = [scan(Image.new("RGB", size, "white")) for size in [(15, 3000), (1, 1000), (1000, 1)]]
    pages = read(reader, *slivers)
    assert look.call_count < 12
    assert [page.noticed("failed") for page in pages] == [False, True, True]
    assert pages[1].notices[0].message.startswith("a page of 1 x 1000 is more than 200 times as long as wide")


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_a_page_on_its_side_or_head_is_read_all_the_same(reader: Pipeline, turns: int) -> None:
    [page] = read(reader, scan(drawn(), turns))
    assert [letters(line) for line in page.text.splitlines()] == [letters(text) for text in TEXTS]
    first = page.blocks[0].box
    assert first is not None
    begins = {1: (80, 920), 2: (920, 620), 3: (620, 80)}[turns]
    assert np.abs(np.array(first[0]) - begins).max() < 30


@pytest.mark.parametrize("turn", [0, 90, 180, 270])
def test_boxes_of_a_turned_page_of_a_pdf_are_where_its_ink_is(reader: Pipeline, turn: int) -> None:
    """Unstructured-IO/unstructured-inference#514: the page was turned, and its boxes were not."""
    font = b"/Resources << /Font << /F << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >> >>"
    words = b"BT /F 30 Tf 60 700 Td (Delivery within seven days) Tj ET"
    raw = pdfs.pages_of([b"/MediaBox [0 0 600 800] %s /Rotate %d" % (font, turn)], words)
    with closing(Pdf(raw)) as file:
        pixels = file.render(0, dpi=144).pixels
    [page] = read(reader, Scan(source="a.pdf", index=0, pixels=pixels))
    assert (page.width, page.height) == ((1200, 1600) if turn % 180 == 0 else (1600, 1200))
    assert letters(page.text) == "Deliverywithinsevendays"
    [block] = page.blocks
    assert block.box is not None
    corners = np.array(block.box)
    rows, columns = np.nonzero(pixels.min(2) < 128)
    ink = [columns.min(), rows.min(), columns.max(), rows.max()]
    assert np.abs(np.concatenate([corners.min(0), corners.max(0)]) - ink).max() < 25


def test_a_line_upside_down_among_upright_ones_is_read(reader: Pipeline) -> None:
    page = drawn()
    last = page.crop((60, 340, 940, 400)).rotate(180)
    page.paste(last, (60, 340))
    [given] = read(reader, scan(page))
    assert letters(given.text.splitlines()[-1]) == letters(TEXTS[-1])


def test_a_doubtful_line_that_only_looks_turned_is_read_upright_too(
    reader: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was read upside down alone, and came out as `wun   o d  o i o m`."""
    raster = Raster(scan(drawn()).pixels)
    boxes = [
        np.array([(75, 78 + 90 * at), (900, 78 + 90 * at), (900, 122 + 90 * at), (75, 122 + 90 * at)], float)
        for at in range(4)
    ]
    monkeypatch.setattr(pipeline, "SQUEEZE", 0.2)
    monkeypatch.setattr(reader, "_turned", lambda raster, box: True)
    lines = [letters(line.text) for _, line in reader._read(raster, boxes)]
    wrong = [edit_distance(line, letters(text)) for line, text in zip(lines, TEXTS, strict=True)]
    assert max(wrong) <= 2, lines


def test_pages_are_taken_one_by_one_and_an_empty_one_has_no_text(reader: Pipeline) -> None:
    taken: list[int] = []

    def scans() -> Iterator[Scan]:
        for at, page in enumerate((drawn(), Image.new("RGB", (500, 300), "white"))):
            taken.append(at)
            yield scan(page)

    pages = reader.read(scans(), Ask(task="spotting"))
    assert taken == []
    assert next(pages).text
    assert taken == [0]
    assert next(pages).text == ""


def test_the_command_reads_a_file_with_it(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn().save(tmp_path / "page.png")
    assert alula(monkeypatch, "ocr", str(tmp_path / "page.png"), "--model", str(folder)) == 0
    assert letters(TEXTS[2]) in letters(capsys.readouterr().out)


def test_subtitles_of_a_video_are_the_lines_low_in_its_pictures(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    video, rate = str(tmp_path / "film.mp4"), 4
    with av.open(video, "w") as container:
        stream = container.add_stream("mpeg4", rate=rate)
        stream.width, stream.height, stream.pix_fmt, stream.bit_rate = 640, 360, "yuv420p", 4_000_000
        for at in range(3 * rate):
            picture = Image.new("RGB", (640, 360), (60, 80, 110))
            drawing = ImageDraw.Draw(picture)
            drawing.text((40, 30), "HARBOUR STREET", font=ImageFont.load_default(26), fill="white")
            text = {0: "", 1: "Where is the station?", 2: "It closed in 1987."}[at // rate]
            drawing.text((120, 290), text, font=ImageFont.load_default(34), fill="white")
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.asarray(picture), format="rgb24")))
        container.mux(stream.encode(None))
    assert alula(monkeypatch, "ocr", video, "--model", str(folder), "--task", "subtitle") == 0
    assert [letters(line) for line in capsys.readouterr().out.splitlines()] == [
        *("1", "00:00:01,000-->00:00:02,000", "Whereisthestation?", ""),
        *("2", "00:00:02,000-->00:00:03,000", "Itclosedin1987."),
    ]


def test_bundles_in_each_others_places_are_refused(folder: Path, tmp_path: Path) -> None:
    for part, other in (("detect", "recognise"), ("turn", "turn"), ("recognise", "detect")):
        (tmp_path / part).symlink_to(folder / other)
    with pytest.raises(InputError, match="detect is for text-recognition; expected text-detection"):
        Pipeline.open(tmp_path)


def test_a_package_that_is_not_there_or_not_the_one_expected_says_what_to_install() -> None:
    with pytest.raises(
        InputError, match=r"not installed: pip install --no-deps rapidocr-onnxruntime==1\.4\.4"
    ):
        model_files(replace(SMALL, module="no_such_module"))
    tests_packages.package(SMALL.module)
    with pytest.raises(InputError, match=r"other\.onnx is not there; another version"):
        model_files(replace(SMALL, files={"detect": "other.onnx"}))


def test_choices_that_a_pipeline_has_not_and_folders_of_others_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert alula(monkeypatch, "build", "rapidocr", "-o", str(tmp_path / "to"), "--task", "detection") == 2
    assert "built with -o, --target, --precision, --no-cache and --json alone" in capsys.readouterr().err
    (tmp_path / "mine").mkdir()
    assert alula(monkeypatch, "build", "rapidocr", "-o", str(tmp_path / "mine")) == 2
    assert "is no pipeline of pages" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


ENGINE = (sys.executable, "-m", "alula.serve.engine_process")
NOTE = Path(__file__).parents[2] / "examples" / "pages" / "note.pdf"


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[served.Running]:
    with served.running([folder], engine_command=ENGINE, threads=2, max_waiting=16) as server:
        yield server


def as_file(page: Image.Image) -> bytes:
    file = io.BytesIO()
    page.save(file, "PNG")
    return file.getvalue()


def ocr(server: served.Running, content: bytes, path: str = "/ocr", **options: str) -> Any:
    return server.client.post(path, files={"f": ("page.png", content)}, data=options, timeout=60)


def without_timings(page: dict[str, Any]) -> dict[str, Any]:
    return {**page, "timings": None}


def test_over_http_a_page_is_what_the_reader_says_of_it(
    server: served.Running, reader: Pipeline, folder: Path
) -> None:
    [expected] = read(reader, scan(drawn()))
    [found] = ocr(server, as_file(drawn()), task="spotting").json()["pages"]
    assert without_timings(found) == without_timings(page_to_json(expected))
    assert ocr(server, as_file(drawn()), format="text").text.strip() == expected.text
    told = server.get("/info")["pages"]
    assert told["tasks"] == ["text", "spotting"]
    by_folder = ocr(server, as_file(drawn()), task="spotting", model=folder.name)
    assert (
        served.metric(server, "alula_request_duration_seconds_count", model=told["model"], route="/ocr") >= 1
    )
    assert without_timings(by_folder.json()["pages"][0]) == without_timings(found)
    assert told["model"] in {one["id"] for one in server.get("/v1/models")["data"]}
    with ThreadPoolExecutor(4) as clients:
        together = list(clients.map(lambda _: ocr(server, as_file(drawn())).json()["pages"], range(6)))
    assert all(without_timings(page) == without_timings(found) for [page] in together)


def test_over_http_a_document_comes_page_by_page(server: served.Running) -> None:
    answer = ocr(server, NOTE.read_bytes(), "/ocr/pdf", pictures="true")
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert [next(iter(line)) for line in lines] == ["picture", "index", "picture", "index", "summary"]
    assert "Deliverynote7306" in letters(lines[1]["text"])
    assert "Lamp,brass" in letters(lines[3]["text"])
    assert (lines[4]["summary"]["pages"], lines[4]["summary"]["failed"]) == (2, 0)


def test_over_http_a_document_is_read_to_its_end_after_a_stop(folder: Path) -> None:
    """triton-inference-server/server#6287: a stop ended models that a pipeline still needed for what it had begun."""
    file, names = io.BytesIO(), ("first", "second", "third", "fourth", "fifth", "last")
    pages = [drawn((f"The {name} sheet", TEXTS[0])) for name in names]
    pages[0].save(file, "TIFF", save_all=True, append_images=pages[1:])
    with served.running([folder], engine_command=ENGINE, threads=1, grace_s=60) as server:
        url = f"{server.url}/ocr/pdf"
        with httpx.stream(
            "POST", url, content=file.getvalue(), headers={"content-type": "image/tiff"}, timeout=60
        ) as answer:
            lines = answer.iter_lines()
            found = [json.loads(next(lines))]
            server.process.send_signal(signal.SIGTERM)
            served.wait_until(lambda: server.client.get("/health/ready").status_code == 503)
            late = ocr(server, as_file(drawn()))
            assert (late.status_code, late.json()["error"]) == (503, "the server is stopping")
            found += [json.loads(line) for line in lines]
        server.process.communicate(timeout=20)
        assert server.process.returncode == 0
    *read_pages, last = found
    assert [letters(page["text"].splitlines()[0]) for page in read_pages] == [
        f"The{name}sheet" for name in names
    ]
    assert (last["summary"]["pages"], last["summary"]["failed"]) == (6, 0)


def test_over_http_what_a_reader_of_lines_does_not_do_is_refused(server: served.Running) -> None:
    refused = ocr(server, as_file(drawn()), task="document")
    assert refused.status_code == 400
    assert "reads lines, and does: text, spotting" in refused.json()["error"]
    sliver = ocr(server, as_file(Image.new("RGB", (1, 1000), "white")))
    assert (sliver.status_code, "200 times as long as wide" in sliver.json()["error"]) == (400, True)
    other = ocr(server, as_file(drawn()), model="turn")
    assert (other.status_code, "reads no pages" in other.json()["error"]) == (400, True)


def test_a_page_whose_engine_dies_is_an_error_and_the_next_one_is_read(server: served.Running) -> None:
    with ThreadPoolExecutor(1) as clients:
        reading = clients.submit(ocr, server, as_file(drawn()))
        os.kill(server.engine_pid(), signal.SIGKILL)
        assert reading.result().status_code in {200, 503}
    until = time.monotonic() + 60
    while not server.restarted():
        assert time.monotonic() < until
        time.sleep(0.2)
    [page] = ocr(server, as_file(drawn())).json()["pages"]
    assert [letters(line) for line in page["text"].splitlines()] == [letters(text) for text in TEXTS]


def test_three_models_stand_in_for_one_that_reads_pages_where_they_do_the_task(
    folder: Path, reader: Pipeline, tmp_path: Path
) -> None:
    pytest.importorskip("transformers.models.hunyuan_vl")
    import tiny_hunyuan  # noqa: PLC0415 - needs torch

    tiny_hunyuan.checkpoint(tmp_path / "model")
    tiny_hunyuan.built(tmp_path / "model", tmp_path / "own")
    options: dict[str, Any] = {"engine_command": ENGINE, "threads": 1, "cache_bytes": 1 << 26}
    with served.running([tmp_path / "own"], fallback=[str(folder)], **options) as server:
        page = as_file(drawn())
        assert "x-alula-degraded" not in ocr(server, page, max_tokens="4").headers
        os.kill(server.engine_pid(), signal.SIGKILL)
        served.wait_until(lambda: server.get("/health")["engine"]["state"] == "restarting")
        instead = ocr(server, page, format="text")
        assert instead.headers["x-alula-degraded"] == "engine-away"
        own = server.get("/v1/models")["data"][0]["id"]
        [expected] = read(reader, scan(drawn()))
        assert instead.text.strip() == expected.text
        asked = ocr(server, page, task="ask", question="what", max_tokens="4")
        assert "x-alula-degraded" not in asked.headers
        served.wait_until(server.restarted, 60)
        served.wait_until(lambda: "x-alula-degraded" not in ocr(server, page, max_tokens="4").headers, 30)
        assert served.metric(server, "alula_degraded_requests_total", model=own, tier="pipeline") >= 1
        pages = drawn_tiff(8)
        asking: dict[str, Any] = {"content": pages, "headers": {"content-type": "image/tiff"}}
        with server.client.stream("POST", "/ocr/pdf?max_tokens=200", **asking) as answer:
            os.kill(server.engine_pid(), signal.SIGKILL)
            assert answer.status_code == 200, answer.read()
            *read_pages, last = map(json.loads, answer.iter_lines())
        instead_of = [each for each in read_pages if told_degraded(each)]
        assert instead_of, "the engine was ended while it wrote the first pages"
        assert {each["text"].strip() for each in instead_of} == {expected.text}
        assert all("engine-away" in told_degraded(each)[0] for each in instead_of)
        counted = {"pages": 8, "failed": 0, "degraded": len(instead_of), "model": own}
        assert counted.items() <= last["summary"].items()
        assert served.metric(server, "alula_degraded_pages_total", model=own) >= 1 + len(instead_of)


def drawn_tiff(count: int) -> bytes:
    first, *more = [drawn() for _ in range(count)]
    out = io.BytesIO()
    first.save(out, "TIFF", save_all=True, append_images=more, compression="tiff_deflate")
    return out.getvalue()


def told_degraded(page: dict[str, Any]) -> list[str]:
    return [notice["message"] for notice in page["notices"] if notice["code"] == "degraded"]


def test_the_page_in_a_browser_shows_boxes_and_lines_of_a_pdf(server: served.Running) -> None:
    pytest.importorskip("playwright", reason="NO BROWSER: pip install playwright")
    import browser  # noqa: PLC0415 - needs playwright

    with browser.chromium() as chromium:
        visit = browser.Visit(chromium.new_page(), server.url)
        visit.go("pages")
        visit.page.set_input_files("main input[type=file]", NOTE)
        visit.page.wait_for_selector(".drop-row > .told:not(.dim)")
        assert "note.pdf: 2 pages in" in visit.page.inner_text(".drop-row > .told")
        first = visit.page.locator(".sheet").first
        count = first.locator(".read li").count()
        assert count == first.locator(".boxes polygon").count() > 3
        for shown in (".read", ".markdown"):
            assert "Deliverynote7306" in letters(first.locator(shown).inner_text())
        first.locator(".read li").nth(1).hover()
        assert first.locator(".boxes polygon.on").count() == 1
        assert (visit.complaints, visit.elsewhere) == ([], [])
