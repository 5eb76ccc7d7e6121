"""Which shape a call runs at. Pure: nothing here touches a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from alula.core.profile import PAST, SOURCE, Profile, Range
from alula.core.tensor import TensorSpec

Key = tuple[int, ...]
"""The sizes of a call, in the order of the model's axes."""


def of_two(profile: Profile) -> Profile:
    """Steps of one token of a decoder that reads a source, as steps of one or two; everything else as it is.

    TensorRT 8.6.0 gets the decoder of a T5 wrong where it knows that there is just one query, in fp32 too (2 to 25 per
    cent off from the first layer on), and right where a step may have two. A LLaMA's is right as it is, with as
    many heads of keys and with fewer, and would take longer.
    """
    length = profile.axes.get("length")
    if length is None or length.max > 1 or not {PAST, SOURCE} <= set(profile.axes):
        return profile
    total = profile.axes["total"]
    wider = {"length": Range(1, 1, 2), "total": Range(total.min, total.opt, total.max + 1)}
    return Profile({**profile.axes, **wider})


@dataclass(frozen=True, slots=True)
class Stats:
    """How calls ran: by replaying a graph or launch by launch, and how many were padded to a shape with a graph."""

    replayed: int = 0
    launched: int = 0
    padded: int = 0
    captured: int = 0
    evicted: int = 0

    def __add__(self, other: Stats) -> Stats:
        return Stats(
            self.replayed + other.replayed,
            self.launched + other.launched,
            self.padded + other.padded,
            self.captured + other.captured,
            self.evicted + other.evicted,
        )


@dataclass(frozen=True, slots=True)
class Bucket:
    """A shape that was warmed up: its least milliseconds launch by launch, and replayed from its graph."""

    key: Key
    launched_ms: float
    replayed_ms: float


def padded(key: Key, buckets: Sequence[Bucket], may_grow: tuple[bool, ...]) -> Key:
    """The shape to run at: a bucket that holds this one, if that is surely faster; otherwise the shape itself.

    Surely, since nobody has timed this very shape: a smaller bucket, launched, takes no longer than this one would,
    and the larger one, replayed, is faster than that. The answer depends on the buckets alone, so that equal calls run
    equal kernels.
    """
    if any(bucket.key == key for bucket in buckets):
        return key
    holding = [bucket for bucket in buckets if _holds(bucket.key, key, may_grow)]
    if not holding:
        return key
    best = min(holding, key=lambda bucket: bucket.replayed_ms)
    below = [b.launched_ms for b in buckets if all(a <= c for a, c in zip(b.key, key, strict=True))]
    return best.key if best.replayed_ms < max(below, default=0.0) else key


def may_grow(inputs: tuple[TensorSpec, ...], axes: tuple[str, ...]) -> tuple[bool, ...]:
    """Which axes can be padded without changing answers: rows, and tokens where there is a mask for them."""
    masks = [spec for spec in inputs if spec.name == "attention_mask"]
    masked = {dim for spec in masks for dim in spec.shape[1:] if isinstance(dim, str)}
    rows = {spec.shape[0] for spec in inputs if spec.shape}
    return tuple(axis in masked or (axis == "batch" and rows == {"batch"}) for axis in axes)


def _holds(large: Key, small: Key, may_grow: tuple[bool, ...]) -> bool:
    pairs = zip(large, small, may_grow, strict=True)
    return large != small and all(a == b or (grows and a > b) for a, b, grows in pairs)
