"""Pages that are turned and worn on the device are as Pillow turns and wears them, and lines are where they say."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image, ImageFilter
from training.batches import Plan
from training.canvas import PAPER, Canvas
from training.fonts import Fonts
from training.learning import moved
from training.render import Page, drawn
from training.wear import Wear, chosen, worn

SIDES = (192, 256)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def page(fonts: Path) -> Page:
    opened = Fonts.open(fonts, held=False)
    return drawn(3, seed=1, fonts=opened, shape=(256, 192), size=(256, 192), budget=90)


def worn_by(page: Page, turn: float = 0.0, **some: float) -> NDArray[np.float32]:
    values = {name: torch.tensor([some.get(name, 0.0)]) for name in Wear._fields}
    levels = torch.from_numpy(page.levels.copy())[None]
    given = worn(levels, torch.tensor([turn]), SIDES, Wear(**values), torch.zeros(1, *SIDES))
    return np.asarray(given[0], np.float32)


def far(one: NDArray[np.float32], other: Image.Image) -> NDArray[np.float32]:
    return np.abs(one - np.asarray(other, np.float32))


def test_nothing_is_done_to_a_page_unless_it_is_asked_for(page: Page) -> None:
    assert np.array_equal(worn_by(page), page.levels)


@pytest.mark.parametrize("degrees", [-2.0, 0.7])
def test_a_page_is_turned_as_pillow_turns_it(page: Page, degrees: float) -> None:
    expected = Image.fromarray(page.levels).rotate(degrees, Image.Resampling.BILINEAR, fillcolor=PAPER)
    assert far(worn_by(page, turn=degrees), expected).max() <= 2


@pytest.mark.parametrize("deviation", [0.3, 0.9])
def test_a_page_is_blurred_as_pillow_blurs_it(page: Page, deviation: float) -> None:
    expected = Image.fromarray(page.levels).filter(ImageFilter.GaussianBlur(deviation))
    assert far(worn_by(page, blur=deviation), expected).max() <= 3
    assert far(worn_by(page, blur=deviation), Image.fromarray(page.levels)).max() > 6


@pytest.mark.parametrize("quality", [50, 90])
def test_a_jpeg_takes_from_a_page_what_pillow_s_takes(page: Page, quality: int) -> None:
    file = io.BytesIO()
    Image.fromarray(page.levels).save(file, "JPEG", quality=quality)
    away = far(worn_by(page, quality=quality), Image.open(file)).mean()
    assert away < 0.2 * far(worn_by(page, quality=quality), Image.fromarray(page.levels)).mean()


def test_light_and_noise_are_of_the_size_that_was_said(page: Page) -> None:
    away = worn_by(page, across=30.0) - page.levels
    assert (away[:, 0] == 0).all()
    assert away[:, -1].max() == 30
    assert (np.diff(away[0]) >= 0).all()
    assert (worn_by(page, down=-20.0) - page.levels)[-1].min() == -20
    wear = Wear(*(torch.tensor([each]) for each in (0.0, 0.0, 0.0, 0.0, 8.0)))
    noise = torch.randn(1, *SIDES, generator=torch.Generator().manual_seed(0))
    levels = torch.full((1, *SIDES), 128, dtype=torch.uint8)
    noisy = worn(levels, torch.zeros(1), SIDES, wear, noise)
    assert float(noisy.std()) == pytest.approx(8, rel=0.03)


def test_lines_of_drawn_pages_are_where_they_say_once_they_are_turned_and_stretched(
    fonts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Canvas, "rule", lambda *_: None)  # the ink of tables that no line has
    opened = Fonts.open(fonts, held=False)
    turned = 0
    for number in range(24):
        one = drawn(
            number, seed=5, fonts=opened, shape=(256, 192), size=(290, 170), shares={"spotting": 1}, budget=90
        )
        turned += one.turn != 0
        ink = np.abs(worn_by(one, turn=one.turn) - PAPER) > 110
        assert ink.any() == bool(one.lines)
        for line in one.lines:
            left, top, right, bottom = line.box
            ink[int(top) - 2 : int(bottom) + 3, max(0, int(left) - 2) : int(right) + 3] = False
        assert not ink.any(), f"page {number} has ink outside of its boxes"
    assert turned > 3


def test_wear_is_as_likely_as_that_of_pages_that_judge() -> None:
    wear = chosen(20_000, torch.Generator().manual_seed(0))
    shares = [float((each != 0).float().mean()) for each in wear]
    assert shares == pytest.approx([0.3, 0.1, 0.1, 0.1, 0.5], abs=0.02)
    assert not ((wear.across != 0) & (wear.down != 0)).any()
    for each, (least, most) in zip(wear, ((0.3, 0.9), (50, 90), (-30, 40), (-30, 40), (2, 14)), strict=True):
        some = each[each != 0]
        assert least <= float(some.min()) < float(some.max()) <= most


def test_a_batch_is_worn_alike_by_the_same_chance_alone(fonts: Path) -> None:
    batch = Plan(seed=1, fonts=fonts, patches=4096, rows=8).batch(3, 0.0)
    one, again, other = (moved(batch, CPU, chance) for chance in (7, 7, 8))
    assert torch.equal(one.levels, again.levels)
    assert not torch.equal(one.levels, other.levels)
    assert tuple(one.levels.shape[1:]) == tuple(batch.sides.tolist())
    assert torch.equal(moved(batch, CPU).levels, batch.levels)
