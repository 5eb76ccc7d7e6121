"""Prompts with images: pages that are drawn here, seeded, for a model that reads them to be held to its reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from alula.codecs import Patcher, Patches, given_of, patches_of
from alula.core.model import ModelSpec
from alula.verify import Script
from alula.verify.pages import drawn_page

GRIDS: Sequence[tuple[tuple[int, int], ...]] = (
    ((8, 12),),
    ((6, 26),),
    ((12, 8), (8, 6)),
    ((30, 22),),
)
"""Patches down and across of each image of a prompt: upright, long, two of different sizes, a page of some lines."""

AROUND = 6
"""Random tokens before the first image and behind each."""


def pictured(spec: ModelSpec, processor: Path, longest: int) -> list[Script]:
    """A prompt for each of the grids that has room in so many tokens, with no answer yet; none where nothing is seen.

    `processor` is the folder of the image processor's settings.
    """
    if not spec.sees:
        return []
    patcher = replace(Patcher.open(processor), least_pixels=1)
    rng = np.random.default_rng(0)
    ordinary = [token for token in range(min(spec.vocab_size, 1 << 16)) if token != spec.image_id]
    found = []
    for at, grids in enumerate(GRIDS):
        images = [_page(patcher, *grid, seed=at) for grid in grids]
        prompt = rng.choice(ordinary, AROUND).tolist()
        for grid in grids:
            prompt += [spec.image_id] * patcher.tokens(*grid) + rng.choice(ordinary, AROUND).tolist()
        if len(prompt) <= longest:
            given = given_of(prompt, spec.image_id, patcher, images)
            found.append(Script(name=f"pages {at}", prompt=tuple(prompt), follow=(), given=given))
    return found


def _page(patcher: Patcher, down: int, across: int, *, seed: int) -> Patches:
    """A page of so many patches with words of digits on it."""
    colours = drawn_page(np.random.default_rng(seed), down * patcher.patch, across * patcher.patch)
    levels = np.round((colours.transpose(1, 2, 0) + 1) * 127.5).clip(0, 255).astype(np.uint8)
    return patches_of(levels, patcher)
