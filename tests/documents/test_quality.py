"""How well a page can be read is seen before it is read."""

from __future__ import annotations

import numpy as np
import pytest
from sheets import blurred, contents, darker, noisy, ruled, sheet, skewed, specked

from alula.codecs import straightened
from alula.documents import Pixels, measured, notices_of, without_specks
from alula.documents.quality import noise_of, to_grey


def codes(pixels: Pixels) -> list[str]:
    return [notice.code for notice in notices_of(measured(pixels))]


@pytest.mark.parametrize("letters", [9, 12, 16, 24, 36, 60])
@pytest.mark.parametrize("seed", range(4))
def test_clean_pages_raise_no_alarm(letters: int, seed: int) -> None:
    page = sheet(seed, letters)
    assert codes(page) == []
    assert codes(255 - page) == [], "white on black is no dark page"
    assert codes(noisy(page, 3, seed)) == [], "nor is the grain of a scan noise to speak of"


@pytest.mark.parametrize("letters", [12, 20, 36])
def test_blur_is_told_by_what_it_is_to_the_letters(letters: int) -> None:
    page = sheet(1, letters)
    assert not measured(blurred(page, 0.03 * letters)).unreadable
    assert codes(blurred(page, 0.03 * letters)) == []
    assert "blurred" in codes(blurred(page, 0.16 * letters))
    for lost in (blurred(page, 0.3 * letters), noisy(blurred(page, 0.3 * letters), 3)):
        assert measured(lost).unreadable
        assert "blurred" in codes(lost)


@pytest.mark.parametrize("thick", [2, 4, 8])
def test_rules_are_no_letters(thick: int) -> None:
    """Forms were taken for blurred and not read: in every strip of a page its rules stood for the height of letters."""
    page = sheet(3, 28)
    form, height = ruled(page, thick), measured(page).height
    assert measured(form).height == pytest.approx(height, rel=0.2)
    assert codes(blurred(form, 0.8)) == []
    assert measured(blurred(form, 8)).unreadable


@pytest.mark.parametrize("letters", [16, 28, 36, 48, 64])
def test_dots_that_lead_to_page_numbers_are_no_letters(letters: int) -> None:
    """Lists of contents in large type were not read: dots outnumber letters, and are a fifth as high."""
    page = contents(letters)
    assert measured(page).height == pytest.approx(0.65 * letters, rel=0.2)
    for clear in (page, blurred(page, 0.04 * letters), skewed(page, 1)):
        assert codes(clear) == []
    assert measured(blurred(page, 0.3 * letters)).unreadable


def test_a_page_of_nothing_but_soft_wide_shapes_cannot_be_read() -> None:
    rows = np.linspace(60, 200, 400)[:, None, None]
    waves = rows + 40 * np.sin(np.arange(600) / 60)[None, :, None]
    assert measured(np.broadcast_to(waves, (400, 600, 3)).astype(np.uint8)).unreadable


@pytest.mark.parametrize("deviation", [0.8, 1.2, 2.0, 3.0])
def test_the_blur_of_large_edges_is_measured_in_pixels(deviation: float) -> None:
    bars = np.full((200, 400, 3), 255, np.uint8)
    for at in range(0, 400, 80):
        bars[:, at : at + 40] = 0
    assert measured(blurred(bars, deviation)).blur == pytest.approx(deviation, rel=0.15, abs=0.2)
    noisy_blur = measured(noisy(blurred(bars, deviation), 4)).blur
    assert noisy_blur == pytest.approx(deviation, abs=0.65)


@pytest.mark.parametrize("deviation", [2.0, 5.0, 10.0, 20.0])
def test_noise_is_measured_in_levels_whatever_is_on_the_page(deviation: float) -> None:
    page = darker(sheet(2, 16), 0.6)
    assert noise_of(to_grey(noisy(page, deviation))) == pytest.approx(deviation, rel=0.35)
    assert noise_of(to_grey(page)) == 0


def test_noise_and_specks_are_told_and_specks_are_taken_off() -> None:
    page = sheet(3, 24)
    assert codes(noisy(page, 14)) == ["noisy"]
    spoilt = specked(page, 0.03)
    assert codes(spoilt) == ["noisy"]
    cleaned = without_specks(spoilt)
    assert codes(cleaned) == []
    assert np.abs(cleaned.astype(int) - page).mean() < 0.2 * np.abs(spoilt.astype(int) - page).mean()
    assert (without_specks(page) != page).mean() < 1e-3, "letters stay as they are"


@pytest.mark.parametrize("degrees", [-8.0, -3.0, -0.7, 0.0, 0.5, 2.5, 6.0])
@pytest.mark.parametrize("letters", [14, 32])
def test_skew_is_measured_and_turned_back(degrees: float, letters: int) -> None:
    page = skewed(sheet(4, letters), degrees)
    found = measured(page).skew
    assert found == pytest.approx(degrees, abs=0.15)
    assert ("skewed" in codes(page)) is (abs(degrees) >= 2)
    assert found is not None
    level = measured(straightened(page, found)).skew
    assert level == pytest.approx(0, abs=0.15)


@pytest.mark.parametrize("degrees", [-3.0, 0.0, 1.5])
@pytest.mark.parametrize("dark", [0.2, 0.5])
def test_the_edge_of_a_shadow_is_no_line(degrees: float, dark: float) -> None:
    """Level photographs with a hand's shadow were called skewed by 7 to 10 degrees, and turned by as much."""
    page = skewed(sheet(4, 28), degrees)
    down, across = np.mgrid[0 : page.shape[0], 0 : page.shape[1]]
    beyond = 1 / (1 + np.exp(-(across - 0.4 * page.shape[1] + 0.5 * down) / 60))
    shaded = (page * (dark + (1 - dark) * beyond)[..., None]).astype(np.uint8)
    assert measured(shaded).skew == pytest.approx(degrees, abs=0.2)


def test_dark_faint_and_blank_pages_are_told_apart() -> None:
    page = sheet(5)
    assert codes(darker(page, 0.3)) == ["dark"]
    faint = (255 - (255 - page.astype(int)) * 0.06).astype(np.uint8)
    assert codes(faint) == ["dark"]
    assert codes(np.full((300, 200, 3), 250, np.uint8)) == ["blank"]
    assert codes(noisy(np.full((300, 200, 3), 250, np.uint8), 4)) == ["blank"]
    assert codes(np.zeros((300, 200, 3), np.uint8)) == ["dark"]
    number = np.full((1200, 900, 3), 250, np.uint8)
    number[1100:1120, 440:452] = 20
    assert codes(number) == [], "a page number is something"


@pytest.mark.parametrize("shape", [(1, 1), (1, 300), (300, 2), (3, 3), (5, 400)])
def test_slivers_are_measured_too(shape: tuple[int, int]) -> None:
    assert measured(np.full((*shape, 3), 255, np.uint8)).skew is None
    chance = np.random.default_rng(0).integers(0, 256, (*shape, 3)).astype(np.uint8)
    notices_of(measured(chance))


def test_a_vast_page_is_measured_like_another() -> None:
    clean = sheet(6, 48, (3300, 3100))
    sharp, lost = measured(clean), measured(blurred(clean, 14))
    assert notices_of(sharp) == ()
    assert sharp.height == pytest.approx(35, abs=6)
    assert lost.unreadable
    assert codes(noisy(clean, 14)) == ["noisy"]
