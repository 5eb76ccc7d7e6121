"""ONNX files that read images: classifiers by their labels, and detectors of text by the map that they give."""

from __future__ import annotations

from typing import TYPE_CHECKING

from alula.core.errors import InputError
from alula.core.model import ModelSpec, Part
from alula.core.tensor import Dim, TensorSpec
from alula.families.onnx_file import CLASSIFIER, DETECTOR, PROBABILITIES
from alula.families.onnx_values import LABEL_KEYS, is_float, labels_of, rank, shown, size
from alula.families.pixels import image_size
from alula.families.tensors import reached

if TYPE_CHECKING:
    import onnx_ir as ir

    from alula.families.checkpoint import Checkpoint

_COLOURS = 3
_SIDES = ("height", "width")
_CLASSIFIES = (
    "a classifier of images has one float32 input [batch, 3, height, width] or [batch, height, width, 3] whose batch "
    "is open, and one float32 output [batch, classes]; with --task generic its outputs are compared as they are"
)
_DETECTS = (
    "a detector of text has one float32 input [batch, 3, height, width] whose batch is open, and one float32 output "
    "[batch, 1, height, width] of a Sigmoid; with --task generic its outputs are compared as they are"
)
_OBJECTS = (
    "; detectors of objects, such as of the layout of pages, are not read here: build them with --task generic, ask "
    "with alula run BUNDLE --feeds FILE.npz, and make boxes of the outputs yourself"
)


def describe_classifier(checkpoint: Checkpoint, model: ir.Model, listed: tuple[str, ...]) -> ModelSpec:
    """What a file is that gives a score per class; `listed` are labels that the user gave."""
    file = checkpoint.root
    if reason := _no_classifier(model):
        raise InputError(f"{file}: {reason} (it has {shown(model)}); {_CLASSIFIES}")
    (taken,), (given,) = model.graph.inputs, model.graph.outputs
    known = dict(zip(_SIDES, image_size(checkpoint.folder, ""), strict=True))
    last = size(taken, 1) != _COLOURS
    sides: list[Dim] = []
    for axis, (name, wanted) in zip((1, 2) if last else (2, 3), known.items(), strict=True):
        if (fixed := size(taken, axis)) not in {None, wanted}:
            raise InputError(
                f"preprocessor_config.json gives images with a {name} of {wanted}; {file} takes {fixed}"
            )
        sides.append(wanted)
    shape: tuple[Dim, ...] = ("batch", *sides, _COLOURS) if last else ("batch", _COLOURS, *sides)
    labels = _labels(checkpoint, model, listed)
    return _spec(
        checkpoint,
        CLASSIFIER,
        TensorSpec(name=str(taken.name), dtype="float32", shape=shape),
        TensorSpec(name="logits", dtype="float32", shape=("batch", len(labels))),
        labels=labels,
        activation="none" if reached(given, "float32") else "softmax",
    )


def describe_detector(checkpoint: Checkpoint, model: ir.Model) -> ModelSpec:
    """What a file is that gives each pixel's probability of being one of text."""
    if reason := _no_detector(model):
        several = len(model.graph.outputs) > 1 or rank(model.graph.outputs[0]) in {2, 3}
        objects = _OBJECTS if several else ""
        raise InputError(f"{checkpoint.root}: {reason} (it has {shown(model)}); {_DETECTS}{objects}")
    (taken,) = model.graph.inputs
    sides = tuple(size(taken, axis) or name for axis, name in zip((2, 3), _SIDES, strict=True))
    pixels = TensorSpec(name=str(taken.name), dtype="float32", shape=("batch", _COLOURS, *sides))
    found = TensorSpec(name=PROBABILITIES, dtype="float32", shape=("batch", 1, *sides), range=(0.0, 1.0))
    return _spec(checkpoint, DETECTOR, pixels, found)


def _spec(  # noqa: PLR0913 - six, which is as many as a function may have here
    checkpoint: Checkpoint,
    task: str,
    taken: TensorSpec,
    given: TensorSpec,
    *,
    labels: tuple[str, ...] = (),
    activation: str = "none",
) -> ModelSpec:
    return ModelSpec(
        name=checkpoint.name,
        digest=checkpoint.digest,
        revision=checkpoint.revision,
        architecture="ONNX",
        family="onnx",
        task=task,
        parts=(Part(name="encoder", inputs=(taken,), outputs=(given,)),),
        max_length=0,
        vocab_size=0,
        pad_id=0,
        labels=labels,
        activation=activation,
    )


def _labels(checkpoint: Checkpoint, model: ir.Model, listed: tuple[str, ...]) -> tuple[str, ...]:
    """A label per class: those that were given, else those of the metadata."""
    labels = listed or labels_of(model.metadata_props)
    classes = size(model.graph.outputs[0], 1)
    if not labels:
        raise InputError(
            f"{checkpoint.root} names no labels: there is no metadata {', '.join(LABEL_KEYS)}; give them with --labels "
            f"FILE, one a line{f', {classes} in all' if classes else ''}"
        )
    if classes not in {None, len(labels)}:
        whose = "--labels has" if listed else "its metadata has"
        raise InputError(f"{checkpoint.root} gives {classes} classes, and {whose} {len(labels)} labels")
    return labels


def _no_classifier(model: ir.Model) -> str:
    """Why this is no classifier of images; empty if it is one."""
    if reason := _not_one_to_one(model):
        return reason
    (taken,), (given,) = model.graph.inputs, model.graph.outputs
    if rank(taken) != 4 or _COLOURS not in {size(taken, 1), size(taken, 3)}:
        return "the input is no batch of images in three colours"
    if rank(given) != 2:
        return "the output is no row of scores for each image"
    return ""


def _no_detector(model: ir.Model) -> str:
    """Why this is no detector of text; empty if it is one."""
    if reason := _not_one_to_one(model):
        return reason
    (taken,), (given,) = model.graph.inputs, model.graph.outputs
    if rank(taken) != 4 or size(taken, 1) != _COLOURS:
        return "the input is no batch of images in three colours"
    sizes = [(size(taken, axis), size(given, axis)) for axis in (2, 3)] if rank(given) == 4 else []
    if not sizes or size(given, 1) not in {None, 1} or any(b not in {None, a} for a, b in sizes):
        return "the output is no map as large as the image"
    return "" if reached(given, "float32") else "the output is no probability"


def _not_one_to_one(model: ir.Model) -> str:
    inputs, outputs = model.graph.inputs, model.graph.outputs
    if len(inputs) != 1 or len(outputs) != 1:
        return f"there are {len(inputs)} inputs and {len(outputs)} outputs"
    if not is_float(inputs[0]) or not is_float(outputs[0]):
        return "an input or output is not float32"
    if rank(inputs[0]) and size(inputs[0], 0):
        return f"its batch is fixed at {size(inputs[0], 0)}"
    return ""
