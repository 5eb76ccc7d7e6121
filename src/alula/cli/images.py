"""Answers about images, for `alula run --image`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from alula.bundles import Bundle
from alula.cli.bench import check_figure
from alula.codecs import (
    DetectionCodec,
    ImageCodec,
    Page,
    RecognitionCodec,
    classes,
    draw_boxes,
    each_image,
    images_codec,
    vectors,
)
from alula.core.engine import Session
from alula.core.errors import InputError
from alula.core.profile import Profile
from alula.core.tensor import Array

BEST = 5
"""Classes that are shown of each image."""

DRAWN = (".png", ".jpg", ".jpeg", ".webp")
"""Endings of files that boxes are drawn into."""


def answers_of(bundle: Bundle, images: Sequence[Path], out: Path | None = None) -> list[dict[str, Any]]:
    """What the bundle's engine says of each image, asked one by one, since lines and pages differ in size.

    The boxes of a detector are drawn into the file `out`.
    """
    if out is not None:
        _check_drawing(bundle, images, out)
    from alula.engines import backend  # noqa: PLC0415 - loads a runtime
    from alula.local import local_engine  # noqa: PLC0415

    codec = images_codec(bundle.processor, bundle.model, profile=bundle.engine("encoder").plan.profile)
    engine = local_engine(bundle)
    with closing(backend(engine.backend).open(engine)) as session:
        if isinstance(codec, DetectionCodec):
            profile = engine.plan.profile
            return [answer for image in images for answer in _boxes(session, codec, profile, image, out)]
        read = _reader(codec)
        return [
            {"image": str(image), **answer}
            for image in images
            for one in each_image(session.run(codec.collate([codec.encode(image)], engine.plan.profile)), 1)
            for answer in read(one)
        ]


def _boxes(
    session: Session, codec: DetectionCodec, profile: Profile, image: Path, out: Path | None
) -> list[dict[str, Any]]:
    page: Page = codec.encode(image)
    boxes = codec.read(each_image(session.run(codec.collate([page], profile)), 1)[0], page)
    if out is not None:
        draw_boxes(image, boxes, out)
    return [{"image": str(image), "points": [*map(list, box.points)], "score": box.score} for box in boxes]


def _check_drawing(bundle: Bundle, images: Sequence[Path], out: Path) -> None:
    if bundle.model.task != "text-detection":
        raise InputError(f"--out is for arrays and for boxes; task {bundle.model.task!r} gives neither")
    if len(images) != 1:
        raise InputError(f"--out {out}: boxes are drawn into one image, and {len(images)} are given")
    if out.suffix.lower() not in DRAWN:
        raise InputError(f"--out {out}: expected a file that ends in one of: {', '.join(DRAWN)}")
    check_figure(out, "--out")


def _reader(codec: ImageCodec | RecognitionCodec) -> Callable[[Mapping[str, Array]], list[dict[str, Any]]]:
    if isinstance(codec, RecognitionCodec):
        return lambda one: [asdict(codec.read(one["probabilities"]))]
    if codec.spec.task == "image-embeddings":
        return lambda one: [{"embedding": np.round(vectors(one).astype(np.float64), 6).tolist()}]
    return lambda one: [asdict(scored) for scored in classes(one, codec.spec)[:BEST]]
