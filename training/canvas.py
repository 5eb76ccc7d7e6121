"""Writing on a page, and knowing to the pixel what was written where."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TypeAlias

from PIL import Image, ImageDraw

from training.fonts import sized

Point: TypeAlias = tuple[float, float]
PAPER, INK = 32, 224
"""Levels of what is blank and of what is written, with room for noise on both sides."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A line that was written: its corners, clockwise from the upper left, and the middle of every character.

    `row` is the height of its baseline before the page was turned: what has the same one is read as one line. From its
    middle a character is half of its width, in `halves`, to both sides, and `tall` up and down.
    """

    text: str
    row: float
    corners: tuple[tuple[float, float], ...]
    middles: tuple[tuple[float, float], ...]
    halves: tuple[float, ...]
    tall: float

    @property
    def box(self) -> tuple[float, float, float, float]:
        """Left, top, right, bottom of what was written, upright."""
        across, down = zip(*self.corners, strict=True)
        return min(across), min(down), max(across), max(down)


class Canvas:
    """A page while it is written on, letters bolder by `stroke` pixels; lines are kept in the order they came in."""

    def __init__(self, width: int, height: int, *, stroke: float = 0) -> None:
        self.width, self.height, self._stroke = width, height, stroke
        self.lines: list[Line] = []
        self._image = Image.new("L", (width, height), PAPER)
        self._draw = ImageDraw.Draw(self._image)

    def write(self, text: str, x: float, baseline: float, file: str, size: int) -> Line:
        """Write a line from `x` on, and say where its ink is."""
        font = sized(file, size)
        self._draw.text((x, baseline), text, font=font, fill=INK, anchor="ls", stroke_width=self._stroke)
        box = font.getbbox(text, anchor="ls", stroke_width=self._stroke)
        left, top, right, bottom = (float(each) for each in box)
        corners = (
            (x + left, baseline + top),
            (x + right, baseline + top),
            (x + right, baseline + bottom),
            (x + left, baseline + bottom),
        )
        halves = tuple(advance(file, size, character) / 2 for character in text)
        ends = accumulate((2 * half for half in halves), initial=x)
        middle = baseline - size * 0.35
        middles = tuple((start + half, middle) for start, half in zip(ends, halves, strict=False))
        line = Line(text=text, row=baseline, corners=corners, middles=middles, halves=halves, tall=size * 0.4)
        self.lines.append(line)
        return line

    def rule(self, start: Point, end: Point, width: int) -> None:
        """A straight line, as tables have them."""
        self._draw.line((start, end), fill=INK, width=width)

    def turned(self, degrees: float) -> Image.Image:
        """The page turned about its middle, counter-clockwise, its lines with it."""
        if not degrees:
            return self._image
        angle = math.radians(degrees)
        self.lines = [_moved(line, self.width / 2, self.height / 2, angle) for line in self.lines]
        return self._image.rotate(degrees, Image.Resampling.BILINEAR, fillcolor=PAPER)

    def scaled(self, across: float, down: float) -> None:
        """What the lines know after the picture was made larger or smaller."""
        self.lines = [
            replace(
                _mapped(line, lambda point: (point[0] * across, point[1] * down)),
                halves=tuple(half * across for half in line.halves),
                tall=line.tall * down,
            )
            for line in self.lines
        ]


def _moved(line: Line, x: float, y: float, angle: float) -> Line:
    cosine, sine = math.cos(angle), math.sin(angle)

    def turn(point: Point) -> Point:
        across, down = point[0] - x, point[1] - y
        return x + across * cosine + down * sine, y - across * sine + down * cosine

    return _mapped(line, turn)


def _mapped(line: Line, where: Callable[[Point], Point]) -> Line:
    return replace(line, corners=tuple(map(where, line.corners)), middles=tuple(map(where, line.middles)))


_ADVANCES: dict[tuple[str, int], dict[str, float]] = {}


def advance(file: str, size: int, character: str) -> float:
    """How far one character moves the pen."""
    known = _ADVANCES.setdefault((file, size), {})
    found = known.get(character)
    if found is None:
        found = known[character] = float(sized(file, size).getlength(character))
    return found


def length(file: str, size: int, text: str) -> float:
    """How wide a text is, but for kerning."""
    return sum(advance(file, size, character) for character in text)
