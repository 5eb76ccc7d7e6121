"""Names, element types and symbolic shapes of tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from alula.core.errors import ShapeError

Dim: TypeAlias = int | str
"""A fixed size, or the name of an axis. Axes of one name have one size per call."""

Array: TypeAlias = NDArray[np.generic]

Feeds: TypeAlias = Mapping[str, Array]
"""Arrays by tensor name: what a session takes, and what it gives back."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorSpec:
    """One input or output of a graph, before any axis has a size."""

    name: str
    dtype: str
    shape: tuple[Dim, ...]

    def sized(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The shape with every named axis replaced by its size."""
        return tuple(sizes[dim] if isinstance(dim, str) else dim for dim in self.shape)


def axis_sizes(specs: tuple[TensorSpec, ...], feeds: Feeds) -> dict[str, int]:
    """Read the size of every named axis off `feeds`, or say which input disagrees."""
    if missing := [spec.name for spec in specs if spec.name not in feeds]:
        raise ShapeError(f"missing inputs {missing}; given {sorted(feeds)}")
    if unknown := sorted(set(feeds) - {spec.name for spec in specs}):
        raise ShapeError(f"unknown inputs {unknown}; the engine takes {[s.name for s in specs]}")
    sizes: dict[str, int] = {}
    for spec in specs:
        array = feeds[spec.name]
        if array.dtype != np.dtype(spec.dtype):
            raise ShapeError(f"{spec.name}: dtype {array.dtype}, expected {spec.dtype}")
        if array.ndim != len(spec.shape):
            raise ShapeError(f"{spec.name}: rank {array.ndim}, expected {len(spec.shape)}: {spec.shape}")
        for dim, size in zip(spec.shape, array.shape, strict=True):
            expected = sizes.setdefault(dim, size) if isinstance(dim, str) else dim
            if size != expected:
                raise ShapeError(f"{spec.name}: axis {dim!r} is {size}, expected {expected}")
    return sizes
