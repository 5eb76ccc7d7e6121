"""How many bytes rows are: what a batch holds of its inputs and outputs, beside the engine's own memory."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

import numpy as np

from alula.core.model import Part
from alula.core.profile import Profile
from alula.core.tensor import Array

ROW = "batch"


def row_bytes(part: Part, profile: Profile, axis: str) -> tuple[int, int]:
    """Of one row of a part's inputs and outputs the bytes whatever its length, and those for each unit of an axis.

    Other open axes count as the most that the profile has of them; one that it does not know counts once.
    """
    whole = each = 0
    for spec in (*part.inputs, *part.outputs):
        sizes = [
            dim if isinstance(dim, int) else profile.axes[dim].max if dim in profile.axes else 1
            for dim in spec.shape
            if dim not in {ROW, axis}
        ]
        size = np.dtype(spec.dtype).itemsize * prod(sizes)
        if axis in spec.shape:
            each += size
        else:
            whole += size
    return whole, each


def within_bytes(row: Iterable[Array], most: int) -> int:
    """How many rows of arrays like these have so many bytes together; one goes always."""
    return max(1, most // max(1, sum(array.nbytes for array in row)))
