"""What engines are compared on: seeded, ragged and masked.

Inputs of ones with nothing masked prove little: an engine that ignores its mask passes them. So rows differ in
length and content, padding stands on either side, and the smallest, the longest and the widest call are among them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from alula.core.errors import InputError
from alula.core.model import ModelSpec
from alula.core.profile import Profile, Range
from alula.core.tensor import Array, Feeds, TensorSpec, axis_sizes
from alula.core.words import TENSORS
from alula.verify.arrays import draw_arrays, refuse_too_large
from alula.verify.pages import drawn_page

CELLS = 1024
"""Padded tokens of one sample at most (a single row may be longer): the reference has to run them too."""

MOST_CELLS = 1 << 20
"""Padded tokens of a call that cannot be smaller, where a profile begins with many rows of many tokens."""

PIXELS = 1 << 20
"""Pixels of one sample of images at most (a single one may have more)."""

KNOWN = ("input_ids", "attention_mask", "token_type_ids")

Flags: TypeAlias = NDArray[np.bool_]
Ids: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One call to compare, and what it is about; `drawn` ones hold random ids or pixels, the others real ones.

    Of a model that nothing is known of but its tensors, no feed is a mask of `tokens`, whatever its name is. `given`
    ones are of the user's own data.
    """

    name: str
    feeds: Feeds
    drawn: bool = False
    tokens: bool = True
    given: bool = False

    @property
    def mask(self) -> Flags:
        """Which cells are tokens, [batch, length]; one cell a row where the inputs are no tokens."""
        if self.tokens and "attention_mask" in self.feeds:
            return self.feeds["attention_mask"].astype(np.bool_)
        first = np.atleast_1d(next(iter(self.feeds.values())))
        return np.ones((len(first), 1), dtype=np.bool_)

    def sizes(self, spec: ModelSpec) -> dict[str, int]:
        """The sizes of its axes."""
        return axis_sizes(spec.parts[0].inputs, self.feeds)


def draw(spec: ModelSpec, profile: Profile, seed: int = 0) -> tuple[Sample, ...]:
    """Samples within a profile and a vocabulary: smallest, longest, ragged (both sides padded) and widest.

    Of an engine with several profiles so many in each of them, since each has kernels of its own.
    """
    rng = np.random.default_rng(seed)
    if spec.task == TENSORS:
        drawn = draw_arrays(rng, spec, profile)
        return tuple(Sample(name=name, feeds=feeds, drawn=True, tokens=False) for name, feeds in drawn)
    drawn_of = _drawn_texts if spec.reads_text else _drawn_images
    samples = [list(drawn_of(rng, spec, part)) for part in profile.parts]
    if len(samples) == 1:
        return tuple(samples[0])
    return tuple(
        replace(sample, name=f"profile {at}, {sample.name}")
        for at, of_part in enumerate(samples, start=1)
        for sample in of_part
    )


def alone(sample: Sample, row: int, spec: ModelSpec, profile: Profile, padding: int = 0) -> Sample:
    """One row of a right-padded sample by itself: its own tokens, then `padding` cells.

    Where the profile starts above one row or above its length, the row is repeated or padded as far as needed.
    """
    if not spec.reads_text:
        return _image_alone(sample, row, spec, profile)
    size = int(sample.mask[row].sum())
    sizes = profile.padded({"batch": 1, "length": size + padding})
    feeds = {}
    for tensor in spec.parts[0].inputs:
        tokens = sample.feeds[tensor.name][row, :size]
        filler = spec.pad_id if tensor.name == "input_ids" else 0
        padded = np.full(sizes["length"], filler, dtype=tokens.dtype)
        padded[:size] = tokens
        feeds[tensor.name] = np.tile(padded, (sizes["batch"], 1))
    return Sample(name=f"{sample.name}, row {row} alone", feeds=feeds)


def is_right_padded(sample: Sample) -> bool:
    """Whether every row is tokens first, padding after."""
    mask = sample.mask
    return bool((mask[:, :-1] >= mask[:, 1:]).all() and mask[:, 0].all())


