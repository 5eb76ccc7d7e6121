"""The range whose 256 steps lose least of a distribution, by Kullback and Leibler."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from alula.calibration.histogram import HALF, Histogram
from alula.calibration.observed import Observed, Span

LEVELS = 256
CANDIDATES = 96
"""Ends that are tried on each side."""

_LEAST = 1e-9

Shares = NDArray[np.float64]


class Entropy(Observed):
    """Ends are moved inwards one after the other, to where the rounded distribution is nearest to the real one."""

    method = "entropy"

    def range_of(self, seen: Histogram) -> Span:
        """The upper end with the lower one as it is, then the lower end."""
        used = np.flatnonzero(seen.counts)
        first, last = min(int(used[0]), HALF), max(int(used[-1]), HALF) + 1
        high = min(_inwards(HALF, last), key=lambda end: _loss(seen.counts, first, end))
        low = min(_inwards(HALF, first), key=lambda start: _loss(seen.counts, start, high))
        edges = seen.edges
        return max(seen.low, float(edges[low])), min(seen.high, float(edges[high]))


def _inwards(zero: int, end: int) -> list[int]:
    """Bins from the outer end towards zero, as a share of what lies between; the outermost wins a draw."""
    shares = np.linspace(1.0, 0.05, CANDIDATES)
    return list(dict.fromkeys(zero + round((end - zero) * share) for share in shares))


def _loss(counts: NDArray[np.int64], start: int, end: int) -> float:
    """How far the distribution within these bins, rounded to steps, is from that with the rest at its ends."""
    inside = counts[start:end].astype(np.float64)
    if end - start < 2 or not inside.any():
        return float("inf")
    real = inside.copy()
    real[0] += counts[:start].sum()
    real[-1] += counts[end:].sum()
    level = np.minimum(np.arange(end - start) * LEVELS // (end - start), LEVELS - 1)
    filled = inside > 0
    sums = np.bincount(level, weights=inside, minlength=LEVELS)
    holders = np.bincount(level, weights=filled, minlength=LEVELS)
    spread = np.where(filled, (sums / np.maximum(holders, 1))[level], 0.0)
    return _divergence(real / real.sum(), spread / spread.sum())


def _divergence(real: Shares, rounded: Shares) -> float:
    some = real > 0
    return float((real[some] * np.log(real[some] / np.maximum(rounded[some], _LEAST))).sum())
