"""Logits to scores."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from alula.core.errors import InputError, RunError
from alula.core.tensor import Feeds

Numbers: TypeAlias = NDArray[np.float64]


def finite(outputs: Feeds, name: str) -> Numbers:
    """`outputs[name]` in double precision; NaN and infinity are the engine's failure, never an answer."""
    array = np.asarray(outputs[name], dtype=np.float64)
    if not np.isfinite(array).all():
        kind = "NaN" if np.isnan(array).any() else "infinity"
        raise RunError(f"the model gave {kind} for {name!r}")
    return array


def softmax(logits: Numbers) -> Numbers:
    """Scores along the last axis that sum to one."""
    raised = np.exp(logits - logits.max(axis=-1, keepdims=True))
    result: Numbers = raised / raised.sum(axis=-1, keepdims=True)
    return result


def sigmoid(logits: Numbers) -> Numbers:
    """Scores between nought and one, each for itself."""
    result: Numbers = np.exp(-np.logaddexp(0.0, -logits))
    return result


def activate(logits: Numbers, activation: str) -> Numbers:
    """Scores along the last axis by the activation the model names.

    Softmax over one label would say 1 whatever the model thinks; transformers takes the sigmoid there, and so do we.
    """
    if activation == "none":
        return logits
    if activation == "sigmoid" or (activation == "softmax" and logits.shape[-1] == 1):
        return sigmoid(logits)
    if activation == "softmax":
        return softmax(logits)
    raise InputError(f"activation {activation!r} is not one of: softmax, sigmoid, none")
