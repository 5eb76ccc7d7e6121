"""Buckets of distances between two tokens, for each of which MPNet and T5 learn what attention adds."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


def bucket(
    distance: NDArray[np.int64], *, buckets: int, farthest: int, both_sides: bool = True
) -> NDArray[np.int64]:
    """The bucket of (key - query): one per short distance, then logarithmic up to the farthest.

    Keys to the right have the second half of the buckets; without `both_sides` they have the first, as distance 0.
    """
    sides = 2 if both_sides else 1
    half = buckets // sides
    exact = half // 2
    away = np.abs(distance) if both_sides else np.maximum(-distance, 0)
    far = np.maximum(away, 1).astype(np.float32)
    # In fp32 throughout, as transformers does it: rounding decides at the edges of a bucket.
    growth = (
        np.log(far / np.float32(exact)) / np.float32(math.log(farthest / exact)) * np.float32(half - exact)
    )
    logarithmic = np.minimum(exact + growth.astype(np.int64), half - 1)
    size: NDArray[np.int64] = np.where(away < exact, away, logarithmic)
    return size + half * (distance > 0).astype(np.int64) if both_sides else size
