"""What all calibrators share: one histogram per activation, padding left out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from alula.calibration.histogram import Histogram
from alula.core.errors import InputError

Span = tuple[float, float]
"""Least and largest value."""


class Observed(ABC):
    """Counts activations; how a range follows from the counts is each method's own."""

    def __init__(self) -> None:
        self._seen: dict[str, Histogram] = {}

    def add(self, name: str, values: NDArray[np.float32], kept: NDArray[np.bool_] | None) -> None:
        """Take one batch of one activation, of which only cells that are `kept` count."""
        self._seen.setdefault(name, Histogram(name)).add(kept_of(name, values, kept))

    def ranges(self) -> Mapping[str, Span]:
        """Least and largest value per activation; one that was never seen is refused by name."""
        if not self._seen:
            raise InputError(
                "nothing to calibrate from: no activation was seen; expected one example at least"
            )
        for name, seen in self._seen.items():
            if not seen.total:
                raise InputError(
                    f"{name}: no value was seen that is not padding; expected one token at least"
                )
        return {name: self.range_of(seen) for name, seen in self._seen.items()}

    @abstractmethod
    def range_of(self, seen: Histogram) -> Span:
        """The range of one activation."""


def kept_of(name: str, values: NDArray[np.float32], kept: NDArray[np.bool_] | None) -> NDArray[np.float32]:
    """The values that count; a mask of another shape is refused."""
    if kept is None:
        return values
    if values.shape[: kept.ndim] != kept.shape:
        raise InputError(f"{name}: shape {values.shape} does not begin with that of its mask, {kept.shape}")
    chosen: NDArray[np.float32] = values[kept]
    return chosen
