"""What a model of which nothing is known but its tensors is tried on: seeded arrays at the ends of its axes.

No size is drawn that nobody named: networks may take multiples of 32 alone, so all are the smallest, tuned and largest
of axes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from alula.core.drawn import fill
from alula.core.errors import InputError
from alula.core.model import ModelSpec
from alula.core.profile import Profile, Range
from alula.core.tensor import Feeds

ROWS = 3
"""Of a sample of several rows, where the profile has so many."""

WIDE = 1 << 21
"""Numbers in the sample of most rows."""

LARGEST = 1 << 28
"""Numbers in one call at most."""

BATCH = "batch"


def shares_rows(spec: ModelSpec) -> bool:
    """Whether all inputs have rows along the first axis, single numbers aside: one row is then a call of its own."""
    shapes = [tensor.shape for tensor in spec.parts[0].inputs]
    return any(shapes) and all(shape[:1] == (BATCH,) for shape in shapes if shape)


def sizes_of(spec: ModelSpec, profile: Profile) -> Iterator[tuple[str, dict[str, int]]]:
    """The sizes of each sample, by a name: all axes at one end, every other one at the other, and many rows."""
    axes = {axis: profile.axes[axis] for axis in spec.parts[0].axes}
    others = [axis for axis in axes if axis != BATCH]
    smallest, tuned, largest = (
        {axis: getattr(axes[axis], end) for axis in others} for end in ("min", "opt", "max")
    )
    if BATCH not in axes:
        yield "smallest", smallest
        yield from [("tuned", tuned), ("largest", largest)] if others else []
        yield from _crossed(axes, others)
        return
    few, some = axes[BATCH].min, _within(axes[BATCH], ROWS)
    for rows in sorted({few, some}):
        yield f"smallest, {rows} rows", {BATCH: rows, **smallest}
    if others:
        yield f"tuned, {some} rows", {BATCH: some, **tuned}
        yield f"largest, {few} rows", {BATCH: few, **largest}
    for name, sizes in _crossed(axes, others):
        yield f"{name}, {some} rows", {BATCH: some, **sizes}
    rows = _within(axes[BATCH], max(some, WIDE // max(count(spec, {BATCH: 1, **smallest}), 1)))
    if rows > some:
        yield f"widest, {rows} rows", {BATCH: rows, **smallest}


def draw_arrays(rng: np.random.Generator, spec: ModelSpec, profile: Profile) -> Iterator[tuple[str, Feeds]]:
    """Feeds of all those sizes, by their names, in every profile that an engine is tuned for."""
    wanted: dict[str, dict[str, int]] = {}
    for at, part in enumerate(profile.parts, start=1):
        for name, sizes in sizes_of(spec, part):
            if sizes not in wanted.values():
                wanted[name if len(profile.parts) == 1 else f"profile {at}, {name}"] = sizes
    for name, sizes in wanted.items():
        refuse_too_large(spec, sizes)
        yield name, {tensor.name: fill(rng, tensor, sizes) for tensor in spec.parts[0].inputs}


def refuse_too_large(spec: ModelSpec, sizes: Mapping[str, int]) -> None:
    """Refuse a call that nobody could run to compare with."""
    if (numbers := count(spec, sizes)) > LARGEST:
        shown = ", ".join(f"{axis} {size}" for axis, size in sizes.items())
        raise InputError(
            f"a call of {shown} has {numbers} numbers, more than the {LARGEST} that can be tried; "
            "give axes smaller ranges: --axis NAME=MIN:OPT:MAX"
        )


def count(spec: ModelSpec, sizes: Mapping[str, int]) -> int:
    """How many numbers a call of these sizes has."""
    return sum(math.prod(tensor.sized(sizes)) for tensor in spec.parts[0].inputs)


def _crossed(axes: Mapping[str, Range], others: Sequence[str]) -> Iterator[tuple[str, dict[str, int]]]:
    """Long one way and short the other, both ways: an engine that confuses two axes is right at equal sizes alone."""
    if len(others) < 2:
        return
    for name, odd in (("long and short", 0), ("short and long", 1)):
        yield (
            name,
            {axis: axes[axis].max if at % 2 == odd else axes[axis].min for at, axis in enumerate(others)},
        )


def _within(sizes: Range, wanted: int) -> int:
    return max(sizes.min, min(sizes.max, wanted))
