"""`alula ocr`: files in, results out, and what is left when something fails."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pypdfium2
import pytest
from clips import BarReader, Cue, clip
from pdfs import numbered
from PIL import Image
from readers import InkReader
from sheets import blurred, sheet, skewed, specked

import alula.ocr.opening
from alula.cli.app import main
from alula.documents import Notice, published_schema
from alula.ocr import ReaderKind
from alula.ocr.output import LOG, TextWriter


class Counting(InkReader):
    """Counts the pages it was given, over all commands."""

    read_so_far = 0

    def read(self, scans: Any, ask: Any) -> Any:
        def counted() -> Any:
            for scan in scans:
                Counting.read_so_far += 1
                yield scan

        return super().read(counted(), ask)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model, a PDF of three pages and two images; commands run in it."""
    kind = ReaderKind(
        called="an ink folder",
        holds=lambda folder: (folder / "ink").is_file(),
        open=lambda folder, threads: Counting(),
    )
    monkeypatch.setitem(alula.ocr.opening.READERS, "ink", kind)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Counting, "read_so_far", 0)
    Path("model").mkdir()
    Path("model/ink").touch()
    Path("doc.pdf").write_bytes(numbered(3))
    for name, ink in (("one.png", 3), ("two.png", 5)):
        picture = Image.new("RGB", (40, 20), "white")
        picture.paste((0, 0, 0), (0, 0, ink, 1))
        picture.save(name)
    return tmp_path


