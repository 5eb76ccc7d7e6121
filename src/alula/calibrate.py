"""Ranges of a checkpoint's activations over real rows, kept under the digest of all that decides them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

import alula
from alula import families, graphs
from alula.bundles.digest import of_sources, of_value
from alula.calibration import Amplitudes, calibrator
from alula.core.engine import Session
from alula.core.errors import InputError, ManifestError
from alula.core.model import ModelSpec
from alula.core.parse import get
from alula.core.places import cache_root
from alula.core.tensor import Array, Feeds, TensorSpec
from alula.running import profile_over, running

METHOD = "min-max"
# MiniLM, 64 texts, all linears in int8, worst and mean cosine to fp32 of 32 others: 0.995 0.9967 with min-max, 0.993
# 0.9953 with percentile 99.99, 0.993 0.9949 with entropy; not smoothed 0.988 0.992, and 0.94 on average with the two
# that cut tails off. A few large values carry meaning there.


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """Ranges by activation, what they come from, and how much of it was seen.

    They are of the graph with `smoothing`, and hold for no other.
    """

    method: str
    ranges: Mapping[str, tuple[float, float]]
    smoothing: Mapping[str, tuple[float, ...]]
    examples: int
    tokens: int
    weights: str
    data: str


def calibrate(  # noqa: PLR0913 - three of six only matter to tests and tuning
    checkpoint: families.Checkpoint,
    spec: ModelSpec,
    feeds: Iterable[Feeds],
    *,
    method: str = METHOD,
    smooth: bool = True,
    use_cache: bool = True,
) -> Calibration:
    """The ranges over all these calls, from the cache if weights, calls, method and code are as they were.

    The calls are gone through several times.
    """
    used = calibrator(method)
    data, examples, tokens = _counted(feeds)
    if not examples:
        raise InputError("no examples to calibrate from; expected one at least")
    words = f"{used.method}, smoothed" if smooth else used.method
    kept = cache_root() / "calibration" / f"{_key(spec, data, words)}.json"
    if use_cache and (found := _from_cache(kept)):
        return found
    run = Observation(checkpoint=checkpoint, spec=spec, feeds=feeds)
    smoothing = run.smoothing() if smooth else {}
    run.into(used, smoothing)
    calibration = Calibration(
        method=words,
        ranges=used.ranges(),
        smoothing=smoothing,
        examples=examples,
        tokens=tokens,
        weights=spec.digest,
        data=data,
    )
    if use_cache:
        save(calibration, kept)
    return calibration


def beyond_fp16(
    checkpoint: families.Checkpoint, spec: ModelSpec, feeds: Iterable[Feeds], policy: graphs.Policy
) -> frozenset[str]:
    """Names of the nodes that fp16 must leave in fp32, from the largest magnitudes over all these calls."""
    model, names = graphs.observe_magnitudes(families.write(checkpoint, spec, "encoder"), policy)
    largest = dict.fromkeys(names, 0.0)
    with running(model, profile_over(spec, feeds), in_order=True) as session:
        for call in feeds:
            outputs = session.run(call)
            for name in names:
                largest[name] = max(largest[name], float(outputs[name]))
    return graphs.beyond_fp16(families.write(checkpoint, spec, "encoder"), largest, policy)


def save(calibration: Calibration, path: Path) -> None:
    """Write it as JSON, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    value = {
        "method": calibration.method,
        "ranges": {name: list(span) for name, span in calibration.ranges.items()},
        "smoothing": {name: list(factors) for name, factors in calibration.smoothing.items()},
        "examples": calibration.examples,
        "tokens": calibration.tokens,
        "weights": calibration.weights,
        "data": calibration.data,
    }
    scratch.write_text(json.dumps(value, indent=1), "utf-8")
    scratch.replace(path)


def load(path: Path, spec: ModelSpec) -> Calibration:
    """A saved calibration, refused if it is absent, damaged, or of other weights."""
    if not path.is_file():
        raise InputError(f"no calibration at {path}; nothing is calibrated in its place")
    try:
        calibration = _parse(json.loads(path.read_text("utf-8")))
    except (ValueError, ManifestError) as error:
        raise InputError(f"{path} is not a calibration: {error}") from error
    if calibration.weights != spec.digest:
        raise InputError(
            f"{path} is of weights {calibration.weights[:16]}, but {spec.name} has {spec.digest[:16]}; "
            "calibrate again"
        )
    return calibration


