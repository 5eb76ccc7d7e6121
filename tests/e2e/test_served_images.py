"""ONNX files that read images, as packages ship them: built, run, and served with the same answers."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import packaged
import pytest
import served
from PIL import Image

from alula.build import BuildRequest, build
from alula.bundles import Bundle
from alula.cli.images import answers_of
from alula.core.profile import Range
from alula.core.progress import Silent
from alula.verify.pages import drawn_page

pytestmark = pytest.mark.timeout(300)

REAL = (sys.executable, "-m", "alula.serve.engine_process")
TURNS = ("0", "90", "180", "270")


def built(model: Path, to: Path, task: str, axes: Mapping[str, Range]) -> Path:
    request = BuildRequest(
        model=str(model), to=to, task=task, target="onnxruntime", precision="fp32", axes=dict(axes)
    )
    assert build(request, Silent()).bundle.verified
    return to


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("bundles")
    detector = packaged.package(packaged.RAPIDOCR) / "models" / "ch_PP-OCRv4_det_infer.onnx"
    sides = dict.fromkeys(("height", "width"), Range(32, 96, 736))
    batch = {"batch": Range(1, 1, 2)}
    return {
        "detection": built(detector, folder / "det", "detection", {**batch, **sides}),
        "classification": built(
            packaged.orientation(folder / "model"), folder / "turned", "classification", batch
        ),
    }


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A drawn page, turned clockwise by each of the four angles."""
    folder = tmp_path_factory.mktemp("pages")
    colours = drawn_page(np.random.default_rng(3), 240, 320).transpose(1, 2, 0)
    page = Image.fromarray(np.round((colours + 1) * 127.5).clip(0, 255).astype(np.uint8))
    for turn in TURNS:
        page.rotate(-int(turn), expand=True).save(folder / f"{turn}.png")
    return [folder / f"{turn}.png" for turn in TURNS]


def near(given: Any, expected: Any) -> bool:
    """Equal but for the last places of scores, which differ with the threads of a process."""
    return bool(
        len(given) == len(expected)
        and all(
            one.get("points", one.get("label")) == other.get("points", other.get("label"))
            and abs(one["score"] - other["score"]) < 1e-5
            for one, other in zip(given, expected, strict=True)
        )
    )


def test_what_is_served_is_what_run_answers(bundles: dict[str, Path], pages: list[Path]) -> None:
    asked = {
        task: [answers_of(Bundle.open(bundle), [page]) for page in pages] for task, bundle in bundles.items()
    }
    for boxes in asked["detection"]:
        assert len(boxes) >= 8
    assert [answer[0]["label"] for answer in asked["classification"]] == list(TURNS)
    with served.running(list(bundles.values()), engine_command=REAL) as running:
        for task, bundle in bundles.items():
            for page, expected in zip(pages, asked[task], strict=True):
                answer = running.client.post(
                    f"/predict?model={bundle.name}",
                    content=page.read_bytes(),
                    headers={"content-type": "image/png"},
                ).json()
                assert near(answer, expected), (task, page.name, answer, expected)
            files = [("pages", (page.name, page.read_bytes())) for page in pages]
            together = running.client.post("/predict", files=files, data={"model": bundle.name}).json()
            assert all(near(*both) for both in zip(together, asked[task], strict=True))
