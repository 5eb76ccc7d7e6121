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
    """One input or output of a graph, before any axis has a size.

    `range` is what its values lie in, both ends included, where that is known: of an input, what is drawn for it.
    """

    name: str
    dtype: str
    shape: tuple[Dim, ...]
    range: tuple[float, float] | None = None

    def __str__(self) -> str:
        """As users write it: "x=float32[batch,3,48,width]", with ":0:1" behind it if its range is known."""
        ends = "" if self.range is None else "".join(f":{_plain(end)}" for end in self.range)
        return f"{self.name}={self.dtype}[{','.join(map(str, self.shape))}]{ends}"

    def sized(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The shape with every named axis replaced by its size."""
        return tuple(sizes[dim] if isinstance(dim, str) else dim for dim in self.shape)


def _plain(number: float) -> str:
    return str(int(number)) if number.is_integer() else str(number)


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
        for at, (dim, size) in enumerate(zip(spec.shape, array.shape, strict=True)):
            expected = sizes.setdefault(dim, size) if isinstance(dim, str) else dim
            if size != expected:
                axis = repr(dim) if isinstance(dim, str) else at
                raise ShapeError(f"{spec.name}: axis {axis} is {size}, expected {expected}")
    return sizes
