"""Pages with exact ground truth, each drawn from its number alone.

python -m training.render --fonts training/build/fonts --held --count 50 -o pages   # PNG files and pages.jsonl
"""

from __future__ import annotations

import argparse
import io
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from training.canvas import INK, PAPER, Canvas, Line
from training.fonts import Fonts
from training.layouts import LAYOUTS, SHARES, Asked, Scribe, normalised, said

Levels: TypeAlias = NDArray[np.uint8]
Colour: TypeAlias = tuple[int, int, int]
Shape: TypeAlias = tuple[int, int]
"""Width and height in pixels, multiples of 32 so that the model's processor leaves them alone."""

SMALL: Sequence[Shape] = ((256, 192), (320, 160), (256, 256), (320, 256))
MEDIUM: Sequence[Shape] = ((384, 288), (352, 352), (448, 320), (320, 448))
LARGE: Sequence[Shape] = ((480, 640), (640, 480), (640, 640), (512, 768), (576, 704), (704, 576), (640, 352))

HELD_SEED = 1_000_003
"""Pages that judge are of a stream of their own, besides having fonts of their own."""
_NOISE = 1 << 21
_LINE_OF_SPOTTING = 19
"""About what a line's coordinates cost in tokens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """One page: how much ink is where, in which colours, what is asked of it and the right answer.

    Lines and answer are of the page in its `shape`. One that is only drawn is still to be turned by `turn` degrees and
    brought to that shape, as `wear.worn` does.
    """

    number: int
    task: str
    prompt: str
    answer: str
    levels: Levels
    paper: Colour
    ink: Colour
    lines: tuple[Line, ...]
    shape: Shape
    turn: float = 0.0

    def picture(self) -> Image.Image:
        """The page as it is seen, in colours."""
        return Image.fromarray(coloured(self.levels, self.paper, self.ink))


def coloured(levels: Levels, paper: Colour, ink: Colour) -> NDArray[np.uint8]:
    """Levels between paper and ink to colours, [height, width, 3]."""
    share = (levels.astype(np.float32)[..., None] - PAPER) / (INK - PAPER)
    blank, full = np.array(paper, np.float32), np.array(ink, np.float32)
    return np.rint(np.clip(blank + (full - blank) * share, 0, 255)).astype(np.uint8)


def render(  # noqa: PLR0913 - seven, of which three have defaults
    number: int,
    *,
    seed: int,
    fonts: Fonts,
    shape: Shape,
    shares: Mapping[str, float] = SHARES,
    budget: int = 330,
    wear: bool = True,
) -> Page:
    """Page `number` of the stream `seed`; the same arguments give the same page on every machine with these fonts.

    `budget` is about how many characters, or tokens of coordinates, an answer may have; without `wear` the page is as
    it was turned.
    """
    rng = random.Random(f"{seed}:{number}")
    task = rng.choices(list(shares), list(shares.values()))[0]
    size = stretched(rng, shape)
    canvas = Canvas(*size, stroke=_stroke(rng))
    asked, angle = _written(rng, canvas, fonts, task, budget, max(shape))
    image = canvas.turned(angle)
    if image.size != shape:
        canvas.scaled(shape)
        image = image.resize(shape, Image.Resampling.BICUBIC)
    paper, ink = _colours(rng)
    return Page(
        number=number,
        task=task,
        prompt=asked.prompt,
        answer=said(task, canvas) if asked.answer is None else asked.answer,
        levels=worn(rng, image) if wear else np.asarray(image),
        paper=paper,
        ink=ink,
        lines=tuple(canvas.lines),
        shape=shape,
    )


def drawn(  # noqa: PLR0913 - likewise
    number: int,
    *,
    seed: int,
    fonts: Fonts,
    shape: Shape,
    size: Shape,
    shares: Mapping[str, float] = SHARES,
    budget: int = 330,
) -> Page:
    """A page as `render` has it, before it is turned, brought from `size` to its shape, and worn."""
    rng = random.Random(f"{seed}:{number}")
    task = rng.choices(list(shares), list(shares.values()))[0]
    canvas = Canvas(*size, stroke=_stroke(rng), measured=task == "spotting")
    asked, angle = _written(rng, canvas, fonts, task, budget, max(shape))
    canvas.turn(angle)
    if size != shape:
        canvas.scaled(shape)
    paper, ink = _colours(rng)
    return Page(
        number=number,
        task=task,
        prompt=asked.prompt,
        answer=said(task, canvas) if asked.answer is None else asked.answer,
        levels=np.asarray(canvas.image),
        paper=paper,
        ink=ink,
        lines=tuple(canvas.lines),
        shape=shape,
        turn=angle,
    )


def _written(  # noqa: PLR0913, PLR0917 - the last three say what is written
    rng: random.Random, canvas: Canvas, fonts: Fonts, task: str, budget: int, side: int
) -> tuple[Asked, float]:
    """Write what a task asks about; with what is asked, by how many degrees the page can be turned."""
    most = round(budget * rng.triangular(0.1, 1, 0.9))
    scribe = Scribe(rng, canvas, fonts, budget=most, line=_LINE_OF_SPOTTING if task == "spotting" else 0)
    margin = scribe.style.margin
    asked = LAYOUTS[task](scribe)
    return asked, _angle(rng, margin, side)


def stretched(rng: random.Random, shape: Shape) -> Shape:
    """How large a page is written that becomes one of `shape`: on some of them letters are wider, or narrower.

    Down it is made smaller by a twentieth at most, so that lines stay in squares of their own.
    """
    across, down = (rng.uniform(0.85, 1.2), rng.uniform(0.85, 1.05)) if rng.random() < 0.2 else (1.0, 1.0)
    return round(shape[0] * across), round(shape[1] * down)


def _stroke(rng: random.Random) -> float:
    """Pixels by which letters are made bolder, on some of the pages."""
    return round(rng.uniform(0.2, 0.6), 1) if rng.random() < 0.12 else 0.0


def _angle(rng: random.Random, margin: float, side: int) -> float:
    """Degrees that leave what is written on the page."""
    if rng.random() > 0.3:
        return 0.0
    most = min(2.5, float(np.degrees(np.arctan(2 * margin / side))))
    return rng.uniform(-most, most)


def _colours(rng: random.Random) -> tuple[Colour, Colour]:
    """Mostly dark on light; at least 90 levels apart in every colour."""
    light = (
        tuple(rng.randint(200, 255) for _ in range(3)) if rng.random() < 0.4 else (rng.randint(225, 255),) * 3
    )
    dark = tuple(rng.randint(0, 110) for _ in range(3)) if rng.random() < 0.3 else (rng.randint(0, 80),) * 3
    one, other = (light[0], light[1], light[2]), (dark[0], dark[1], dark[2])
    return (other, one) if rng.random() < 0.1 else (one, other)


def worn(rng: random.Random, image: Image.Image) -> Levels:
    """A little blur, an uneven light, noise, and what a JPEG loses: each on some of the pages."""
    if rng.random() < 0.3:
        image = image.filter(ImageFilter.GaussianBlur(rng.uniform(0.3, 0.9)))
    if rng.random() < 0.1:
        image = _through_jpeg(image, rng.randint(50, 90))
    levels = np.asarray(image)
    shaded, noisy = rng.random() < 0.2, rng.random() < 0.5
    if not (shaded or noisy):
        return np.array(levels)
    worn = levels.astype(np.int16)
    if shaded:
        ramp = np.linspace(0, rng.uniform(-30, 40), levels.shape[rng.randrange(2)]).astype(np.int16)
        worn += ramp[:, None] if len(ramp) == levels.shape[0] else ramp
    if noisy:
        start = rng.randrange(_NOISE - levels.size)
        worn += ((_noise()[start : start + levels.size] * round(rng.uniform(2, 14) * 4)) >> 6).reshape(
            levels.shape
        )
    return np.clip(worn, 0, 255).astype(np.uint8)


@cache
def _noise() -> NDArray[np.int16]:
    """Normal noise of deviation 16, drawn once in a process."""
    return np.rint(np.random.default_rng(0).standard_normal(_NOISE, np.float32) * 16).astype(np.int16)


def _through_jpeg(image: Image.Image, quality: int) -> Image.Image:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return Image.open(file).convert("L")


def main() -> None:
    """Write pages as PNG files, and what is asked of each and its answer as a line of pages.jsonl."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fonts", type=Path, required=True)
    parser.add_argument("--held", action="store_true", help="with the fonts that training never sees")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("-o", "--output", type=Path, required=True)
    given = parser.parse_args()
    fonts = Fonts.open(given.fonts, held=given.held)
    given.output.mkdir(parents=True, exist_ok=True)
    with (given.output / "pages.jsonl").open("w", encoding="utf-8") as rows:
        for number in range(given.count):
            page = render(number, seed=given.seed, fonts=fonts, shape=LARGE[number % len(LARGE)])
            name = f"{number:04d}-{page.task}.png"
            page.picture().save(given.output / name, optimize=True)
            rows.write(json.dumps({"image": name, **described(page)}, ensure_ascii=False) + "\n")
    print(f"{given.count} pages in {given.output}")


def described(page: Page) -> dict[str, object]:
    """What is known of a page, as JSON has it."""
    height, width = page.levels.shape
    kept = {
        key: value for key, value in asdict(page).items() if key in {"number", "task", "prompt", "answer"}
    }
    lines = [{"text": line.text, "box": normalised(line.box, width, height)} for line in page.lines]
    return {**kept, "lines": lines}


if __name__ == "__main__":
    main()
