"""Writing on a page, and knowing to the pixel what was written where."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
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

    def __init__(self, width: int, height: int, *, stroke: float = 0, measured: bool = True) -> None:
        """Unless lines are to be `measured`, which takes time, their corners are those of the room they take."""
        self.width, self.height, self._stroke, self._measured = width, height, stroke, measured
        self.lines: list[Line] = []
        self._image = Image.new("L", (width, height), PAPER)
        self._draw = ImageDraw.Draw(self._image)

    def write(self, text: str, x: float, baseline: float, file: str, size: int) -> Line:
        """Write a line from `x` on, and say where its ink is."""
        font = sized(file, size)
        self._draw.text((x, baseline), text, font=font, fill=INK, anchor="ls", stroke_width=self._stroke)
        halves = tuple(step / 2 for step in map(advances(file, size).__getitem__, text))
        ends = accumulate((2 * half for half in halves), initial=x)
        middle = baseline - size * 0.35
        middles = tuple((start + half, middle) for start, half in zip(ends, halves, strict=False))
        left, top, right, bottom = (
            map(float, font.getbbox(text, anchor="ls", stroke_width=self._stroke))
            if self._measured
            else (0.0, -0.8 * size, 2 * sum(halves), 0.2 * size)
        )
        corners = (
            (x + left, baseline + top),
            (x + right, baseline + top),
            (x + right, baseline + bottom),
            (x + left, baseline + bottom),
        )
        line = Line(text=text, row=baseline, corners=corners, middles=middles, halves=halves, tall=size * 0.4)
        self.lines.append(line)
        return line

    def rule(self, start: Point, end: Point, width: int) -> None:
        """A straight line, as tables have them."""
        self._draw.line((start, end), fill=INK, width=width)

    @property
    def image(self) -> Image.Image:
        """What is written, as it was written."""
        return self._image

    def turned(self, degrees: float) -> Image.Image:
        """The page turned about its middle, counter-clockwise, its lines with it."""
        self.turn(degrees)
        return (
            self._image.rotate(degrees, Image.Resampling.BILINEAR, fillcolor=PAPER)
            if degrees
            else self._image
        )

    def turn(self, degrees: float) -> None:
        """What the lines know when the picture is turned by somebody else."""
        if degrees:
            angle = math.radians(degrees)
            self.lines = [_moved(line, self.width / 2, self.height / 2, angle) for line in self.lines]

    def scaled(self, shape: tuple[int, int]) -> None:
        """What the lines know after the picture was brought to another width and height."""
        across, down = shape[0] / self.width, shape[1] / self.height
        self.width, self.height = shape
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


class _Advances(dict[str, float]):
    """How far each character moves the pen in one font at one size, asked of the font once."""

    def __init__(self, file: str, size: int) -> None:
        super().__init__()
        self._file, self._size = file, size

    def __missing__(self, character: str) -> float:
        found = self[character] = float(sized(self._file, self._size).getlength(character))
        return found


@cache
def advances(file: str, size: int) -> Mapping[str, float]:
    """How far every character moves the pen, as they are asked for."""
    return _Advances(file, size)


def length(file: str, size: int, text: str) -> float:
    """How wide a text is, but for kerning."""
    return sum(map(advances(file, size).__getitem__, text))
