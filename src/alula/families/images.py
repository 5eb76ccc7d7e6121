"""From config.json and preprocessor_config.json to the ModelSpec of a classifier of images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from alula.core.errors import InputError, ManifestError
from alula.core.model import ModelSpec, Part
from alula.core.tensor import TensorSpec
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


def describe_images(checkpoint: Checkpoint, task: str | None, pooling: str | None) -> ModelSpec:
    """Say what a checkpoint of one of `FAMILIES` is written as, or why it cannot be."""
    config = checkpoint.config
    family = str(config["model_type"])
    _check_task(checkpoint, family, task, pooling)
    settings = read_settings(family, config)
    labels = read_labels(config)
    height, width = image_size(checkpoint.root, family)
    if isinstance(settings, VisionSettings):
        _check_image(settings, height, width)
    pixels = TensorSpec(name="pixel_values", dtype="float32", shape=("batch", COLOURS, height, width))
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


def _check_image(settings: VisionSettings, height: int, width: int) -> None:
    try:
        settings.check_image(height, width)
    except ManifestError as error:
        raise error.under("config.json") from error


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
