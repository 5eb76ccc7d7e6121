"""The sizes an engine is built for, keyed by axis rather than by tensor."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log, prod

from alula.core.errors import InputError, ShapeError
from alula.core.tensor import Feeds, TensorSpec, axis_sizes

PAST = "past"
"""The axis of what a decoder has seen before, which may be empty."""
SOURCE = "source"
"""The axis of what an encoder in front of it has read."""

GRID = ("down", "across")
"""The axes of an image that is read beside a prompt, in patches."""

DERIVED: Mapping[str, str] = {PAST: "total less length", "answers": "at most length"}
"""Axes of a decoder that follow from others, and how."""


@dataclass(frozen=True, slots=True)
class Range:
    """Smallest, tuned and largest size of one axis, which may be empty where `least` is 0."""

    min: int
    opt: int
    max: int
    least: int = 1

    def __post_init__(self) -> None:
        if not self.least <= self.min <= self.opt <= self.max:
            raise InputError(f"need {self.least} <= min <= opt <= max, got {self.min}:{self.opt}:{self.max}")

    def __str__(self) -> str:
        return f"{self.min}:{self.opt}:{self.max}"


@dataclass(frozen=True, slots=True)
class Profile:
    """One range per named axis; tensors that share an axis cannot disagree.

    With `tuned`, narrower ones of the same axes, sizes must lie in one of those too: what an engine with several
    profiles takes may have gaps. A plan fills it in.
    """

    axes: Mapping[str, Range]
    tuned: tuple[Profile, ...] = ()

    @property
    def parts(self) -> tuple[Profile, ...]:
        """The profiles it is made of, each without gaps: the tuned ones, or itself."""
        return self.tuned or (self,)

    @property
    def holds(self) -> int:
        """The most tokens that a decoder holds: all that it sees, or what fits into a past that is never empty."""
        past = self.axes[PAST]
        return past.max if past.min else self.axes["total"].max

    def of(self, axes: Collection[str]) -> Profile:
        """The same sizes, of these axes alone: those of one part of a model, which may be tuned for fewer."""
        kept = {axis: sizes for axis, sizes in self.axes.items() if axis in axes}
        found = [part.of(axes) for part in self.tuned]
        different = tuple(part for at, part in enumerate(found) if part not in found[:at])
        return Profile(kept, different if len(different) > 1 else ())

    def shapes(self, spec: TensorSpec) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """The (min, opt, max) shapes of one tensor."""
        low = spec.sized({axis: r.min for axis, r in self.axes.items()})
        opt = spec.sized({axis: r.opt for axis, r in self.axes.items()})
        high = spec.sized({axis: r.max for axis, r in self.axes.items()})
        return low, opt, high

    def takes(self, sizes: Mapping[str, int]) -> bool:
        """Whether the engine was built for these sizes."""
        if self.tuned:
            return any(part.takes(sizes) for part in self.tuned)
        return all(self.axes[axis].min <= size <= self.axes[axis].max for axis, size in sizes.items())

    def check(self, sizes: Mapping[str, int]) -> None:
        """Refuse sizes the engine was not built for, naming the axis and the range, or all profiles."""
        for axis, size in sizes.items():
            built = self.axes[axis]
            if not built.min <= size <= built.max:
                raise ShapeError(f"axis {axis!r} is {size}; built for {built.min}..{built.max}")
        if not self.takes(sizes):
            given = ", ".join(f"{axis} {size}" for axis, size in sizes.items())
            built_for = "; ".join(str(part) for part in self.tuned)
            raise ShapeError(f"{given}: in none of the profiles that the engine was built for: {built_for}")

    def padded(self, sizes: Mapping[str, int], keep: Collection[str] = ()) -> dict[str, int]:
        """The least sizes that are taken and none of which is below these, axes to `keep` as they are.

        Where there are none, these are refused as `check` refuses them.
        """
        fitting = [
            {axis: max(size, part.axes[axis].min) for axis, size in sizes.items()}
            for part in self.parts
            if all(size <= part.axes[axis].max for axis, size in sizes.items())
            and all(sizes[axis] >= part.axes[axis].min for axis in keep)
        ]
        if not fitting:
            self.check(sizes)
        return min(fitting, key=lambda padded: prod(padded.values()))

    def most(self, axis: str, sizes: Mapping[str, int]) -> int:
        """The largest size of one axis beside these sizes of others, which may be padded; 0 where none is taken."""
        fitting = [
            part for part in self.parts if all(size <= part.axes[other].max for other, size in sizes.items())
        ]
        return max((part.axes[axis].max for part in fitting), default=0)

    def largest(self, axes: Collection[str]) -> int:
        """The most that sizes of these axes, multiplied, are in one profile; 0 where it has not all of them."""
        if not set(axes) <= set(self.axes):
            return 0
        return max(prod(part.axes[axis].max for axis in axes) for part in self.parts)

    def __str__(self) -> str:
        return ", ".join(f"{axis} {sizes}" for axis, sizes in self.axes.items())


def hull(profiles: Sequence[Profile]) -> Profile:
    """The profile that spans all of these, which have the same axes; the first one's tuned sizes are its own."""
    first = profiles[0]
    return Profile(
        {
            axis: Range(
                min(profile.axes[axis].min for profile in profiles),
                sizes.opt,
                max(profile.axes[axis].max for profile in profiles),
                sizes.least,
            )
            for axis, sizes in first.axes.items()
        }
    )


def pick(profiles: Sequence[Profile], sizes: Mapping[str, int]) -> int:
    """The index of the tightest profile that takes these sizes; where several are as tight, the one tuned nearest.

    Tight is what has the least room at its largest, since engines reserve memory and choose kernels for that.
    """
    fitting = [at for at, profile in enumerate(profiles) if profile.takes(sizes)]
    if not fitting:
        spanning = profiles[0] if len(profiles) == 1 else replace(hull(profiles), tuned=tuple(profiles))
        spanning.check(sizes)
    return min(fitting, key=lambda at: (*_room(profiles[at], sizes), at))


def _room(profile: Profile, sizes: Mapping[str, int]) -> tuple[int, float]:
    """How much a profile takes at its largest, and how far from these sizes it is tuned."""
    ranges = [(profile.axes[axis], size) for axis, size in sizes.items()]
    # To twelve places: what is as far to one side as another is to the other must not be told apart by rounding.
    return prod(r.max for r, _ in ranges), round(
        sum(abs(log(r.opt / max(size, 1))) for r, size in ranges), 12
    )


def admit(inputs: tuple[TensorSpec, ...], profile: Profile, feeds: Feeds) -> dict[str, int]:
    """The axis sizes of `feeds`, once names, dtypes, ranks, equal axes and the profile all hold.

    Every session calls this first, so that all engines refuse the same feeds with the same words.
    """
    sizes = axis_sizes(inputs, feeds)
    profile.check(sizes)
    return sizes
