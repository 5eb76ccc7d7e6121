"""How well a page can be read, measured on its pixels before anything reads it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from alula.documents.values import Notice, Pixels

Grey: TypeAlias = NDArray[np.uint8]
"""Height, width; 0 is black."""

Rows: TypeAlias = NDArray[np.intp]

_LEVELS = 256
_MOST_PIXELS = 10_000_000
_MOST_EDGES, _MOST_ROWS = 20_000, 500
_EDGE_REACH = 12
_LEAST_EDGES = 40
_SMOOTHED = ((6.0, 7), (3.0, 5), (1.5, 3))
"""From which noise on edges are measured on means, and of how many pixels."""

_QUARTILE = 0.3186
"""Of the size of what is normally distributed with deviation 1."""

_SPECK = 60
_STRIP, _STRIPS = 24, 64
_RULE_STRIPS, _PICTURE_STRIPS = 2, 4
_LOW = 0.3
_LEAST_HEIGHT, _LEAST_HEIGHTS = 4, 8
_SKEW_SIDE = 1000
_MOST_INK = 40_000
_MOST_DEGREES = 10.0


# Set on pages drawn in many fonts and read by RapidOCR 3.10: docs/ocr.md has the counts.
BLURRED, UNREADABLE = 0.08, 0.125
"""Of the blur, in heights of letters: from the first on reading suffers, from the second on nothing is read."""

NOISY, SPECKED = 8.0, 0.008
DARK, FAINT = 100.0, 24.0
"""The brightest level of a page, and the levels between ink and paper, that are too few."""

SKEWED = 2.0
"""In degrees."""

_BLANK_MARKS, _BLANK_CONTRAST = 20, 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Quality:
    """What was measured of a page.

    `blur` is the standard deviation, in pixels, of the Gaussian that the sharper half of its edges look blurred by;
    `height` the height of its letters in pixels; `noise` the standard deviation of its paper in levels of 256; `specks`
    the share of its pixels that differ from all four neighbours; `paper` and `contrast` the level of its brightest
    twentieth, and by how many levels ink and paper differ; `marks` how many pixels are no paper; `skew` by how many
    degrees its lines run down to the right, None where there are no lines to tell by.
    """

    blur: float | None
    height: float | None
    noise: float
    specks: float
    paper: float
    contrast: float
    marks: int
    skew: float | None

    @property
    def blank(self) -> bool:
        """Whether nothing is on the page."""
        return self.marks < _BLANK_MARKS and self.contrast < max(_BLANK_CONTRAST, 4 * self.noise)

    @property
    def spread(self) -> float | None:
        """The blur in heights of letters; infinite where something is on the page and nothing on it has an edge."""
        if self.blank or self.height is None:
            return None
        return math.inf if self.blur is None else self.blur / self.height

    @property
    def unreadable(self) -> bool:
        """Whether the page is too blurred for anything to be read."""
        return self.spread is not None and self.spread >= UNREADABLE


def notices_of(quality: Quality) -> tuple[Notice, ...]:
    """What whoever reads the result should know of the page. Pure."""
    if quality.blank and quality.paper >= DARK:
        return (Notice(code="blank", message="nothing is on the page"),)
    return tuple(_noticed(quality))


def _noticed(quality: Quality) -> Iterator[Notice]:
    if quality.paper < DARK:
        yield Notice(code="dark", message=f"the brightest of the page is {quality.paper:.0f} of 255")
    elif quality.marks < _BLANK_MARKS and quality.contrast < FAINT:
        yield Notice(code="dark", message=f"ink and paper differ by {quality.contrast:.0f} levels of 255")
    if quality.spread is not None and quality.spread >= BLURRED:
        how = "no edge is sharp" if quality.blur is None else f"edges are spread by {quality.blur:.1f} pixels"
        yield Notice(code="blurred", message=f"{how}, of letters {quality.height:.0f} high")
    if quality.noise >= NOISY or quality.specks >= SPECKED:
        said = f"noise of {quality.noise:.0f} levels of 255, specks on {quality.specks:.1%} of the page"
        yield Notice(code="noisy", message=said)
    if quality.skew is not None and abs(quality.skew) >= SKEWED:
        yield Notice(
            code="skewed", message=f"lines run {_way(quality.skew)} by {abs(quality.skew):.1f} degrees"
        )


def _way(skew: float) -> str:
    return "down to the right" if skew > 0 else "up to the right"


def measured(pixels: Pixels) -> Quality:
    """The quality of a page (height, width, colour)."""
    # Of a vast page some of its pixels are enough, and a band for what is measured from each to the next.
    times = max(1, math.ceil(math.sqrt(pixels.shape[0] * pixels.shape[1] / _MOST_PIXELS)))
    grey = to_grey(pixels[::times, ::times])
    if min(grey.shape) < 3:
        return Quality(
            blur=None,
            height=None,
            noise=0.0,
            specks=0.0,
            paper=float(grey.max()),
            contrast=float(np.ptp(grey)),
            marks=0,
            skew=None,
        )
    band = to_grey(pixels[: max(3, _MOST_PIXELS // pixels.shape[1])]) if times > 1 else grey
    noise, specks = noise_of(band), specks_of(band)
    threshold, low, high = two_classes(grey)
    contrast = high - low
    marks = _marks(grey, noise)
    # Where little is on a page, the level that parts best parts paper from paper.
    ink = _smaller(grey <= threshold) if contrast >= max(FAINT, 4 * noise) else marks
    blur, height = blur_of(grey, contrast, noise), height_of(ink)
    return Quality(
        blur=None if blur is None else blur * times,
        height=None if height is None else height * times,
        noise=noise,
        specks=specks,
        paper=float(np.percentile(grey[::4, ::4], 95)),
        contrast=contrast,
        marks=int(marks.sum()),
        skew=skew_of(ink),
    )


def to_grey(pixels: Pixels) -> Grey:
    """Luma of ITU-R BT.601, in whole numbers."""
    red, green, blue = (pixels[..., at].astype(np.uint16) for at in range(3))
    grey: Grey = ((77 * red + 150 * green + 29 * blue) >> 8).astype(np.uint8)
    return grey


def printed(pixels: Pixels) -> NDArray[np.bool_]:
    """Which pixels of a page (height, width, colour) are ink, but for rules of forms and tables: (height, width)."""
    grey = to_grey(pixels)
    threshold, _, _ = two_classes(grey)
    ink = _smaller(grey <= threshold)
    return _without_rules(ink) & _without_rules(ink.T).T


def two_classes(grey: Grey) -> tuple[int, float, float]:
    """The level that parts dark from bright with the least spread in both (Otsu 1979), and the mean of each side."""
    counts = np.bincount(grey[::2].ravel(), minlength=_LEVELS).astype(np.float64)
    levels = np.arange(_LEVELS)
    below, moments = np.cumsum(counts), np.cumsum(counts * levels)
    total, whole = below[-1], moments[-1]
    above = total - below
    with np.errstate(divide="ignore", invalid="ignore"):
        between = np.where(
            (below > 0) & (above > 0), (whole * below - moments * total) ** 2 / (below * above), -1.0
        )
    at = int(between.argmax())
    if between[at] < 0:
        return at, float(whole / total), float(whole / total)
    return at, float(moments[at] / below[at]), float((whole - moments[at]) / above[at])


def noise_of(grey: Grey) -> float:
    """Standard deviation of the noise, in levels.

    By the difference of two Laplacians (Immerkaer, Fast Noise Variance Estimation, 1996), whose response to noise of
    deviation s has deviation 6 s; the lower quartile of its size in place of the mean, since letters are no noise.
    A page full of small ones still seems up to a third noisier than it is.
    """
    part = grey[: grey.shape[0] // 3 * 3, : grey.shape[1] // 3 * 3].astype(np.int16)
    if min(part.shape) < 3:
        return 0.0
    # Every third pixel in both directions: neighbouring responses say the same.
    rows = [part[at::3] for at in range(3)]
    sums = [row[:, 0::3] - 2 * row[:, 1::3] + row[:, 2::3] for row in rows]
    response = sums[0] - 2 * sums[1] + sums[2]
    return float(np.percentile(np.abs(response), 25)) / (6 * _QUARTILE)


def specks_of(grey: Grey) -> float:
    """The share of pixels that are specks, in every other row."""
    return float(_lone(grey[:-2:2], grey[1:-1:2], grey[2::2]).mean())


def without_specks(pixels: Pixels) -> Pixels:
    """The page with each speck as the median of its four neighbours; every other pixel stays as it is."""
    grey = to_grey(pixels)
    if min(grey.shape) < 3:
        return pixels
    ys, xs = (at + 1 for at in _lone(grey[:-2], grey[1:-1], grey[2:]).nonzero())
    around = np.stack([pixels[ys - 1, xs], pixels[ys + 1, xs], pixels[ys, xs - 1], pixels[ys, xs + 1]])
    cleaned = pixels.copy()
    cleaned[ys, xs] = np.median(around, axis=0)
    return cleaned


def _lone(above: Grey, row: Grey, below: Grey) -> NDArray[np.bool_]:
    """Which pixels of some rows, but for the outer ones, are specks: much brighter or darker than each neighbour."""
    middle = row[:, 1:-1].astype(np.int16)
    brighter, darker = np.ones(middle.shape, bool), np.ones(middle.shape, bool)
    for neighbour in (above[:, 1:-1], below[:, 1:-1], row[:, :-2], row[:, 2:]):
        step = middle - neighbour
        brighter &= step > _SPECK
        darker &= step < -_SPECK
    return brighter | darker


def blur_of(grey: Grey, contrast: float, noise: float = 0.0) -> float | None:
    """How far edges are spread, as the deviation of a Gaussian in pixels; None where there are too few edges.

    An edge of height h that is blurred by a Gaussian of deviation s is steepest by h / (s sqrt(2 pi)) a pixel. Both are
    measured along rows at the steepest pixels: the height within the reach to either side where the level still goes
    the same way. The lower quartile counts: smooth shades of pictures have no sharp edge, but letters do. Of a noisy
    page the means of every w x w pixels are measured, whose own spread, a variance of (w^2 - 1) / 12, is taken off.
    """
    width = next((width for least, width in _SMOOTHED if noise > least), 1)
    rows_apart = max(1, grey.shape[0] // _MOST_ROWS)
    lines = _means(grey, width)[::rows_apart] if width > 1 else grey[::rows_apart].astype(np.float32)
    step = np.diff(lines, axis=1)
    size = np.abs(step)
    steepest = size[:, 1:-1]
    peak = (steepest >= size[:, :-2]) & (steepest > size[:, 2:]) & (steepest > max(6.0, contrast / 12))
    rows, columns = peak.nonzero()
    if len(rows) < _LEAST_EDGES:
        return None
    if len(rows) > _MOST_EDGES:
        chosen = np.linspace(0, len(rows) - 1, _MOST_EDGES).astype(int)
        rows, columns = rows[chosen], columns[chosen]
    columns += 1
    sign = np.sign(step[rows, columns])
    height = size[rows, columns].astype(np.float64)
    for direction in (-1, 1):
        going, at = np.ones(len(rows), bool), columns.copy()
        for _ in range(_EDGE_REACH):
            at = np.clip(at + direction, 0, step.shape[1] - 1)
            change = step[rows, at] * sign
            going &= change > 0
            height += np.where(going, change, 0)
    real = height > max(24.0, contrast * 0.35)
    if real.sum() < _LEAST_EDGES:
        return None
    spread = height[real] / (size[rows, columns][real] * math.sqrt(2 * math.pi))
    found = float(np.percentile(spread, 25))
    # What goes from ink to paper within a pixel has this spread too.
    return math.sqrt(max(found**2 - 1 / (2 * math.pi) - (width**2 - 1) / 12, 0.0))


def _means(grey: Grey, width: int) -> NDArray[np.float32]:
    """Of every `width` x `width` pixels, where they are whole."""
    found = grey.astype(np.float32)
    for _ in range(2):
        sums = np.cumsum(np.pad(found, ((1, 0), (0, 0))), axis=0, dtype=np.float64)
        found = ((sums[width:] - sums[:-width]) / width).astype(np.float32).T
    return np.ascontiguousarray(found)


def height_of(ink: NDArray[np.bool_]) -> float | None:
    """The median height of what stands in a strip of the page: of a letter or two, in pixels.

    In narrow strips lines stay apart however the page is turned. Rules of forms and tables are left out, of which
    every strip would have as many as the page; where nothing else is left, they were the picture itself. So are the
    dots that lead from a title to its page in a list of contents, which would outnumber its letters.
    """
    width = _strip(ink)
    for shown in (_without_rules(ink), ink):
        heights = _without_leaders(*_spans(shown, width), most=_PICTURE_STRIPS * width)
        if len(heights) >= _LEAST_HEIGHTS:
            return float(np.median(heights))
    return None


def _spans(ink: NDArray[np.bool_], width: int) -> tuple[Rows, Rows]:
    """The first row of whatever stands in a strip, and the first one below it."""
    strips = [ink[:, at : at + width].any(axis=1) for at in range(0, ink.shape[1], width)]
    edges = np.diff(np.pad(np.stack(strips), ((0, 0), (1, 1))).astype(np.int8), axis=1)
    tops, bottoms = (edges == 1).nonzero()[1], (edges == -1).nonzero()[1]
    high = bottoms - tops >= _LEAST_HEIGHT
    return tops[high], bottoms[high]


def _without_leaders(tops: Rows, bottoms: Rows, most: int) -> Rows:
    """Heights, but of what is low beside letters on the same line; what is higher than `most` rows is no letter."""
    heights = bottoms - tops
    highest = np.zeros(bottoms.max(initial=0), np.intp)
    for at in np.flatnonzero(heights <= most):
        line = highest[tops[at] : bottoms[at]]
        np.maximum(line, heights[at], out=line)
    letters: Rows = heights[heights >= _LOW * highest[(tops + bottoms) // 2]]
    return letters


def _strip(ink: NDArray[np.bool_]) -> int:
    """How wide a strip of the page is, in pixels."""
    return max(_STRIP, int(ink.shape[1]) // _STRIPS)


def _without_rules(ink: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Without what runs level for some strips, as no stroke of a letter does."""
    changes = np.diff(np.pad(ink, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    (rows, begins), (_, ends) = (changes == 1).nonzero(), (changes == -1).nonzero()
    long = ends - begins >= _RULE_STRIPS * _strip(ink)
    letters = ink.copy()
    for row, begin, end in zip(rows[long], begins[long], ends[long], strict=True):
        letters[row, begin:end] = False
    return letters


def skew_of(ink: NDArray[np.bool_]) -> float | None:
    """Degrees by which lines of text run down to the right.

    Of all angles, at the right one the rows of ink are parted best from the gaps between them: the sum of squared
    differences of neighbouring rows is largest (Bloomberg, Kopec, Dasari, Measuring document image skew, 1995).
    """
    step = max(1, -(-max(ink.shape) // _SKEW_SIDE))
    ys, xs = _without_rules(
        ink[::step, ::step]
    ).nonzero()  # nor the shadows of photographs, whose edges run anyhow
    if len(ys) < 200 or np.ptp(xs) < 40:
        return None
    if len(ys) > _MOST_INK:
        chosen = np.linspace(0, len(ys) - 1, _MOST_INK).astype(int)
        ys, xs = ys[chosen], xs[chosen]
    coarse = np.arange(-_MOST_DEGREES, _MOST_DEGREES + 0.1, 0.5)
    scores = [_parted(ys, xs, float(angle)) for angle in coarse]
    best = int(np.argmax(scores))
    if scores[best] < 1.25 * float(np.median(scores)) or best in {0, len(coarse) - 1}:
        return None
    fine = coarse[best] + np.arange(-0.5, 0.51, 0.1)
    found = fine[int(np.argmax([_parted(ys, xs, float(angle)) for angle in fine]))]
    return round(float(found), 1) + 0.0  # no -0.0


def _parted(ys: NDArray[np.intp], xs: NDArray[np.intp], degrees: float) -> float:
    shifted = ys - xs * math.tan(math.radians(degrees))
    rows = np.bincount(np.round(shifted - shifted.min()).astype(np.int64)).astype(np.float64)
    return float((np.diff(rows) ** 2).sum())


def _marks(grey: Grey, noise: float) -> NDArray[np.bool_]:
    """What is something else than paper."""
    paper = int(np.median(grey[::2, ::2]))
    marks: NDArray[np.bool_] = np.abs(grey.astype(np.int16) - paper) > max(FAINT, 6 * noise)
    return marks


def _smaller(dark: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Ink is what there is less of."""
    return dark if dark.mean() <= 0.5 else ~dark
