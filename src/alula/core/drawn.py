"""Arrays that are drawn for an input, where there are no real ones."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from alula.core.tensor import Array, TensorSpec


def fill(rng: np.random.Generator, tensor: TensorSpec, sizes: Mapping[str, int]) -> Array:
    """One input of these sizes.

    Floats are normal, or even over the input's range. Integers are within the range, else 0 or 1, which index any
    table; those of eight bits without a range are whatever their type holds. Bools are either. What is called a mask
    has some ones and then noughts.
    """
    shape, dtype = tensor.sized(sizes), np.dtype(tensor.dtype)
    if shape and tensor.range is None and "mask" in tensor.name.lower() and dtype.kind in "biu":
        return _mask(rng, shape).astype(dtype)
    if dtype.kind == "b":
        return np.asarray(rng.integers(0, 2, size=shape), dtype)
    if dtype.kind == "f":
        if tensor.range is None:
            return np.asarray(rng.normal(size=shape), dtype)
        return np.asarray(rng.uniform(*tensor.range, size=shape), dtype)
    low, high = (0, 1) if dtype.itemsize > 1 else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    if tensor.range is not None:
        low, high = (int(end) for end in tensor.range)
    return np.asarray(rng.integers(low, high, size=shape, endpoint=True), dtype)


def _mask(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Some ones and then noughts along the last axis, never noughts alone: what is masked throughout is NaN in many."""
    longest = shape[-1]
    kept = rng.integers(1, max(longest - 1, 1), size=(*shape[:-1], 1), endpoint=True)
    return np.asarray(np.arange(longest) < kept)
