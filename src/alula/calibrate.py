"""Ranges of a checkpoint's activations over real texts, kept under the digest of all that decides them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import alula
from alula import families, graphs
from alula.bundles import cache_root
from alula.bundles.digest import of_sources, of_value
from alula.calibration import Calibrator, calibrator
from alula.codecs import Row, TextCodec
from alula.core.engine import Plan, Session
from alula.core.errors import InputError, ManifestError
from alula.core.model import ModelSpec
from alula.core.parse import get
from alula.core.profile import Profile, Range
from alula.core.tensor import Array, Feeds, TensorSpec
from alula.engines import backend as backend_named

METHOD = "min-max"
# MiniLM, 96 texts, all linears in int8, worst and mean cosine to fp32: 0.983 0.991 with min-max, 0.843 0.939 with
# percentile 99.99, 0.855 0.938 with entropy. A few large values carry meaning there, so cutting them off costs most.

BATCH = 8

CELLS = 1024
"""Padded tokens of one batch at most (a single row may be longer): all activations of it are in memory at once."""

Text = tuple[str, ...]
"""One text, or a pair of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """Ranges by activation, what they come from, and how much of it was seen."""

    method: str
    ranges: Mapping[str, tuple[float, float]]
    examples: int
    tokens: int
    weights: str
    data: str


def calibrate(  # noqa: PLR0913 - two of six only matter to tests and tuning
    checkpoint: families.Checkpoint,
    spec: ModelSpec,
    texts: Sequence[Text],
    *,
    method: str = METHOD,
    batch: int = BATCH,
    use_cache: bool = True,
) -> Calibration:
    """The ranges over all these texts, from the cache if weights, texts, method and code are as they were."""
    used = calibrator(method)
    if not texts:
        raise InputError("no examples to calibrate from; expected one at least")
    data = of_value([list(text) for text in texts])
    kept = cache_root() / "calibration" / f"{_key(spec, data, used.method)}.json"
    if use_cache and (found := _from_cache(kept)):
        return found
    tokens = _observe(checkpoint, spec, texts, used, batch)
    calibration = Calibration(
        method=used.method,
        ranges=used.ranges(),
        examples=len(texts),
        tokens=tokens,
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
    given: Mapping[str, object] = get(raw, dict, "ranges")
    return Calibration(
        method=get(raw, str, "method"),
        ranges={name: _span(span, name) for name, span in given.items()},
        examples=get(raw, int, "examples"),
        tokens=get(raw, int, "tokens"),
        weights=get(raw, str, "weights"),
        data=get(raw, str, "data"),
    )


def _span(raw: object, name: str) -> tuple[float, float]:
    if not isinstance(raw, list) or len(raw) != 2 or not all(isinstance(end, (int, float)) for end in raw):
        raise ManifestError("is not two numbers", f"ranges.{name}")
    return float(raw[0]), float(raw[1])


def _key(spec: ModelSpec, data: str, method: str) -> str:
    code = of_sources(Path(alula.__file__).parent)
    return of_value({"spec": str(spec), "data": data, "method": method, "code": code})


def _observe(
    checkpoint: families.Checkpoint, spec: ModelSpec, texts: Sequence[Text], used: Calibrator, batch: int
) -> int:
    """Run every text through the fp32 graph in ONNX Runtime; how many tokens that were."""
    codec = TextCodec.open(checkpoint.root, spec)
    rows = sorted((encoded(codec, text) for text in texts), key=lambda row: len(row.ids))
    model, names = graphs.observe(families.write(checkpoint, spec, "encoder"))
    profile = Profile({"batch": Range(1, 1, batch), "length": Range(1, 1, spec.max_length)})
    backend = backend_named("onnxruntime")
    with TemporaryDirectory(prefix="alula-") as scratch:
        graph = graphs.save(model, Path(scratch) / "observed.onnx", "fp32")
        observed = {output.name: output for output in graph.outputs if output.name in names}
        engine = backend.compile(graph, Plan(profile=profile), Path(scratch) / "engine")
        with closing(backend.open(engine)) as session:
            for group in grouped(rows, batch):
                observe_batch(session, codec.collate(group), observed, used)
    return sum(len(row.ids) for row in rows)


def observe_batch(
    session: Session, feeds: Feeds, observed: Mapping[str, TensorSpec], used: Calibrator
) -> None:
    """Add every observed activation of one batch, its padding left out."""
    mask = feeds["attention_mask"].astype(np.bool_)
    outputs = session.run(feeds)
    for name, tensor in observed.items():
        values = outputs[name]
        used.add(name, values.astype(np.float32, copy=False), _kept(values, tensor, mask))


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


def _kept(values: Array, tensor: TensorSpec, mask: np.ndarray) -> np.ndarray | None:
    """The mask in the shape in which this activation has tokens; None where it has a value per row, or is fixed."""
    if isinstance(tensor.shape[0], int):
        return None
    if values.ndim > 2 and values.shape[:2] == mask.shape:
        return mask
    if values.ndim == 2 and len(values) == mask.size != len(mask):
        return mask.reshape(-1)
    return None
