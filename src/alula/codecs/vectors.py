"""Embeddings: the outputs of a batch as vectors."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from alula.codecs.scores import finite
from alula.core.errors import InputError
from alula.core.tensor import Feeds


def vectors(outputs: Feeds, *, normalize: bool = False, dimensions: int | None = None) -> NDArray[np.float32]:
    """One vector per row (or the one vector of one row), cut to `dimensions`, then brought to length one if asked."""
    array = finite(outputs, "embedding")
    if dimensions is not None:
        if not 1 <= dimensions <= array.shape[-1]:
            raise InputError(f"dimensions is {dimensions}; the model has 1..{array.shape[-1]}")
        array = array[..., :dimensions]
    if normalize:
        array = array / np.maximum(np.linalg.norm(array, axis=-1, keepdims=True), 1e-12)
    return array.astype(np.float32)