def _from_cache(path: Path) -> Calibration | None:
    try:
        return _parse(json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, ManifestError):
        return None


def _parse(raw: object) -> Calibration:
    if not isinstance(raw, dict):
        raise ManifestError(f"is {type(raw).__name__}, expected an object")
    ranges: Mapping[str, object] = get(raw, dict, "ranges")
    smoothing: Mapping[str, object] = get(raw, dict, "smoothing")
    return Calibration(
        method=get(raw, str, "method"),
        ranges={name: _span(span, f"ranges.{name}") for name, span in ranges.items()},
        smoothing={name: _numbers(given, f"smoothing.{name}") for name, given in smoothing.items()},
        examples=get(raw, int, "examples"),
        tokens=get(raw, int, "tokens"),
        weights=get(raw, str, "weights"),
        data=get(raw, str, "data"),
    )


def _span(raw: object, where: str) -> tuple[float, float]:
    numbers = _numbers(raw, where)
    if len(numbers) != 2:
        raise ManifestError(f"has {len(numbers)} numbers, expected 2", where)
    return numbers[0], numbers[1]


def _numbers(raw: object, where: str) -> tuple[float, ...]:
    if not isinstance(raw, list) or not all(isinstance(each, (int, float)) for each in raw):
        raise ManifestError("is not a list of numbers", where)
    return tuple(float(each) for each in raw)


def _key(spec: ModelSpec, data: str, method: str) -> str:
    code = of_sources(Path(alula.__file__).parent)
    return of_value({"spec": str(spec), "data": data, "method": method, "code": code})


def _counted(feeds: Iterable[Feeds]) -> tuple[str, int, int]:
    """SHA-256 over names, types, shapes and contents of all arrays, and how many rows and tokens they hold."""
    total, rows, tokens = hashlib.sha256(), 0, 0
    for call in feeds:
        rows += len(np.atleast_1d(next(iter(call.values()))))
        tokens += int(call["attention_mask"].sum()) if "attention_mask" in call else 0
        for name, array in sorted(call.items()):
            total.update(f"{name} {array.dtype} {array.shape}\n".encode())
            total.update(np.ascontiguousarray(array).data)
    return total.hexdigest(), rows, tokens


class Sink(Protocol):
    """Takes activations batch by batch."""

    def add(self, name: str, values: NDArray[np.float32], kept: NDArray[np.bool_] | None) -> None:
        """Take one batch of one activation, of which only cells that are `kept` count."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """Calls to be run through the fp32 graph."""

    checkpoint: families.Checkpoint
    spec: ModelSpec
    feeds: Iterable[Feeds]

    def smoothing(self) -> Mapping[str, tuple[float, ...]]:
        """What channels are to be divided by, from how large each gets."""
        model = families.write(self.checkpoint, self.spec, "encoder")
        amplitudes = Amplitudes(graphs.channel_axes(model))
        self.into(amplitudes, {})
        found = graphs.smoothing_for(model, amplitudes.sizes())
        return {name: tuple(factors) for name, factors in found.items()}

    def into(self, sink: Sink, smoothing: Mapping[str, Sequence[float]]) -> None:
        """Run every call in ONNX Runtime, and let `sink` see what linears read."""
        model, names = graphs.observe(families.write(self.checkpoint, self.spec, "encoder"), smoothing)
        with running(model, profile_over(self.spec, self.feeds)) as session:
            observed = {output.name: output for output in session.outputs if output.name in names}
            for call in self.feeds:
                observe_batch(session, call, observed, sink)


def observe_batch(session: Session, feeds: Feeds, observed: Mapping[str, TensorSpec], sink: Sink) -> None:
    """Add every observed activation of one batch, its padding left out."""
    mask = feeds["attention_mask"].astype(np.bool_) if "attention_mask" in feeds else None
    outputs = session.run(feeds)
    for name, tensor in observed.items():
        values = outputs[name].astype(np.float32, copy=False)
        sink.add(name, values, _kept(values, tensor, mask))


def _kept(values: Array, tensor: TensorSpec, mask: NDArray[np.bool_] | None) -> NDArray[np.bool_] | None:
    """The mask in the shape in which this activation has tokens; None where it has a value per row, or is fixed."""
    if mask is None or isinstance(tensor.shape[0], int):
        return None
    if values.ndim > 2 and values.shape[:2] == mask.shape:
        return mask
    if values.ndim == 2 and len(values) == mask.size != len(mask):
        return mask.reshape(-1)
    return None
