"""Rotary positions: how fast each pair of numbers of a head turns, and tables of its cosines and sines."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from alula.core.errors import ManifestError
from alula.core.parse import get
from alula.families.weights import Floats

_IGNORED = {"rope_type", "type", "rope_theta"}


def frequencies(config: Mapping[str, Any], head_size: int, positions: int) -> Floats:
    """The angle that each pair of numbers of a head turns by at every position.

    In the steps of transformers, each rounded to fp32 as it does: at position 8000 one bit here would already show.
    """
    rope = _parameters(config)
    theta = get(rope, float, "rope_theta")
    if theta <= 0:
        raise ManifestError(f"is {theta}, expected more than 0", "rope_theta")
    kind = rope["rope_type"]
    if kind == "dynamic" and rope.get("alpha"):
        # A fixed stretch of theta, that Hunyuan's checkpoints call by this name.
        theta *= get(rope, float, "alpha") ** (head_size / (head_size - 2))
        kind = "default"
    elif kind not in _SCALED:
        raise ManifestError(f"is {kind!r}, expected one of {', '.join(_SCALED)}", "rope_type")
    if rope.get("partial_rotary_factor") not in (None, 1, 1.0):
        raise ManifestError(f"is {rope['partial_rotary_factor']}, expected 1", "partial_rotary_factor")
    if rope.get("mrope_section") is not None:
        raise ManifestError(
            "is given, and no graph is written for positions of several axes", "mrope_section"
        )
    even = np.arange(0, head_size, 2, dtype=np.float32) / np.float32(head_size)
    # numpy's own power in fp32 is off by a bit in one of six.
    power = np.float64(np.float32(theta)) ** even.astype(np.float64)
    return _SCALED[kind](np.float32(1) / power.astype(np.float32), rope, positions)


def cosines(angles: Floats, positions: int) -> Floats:
    """The cosine for each position and pair."""
    return np.cos(_turned(angles, positions))


def sines(angles: Floats, positions: int) -> Floats:
    """The sine for each position and pair."""
    return np.sin(_turned(angles, positions))


def _turned(angles: Floats, positions: int) -> Floats:
    return np.arange(positions, dtype=np.float32)[:, None] * angles


def _parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """One object, whichever of the two ways of writing it config.json has."""
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(given, dict):
        raise ManifestError(f"is {type(given).__name__}, expected an object", "rope_parameters")
    rope = {key: value for key, value in given.items() if value is not None}
    rope.setdefault("rope_type", rope.get("type", "default"))
    for key, default in (("rope_theta", 10000.0), ("partial_rotary_factor", None)):
        value = config.get(key)
        rope.setdefault(key, default if value is None else value)
    return rope


def _default(angles: Floats, rope: Mapping[str, Any], positions: int) -> Floats:
    del rope, positions
    return angles


def _linear(angles: Floats, rope: Mapping[str, Any], positions: int) -> Floats:
    del positions
    return angles / np.float32(_factor(rope, "factor"))


def _llama3(angles: Floats, rope: Mapping[str, Any], positions: int) -> Floats:
    """Slow pairs turn slower by `factor`, fast ones as they did, those between them in between."""
    factor, low, high = (_factor(rope, key) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    if low == high:
        raise ManifestError(f"is {high}, as low_freq_factor is", "high_freq_factor")
    trained = _factor(
        {"original_max_position_embeddings": positions, **rope}, "original_max_position_embeddings"
    )
    wave = np.float32(2 * math.pi) / angles
    smooth = (np.float32(trained) / wave - np.float32(low)) / np.float32(high - low)
    between = (1 - smooth) * angles / np.float32(factor) + smooth * angles
    slow = wave > np.float32(trained / low)
    fast = wave < np.float32(trained / high)
    return np.where(slow, angles / np.float32(factor), np.where(fast, angles, between)).astype(np.float32)


def _divided(angles: Floats, rope: Mapping[str, Any], positions: int) -> Floats:
    """As a GGUF file says it, pair by pair."""
    del positions
    divisors = np.array(get(rope, list, "divisors"), np.float32)
    if divisors.shape != angles.shape or not (divisors > 0).all():
        raise ManifestError(f"are {divisors.size}, expected {angles.size}, each more than 0", "divisors")
    return angles / divisors


def _factor(rope: Mapping[str, Any], key: str) -> float:
    value = get(rope, float, key)
    if not 0 < value < math.inf:
        raise ManifestError(f"is {value}, expected more than 0", key)
    return value


_SCALED: Mapping[str, Callable[[Floats, Mapping[str, Any], int], Floats]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "divided": _divided,
}
