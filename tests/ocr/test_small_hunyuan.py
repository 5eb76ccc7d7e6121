"""The small HunyuanOCR that ships: quick on a CPU, right on its pages, and what the precision gate sees of it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from sample_pages import FOLDER
from training.keep import kept
from training.render import Page as Drawn
from training.render import coloured

from alula.build import BuildRequest, build
from alula.bundles import Bundle
from alula.core.progress import Silent
from alula.documents import Page, Quad, Scan, Task
from alula.ocr import Ask, Reader, open_reader
from alula.ocr.loading import Taking, decoded
from alula.ocr.spotting import spotted
from alula.verify.characters import edit_distance

PAGE_S, CORES = 2.0, 2
"""What the sample page may take, and on how many cores: seconds of processors, which other programs hardly change."""
WRONG, SHOWN_WRONG = 0.02, 0.0
"""Of the characters of a few pages in fonts that it never saw (0.2 to 0.8 % by task), and of the sample page."""
VALUES_RIGHT = 0.9
"""Of the values of fields, to the letter."""
OFF = 8
"""By how many thousandths of the page the corners of boxes may be off, in the mean: 3 on 92 pages."""


def _built(to: Path, precision: str) -> Bundle:
    asked = BuildRequest(
        model="hunyuan-ocr-small",
        to=to,
        target="openvino",
        precision=precision,
        reference="own-graph",
        use_cache=False,
    )
    return build(asked, Silent()).bundle


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    bundle = _built(tmp_path_factory.mktemp("small") / "bundle", "fp32")
    with closing(open_reader(bundle.root, threads=CORES)) as opened:
        yield opened


@pytest.fixture(scope="module")
def held() -> dict[str, list[Drawn]]:
    pages = list(kept(FOLDER / "held"))
    return {task: [page for page in pages if page.task == task] for task in sorted({p.task for p in pages})}


def test_the_sample_page_is_read_right_and_within_two_seconds(reader: Reader) -> None:
    scan = _scan(FOLDER / "small-page.png")
    took = []
    for _ in range(2):
        start = os.times()
        [page] = reader.read([scan], Ask(task="document"))
        end = os.times()
        took.append(end.user - start.user + end.system - start.system)
    written = json.loads((FOLDER / "small.json").read_text("utf-8"))[0]
    assert edit_distance(written, page.text) <= SHOWN_WRONG * len(written), page.text
    assert [table.rows for table in page.tables] == [
        (
            ("Item", "Quantity", "Amount"),
            ("Coffee", "24", "$84.00"),
            ("Milk", "12", "$15.75"),
            ("Total", "36", "$99.75"),
        )
    ]
    assert 0 < min(took) < PAGE_S


@pytest.mark.parametrize("task", ["text", "table", "document"])
def test_pages_in_fonts_that_it_never_saw_are_read(
    reader: Reader, held: dict[str, list[Drawn]], task: Task
) -> None:
    pages = held[task][:4]
    found = _read(reader, pages, Ask(task=task))
    _judge([(page.answer, one.text) for page, one in zip(pages, found, strict=True)])


def test_fields_are_found_under_the_names_that_were_asked_for(
    reader: Reader, held: dict[str, list[Drawn]]
) -> None:
    right = []
    for page in held["fields"]:
        wanted = json.loads(page.answer)
        [found] = _read(reader, [page], Ask(task="fields", fields=tuple(wanted)))
        assert found.fields is not None
        assert list(found.fields) == list(wanted)
        right += [(found.fields[key] or "") == value for key, value in wanted.items()]
    assert np.mean(right) > VALUES_RIGHT


def test_lines_are_where_their_boxes_say(reader: Reader, held: dict[str, list[Drawn]]) -> None:
    pairs, off, pages = [], [], held["spotting"][:4]
    for page, found in zip(pages, _read(reader, pages, Ask(task="spotting")), strict=True):
        wanted = {line.text: line.box for line in spotted(page.answer, *page.shape)}
        read = {line.text: line.box for line in found.blocks}
        pairs.append(("\n".join(wanted), found.text))
        off += [_off(wanted[text], read[text], page.shape) for text in wanted.keys() & read.keys()]
    _judge(pairs)
    assert len(off) > 0.7 * sum(len(text.splitlines()) for text, _ in pairs)
    assert 1000 * np.mean(off) < OFF


def test_the_gate_sees_what_each_precision_costs(tmp_path: Path) -> None:
    rungs = _built(tmp_path / "bundle", "fp32,int8-weights").manifest.rungs
    costs = {
        rung.precision: check.worst
        for rung in rungs
        for check in rung.checks
        if check.metric == "kl_divergence"
    }
    assert list(costs) == ["fp32", "int8-weights"]
    assert costs["fp32"] < 1e-9 < costs["int8-weights"]
    assert all(rung.passed for rung in rungs)


def _scan(file: Path) -> Scan:
    return decoded(file, str(file), 0, Taking())


def _read(reader: Reader, pages: Sequence[Drawn], ask: Ask) -> list[Page]:
    scans = (
        Scan(source="held", index=at, pixels=coloured(page.levels, page.paper, page.ink))
        for at, page in enumerate(pages)
    )
    return list(reader.read(scans, ask))


def _off(one: Quad | None, other: Quad | None, shape: tuple[int, int]) -> float:
    """By which share of the page's sides two boxes differ, in the mean of their corners."""
    assert one is not None
    assert other is not None
    return float(np.mean(np.abs(np.subtract(one, other)) / shape))


def _judge(pairs: Sequence[tuple[str, str]]) -> None:
    wrong = sum(edit_distance(wanted, said) for wanted, said in pairs)
    assert wrong <= WRONG * sum(len(wanted) for wanted, _ in pairs), pairs
