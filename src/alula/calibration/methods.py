"""Ranges from statistics: everything, or all but the tails."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from alula.calibration.entropy import Entropy
from alula.calibration.histogram import Histogram
from alula.calibration.observed import Observed, Span
from alula.core.words import choice

SHARE = 99.99
"""Per cent of the values that a percentile range holds, the rest cut from both tails alike."""


class Calibrator(Protocol):
    """Takes activations batch by batch, and gives a range for each."""

    method: str

    def add(self, name: str, values: NDArray[np.float32], kept: NDArray[np.bool_] | None) -> None:
        """Take one batch of one activation, of which only cells that are `kept` count."""
        ...

    def ranges(self) -> Mapping[str, Span]:
        """Least and largest value per activation; one that was never seen is refused by name."""
        ...


class MinMax(Observed):
    """From the least to the largest value."""

    method = "min-max"

    def range_of(self, seen: Histogram) -> Span:
        """The exact ends."""
        return seen.low, seen.high


class Percentile(Observed):
    """All values but the outermost."""

    def __init__(self, share: float = SHARE) -> None:
        super().__init__()
        self.share = share
        self.method = f"percentile {share:g}"

    def range_of(self, seen: Histogram) -> Span:
        """Bin edges that leave half of the rest on either side, within what was really seen."""
        cut = seen.total * (100.0 - self.share) / 200.0
        below = np.cumsum(seen.counts)
        first = int(np.searchsorted(below, cut, side="right"))
        last = int(np.searchsorted(below, seen.total - cut, side="left"))
        edges = seen.edges
        return max(seen.low, float(edges[first])), min(seen.high, float(edges[last + 1]))


_MADE: Mapping[str, Callable[[], Calibrator]] = {
    "min-max": MinMax,
    "percentile": Percentile,
    "entropy": Entropy,
}

METHODS = tuple(_MADE)


def calibrator(method: str) -> Calibrator:
    """A fresh calibrator of that name."""
    return _MADE[choice("calibration method", method, METHODS)]()
