"""Counts of values in bins whose width doubles when a larger value comes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from alula.core.errors import InputError

Floats = NDArray[np.float32]
Counts = NDArray[np.int64]

HALF = 4096
"""Bins on each side of zero."""


def not_finite(name: str, values: Floats) -> InputError:
    """What is said of an activation that holds NaN or infinity."""
    wrong = values.size - int(np.isfinite(values).sum())
    return InputError(
        f"{name} is not finite in {wrong} of {values.size} values; "
        "expected finite activations, since one that is not has no range"
    )


@dataclass(slots=True)
class Histogram:
    """Counts, least and largest of all values of one activation.

    Bins are whole multiples of a power of two, so the result does not depend on how values were cut into batches,
    nor on their order.
    """

    name: str
    low: float = math.inf
    high: float = -math.inf
    exponent: int | None = None
    counts: Counts = field(default_factory=lambda: np.zeros(2 * HALF, np.int64))

    def add(self, values: Floats) -> None:
        """Count the values; one that is not a finite number is refused."""
        if not values.size:
            return
        low, high = float(values.min()), float(values.max())
        if not (math.isfinite(low) and math.isfinite(high)):
            raise not_finite(self.name, values)
        self.low, self.high = min(self.low, low), max(self.high, high)
        self._reach(max(-low, high))
        at = np.floor(np.ldexp(values.astype(np.float64).ravel(), -(self.exponent or 0))).astype(np.int64)
        self.counts += np.bincount(at + HALF, minlength=2 * HALF)

    @property
    def total(self) -> int:
        """How many values were counted."""
        return int(self.counts.sum())

    @property
    def width(self) -> float:
        """The width of every bin."""
        return math.ldexp(1.0, self.exponent or 0)

    @property
    def edges(self) -> NDArray[np.float64]:
        """Lower ends of all bins, and the upper end of the last."""
        return np.arange(-HALF, HALF + 1, dtype=np.float64) * np.float64(self.width)

    def _reach(self, magnitude: float) -> None:
        """Widen the bins until this magnitude falls into one."""
        if magnitude == 0.0:
            return
        needed = math.frexp(magnitude)[1] - HALF.bit_length() + 1
        if self.exponent is None:
            # Zeros that came before stay where they are: bin zero begins at zero for every width.
            self.exponent = needed
        while self.exponent < needed:
            pairs = self.counts.reshape(-1, 2).sum(axis=1)
            self.counts = np.zeros_like(self.counts)
            self.counts[HALF // 2 : HALF // 2 + HALF] = pairs
            self.exponent += 1
