"""From config.json and preprocessor_config.json to the ModelSpec of a classifier of images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from alula.core.errors import InputError, ManifestError
from alula.core.model import ModelSpec, Part
from alula.core.profile import Range
from alula.core.tensor import Dim, TensorSpec
from alula.families.checkpoint import Checkpoint, architecture_of
from alula.families.image_settings import (
    COLOURS,
    ImageSettings,
    VisionSettings,
    read_dinov2,
    read_efficientnet,
    read_resnet,
    read_vit,
)
from alula.families.labels import read_labels
from alula.families.pixels import image_size
from alula.families.weights import read_weights

TASK = "image-classification"
SIDES = ("height", "width")
"""Axes of an image that a graph is written with where sizes are asked for."""

_ENDING = "ForImageClassification"


@dataclass(frozen=True, kw_only=True, slots=True)
class Described:
    """What is known of a model type before anything is written: its settings, and the layer that gives logits."""

    read: Callable[[Mapping[str, Any]], ImageSettings]
    head: str


FAMILIES: Mapping[str, Described] = {
    "dinov2": Described(read=read_dinov2, head="classifier"),
    "efficientnet": Described(read=read_efficientnet, head="classifier"),
    "resnet": Described(read=read_resnet, head="classifier.1"),
    "vit": Described(read=read_vit, head="classifier"),
}
"""By model type."""


def read_settings(family: str, config: Mapping[str, Any]) -> ImageSettings:
    """Parse config.json for a family, refusing by name what its graphs would not honour."""
    try:
        return FAMILIES[family].read(config)
    except ManifestError as error:
        raise error.under("config.json") from error


def describe_images(
    checkpoint: Checkpoint, task: str | None, pooling: str | None, asked: Mapping[str, Range]
) -> ModelSpec:
    """Say what a checkpoint of one of `FAMILIES` is written as, or why it cannot be; `asked` are sizes by axis."""
    config = checkpoint.config
    family = str(config["model_type"])
    _check_task(checkpoint, family, task, pooling)
    settings = read_settings(family, config)
    labels = read_labels(config)
    sides = _sides(checkpoint, settings, asked)
    pixels = TensorSpec(name="pixel_values", dtype="float32", shape=("batch", COLOURS, *sides))
    logits = TensorSpec(name="logits", dtype="float32", shape=("batch", len(labels)))
    return ModelSpec(
        name=checkpoint.name,
        digest=checkpoint.digest,
        revision=checkpoint.revision,
        architecture=architecture_of(config) or family,
        family=family,
        task=TASK,
        parts=(Part(name="encoder", inputs=(pixels,), outputs=(logits,)),),
        max_length=0,
        vocab_size=0,
        pad_id=0,
        labels=labels,
        activation="sigmoid" if config.get("problem_type") == "multi_label_classification" else "softmax",
    )


def _sides(checkpoint: Checkpoint, settings: ImageSettings, asked: Mapping[str, Range]) -> tuple[Dim, ...]:
    """Height and width: the axis where sizes are asked for, and what the image processor gives where none are."""
    given = dict(zip(SIDES, image_size(checkpoint.root, str(checkpoint.config["model_type"])), strict=True))
    opened = {axis: asked[axis] for axis in SIDES if axis in asked}
    if isinstance(settings, VisionSettings):
        try:
            settings.check_open() if opened else settings.check_image(*given.values())
        except ManifestError as error:
            raise error.under("config.json") from error
    for axis, size in given.items():
        least = opened[axis].min if axis in opened else size
        if least < settings.smallest:
            found = f"axis {axis!r} from {least}" if axis in opened else f"images have a {axis} of {least}"
            raise InputError(
                f"{found}; {checkpoint.name} takes a height and width from {settings.smallest} pixels"
            )
    return tuple(axis if axis in opened else size for axis, size in given.items())


def _check_task(checkpoint: Checkpoint, family: str, task: str | None, pooling: str | None) -> None:
    """Refuse any other task than the one there is, and a checkpoint without its head."""
    named = architecture_of(checkpoint.config) or family
    if (task or TASK) != TASK:
        raise InputError(f"{named} (model type {family!r}) reads images: its task is {TASK}, not {task}")
    if pooling:
        raise InputError(f"pooling {pooling!r} is for embeddings; the task is {TASK}")
    head = FAMILIES[family].head
    if (not task and not named.endswith(_ENDING)) or f"{head}.weight" not in read_weights(checkpoint.root):
        raise InputError(
            f"{named} (model type {family!r}) has no classifier that is known here; "
            f"expected a ...{_ENDING} with the layer {head!r}"
        )