def command(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr("sys.argv", ["alula", "ocr", "--dpi", "72", "--model", "model", *words])
    return main()


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    return lambda *words: command(monkeypatch, *words)


def test_text_goes_to_standard_output(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("doc.pdf", "one.png") == 0
    assert capsys.readouterr().out == "30 dark pixels\n\f60 dark pixels\n\f90 dark pixels\n3 dark pixels\n"


def test_json_of_chosen_pages_follows_the_schema(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("doc.pdf", "--task", "spotting", "--pages", "2-9") == 0
    raw = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator(published_schema()).validate(raw)
    assert [page["index"] for page in raw["pages"]] == [1, 2]
    assert raw["pages"][0]["blocks"] == [
        {"kind": "line", "text": "60 dark pixels", "box": [[0, 0], [2, 0], [2, 30], [0, 30]], "score": None}
    ]


@pytest.mark.parametrize("form", ["text", "md", "json", "html", "pdf"])
def test_every_format_is_written_into_a_folder(
    run: Any, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("doc.pdf", "one.png", "--format", form, "-o", "out", "--task", "spotting") == 0
    ending = {"text": "txt"}.get(form, form)
    assert sorted(path.name for path in Path("out").iterdir()) == [LOG, f"doc.{ending}", f"one.{ending}"]
    if form == "pdf":
        document = pypdfium2.PdfDocument("out/doc.pdf")
        assert document[1].get_textpage().get_text_range() == "60 dark pixels"
        assert document[1].get_size() == (200, 300), "as large as it was"
    else:
        assert "60 dark pixels" in Path(f"out/doc.{ending}").read_text()
    assert "pages read" in capsys.readouterr().out


def test_what_the_model_says_of_itself_is_on_standard_error(
    run: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Guessing(InkReader):
        def read(self, scans: Any, ask: Any) -> Any:
            notices = (
                Notice(code="untaught", message="ink was not taught this"),
                Notice(code="unsure", message="it guessed"),
            )
            return (replace(page, notices=notices) for page in super().read(scans, ask))

    kind = ReaderKind(called="guesses", holds=lambda folder: True, open=lambda folder, threads: Guessing())
    monkeypatch.setattr(alula.ocr.opening, "READERS", {"guesses": kind})
    assert run("one.png", "two.png") == 0
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("alula: ")]
    assert said == [
        "alula: ink was not taught this",
        "alula: one.png, page 1: it guessed",
        "alula: two.png, page 1: it guessed",
    ]


def test_seconds_are_those_of_each_file(
    run: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All files of a batch were read side by side, and the first one was said to have taken all the time."""

    class Together(InkReader):
        def read(self, scans: Any, ask: Any) -> Any:
            found = list(super().read(scans, ask))
            time.sleep(0.3)
            yield from found

    kind = ReaderKind(called="slow", holds=lambda folder: True, open=lambda folder, threads: Together())
    monkeypatch.setattr(alula.ocr.opening, "READERS", {"slow": kind})
    assert run("one.png", "none.png", "two.png", "-o", "out", "--json") == 2
    one, none, two = (row["seconds"] for row in json.loads(capsys.readouterr().out)["rows"])
    assert one > two > 0.3
    assert none < 0.3


def test_a_dash_is_standard_output_and_no_folder(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("one.png", "-o", "-") == 0
    assert capsys.readouterr().out == "3 dark pixels\n"
    assert not Path("-").exists()


def test_what_fails_is_named_and_loses_nothing_else(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    Path("cut.png").write_bytes(Path("one.png").read_bytes()[:50])
    Image.new("RGB", (9, 9), "black").save("black.png")
    assert run("none.png", "one.png", "cut.png", "two.png", "-o", "out", "--json") == 2
    said = capsys.readouterr()
    assert "alula: none.png: there is no such file" in said.err
    assert "alula: cut.png, page 1 cannot be decoded" in said.err
    raw = json.loads(said.out)
    assert (raw["schema"], raw["command"]) == (1, "ocr")
    assert [(row["file"], row["pages"], row["failed"]) for row in raw["rows"]] == [
        ("none.png", 0, 0),
        ("one.png", 1, 0),
        ("cut.png", 1, 1),
        ("two.png", 1, 0),
    ]
    assert raw["rows"][2]["notices"] == {"failed": 1}
    assert Path("out/two.txt").read_text() == "5 dark pixels\n"
    assert not Path("out/none.txt").exists()
    assert run("black.png", "one.png") == 1, "what was opened and not read is the reader's fault"


def test_a_second_run_goes_on_where_the_first_ended(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("one.png", "doc.pdf", "-o", "out") == 0
    assert Counting.read_so_far == 4
    assert run("one.png", "doc.pdf", "two.png", "-o", "out") == 0
    assert Counting.read_so_far == 5
    assert "read already" in capsys.readouterr().out
    Image.new("RGB", (41, 20), "white").save("one.png")
    assert run("one.png", "doc.pdf", "-o", "out") == 0
    assert Counting.read_so_far == 6, "a file that changed is read again"
    assert run("doc.pdf", "-o", "out", "--pages", "1") == 0
    assert Counting.read_so_far == 7, "so is one of which something else is asked"
    assert run("doc.pdf", "-o", "out", "--pages", "1", "--again") == 0
    assert Counting.read_so_far == 8
    with Path("out", LOG).open("a") as log:
        log.write('{"output": "cut')
    assert run("two.png", "-o", "out") == 0
    assert Counting.read_so_far == 8, "a torn log is read as far as it goes"
    assert run("one.png", "-o", "out", "--again") == run("one.png", "-o", "out") == 0
    assert Counting.read_so_far == 9, "and written on behind its tear"


def test_a_result_that_cannot_be_written_loses_no_other(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    Path(f"out/.doc.{os.getpid()}.txt.part").mkdir(parents=True)
    assert run("one.png", "doc.pdf", "two.png", "-o", "out") == 2
    said = capsys.readouterr()
    assert "doc.pdf: its result cannot be written to out/doc.txt: Is a directory" in said.err
    assert re.search(r"doc\.pdf +0 +no result", said.out), "it was opened"
    assert Path("out/one.txt").is_file()
    assert Path("out/two.txt").is_file()
    assert not Path("out/doc.txt").exists()


def test_what_a_killed_run_has_left_is_removed_and_named(
    run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("out").mkdir()
    gone = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], stdout=subprocess.PIPE, check=True
    )
    left = Path(f"out/.doc.{int(gone.stdout)}.txt.part")
    running, another = Path(f"out/.doc.{os.getppid()}.txt.part"), Path("out/.doc.part")
    for path in (left, running, another):
        path.write_text("half")
    assert run("one.png", "-o", "out") == 0
    assert not left.exists()
    assert running.exists()
    assert another.exists()
    assert f"{left}: removed, a run that was killed had left it" in capsys.readouterr().err


def test_a_full_disk_is_named_with_what_was_to_be_written_and_what_to_do(
    run: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(self: TextWriter, page: Any, scan: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    assert run("one.png", "-o", "out") == 0
    monkeypatch.setattr(TextWriter, "add", full)
    assert run("one.png", "two.png", "-o", "out") == 1, "the machine's fault, as docs/cli.md has it"
    said = capsys.readouterr().err
    assert "out/two.txt: No space left on device; make room and run the command again" in said
    assert sorted(path.name for path in Path("out").iterdir()) == [LOG, "one.txt"]


def ended() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def interrupted_by_hand() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("end", [interrupted_by_hand, ended])
def test_an_interrupt_leaves_what_was_whole(
    end: Callable[[], None], run: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("out").mkdir()
    Path("out/doc.txt").write_text("the last good one")

    def interrupted(self: object, scans: Any, ask: Any) -> Any:
        for at, page in enumerate(InkReader.read(Counting(1), scans, ask)):
            if at == 2:
                end()
            yield page

    monkeypatch.setattr(Counting, "read", interrupted)
    assert run("one.png", "doc.pdf", "-o", "out") == 130
    assert sorted(path.name for path in Path("out").iterdir()) == [LOG, "doc.txt", "one.txt"]
    assert Path("out/doc.txt").read_text() == "the last good one"
    assert "interrupted" in capsys.readouterr().err


def test_a_page_too_blurred_to_read_costs_no_reading(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    Image.fromarray(blurred(sheet(1, 20), 6)).save("lost.png")
    assert run("lost.png", "one.png", "--format", "json") == 0
    said = capsys.readouterr().out
    first = json.loads(said[: said.index("]}\n") + 3])
    assert [notice["code"] for notice in first["pages"][0]["notices"]] == ["blurred", "skipped"]
    assert first["pages"][0]["text"] == ""
    assert first["pages"][0]["width"] == 700
    assert Counting.read_so_far == 1
    assert run("lost.png", "--read-blurred") == 0
    assert Counting.read_so_far == 2
    assert "dark pixels" in capsys.readouterr().out


def test_pages_are_straightened_and_cleaned_where_asked(run: Any) -> None:
    Image.fromarray(skewed(specked(sheet(2, 20), 0.03), 4)).save("bad.png")
    assert run("bad.png", "-o", "bad.json", "--format", "json", "--straighten", "--denoise") == 0
    (page,) = json.loads(Path("bad.json").read_text())["pages"]
    said = {notice["code"]: notice["message"] for notice in page["notices"]}
    assert "turned level by 4.0 degrees" in said["skewed"]
    assert said["noisy"].endswith("; the specks were taken off")
    assert page["timings"]["look_ms"] > 0
    assert run("bad.png", "-o", "raw.json", "--format", "json") == 0
    (raw,) = json.loads(Path("raw.json").read_text())["pages"]
    assert raw["text"] != page["text"]


def test_subtitles_of_a_video(
    run: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kind = ReaderKind(called="bars", holds=lambda folder: True, open=lambda folder, threads: BarReader())
    monkeypatch.setattr(alula.ocr.opening, "READERS", {"bars": kind})
    clip(Path("a.mp4"), [Cue(0.5, 1.5, "AC"), Cue(2.0, 3.0, "BD")])
    expected = "1\n00:00:00,500 --> 00:00:01,500\nAC\n\n2\n00:00:02,000 --> 00:00:03,000\nBD\n"
    assert run("a.mp4", "--task", "subtitle") == 0
    assert capsys.readouterr().out == expected
    assert run("a.mp4", "--task", "subtitle", "--format", "json", "-o", "out", "--every", "0.25") == 0
    raw = json.loads(Path("out/a.json").read_text())
    jsonschema.Draft202012Validator(published_schema()).validate(raw)
    assert [(page["text"], page["span"]) for page in raw["pages"]] == [("AC", [0.5, 1.5]), ("BD", [2.0, 3.0])]
    for words, said in (
        (("a.mp4",), "a.mp4 is a video, of which only subtitles are read: --task subtitle"),
        (
            ("a.mp4", "one.png", "--task", "subtitle", "--format", "json"),
            "a.mp4 is a video and one.png is none",
        ),
        (
            ("a.mp4", "--task", "subtitle", "--format", "html"),
            "--format html shows pages, and a.mp4 has none",
        ),
        (("a.mp4", "--task", "subtitle", "--pages", "1"), "--every says how often it is looked at"),
        (("a.mp4", "--task", "subtitle", "--every", "0"), "every is 0 s; expected 0.04 to 60"),
    ):
        assert run(*words) == 2
        assert said in capsys.readouterr().err


def test_boxes_are_drawn_on_the_pages(run: Any) -> None:
    assert run("doc.pdf", "--task", "spotting", "-o", "out", "--draw", "--pages", "2-") == 0
    assert sorted(path.name for path in Path("out").iterdir()) == [
        LOG,
        "doc-2.boxes.jpg",
        "doc-3.boxes.jpg",
        "doc.json",
    ]
    picture = np.asarray(Image.open("out/doc-3.boxes.jpg").convert("RGB")).astype(int)
    assert picture.shape == (300, 200, 3)
    red = (picture[..., 0] - picture[..., 1] > 60).nonzero()
    assert (red[0].max(), red[1].max()) == pytest.approx((30, 3), abs=2)


def test_the_longest_names_are_results_too(run: Any) -> None:
    """A name that was allowed, but not with what stood around it while it was written, ended the whole run."""
    name = "x" * 251
    Path(f"{name}.png").write_bytes(Path("one.png").read_bytes())
    assert run(f"{name}.png", "two.png", "-o", "out") == 0
    assert sorted(path.name for path in Path("out").iterdir()) == [LOG, "two.txt", f"{name}.txt"]


def test_a_folder_in_a_results_place_is_refused_before_any_work(
    run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("out/two.txt").mkdir(parents=True)
    assert run("one.png", "two.png", "-o", "out") == 2
    assert "would be written to out/two.txt, which is a folder" in capsys.readouterr().err
    assert Counting.read_so_far == 0


def test_a_drawn_page_never_takes_the_place_of_a_file_to_read(
    run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder with one.png and one-1.boxes.jpg lost the latter: the former's boxes were written over it."""
    Image.new("RGB", (40, 20), "white").save("one-1.boxes.jpg")
    before = Path("one-1.boxes.jpg").read_bytes()
    assert run("one.png", "one-1.boxes.jpg", "-o", ".", "--draw") == 2
    assert (
        "--draw would write a page of one to one-1.boxes.jpg, which is a file to read"
        in capsys.readouterr().err
    )
    assert Path("one-1.boxes.jpg").read_bytes() == before
    assert Counting.read_so_far == 0
    assert run("one.png", "one-1.boxes.jpg", "-o", "out", "--draw") == 0
    assert Path("out/one-1.boxes-1.boxes.jpg").is_file()


@pytest.mark.parametrize("form", ["json", "html", "pdf"])
def test_slivers_are_pages_too(run: Any, form: str) -> None:
    """PaddlePaddle/PaddleX#5087: thin crops ended in errors of factors, tokens or channels."""
    sizes = [(1000, 1), (313, 1), (1, 1), (28, 26), (201, 1), (1, 900), (690, 15420)]
    files = []
    for width, height in sizes:
        files.append(f"{width}x{height}.png")
        Image.new("RGB", (width, height), (200, 200, 200)).save(files[-1])
    assert run(*files, "-o", "out", "--format", form, "--task", "spotting") == 0
    for file, size in zip(files, sizes, strict=True):
        result = Path("out") / f"{Path(file).stem}.{form}"
        if form == "json":
            (page,) = json.loads(result.read_text())["pages"]
            assert (page["width"], page["height"]) == size
        elif form == "pdf":
            width, height = pypdfium2.PdfDocument(result)[0].get_size()
            assert width / height == pytest.approx(size[0] / size[1], rel=0.01)
        else:
            assert f'viewBox="0 0 {size[0]} {size[1]}"' in result.read_text()


def test_a_folder_is_no_file(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("model", "one.png") == 2
    said = capsys.readouterr()
    assert "model is a folder; name the files in it, such as model/*.png" in said.err
    assert said.out == "3 dark pixels\n"


def test_one_file_may_go_to_a_file(run: Any) -> None:
    assert run("one.png", "-o", "result.txt") == 0
    assert Path("result.txt").read_text() == "3 dark pixels\n"
    assert not Path(LOG).exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("one.png", "--task", "read"), "--task is 'read'; expected one of: document, text"),
        (("one.png", "--task", "table"), "task is 'table'; ink does: document, text, spotting, subtitle"),
        (
            ("one.png", "--format", "doc"),
            "--format is 'doc'; expected one of: text, md, json, html, srt, pdf",
        ),
        (("one.png", "--format", "pdf"), "a pdf goes to a file or a folder: say which with -o"),
        (("one.png", "--format", "srt"), "--format srt is for videos"),
        (("one.png", "--pages", "0"), "--pages is '0'"),
        (("one.png", "--fields", "a"), "fields is not for task 'text'"),
        (("one.png", "one.png", "-o", "out"), "one.png is given twice"),
        (("one.png", "model/../one.png", "-o", "out"), "would both be written to out/one.txt"),
        (("one.png", "-o", "two.png"), "-o two.png: there is a file of this name; expected a folder"),
        (("one.png", "-o", "no/one.txt"), "-o no/one.txt: the folder no is not there"),
        (("doc.pdf", "-o", "doc.pdf", "--format", "pdf"), "that is the file to read"),
        (("one.png", "--json"), "the results themselves need a place"),
        (("one.png", "two.png", "--format", "html"), "2 files are 2 documents of html, which need a place"),
        (("one.png", "--jobs", "-1"), "--jobs is -1 and --threads 0; expected 0..1024 of each"),
        (("one.png", "--draw"), "--draw writes pages beside their results, which need a place"),
        (("one.png", "--dpi", "1"), "dpi is 1; expected 10 to 2400"),
        (("one.png", "--prompt", "fr"), "--prompt is 'fr'; expected one of: en, zh"),
    ],
)
def test_what_cannot_be_done_is_refused_before_any_work(
    run: Any, words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*words) == 2
    assert said in capsys.readouterr().err
    assert Counting.read_so_far == 0
