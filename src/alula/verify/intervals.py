"""What a sample says about the rest: intervals at 95 %, seeded where they are drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from alula.verify.metrics import Floats

Z = 1.959964
"""Two-sided 95 % of a normal distribution."""

DRAWS = 1000

Rows: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Interval:
    """Where the value lies, at 95 %."""

    low: float
    high: float

    def hull(self, other: Interval) -> Interval:
        """The smallest interval that holds both."""
        return Interval(min(self.low, other.low), max(self.high, other.high))


def wilson(share: float, samples: int) -> Interval:
    """Of a share among independent samples; right for few of them, and for a share of nought."""
    square = Z * Z / samples
    middle = share + square / 2
    half = Z * float(np.sqrt(share * (1 - share) / samples + square / (4 * samples)))
    low, high = (middle - half) / (1 + square), (middle + half) / (1 + square)
    return Interval(max(0.0, min(low, share)), min(1.0, max(high, share)))


def paired_difference(lost: int, won: int, samples: int) -> Interval:
    """Of the share lost less the share won between two runs over the same rows.

    Wald's interval after half a row is added to each cell (Agresti and Min), so that rows without any change still
    say how little they rule out.
    """
    total = samples + 2
    b, c = lost + 0.5, won + 0.5
    middle = (b - c) / total
    half = Z * float(np.sqrt(b + c - (b - c) ** 2 / total)) / total
    point = (lost - won) / samples
    return Interval(max(-1.0, min(middle - half, point)), min(1.0, max(middle + half, point)))


def bootstrap(statistic: Callable[[Rows], float], samples: int, seed: int = 0) -> Interval | None:
    """Of a statistic over rows drawn again with replacement; none from fewer than two rows.

    Draws that leave the statistic undefined (NaN) do not count.
    """
    if samples < 2:
        return None
    rng = np.random.default_rng(seed)
    drawn = np.array([statistic(rng.integers(0, samples, size=samples)) for _ in range(DRAWS)])
    defined = drawn[np.isfinite(drawn)]
    if not len(defined):
        return None
    low, high = np.quantile(defined, [0.025, 0.975])
    return Interval(float(low), float(high))


def of_mean(values: Floats) -> Interval | None:
    """Of the mean of values, by bootstrap."""
    return bootstrap(lambda rows: float(values[rows].mean()), len(values))