def _shapes(batch: Range, length: Range) -> Iterator[tuple[str, int, int, bool]]:
    yield "smallest", batch.min, length.min, False
    yield "longest", batch.min, length.max, False
    columns = _within(length, min(length.opt, CELLS // max(batch.min, 2)))
    yield "ragged, padded right", _within(batch, min(8, CELLS // columns)), columns, False
    columns = _within(length, min(64, length.opt))
    yield "ragged, padded left", _within(batch, 4), columns, True
    # A profile may allow more rows than anybody can hold; this many short ones are wide enough.
    rows = _within(batch, CELLS // max(length.min, 2))
    yield "widest", rows, _within(length, CELLS // rows), False


def _drawn_texts(rng: np.random.Generator, spec: ModelSpec, profile: Profile) -> Iterator[Sample]:
    for name, rows, columns, left in _shapes(profile.axes["batch"], profile.axes["length"]):
        if rows * columns > MOST_CELLS:
            raise InputError(
                f"a call of batch {rows}, length {columns} has {rows * columns} tokens, more than the {MOST_CELLS} "
                "that can be tried; let the batch begin with fewer rows: --batch 1:OPT:MAX"
            )
        mask = _ragged(rng, rows, columns, left=left)
        ids = _ids(rng, spec, mask)
        feeds = {tensor.name: _fill(tensor, ids, mask, rng) for tensor in spec.parts[0].inputs}
        yield Sample(name=name, feeds=feeds, drawn=True)


def _drawn_images(rng: np.random.Generator, spec: ModelSpec, profile: Profile) -> Iterator[Sample]:
    """Every size of the other axes that `_image_sizes` names, at few rows and at several."""
    batch = profile.axes["batch"]
    for name, sizes in _image_sizes({axis: profile.axes[axis] for axis in spec.part("encoder").axes}):
        pixels = max(prod(tensor.sized({**sizes, "batch": 1})[2:]) for tensor in spec.parts[0].inputs)
        for rows in sorted({batch.min, _within(batch, min(3, max(1, PIXELS // pixels)))}):
            refuse_too_large(spec, {"batch": rows, **sizes})
            feeds = {
                tensor.name: _pixels(rng, spec, tensor.sized({**sizes, "batch": rows})).astype(tensor.dtype)
                for tensor in spec.parts[0].inputs
            }
            yield Sample(name=f"{name}, {rows} rows", feeds=feeds, drawn=True)


def _pixels(rng: np.random.Generator, spec: ModelSpec, shape: tuple[int, ...]) -> NDArray[np.floating]:
    """Noise, or pages for a model that looks for text: of noise it says nothing, to the last digit."""
    if spec.task == "text-detection":
        return np.stack([drawn_page(rng, *shape[2:]) for _ in range(shape[0])])
    return rng.normal(size=shape)


def _image_sizes(axes: Mapping[str, Range]) -> Iterator[tuple[str, dict[str, int]]]:
    """All axes but the rows smallest, tuned and largest; of several, each largest beside the smallest others too.

    A graph that takes a height for a width gives the right answers for squares.
    """
    others = {axis: sizes for axis, sizes in axes.items() if axis != "batch"}
    smallest = {axis: sizes.min for axis, sizes in others.items()}
    yield "smallest", smallest
    if not others:
        return
    yield "tuned", {axis: sizes.opt for axis, sizes in others.items()}
    yield "largest", {axis: sizes.max for axis, sizes in others.items()}
    if len(others) > 1:
        for axis, sizes in others.items():
            yield f"largest {axis}", {**smallest, axis: sizes.max}


def _image_alone(sample: Sample, row: int, spec: ModelSpec, profile: Profile) -> Sample:
    sizes = {**sample.sizes(spec), "batch": 1}
    rows = profile.padded(sizes, keep=sizes.keys() - {"batch"})["batch"]
    feeds = {
        name: np.repeat(array[row : row + 1], rows, axis=0) if array.ndim else array
        for name, array in sample.feeds.items()
    }
    return Sample(name=f"{sample.name}, row {row} alone", feeds=feeds, tokens=sample.tokens)


def _within(sizes: Range, wanted: int) -> int:
    return max(sizes.min, min(sizes.max, wanted))


def _ragged(rng: np.random.Generator, rows: int, columns: int, *, left: bool) -> Flags:
    """A mask whose first row is full and whose others are from two tokens up."""
    sizes = rng.integers(min(2, columns), columns, size=rows, endpoint=True)
    sizes[0] = columns
    if rows > 1:
        sizes[-1] = min(2, columns)
    mask: Flags = np.arange(columns)[None, :] < sizes[:, None]
    return mask[:, ::-1] if left else mask


def _ids(rng: np.random.Generator, spec: ModelSpec, mask: Flags) -> Ids:
    """Any id but the padding's, which some families count positions by."""
    ids = rng.integers(0, spec.vocab_size - 1, size=mask.shape)
    ids += ids >= spec.pad_id
    return np.where(mask, ids, spec.pad_id)


def _fill(tensor: TensorSpec, ids: Ids, mask: Flags, rng: np.random.Generator) -> Array:
    if tensor.name == "input_ids":
        return ids.astype(tensor.dtype)
    if tensor.name == "attention_mask":
        return mask.astype(tensor.dtype)
    if tensor.name != "token_type_ids":
        raise InputError(f"no samples for input {tensor.name!r}; known: {KNOWN}")
    # Segments: a first and a second text of any length in every row, as pairs have.
    starts = rng.integers(1, mask.shape[1], size=(len(mask), 1), endpoint=True)
    return ((np.arange(mask.shape[1]) >= starts) & mask).astype(tensor.dtype)
