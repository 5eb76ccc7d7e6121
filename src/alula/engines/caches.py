"""Where keys and values of a decoder lie from one call to the next: arrays here, memory of a GPU elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from alula.core.engine import Session
from alula.core.tensor import Array, Feeds, TensorSpec

Cache: TypeAlias = npt.NDArray[Any]
Past: TypeAlias = Any
"""What a `Caches` gave, opaque to whoever keeps it."""

_NEW = "length"
"""The axis of a `present` that has the new places alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """A row of a past, of which so many places at the right end count."""

    past: Past
    row: int
    length: int


class Caches(Protocol):
    """Rows of keys and values, and the calls that add to them."""

    def empty(self) -> Past:
        """One row that holds nothing."""
        ...

    def stacked(self, held: Sequence[Held], *, width: int, count: int) -> Past:
        """So many rows, so wide: copies of these at the right end, zeros before; rows behind repeat the first one."""
        ...

    def run(self, feeds: Feeds, past: Past, cross: Feeds) -> tuple[Array, Past]:
        """The logits of a call, and the past behind it; the one given may be gone."""
        ...


@runtime_checkable
class Keeping(Protocol):
    """A session that can keep caches with itself."""

    def caches(self) -> Caches | None:
        """Room for the caches of its graph; None where it has no way to keep them."""
        ...


class Arrays:
    """Caches as arrays of the host: what a session gives is what it takes next."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._past, self._new_alone = pasts(session.inputs), gives_new(session.outputs)
        self._names = {spec.name for spec in session.inputs}

    def empty(self) -> Past:
        """One row without places."""
        return {spec.name: np.empty(spec.sized({"batch": 1, "past": 0}), spec.dtype) for spec in self._past}

    def stacked(self, held: Sequence[Held], *, width: int, count: int) -> Past:
        """Copied on the host."""
        lengths = [each.length for each in held]
        return {
            spec.name: stacked(
                [each.past[spec.name][each.row] for each in held], lengths, (count, width), right=True
            )
            for spec in self._past
        }

    def run(self, feeds: Feeds, past: Past, cross: Feeds) -> tuple[Array, Past]:
        """Everything goes in and comes out."""
        taken = {**feeds, **past, **cross}
        given = self._session.run({name: taken[name] for name in self._names})
        kept = {spec.name: self._after(past[spec.name], given[present(spec.name)]) for spec in self._past}
        return given[said(self._session.outputs)], kept

    def _after(self, past: Cache, given: Cache) -> Cache:
        """The past behind a call; the oldest places are given up where the new ones alone come back."""
        if not self._new_alone:
            return given
        return np.concatenate([past, given], axis=2)[:, :, given.shape[2] :]


def caches_of(session: Session) -> Caches:
    """Those that a session keeps itself, or arrays."""
    kept = session.caches() if isinstance(session, Keeping) else None
    return kept if kept is not None else Arrays(session)


def pasts(inputs: Iterable[TensorSpec]) -> tuple[TensorSpec, ...]:
    """The inputs that are keys and values of tokens before."""
    return tuple(spec for spec in inputs if spec.name.startswith("past."))


def said(outputs: Iterable[TensorSpec]) -> str:
    """The output that is no cache: logits, or of some layers alone the states behind them."""
    return next(spec.name for spec in outputs if not spec.name.startswith("present."))


def present(name: str) -> str:
    """The output that a past goes on in."""
    return name.replace("past", "present", 1)


def stacked(held: Sequence[Cache], sizes: Sequence[int], shape: tuple[int, int], *, right: bool) -> Cache:
    """Arrays [head, place, feature] of so many places that count, at their right or left end, as one.

    The padding is zeros, whatever lay there before: hidden keys and values are multiplied by nothing, and nothing times
    NaN would still be NaN.
    """
    count, width = shape
    heads, _, features = held[0].shape
    whole = np.empty((count, heads, width, features), held[0].dtype)
    for row, array, size in zip(whole, held, sizes, strict=False):
        if right:
            row[:, : width - size] = 0
            row[:, width - size :] = array[:, array.shape[1] - size :]
        else:
            row[:, :size] = array[:, :size]
            row[:, size:] = 0
    whole[len(held) :] = whole[0]
    return whole


def grows(outputs: Iterable[TensorSpec]) -> bool:
    """Whether a past comes back wider by the new tokens; otherwise it stays as wide as it was."""
    return any(spec.shape[2] not in {"past", _NEW} for spec in _presents(outputs))


def gives_new(outputs: Iterable[TensorSpec]) -> bool:
    """Whether what comes back is of the new tokens alone."""
    return any(spec.shape[2] == _NEW for spec in _presents(outputs))


def _presents(outputs: Iterable[TensorSpec]) -> list[TensorSpec]:
    return [spec for spec in outputs if spec.name.startswith("present.")]
