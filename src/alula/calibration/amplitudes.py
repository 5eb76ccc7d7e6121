"""How large each channel of an activation gets."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from alula.calibration.histogram import not_finite
from alula.calibration.observed import kept_of

Sizes = NDArray[np.float32]


_LAST: Mapping[str, int] = MappingProxyType({})


class Amplitudes:
    """The largest magnitude per channel, the last axis unless `axes` names another; padding left out."""

    def __init__(self, axes: Mapping[str, int] = _LAST) -> None:
        self._axes = axes
        self._seen: dict[str, Sizes] = {}

    def add(self, name: str, values: Sizes, kept: NDArray[np.bool_] | None) -> None:
        """Take one batch of one activation, of which only cells that are `kept` count."""
        values = np.moveaxis(values, self._axes.get(name, -1), -1)
        rows = kept_of(name, values, kept).reshape(-1, values.shape[-1])
        sizes = np.abs(rows).max(axis=0, initial=0.0)
        if not np.isfinite(sizes).all():
            raise not_finite(name, rows)
        known = self._seen.get(name)
        self._seen[name] = sizes if known is None else np.maximum(known, sizes)

    def sizes(self) -> Mapping[str, Sizes]:
        """The largest magnitude of each channel of each activation."""
        return dict(self._seen)
