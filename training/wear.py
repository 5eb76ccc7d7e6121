"""What happens to drawn pages on the device: they are turned and stretched, and worn as `render` wears them.

That is blur, what a JPEG loses, uneven light and noise, each on some of the pages; a drawing can be worn repeatedly.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from training.canvas import PAPER

_BLOCK = 8
_LUMINANCE = (
    (16, 11, 10, 16, 24, 40, 51, 61),
    (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56),
    (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77),
    (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101),
    (72, 92, 95, 98, 112, 100, 103, 99),
)
"""By what a JPEG of quality 50 divides its waves: ITU-T T.81, table K.1."""


class Wear(NamedTuple):
    """What is done to every page, [pages] each, 0 where it is not.

    The deviation of the blur in pixels, the quality of the JPEG, by how many levels the light changes to the right and
    downwards, and the deviation of the noise in levels.
    """

    blur: Tensor
    quality: Tensor
    across: Tensor
    down: Tensor
    noise: Tensor


def chosen(pages: int, generator: torch.Generator) -> Wear:
    """How pages are worn, as likely as `render` has it."""

    def some(share: float, least: float, most: float) -> Tensor:
        here, where = torch.rand(2, pages, generator=generator)
        found: Tensor = (here < share) * (least + (most - least) * where)
        return found

    light = some(0.2, -30, 40)
    sideways = torch.rand(pages, generator=generator) < 0.5
    return Wear(
        blur=some(0.3, 0.3, 0.9),
        quality=some(0.1, 50, 90).round(),
        across=light * sideways,
        down=light * ~sideways,
        noise=some(0.5, 2, 14),
    )


def worn(levels: Tensor, turn: Tensor, sides: tuple[int, int], wear: Wear, noise: Tensor) -> Tensor:
    """Drawn pages [pages, height, width] and their degrees as pages of these sides, in whole levels, float32.

    `noise` [pages, *sides] is normal, of deviation 1. `turn` and `wear` are on the CPU, so that what there is to do is
    known without asking the device, which would have to catch up first.
    """
    device = levels.device
    blur, quality, across, down, grain = torch.stack(wear).to(device, non_blocking=True)
    with torch.autocast(device.type, enabled=False):
        x = _turned(levels.float() - PAPER, turn, sides)
        x = _blurred(x, blur) + PAPER
        squeezed = wear.quality.nonzero()[:, 0]
        if len(squeezed):
            at = squeezed.to(device, non_blocking=True)
            x = x.index_copy(0, at, _through_jpeg(x[at], quality[at]))
        x = x + noise * grain[:, None, None]
        for light, axis in ((down, 1), (across, 2)):
            ramp = torch.linspace(0, 1, x.shape[axis], device=device)
            x = x + (light[:, None] * ramp).unsqueeze(3 - axis)
        found: Tensor = x.clamp_(0, 255).round_()
        return found


def _turned(x: Tensor, degrees: Tensor, sides: tuple[int, int]) -> Tensor:
    """Counter-clockwise about the middle, then brought to the sides, bilinearly; what was not drawn is 0."""
    if not bool(degrees.any()) and tuple(x.shape[1:]) == sides:
        return x
    height, width = x.shape[1:]
    angle = degrees.to(x.device, non_blocking=True)[:, None, None] * (math.pi / 180)
    cosine, sine = angle.cos(), angle.sin()
    # From -1 to 1, in fp32: affine_grid makes a product of it, which TF32 would bring off by a sixth of a pixel.
    down, across = ((torch.arange(side, device=x.device) + 0.5) * (2 / side) - 1 for side in sides)
    down = down[:, None]
    rows = cosine * down + sine * (width / height) * across
    columns = cosine * across - sine * (height / width) * down
    grid = torch.stack((columns, rows), -1)
    found: Tensor = functional.grid_sample(x[:, None], grid, align_corners=False)
    return found.squeeze(1)


def _blurred(x: Tensor, deviation: Tensor) -> Tensor:
    """Three times the mean of a pixel and a little of its neighbours, as Pillow's Gaussian blur, along both sides."""
    side = deviation.square() / 6
    once = torch.stack((side, 1 - 2 * side, side), -1)
    taps = torch.zeros(len(x), 7, device=x.device)
    for first in range(3):
        for second in range(3):
            for third in range(3):
                taps[:, first + second + third] += once[:, first] * once[:, second] * once[:, third]
    for axis in (1, 2):
        shape, padding = ((7, 1), (3, 0)) if axis == 1 else ((1, 7), (0, 3))
        x = functional.conv2d(x[None], taps.view(-1, 1, *shape), padding=padding, groups=len(x))[0]
    return x


def _through_jpeg(x: Tensor, quality: Tensor) -> Tensor:
    """What is left of levels when their waves in blocks of 8 x 8 are rounded as for a JPEG of quality 50 to 100."""
    pages, height, width = x.shape
    waves, table = _tables(x.device)
    scale = 200 - 2 * quality[:, None, None]
    steps = ((table * scale + 50) / 100).floor().clamp(1, 255)[:, None, None]
    blocks = x.reshape(pages, height // _BLOCK, _BLOCK, width // _BLOCK, _BLOCK).transpose(2, 3) - 128
    spectrum = (waves @ blocks @ waves.T / steps).round() * steps
    found = waves.T @ spectrum @ waves + 128
    return found.transpose(2, 3).reshape(pages, height, width)


@cache
def _tables(device: torch.device) -> tuple[Tensor, Tensor]:
    """The orthonormal cosine transform of eight values, and by what its waves are divided."""
    at = torch.arange(_BLOCK)
    waves = torch.cos((2 * at + 1) * at[:, None] * math.pi / (2 * _BLOCK)) * (2 / _BLOCK) ** 0.5
    waves[0] /= 2**0.5
    return waves.to(device), torch.tensor(_LUMINANCE, dtype=torch.float32, device=device)
