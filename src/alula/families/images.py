"""From config.json and preprocessor_config.json to the ModelSpec of a classifier or an encoder of images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from alula.core.errors import InputError, ManifestError
from alula.core.model import ModelSpec, Part
from alula.core.profile import Range
from alula.core.tensor import Dim, TensorSpec
from alula.core.words import IMAGE_POOLINGS, choice
from alula.families.checkpoint import Checkpoint, architecture_of
from alula.families.image_settings import (
    COLOURS,
    EfficientNetSettings,
    ImageSettings,
    VisionSettings,
    read_deit,
    read_dinov2,
    read_efficientnet,
    read_resnet,
    read_vit,
)
from alula.families.labels import read_labels
from alula.families.pixels import image_size
from alula.families.weights import read_weights

TASK = "image-classification"
ENCODER = "image-embeddings"
SIDES = ("height", "width")
"""Axes of an image that a graph is written with where sizes are asked for."""

_TASK_BY_ENDING = {
    "ForImageClassification": TASK,
    "ForImageClassificationWithTeacher": TASK,
    "Model": ENCODER,
}
_TAUGHT = "WithTeacher"
_EXPECTED = "...ForImageClassification or ...Model"


@dataclass(frozen=True, kw_only=True, slots=True)
class Described:
    """What is known of a model type before anything is written: its settings, and the layers that give logits.

    Of a network with a second head for its second token, `taught` are both, whose mean is taken.
    """

    read: Callable[[Mapping[str, Any]], ImageSettings]
    head: str
    taught: tuple[str, ...] = ()


FAMILIES: Mapping[str, Described] = {
    "deit": Described(
        read=read_deit, head="classifier", taught=("cls_classifier", "distillation_classifier")
    ),
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
    chosen = _task(checkpoint, family, task)
    if pooling and chosen != ENCODER:
        raise InputError(f"pooling {pooling!r} is for embeddings; the task is {chosen}")
    settings = read_settings(family, config)
    sides = _sides(checkpoint, settings, asked)
    pixels = TensorSpec(name="pixel_values", dtype="float32", shape=("batch", COLOURS, *sides))
    labels = read_labels(config) if chosen == TASK else ()
    pooling = _pooling(checkpoint, settings, pooling) if chosen == ENCODER else ""
    output = (
        TensorSpec(name="logits", dtype="float32", shape=("batch", len(labels)))
        if chosen == TASK
        else TensorSpec(name="embedding", dtype="float32", shape=_embedded(settings, pooling, sides))
    )
    several = config.get("problem_type") == "multi_label_classification"
    return ModelSpec(
        name=checkpoint.name,
        digest=checkpoint.digest,
        revision=checkpoint.revision,
        architecture=architecture_of(config) or family,
        family=family,
        task=chosen,
        parts=(Part(name="encoder", inputs=(pixels,), outputs=(output,)),),
        max_length=0,
        vocab_size=0,
        pad_id=0,
        pooling=pooling,
        labels=labels,
        activation="none" if chosen == ENCODER else "sigmoid" if several else "softmax",
    )


def heads_of(checkpoint: Checkpoint) -> tuple[str, ...]:
    """The layers that give a classifier's logits, each of them from a token of its own."""
    known = FAMILIES[str(checkpoint.config["model_type"])]
    taught = architecture_of(checkpoint.config).endswith(_TAUGHT)
    return known.taught if taught and known.taught else (known.head,)


def _embedded(settings: ImageSettings, pooling: str, sides: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """The shape of an embedding, or of a state for each token."""
    if not isinstance(settings, VisionSettings):
        return "batch", settings.features
    if pooling != "none":
        return "batch", settings.pooled if pooling == "pooler" else settings.hidden
    known = [side // settings.patch for side in sides if isinstance(side, int)]
    tokens = settings.firsts + known[0] * known[1] if len(known) == len(SIDES) else "tokens"
    return "batch", tokens, settings.hidden


def _pooling(checkpoint: Checkpoint, settings: ImageSettings, asked: str | None) -> str:
    """How an embedding is made: as it is asked for, else as transformers makes its `pooler_output`."""
    if not isinstance(settings, VisionSettings):
        own = settings.pooling if isinstance(settings, EfficientNetSettings) else "mean"
        if asked not in {None, own}:
            raise InputError(f"pooling {asked!r}: {checkpoint.name} pools its maps by their {own}")
        return own
    names = read_weights(checkpoint.root)
    has_pooler = bool(settings.pooled) and any(name.endswith("pooler.dense.weight") for name in names)
    if asked is None:
        return "pooler" if has_pooler else "cls"
    allowed = tuple(way for way in IMAGE_POOLINGS if way != "pooler" or has_pooler)
    return choice("pooling", asked, allowed)


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


def _task(checkpoint: Checkpoint, family: str, asked: str | None) -> str:
    """The task that is asked for, or that the architecture names; refused where the checkpoint lacks its head."""
    named = architecture_of(checkpoint.config) or family
    if asked not in {None, TASK, ENCODER}:
        raise InputError(
            f"{named} (model type {family!r}) reads images: its task is {TASK} or {ENCODER}, not {asked}"
        )
    ending = next((each for each in _TASK_BY_ENDING if named.endswith(each)), "")
    task = asked or _TASK_BY_ENDING.get(ending)
    if task == ENCODER:
        return task
    heads, weights = heads_of(checkpoint), read_weights(checkpoint.root)
    if task is None or any(f"{head}.weight" not in weights for head in heads):
        raise InputError(
            f"{named} (model type {family!r}) has no classifier that is known here; expected {_EXPECTED}, the first "
            f"with the layer {' and '.join(map(repr, heads))}; --task {ENCODER} takes the network without it"
        )
    return task
