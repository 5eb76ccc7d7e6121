"""Ranges of a checkpoint's activations over real texts, kept under the digest of all that decides them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

import alula
from alula import families, graphs
from alula.bundles import cache_root
from alula.bundles.digest import of_sources, of_value
from alula.calibration import Amplitudes, calibrator
from alula.codecs import Row, TextCodec
from alula.core.engine import Plan, Session
from alula.core.errors import InputError, ManifestError
from alula.core.model import ModelSpec
from alula.core.parse import get
from alula.core.profile import Profile, Range
from alula.core.tensor import Array, Feeds, TensorSpec
from alula.engines import backend as backend_named

METHOD = "min-max"
# MiniLM, 64 texts, all linears in int8, worst and mean cosine to fp32 of 32 others: 0.995 0.9967 with min-max, 0.993
# 0.9953 with percentile 99.99, 0.993 0.9949 with entropy; not smoothed 0.988 0.992, and 0.94 on average with the two
# that cut tails off. A few large values carry meaning there.

BATCH = 8

CELLS = 1024
"""Padded tokens of one batch at most (a single row may be longer): all activations of it are in memory at once."""

Text = tuple[str, ...]
"""One text, or a pair of them."""


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


def calibrate(  # noqa: PLR0913 - three of seven only matter to tests and tuning
    checkpoint: families.Checkpoint,
    spec: ModelSpec,
    texts: Sequence[Text],
    *,
    method: str = METHOD,
    smooth: bool = True,
    batch: int = BATCH,
    use_cache: bool = True,
) -> Calibration:
    """The ranges over all these texts, from the cache if weights, texts, method and code are as they were."""
    used = calibrator(method)
    if not texts:
        raise InputError("no examples to calibrate from; expected one at least")
    data = of_value([list(text) for text in texts])
    words = f"{used.method}, smoothed" if smooth else used.method
    kept = cache_root() / "calibration" / f"{_key(spec, data, words)}.json"
    if use_cache and (found := _from_cache(kept)):
        return found
    codec = TextCodec.open(checkpoint.root, spec)
    rows = sorted((encoded(codec, text) for text in texts), key=lambda row: len(row.ids))
    run = Observation(checkpoint=checkpoint, codec=codec, rows=rows, batch=batch)
    smoothing = run.smoothing() if smooth else {}
    run.into(used, smoothing)
    calibration = Calibration(
        method=words,
        ranges=used.ranges(),
        smoothing=smoothing,
        examples=len(rows),
        tokens=sum(len(row.ids) for row in rows),
        weights=spec.digest,
        data=data,
    )
    if use_cache:
        save(calibration, kept)
    return calibration


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


class Sink(Protocol):
    """Takes activations batch by batch."""

    def add(self, name: str, values: NDArray[np.float32], kept: NDArray[np.bool_] | None) -> None:
        """Take one batch of one activation, of which only cells that are `kept` count."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """Rows, sorted by length, to be run in batches through the fp32 graph."""

    checkpoint: families.Checkpoint
    codec: TextCodec
    rows: Sequence[Row]
    batch: int

    def smoothing(self) -> Mapping[str, tuple[float, ...]]:
        """What channels are to be divided by, from how large each gets."""
        amplitudes = Amplitudes()
        self.into(amplitudes, {})
        found = graphs.smoothing_for(
            families.write(self.checkpoint, self.codec.spec, "encoder"), amplitudes.sizes()
        )
        return {name: tuple(factors) for name, factors in found.items()}

    def into(self, sink: Sink, smoothing: Mapping[str, Sequence[float]]) -> None:
        """Run every row in ONNX Runtime, and let `sink` see what linears read."""
        model, names = graphs.observe(families.write(self.checkpoint, self.codec.spec, "encoder"), smoothing)
        length = Range(1, 1, self.codec.spec.max_length)
        plan = Plan(profile=Profile({"batch": Range(1, 1, self.batch), "length": length}))
        backend = backend_named("onnxruntime")
        with TemporaryDirectory(prefix="alula-") as scratch:
            graph = graphs.save(model, Path(scratch) / "observed.onnx", "fp32")
            observed = {output.name: output for output in graph.outputs if output.name in names}
            engine = backend.compile(graph, plan, Path(scratch) / "engine")
            with closing(backend.open(engine)) as session:
                for group in grouped(self.rows, self.batch):
                    observe_batch(session, self.codec.collate(group), observed, sink)


def observe_batch(session: Session, feeds: Feeds, observed: Mapping[str, TensorSpec], sink: Sink) -> None:
    """Add every observed activation of one batch, its padding left out."""
    mask = feeds["attention_mask"].astype(np.bool_)
    outputs = session.run(feeds)
    for name, tensor in observed.items():
        values = outputs[name].astype(np.float32, copy=False)
        sink.add(name, values, _kept(values, tensor, mask))


def encoded(codec: TextCodec, text: Text) -> Row:
    """A row exactly as serving makes it: a question keeps its words when its context is too long."""
    if len(text) == 1:
        return codec.encode(text[0])
    if len(text) != 2:
        raise InputError(f"an example has {len(text)} texts; expected one, or a pair")
    return codec.encode_pair(*text, only_second=codec.spec.task == "question-answering")


def grouped(rows: Sequence[Row], batch: int) -> Iterator[Sequence[Row]]:
    """Every row once, in batches of at most `batch` rows and `CELLS` padded tokens; rows come sorted by length."""
    group: list[Row] = []
    for row in rows:
        if group and (len(group) == batch or (len(group) + 1) * len(row.ids) > CELLS):
            yield group
            group = []
        group.append(row)
    if group:
        yield group


def _kept(values: Array, tensor: TensorSpec, mask: NDArray[np.bool_]) -> NDArray[np.bool_] | None:
    """The mask in the shape in which this activation has tokens; None where it has a value per row, or is fixed."""
    if isinstance(tensor.shape[0], int):
        return None
    if values.ndim > 2 and values.shape[:2] == mask.shape:
        return mask
    if values.ndim == 2 and len(values) == mask.size != len(mask):
        return mask.reshape(-1)
    return None
