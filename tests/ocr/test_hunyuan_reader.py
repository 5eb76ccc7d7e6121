"""HunyuanOCR as a reader, with small random weights: what it says means nothing, and how it is asked and ended does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import numpy as np
import pytest

from alula.bundles import Bundle
from alula.codecs import Patcher
from alula.core.errors import InputError
from alula.documents import Page, Scan, Task
from alula.looking import Looker
from alula.ocr import Ask, check, open_reader
from alula.ocr.hunyuan import ModelReader
from alula.ocr.prompts import prompt

torch = pytest.importorskip("torch")
pytest.importorskip("transformers.models.hunyuan_vl")
import tiny_hunyuan  # noqa: E402 - likewise

TEXT = Ask(task="text", max_tokens=6)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("tiny")
    tiny_hunyuan.checkpoint(folder / "model")
    return tiny_hunyuan.built(folder / "model", folder / "bundle")


def scan(index: int, height: int = 40, width: int = 60) -> Scan:
    chance = np.random.default_rng(index)
    return Scan(source="a", index=index, pixels=chance.integers(0, 256, (height, width, 3)).astype(np.uint8))


def reader(bundle: Bundle, sequences: int = 4) -> ModelReader:
    return ModelReader(Looker.open(bundle, cache_bytes=1 << 26, threads=1, sequences=sequences), "tiny")


def test_pages_come_in_order_and_say_what_they_say_alone(bundle: Bundle) -> None:
    scans = [scan(at, 40 + 8 * (at % 3)) for at in range(7)]
    with closing(reader(bundle)) as several, closing(reader(bundle, 1)) as single:
        together = list(several.read(scans, TEXT))
        alone = list(single.read(scans, TEXT))
    assert [page.index for page in together] == list(range(7))
    assert [page.text for page in together] == [page.text for page in alone]
    assert len({page.text for page in together}) > 1, "it does look"
    assert all(page.noticed("cut") and page.timings["read_ms"] > 0 for page in together)


def test_the_prompt_is_that_of_the_task(bundle: Bundle) -> None:
    ask = Ask(task="table", language="zh", max_tokens=12)
    with closing(reader(bundle)) as opened:
        (page,) = opened.read([scan(0)], ask)
        looker = opened._looker
        body = {"max_tokens": 12}
        pieces = looker.ask(prompt(ask), [scan(0).pixels], body)
        assert page.text.strip() == "".join(piece.text for piece in pieces).strip()
        assert opened.version == "1.0"
        with pytest.raises(InputError, match="HunyuanOCR translates into: en, zh"):
            next(opened.read([scan(0)], Ask(task="translate", to="fr")))


@pytest.mark.parametrize(("task", "said"), [("chart", ["untaught", "unsure"]), ("text", ["unsure"])])
def test_a_model_that_was_taught_a_part_says_so_and_when_it_guesses(
    bundle: Bundle, task: Task, said: list[str]
) -> None:
    for taught, expected in (((), []), (("text", "table"), said)):
        model = replace(bundle.model, taught=taught)
        with closing(reader(replace(bundle, manifest=replace(bundle.manifest, model=model)))) as opened:
            (page,) = opened.read([scan(0)], Ask(task=task, max_tokens=6))
        codes = [notice.code for notice in page.notices]
        assert [code for code in codes if code.startswith("un")] == expected, "its weights are random"


def test_a_page_that_cannot_be_read_loses_no_other(bundle: Bundle) -> None:
    with closing(reader(bundle, 2)) as opened:
        pages = list(opened.read([scan(0), scan(1, 1, 300), scan(2, 300, 1), scan(3)], TEXT))
    assert [page.noticed("failed") for page in pages] == [False, True, True, False]
    assert "more than 200 times as long as wide" in pages[1].notices[0].message


def told(looker: Looker, body: Callable[[str], dict[str, Any]]) -> Looker:
    """A looker that is told, by the text of each request, how to write."""

    class Told:
        prompts, sequences = looker.prompts, looker.sequences
        add, step, end, close = looker.add, looker.step, looker.end, looker.close

        @staticmethod
        def request(text: str, images: Any) -> object:
            return looker.request(text, images, body(text))

    return Told()  # type: ignore[return-value] # all that is used of one


def test_a_loop_is_ended_as_it_is_written(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("alula.ocr.repetition.LEAST_CHARACTERS", 40)
    monkeypatch.setattr("alula.ocr.repetition.CHECKED_EVERY", 8)
    monkeypatch.setattr("alula.ocr.repetition.LEAST_TIMES_OF_FORMS", 8)
    with closing(reader(bundle)) as opened:
        looker = opened._looker
        body = {
            "max_tokens": 400,
            "ignore_eos": True,
            "logit_bias": {"40": 100},
            "repetition_penalty": 1,
        }
        opened._looker = told(looker, lambda text: body)
        (page,) = opened.read([scan(0)], Ask(task="text", max_tokens=400))
        assert [notice.code for notice in page.notices] == ["repetition"]
        assert page.text == "I"
        assert looker.open_answers == 0


def test_a_document_of_marks_alone_is_asked_again_for_its_text(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tencent-Hunyuan/HunyuanOCR#118: of a slide the document was corners alone, and its text was read."""
    asked: list[str] = []
    cut = create_autospec(Patcher.encode, side_effect=Patcher.encode)
    monkeypatch.setattr(Patcher, "encode", cut)
    with closing(reader(bundle, 2)) as opened:
        body = {"max_tokens": 6, "ignore_eos": True, "logit_bias": {"7": 100}, "repetition_penalty": 1}

        def marks(text: str) -> dict[str, Any]:
            """Documents are nothing but brackets."""
            asked.append(text)
            return body if text == prompt(Ask(task="document")) else {"max_tokens": 6}

        texts = [page.text for page in opened.read([scan(0), scan(1), scan(2)], TEXT)]
        opened._looker = told(opened._looker, marks)
        pages = list(opened.read([scan(0), scan(1), scan(2)], Ask(task="document", max_tokens=6)))
    assert asked.count(prompt(TEXT)) == asked.count(prompt(Ask(task="document"))) == 3
    assert cut.call_count == 6, "once for each time that a page was given"
    assert [page.text for page in pages] == texts
    for page in pages:
        assert page.noticed("not-as-asked")
        assert not page.noticed("degenerate")
        assert "marks alone ('( ( ( ( ( (')" in page.notices[0].message


def test_pages_are_taken_as_there_is_room_and_leaving_cancels_them(bundle: Bundle) -> None:
    taken: list[int] = []

    def scans() -> Iterator[Scan]:
        for at in range(30):
            taken.append(at)
            yield scan(at)

    with closing(reader(bundle, 2)) as opened:
        pages: Iterator[Page] = opened.read(scans(), TEXT)
        next(pages)
        assert len(taken) <= 8
        pages.close()  # type: ignore[attr-defined] # a generator
        assert opened._looker.open_answers == 0
        assert [page.index for page in opened.read([scan(5)], TEXT)] == [5], "and it can be asked again"


def test_its_bundle_is_known_for_a_reader(bundle: Bundle, tmp_path: Path) -> None:
    with closing(open_reader(bundle.root, threads=1)) as opened:
        check(opened, Ask(task="formula"))
        assert isinstance(opened, ModelReader)
    with pytest.raises(InputError, match="reads no pages; expected a bundle of HunyuanOCR"):
        open_reader(tmp_path)
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(InputError, match="reads no pages"):
        open_reader(tmp_path)
