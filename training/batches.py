"""Batches of pages: which pages, as what numbers, and their drawing in worker processes ahead of the training."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from alula.codecs.places import places_of
from training.fonts import Fonts
from training.layouts import SHARES
from training.render import LARGE, MEDIUM, SMALL, Page, Shape, drawn, render, stretched
from training.sights import CELL, sights_of
from training.tokenizer import ASSISTANT, BEGIN, IMAGE, IMAGE_BEGIN, IMAGE_END, PAD, SYSTEM, USER, build

SLOTS = 8
"""So many places of a cell have their characters named by what trains the vision part beside the answers."""
_SLOT_DOWN, _SLOT_ACROSS = 16, 8
_WITHOUT_SYSTEM = 0.15
_MULTIPLE = 32
_AHEAD = 4


class Batch(NamedTuple):
    """Pages of one shape and what is to be learned of them; everything that is counted from a page is padded.

    `levels` [pages, height, width] as they are drawn, `turn` [pages] the degrees by which they are still to be turned,
    `sides` the height and width that they are to have; `paper` and `ink` [pages, 3]; `ids` [pages, length], `places`
    [axes, pages, length]; `at` are the tokens, in `ids` laid flat, after which `wanted` comes; `cells`, `slots` and
    `spelled` say which character is where in the cells of all pages laid flat. `first` [pages] is the token of a page's
    first square; `looking` are the tokens, in `ids` laid flat, behind which a character comes that is in square `where`
    of its page, counted with those that end a row.
    """

    levels: Tensor
    turn: Tensor
    sides: Tensor
    paper: Tensor
    ink: Tensor
    ids: Tensor
    places: Tensor
    at: Tensor
    wanted: Tensor
    cells: Tensor
    slots: Tensor
    spelled: Tensor
    first: Tensor
    looking: Tensor
    where: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """From which share of the training on, which shapes are how likely, and which tasks."""

    after: float
    shapes: tuple[float, float, float]
    shares: Mapping[str, float]


STAGES: Sequence[Stage] = (
    Stage(after=0, shapes=(1, 0, 0), shares={"text": 0.85, "spotting": 0.15}),
    Stage(after=0.08, shapes=(0.5, 0.5, 0), shares={"text": 0.6, "spotting": 0.2, "fields": 0.2}),
    Stage(after=0.14, shapes=(0.15, 0.3, 0.55), shares=SHARES),
    Stage(after=0.6, shapes=(0.05, 0.1, 0.85), shares=SHARES),
)
"""Short lines first: what is learned there in minutes is what longer pages are made of."""
SHAPES = (SMALL, MEDIUM, LARGE)
BUDGETS = (60, 150, 330)


def stage_at(progress: float) -> Stage:
    """The last stage that has begun."""
    return [stage for stage in STAGES if stage.after <= progress][-1]


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What batches are drawn from; `rows` is the most pages of one, `patches` the most patches."""

    seed: int
    fonts: Path
    patches: int
    rows: int
    pages: int | None = None
    """Only so many pages, over and over: for a run that shows that learning works at all."""

    def batch(self, number: int, progress: float) -> Batch:
        """Batch `number` at a time of the training; the same for the same arguments."""
        rng = random.Random(f"{self.seed}:batch:{number}")
        if self.pages is not None:
            count = min(self.rows, self.pages)
            pages = self.by_heart([(number * count + each) % self.pages for each in range(count)])
        else:
            stage = stage_at(progress)
            kind = rng.choices(range(len(SHAPES)), stage.shapes)[0]
            shape = rng.choice(SHAPES[kind])
            count = min(self.rows, max(1, self.patches // (shape[0] * shape[1] // 256)))
            numbers = [number * self.rows + each for each in range(count)]
            size = stretched(rng, shape)
            pages = [
                drawn(
                    each,
                    seed=self.seed,
                    fonts=_fonts(self.fonts),
                    shape=shape,
                    size=size,
                    shares=stage.shares,
                    budget=BUDGETS[kind],
                )
                for each in numbers
            ]
        return joined(pages, [rng.random() < _WITHOUT_SYSTEM for _ in pages])

    def by_heart(self, numbers: Sequence[int]) -> list[Page]:
        """Small pages, as the first stage has them, with their wear."""
        shares, fonts = STAGES[0].shares, _fonts(self.fonts)
        return [
            render(number, seed=self.seed, fonts=fonts, shape=SMALL[0], shares=shares, budget=BUDGETS[0])
            for number in numbers
        ]


@cache
def _fonts(folder: Path) -> Fonts:
    return Fonts.open(folder, held=False)


@cache
def _tokenizer() -> Any:
    return build()


def prompt_ids(prompt: str, shape: Shape, *, system: bool = True) -> list[int]:
    """What the model is given before its answer: an empty system message or none, the page, the prompt."""
    tokenizer = _tokenizer()
    begin, empty, first, image, last, user = map(
        tokenizer.token_to_id, (BEGIN, SYSTEM, IMAGE_BEGIN, IMAGE, IMAGE_END, USER)
    )
    across, down = shape[0] // CELL, shape[1] // CELL
    asked = tokenizer.encode(prompt).ids
    return [begin, *[empty] * system, first, *[image] * (down * (across + 1) + 2), last, *asked, user]


def joined(pages: Sequence[Page], bare: Sequence[bool]) -> Batch:
    """Pages of one shape as a batch; those that are `bare` come without a system message."""
    tokenizer = _tokenizer()
    width, height = shape = pages[0].shape
    end, pad, image = map(tokenizer.token_to_id, (ASSISTANT, PAD, IMAGE))
    prompts = [
        prompt_ids(page.prompt, shape, system=not each) for page, each in zip(pages, bare, strict=True)
    ]
    answers = [[*tokenizer.encode(page.answer).ids, end] for page in pages]
    longest = max(len(p) + len(a) for p, a in zip(prompts, answers, strict=True))
    length = -(-longest // _MULTIPLE) * _MULTIPLE
    ids = np.full((len(pages), length), pad, np.int32)
    places = np.zeros((4, len(pages), length), np.int16)
    placed = {
        each: _places(prompt_ids("", shape, system=not each), length, image, shape) for each in set(bare)
    }
    at: list[NDArrayInt] = []
    sights: list[tuple[int, int]] = []
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        both = [*prompt, *answer]
        ids[row, : len(both)] = both
        places[:, row, : len(both)] = placed[bare[row]][:, : len(both)]
        at.append(np.arange(len(prompt) - 1, len(both) - 1) + row * length)
        before = row * length + len(prompt) - 1
        sights += [(before + token, square) for token, square in sights_of(pages[row])]
    cells = cells_of(pages, pad)
    return Batch(
        levels=torch.from_numpy(np.stack([page.levels for page in pages])),
        turn=torch.tensor([page.turn for page in pages], dtype=torch.float32),
        sides=torch.tensor([height, width], dtype=torch.int32),
        paper=torch.tensor([page.paper for page in pages], dtype=torch.uint8),
        ink=torch.tensor([page.ink for page in pages], dtype=torch.uint8),
        ids=torch.from_numpy(ids),
        places=torch.from_numpy(places),
        at=torch.from_numpy(np.concatenate(at).astype(np.int32)),
        wanted=torch.tensor([each for answer in answers for each in answer], dtype=torch.int32),
        cells=torch.from_numpy(cells[:, 0].astype(np.int32)),
        slots=torch.from_numpy(cells[:, 1].astype(np.int32)),
        spelled=torch.from_numpy(cells[:, 2].astype(np.int32)),
        first=torch.tensor([prompt.index(image) + 1 for prompt in prompts], dtype=torch.int32),
        looking=torch.tensor([token for token, _ in sights], dtype=torch.int32),
        where=torch.tensor([square for _, square in sights], dtype=torch.int32),
    )


def _places(prompt: Sequence[int], length: int, image: int, shape: Shape) -> NDArrayInt:
    """Places of what begins like a prompt, [axes, length]: behind its image all tokens count alike."""
    more = [*prompt, *[-1] * length][:length]
    return places_of(more, image, [(shape[1] // CELL, shape[0] // CELL)])


NDArrayInt: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Reals: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]


@cache
def _token_of(character: str) -> int:
    """The token of a character that is one; -1 for blanks and others."""
    if character == " ":
        return -1
    ids = _tokenizer().encode(character).ids
    return int(ids[0]) if len(ids) == 1 else -1


def cells_of(pages: Sequence[Page], blank: int) -> NDArrayInt:
    """What is where in every cell: rows of cell, slot and token; slots are 2 rows of 4, 16 pixels down and 8 across.

    Cells of all pages, which are of one shape, are counted on. A slot has the character that its middle lies in. Of
    those without one, which are most, every fifth is `blank`.
    """
    width, height = pages[0].shape
    grid = np.full((len(pages), height // _SLOT_DOWN, width // _SLOT_ACROSS), blank, np.int64)
    lines = [(row, line) for row, page in enumerate(pages) for line in page.lines]
    counts = [len(line.text) for _, line in lines]
    rows = np.repeat(np.array([row for row, _ in lines], np.int64), counts)
    tall = np.repeat(np.array([line.tall for _, line in lines], np.float64), counts)
    tokens = np.array([_token_of(character) for _, line in lines for character in line.text], np.int64)
    half = np.array([each for _, line in lines for each in line.halves])
    x, y = np.array([each for _, line in lines for each in line.middles]).reshape(-1, 2).T
    shown = (tokens >= 0) & (x >= 0) & (x < width) & (y >= 0) & (y < height)
    rows, tokens = rows[shown], tokens[shown]
    which, down, across = _slots(
        *_within(y[shown], tall[shown], _SLOT_DOWN), *_within(x[shown], half[shown], _SLOT_ACROSS)
    )
    inside = (down < grid.shape[1]) & (across < grid.shape[2])
    which, down, across = which[inside], down[inside], across[inside]
    grid[rows[which], down, across] = tokens[which]
    numbers = np.array([page.number % 5 for page in pages])[:, None]
    every = np.arange(grid[0].size) % 5 == numbers
    row, down, across = np.nonzero((grid != blank) | every.reshape(grid.shape))
    cell = (row * (height // CELL) + down // 2) * (width // CELL) + across // 4
    return np.stack((cell, down % 2 * 4 + across % 4, grid[row, down, across]), axis=1)


def _within(middle: Reals, half: Reals, step: int) -> tuple[NDArrayInt, NDArrayInt]:
    """First of the steps whose middles lie within `half` of a place, and how many; at least the one that it is in."""
    first, last = (
        np.maximum(0, np.ceil((middle + side) / step - 0.5)).astype(np.int64) for side in (-half, half)
    )
    none = first >= last
    return np.where(none, middle // step, first).astype(np.int64), np.where(none, 1, last - first)


def _slots(
    top: NDArrayInt, tall: NDArrayInt, left: NDArrayInt, wide: NDArrayInt
) -> tuple[NDArrayInt, NDArrayInt, NDArrayInt]:
    """All slots of rectangles of slots, rectangle by rectangle: which one it is of, its row and its column."""
    sizes = tall * wide
    which = np.repeat(np.arange(len(sizes)), sizes)
    at = np.arange(len(which)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return which, top[which] + at // wide[which], left[which] + at % wide[which]


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """Which batches: from which number on, and of how many steps in all where the schedule is over steps."""

    first: int
    steps: int | None


class _Pages(Dataset[Batch]):
    """Batches by number; how far the training is, they are told while it runs."""

    def __init__(self, plan: Plan, progress: Any) -> None:
        self._plan, self._progress = plan, progress

    def __getitem__(self, given: tuple[int, float | None]) -> Batch:
        number, progress = given
        return self._plan.batch(number, self._progress.value if progress is None else progress)


class _Numbers(Sampler[tuple[int, float | None]]):
    """Batch numbers from one on without an end, each with its share of the training where that is known."""

    def __init__(self, span: Span) -> None:
        self._first, self._steps = span.first, span.steps

    def __iter__(self) -> Iterator[tuple[int, float | None]]:
        number = self._first
        while self._steps is None or number < self._steps:
            yield number, None if self._steps is None else number / self._steps
            number += 1


def drawn_ahead(plan: Plan, span: Span, progress: Any, *, workers: int, pin: bool) -> Iterator[Batch]:
    """Batches in order, some of them waiting for each of the worker processes.

    With `span.steps` they are the same ones in every run; without, each follows `progress.value` at the time.
    """
    loader: DataLoader[Batch] = DataLoader(
        _Pages(plan, progress),
        batch_size=None,
        sampler=_Numbers(span),
        num_workers=workers,
        prefetch_factor=_AHEAD if workers else None,
        pin_memory=pin,
    )
    return iter(loader)
