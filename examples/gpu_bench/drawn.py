"""Inputs of all contenders: seeded, drawn once, kept in files; and how far two answers are from each other."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sentences
from numpy.typing import NDArray

from alula.bench.measure import full_feeds
from alula.codecs import TextCodec
from alula.core.errors import InputError
from alula.core.model import ModelSpec
from alula.core.tensor import Feeds
from gpu_bench.cases import Shape
from gpu_bench.results import Accuracy

_PATTERN = 8
"""Fields across a picture: each has a colour of its own."""


def draw(spec: ModelSpec, folder: Path, shape: Shape, seed: int, *, real: bool = False) -> Feeds:
    """One call with nothing masked: random ids, or random patterns of colour as the model's processor hands them on.

    `real` ids are those of sentences, one behind the other.
    """
    if real:
        return texts(spec, folder, shape, seed)
    if spec.reads_text:
        return full_feeds(spec, shape, seed)
    (pixels,) = spec.part("encoder").inputs
    sizes = dict(zip(spec.part("encoder").axes, shape, strict=True))
    return {pixels.name: normalised(pictures(seed, pixels.sized(sizes)), folder)}


def texts(spec: ModelSpec, folder: Path, shape: Shape, seed: int) -> Feeds:
    """Rows full of sentences between the tokens that begin and end a text."""
    rows, length = shape
    codec = TextCodec.open(folder, spec)
    encoded = [codec.encode(text).ids for text in sentences.sentences(rows * length, seed)]
    first, last = encoded[0][0], encoded[0][-1]
    stream = [token for ids in encoded for token in ids[1:-1]]
    inner = np.asarray(stream[: rows * (length - 2)]).reshape(rows, length - 2)
    ids = np.pad(inner, ((0, 0), (1, 1)))
    ids[:, 0], ids[:, -1] = first, last
    values = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    inputs = spec.part("encoder").inputs
    return {t.name: values.get(t.name, np.zeros_like(ids)).astype(t.dtype) for t in inputs}


def ragged(feeds: Feeds, seed: int) -> Feeds:
    """The same call with rows of different lengths, padded on the right; images have no such thing."""
    if "attention_mask" not in feeds:
        return feeds
    rows, length = feeds["attention_mask"].shape
    lengths = np.random.default_rng(seed).integers(1, length, size=(rows,), endpoint=True)
    mask = np.arange(length) < lengths[:, None]
    return {
        name: np.asarray(mask if name == "attention_mask" else np.where(mask, array, 0), array.dtype)
        for name, array in feeds.items()
    }


def pictures(seed: int, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Fields of random colours with some noise over them, from 0 to 255."""
    rows, colours, height, width = shape
    rng = np.random.default_rng(seed)
    fields = rng.uniform(0, 255, (rows, colours, _PATTERN, _PATTERN))
    down, across = _places(height), _places(width)
    noise = rng.random((rows, colours, height, width), np.float32) * 32 - 16
    drawn = np.clip(fields[:, :, down][:, :, :, across] + noise, 0, 255)
    return drawn.astype(np.float32)


def _places(side: int) -> NDArray[np.int64]:
    """The field that each pixel along a side is in."""
    places: NDArray[np.int64] = np.arange(side, dtype=np.int64) * _PATTERN // side
    return places


def normalised(pixels: NDArray[np.float32], folder: Path) -> NDArray[np.float32]:
    """Pixels scaled and shifted as preprocessor_config.json says."""
    told: dict[str, Any] = json.loads((folder / "preprocessor_config.json").read_text("utf-8"))
    scale = float(told.get("rescale_factor", 1 / 255)) if told.get("do_rescale", True) else 1.0
    mean = np.asarray(told.get("image_mean", [0.5] * 3), np.float32).reshape(3, 1, 1)
    deviation = np.asarray(told.get("image_std", [0.25] * 3), np.float32).reshape(3, 1, 1)
    scaled = (pixels * np.float32(scale) - mean) / deviation
    return np.ascontiguousarray(scaled, np.float32)


def store(path: Path, calls: Sequence[Feeds]) -> None:
    """Keep calls or answers, in order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}")
    arrays: dict[str, Any] = {
        f"{at}.{name}": array for at, call in enumerate(calls) for name, array in call.items()
    }
    with aside.open("wb") as file:
        # Uncompressed: pictures of 1280 pixels take hundreds of MB.
        np.savez(file, **arrays)
    aside.replace(path)


def stored(path: Path) -> list[Feeds]:
    """What `store` kept."""
    calls: dict[int, dict[str, NDArray[Any]]] = {}
    with np.load(path) as arrays:
        for key in arrays.files:
            at, _, name = key.partition(".")
            calls.setdefault(int(at), {})[name] = arrays[key]
    return [calls[at] for at in sorted(calls)]


def difference(expected: Sequence[Feeds], given: Sequence[Feeds]) -> Accuracy:
    """The norm of the difference over that of what was expected, over all outputs of all calls, and the largest."""
    if len(expected) != len(given) or not expected:
        raise InputError(f"{len(given)} answers to {len(expected)} calls; expected as many, and one at least")
    ours, theirs = (
        np.concatenate([np.asarray(call[name], np.float64).ravel() for call in calls for name in expected[0]])
        for calls in (expected, given)
    )
    if ours.shape != theirs.shape:
        raise InputError(f"answers of {theirs.size} numbers, expected {ours.size}")
    apart = theirs - ours
    return Accuracy(
        relative=float(np.linalg.norm(apart) / np.linalg.norm(ours)), largest=float(np.abs(apart).max())
    )
