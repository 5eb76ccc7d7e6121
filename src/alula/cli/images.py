"""Answers about images, for `alula run --image`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from alula.bundles import Bundle
from alula.codecs import ImageCodec, RecognitionCodec, classes, each_image, vectors
from alula.core.tensor import Array

BEST = 5
"""Classes that are shown of each image."""


def answers_of(bundle: Bundle, images: Sequence[Path]) -> list[dict[str, Any]]:
    """What the bundle's engine says of each image, asked one by one, since lines differ in width."""
    from alula.engines import backend  # noqa: PLC0415 - loads a runtime
    from alula.local import local_engine  # noqa: PLC0415

    spec, built_for = bundle.model, bundle.engine("encoder").plan.profile
    codec = (
        RecognitionCodec(spec)
        if spec.task == "text-recognition"
        else ImageCodec.open(bundle.processor, spec, profile=built_for)
    )
    read = _reader(codec)
    engine = local_engine(bundle)
    with closing(backend(engine.backend).open(engine)) as session:
        return [
            {"image": str(image), **answer}
            for image in images
            for one in each_image(session.run(codec.collate([codec.encode(image)], engine.plan.profile)), 1)
            for answer in read(one)
        ]


def _reader(codec: ImageCodec | RecognitionCodec) -> Callable[[Mapping[str, Array]], list[dict[str, Any]]]:
    if isinstance(codec, RecognitionCodec):
        return lambda one: [asdict(codec.read(one["probabilities"]))]
    if codec.spec.task == "image-embeddings":
        return lambda one: [{"embedding": np.round(vectors(one), 6).tolist()}]
    return lambda one: [asdict(scored) for scored in classes(one, codec.spec)[:BEST]]
