"""Which codec reads the images of a model."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

from alula.codecs.detection import DetectionCodec
from alula.codecs.images import ImageCodec
from alula.codecs.pictures import MOST_PIXELS
from alula.codecs.recognition import RecognitionCodec
from alula.core.model import ModelSpec
from alula.core.profile import Profile

ImagesCodec: TypeAlias = ImageCodec | RecognitionCodec | DetectionCodec


def images_codec(
    folder: Path, spec: ModelSpec, *, profile: Profile | None = None, most_pixels: int = MOST_PIXELS
) -> ImagesCodec:
    """The codec of a model that reads images; `folder` holds its processor's file, where it has one."""
    if spec.task == "text-recognition":
        return RecognitionCodec(spec, most_pixels=most_pixels)
    kind = DetectionCodec if spec.task == "text-detection" else ImageCodec
    return kind.open(folder, spec, profile=profile, most_pixels=most_pixels)
