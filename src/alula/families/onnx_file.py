"""A model that comes as a ready-made ONNX file: found, known by its content, described. Nothing is written here.

Text recognisers as PaddleOCR exports them are understood: the characters lie in the file's metadata. Classifiers of
images and detectors of text are (`onnx_image.py`) where they are called that. Any other file is arrays in and arrays
out (`tensors.py`).
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from alula.core.errors import InputError, MissingExtraError
from alula.core.model import ModelSpec, Part
from alula.core.tensor import TensorSpec
from alula.core.words import ONNX_TASKS, TENSORS
from alula.families.onnx_values import is_float, lines, rank, read_labels_file, shown, size

if TYPE_CHECKING:
    import onnx_ir as ir

    from alula.families.checkpoint import Checkpoint

ENDING = ".onnx"
FAMILY = "onnx"
TASK = "text-recognition"
CLASSIFIER = "image-classification"
DETECTOR = "text-detection"
PROBABILITIES = "probabilities"

# Those that leave their height open (PP-OCR v3, v4 and v5) are trained on lines of 48 pixels.
HEIGHT = 48

_CHARACTERS = "character"
_EXPECTED = (
    f"a text recogniser has metadata {_CHARACTERS!r} with a character a line, one "
    f"float32 input [batch, 3, {HEIGHT}, width] whose batch and width are open, and one float32 output [batch, "
    "steps, classes] of a Softmax, a class for the blank, each character, and the space if there is one; "
    f"without --task, or with --task {TENSORS}, its outputs are compared as they are"
)
_BLOCK = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Original:
    """The file as it came, which a graph written from it is held to; `outputs` are its names by ours."""

    path: Path
    outputs: dict[str, str]


def only_file(folder: Path) -> Path | None:
    """The ONNX file of a folder without a config.json; none if there is none."""
    if (folder / "config.json").is_file():
        return None
    found = sorted(folder.glob(f"*{ENDING}"))
    if len(found) > 1:
        names = ", ".join(path.name for path in found[:5]) + (", ..." if len(found) > 5 else "")
        raise InputError(f"{folder} has {len(found)} ONNX files ({names}); name one of them")
    return found[0] if found else None


def digest_of(file: Path) -> str:
    """SHA-256 over the file and over what it keeps beside itself, whatever the file's name is."""
    total = hashlib.sha256(_hashed(file).encode())
    for name, used in _data_files(read(file), file).items():
        path = file.parent / name
        if not path.resolve().is_relative_to(file.parent.resolve()):
            raise InputError(f"{file}: its data file {name!r} lies outside its folder")
        if not path.is_file():
            raise InputError(f"no data file at {path}, in which {file.name} keeps weights")
        if (found := path.stat().st_size) < used:
            raise InputError(f"{path} is cut short: {found} bytes, but {file.name} keeps {used} in it")
        total.update(f"{name}\0{_hashed(path)}\n".encode())
    return total.hexdigest()


def read(file: Path) -> ir.Model:
    """The model, its data files not looked at."""
    try:
        import onnx_ir as ir  # noqa: PLC0415 - for building only
    except ImportError as error:
        raise MissingExtraError(f"reading {file}", "build") from error
    # What it warns of, a value that nothing gives, is refused by name.
    logging.getLogger("onnx_ir.serde").setLevel(logging.ERROR)
    try:
        return ir.load(file)
    except Exception as error:  # protobuf's own, and whatever the reader stumbles over
        raise InputError(f"{file}: not a readable ONNX file: {type(error).__name__}: {error}") from error


def is_onnx(checkpoint: Checkpoint) -> bool:
    """Whether the checkpoint is such a file."""
    return checkpoint.root.suffix == ENDING and checkpoint.root.is_file()


def only_as_it_is(checkpoint: Checkpoint, spec: ModelSpec) -> str:
    """Why a model is built in no other precision than that of its file; empty if it can be, as all others can."""
    if spec.task != TENSORS:
        return ""
    from alula.families import tensors  # noqa: PLC0415 - onnx_ir is for building only

    return tensors.only_as_it_is(read(checkpoint.root))


def original(checkpoint: Checkpoint, spec: ModelSpec) -> Original:
    """The untouched file."""
    outputs = (str(output.name) for output in read(checkpoint.root).graph.outputs)
    ours = (tensor.name for tensor in spec.parts[0].outputs)
    return Original(path=checkpoint.root, outputs=dict(zip(ours, outputs, strict=True)))


def describe(
    checkpoint: Checkpoint,
    task: str | None,
    pooling: str | None,
    stated: Sequence[TensorSpec] = (),
    labels: Path | None = None,
) -> ModelSpec:
    """Say what the file is, or why it is not taken.

    `stated` is what the user says of its inputs, and `labels` a file of class names or of a recogniser's characters.
    """
    file = checkpoint.root
    chosen = ONNX_TASKS.get(task or "", task)
    if chosen not in {None, *ONNX_TASKS.values()}:
        names = ", ".join(f"{short} ({name})" for short, name in ONNX_TASKS.items())
        raise InputError(f"{file} is an ONNX file; expected one of the tasks {names}, not {task!r}")
    if pooling:
        raise InputError(f"pooling {pooling!r} is for embeddings; the task is {chosen or TENSORS}")
    listed = read_labels_file(labels) if labels else ()
    model = read(file)
    reason = _refusal(model, listed)
    if chosen == TENSORS or (chosen is None and reason):
        if labels:
            raise InputError(f"--labels {labels}: task {TENSORS} has none; name the task that they are for")
        from alula.families.tensors import describe_tensors  # noqa: PLC0415 - onnx_ir is for building only

        return describe_tensors(checkpoint, model, stated)
    if stated:
        raise InputError(
            f"--inputs {stated[0]}: of a file of the task {chosen or TASK} the input is known; state it for "
            f"--task {TENSORS}"
        )
    if labels and chosen == DETECTOR:
        raise InputError(f"--labels {labels}: task {DETECTOR} has none")
    if chosen in {CLASSIFIER, DETECTOR}:
        from alula.families import onnx_image  # noqa: PLC0415 - onnx_ir is for building only

        if chosen == DETECTOR:
            return onnx_image.describe_detector(checkpoint, model)
        return onnx_image.describe_classifier(checkpoint, model, listed)
    if reason:
        raise InputError(f"{file}: {reason} (it has {shown(model)}); {_EXPECTED}")
    return _recogniser(checkpoint, model, listed)


def _recogniser(checkpoint: Checkpoint, model: ir.Model, listed: tuple[str, ...]) -> ModelSpec:
    (taken,), (given,) = model.graph.inputs, model.graph.outputs
    height, labels = size(taken, 2) or HEIGHT, _labels(model, listed)
    pixels = TensorSpec(name=str(taken.name), dtype="float32", shape=("batch", 3, height, "width"))
    steps = TensorSpec(name=PROBABILITIES, dtype="float32", shape=("batch", "steps", size(given, 2) or 0))
    return ModelSpec(
        name=checkpoint.name,
        digest=checkpoint.digest,
        revision=checkpoint.revision,
        architecture="ONNX",
        family=FAMILY,
        task=TASK,
        parts=(Part(name="encoder", inputs=(pixels,), outputs=(steps,)),),
        max_length=0,
        vocab_size=0,
        pad_id=0,
        labels=labels,
    )


def _refusal(model: ir.Model, listed: tuple[str, ...]) -> str:  # noqa: PLR0911 - one line per refusal
    """Why this is no text recogniser; empty if it is one."""
    if _CHARACTERS not in model.metadata_props and not listed:
        return f"there is no metadata {_CHARACTERS!r}"
    if len(model.graph.inputs) != 1 or len(model.graph.outputs) != 1:
        return f"there are {len(model.graph.inputs)} inputs and {len(model.graph.outputs)} outputs"
    (taken,), (given,) = model.graph.inputs, model.graph.outputs
    if not is_float(taken) or not is_float(given):
        return "an input or output is not float32"
    if rank(taken) != 4 or size(taken, 1) != 3 or size(taken, 0) or size(taken, 3):
        return "the input is no batch of lines"
    if rank(given) != 3 or not size(given, 2):
        return "the output is no classes for each step"
    if not _labels(model, listed):
        return f"{len(_characters(model, listed))} characters do not make {size(given, 2)} classes"
    last = given.producer()
    if last is None or last.op_type != "Softmax":
        return f"the output comes from {last.op_type if last else 'no operator'}"
    others = sorted({node.domain for node in model.graph.all_nodes()} - {"", "ai.onnx"})
    return f"it uses operators of {', '.join(others)}" if others else ""


def _labels(model: ir.Model, listed: tuple[str, ...]) -> tuple[str, ...]:
    """A label per class, the blank's empty; none where they do not add up."""
    characters = _characters(model, listed)
    classes = size(model.graph.outputs[0], 2)
    if classes == len(characters) + 1:
        return ("", *characters)
    return ("", *characters, " ") if classes == len(characters) + 2 else ()


def _characters(model: ir.Model, listed: tuple[str, ...]) -> Sequence[str]:
    """A character a line, as the user lists them or as the file does."""
    return listed or lines(model.metadata_props[_CHARACTERS])


def _data_files(model: ir.Model, file: Path) -> dict[str, int]:
    """The files that weights are kept in, and how many bytes of them are used, by name."""
    sizes: dict[str, int] = {}
    for name, end in _kept_outside(model, file):
        sizes[name] = max(end, sizes.get(name, 0))
    return dict(sorted(sizes.items()))


def _kept_outside(model: ir.Model, file: Path) -> Iterator[tuple[str, int]]:
    import onnx_ir as ir  # noqa: PLC0415 - for building only

    for graph in model.graphs():
        constants = (
            a.value for node in graph for a in node.attributes.values() if node.op_type == "Constant"
        )
        for tensor in (*(value.const_value for value in graph.initializers.values()), *constants):
            if isinstance(tensor, ir.ExternalTensor):
                yield str(tensor.location), (tensor.offset or 0) + tensor.nbytes


def _hashed(path: Path) -> str:
    content = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            content.update(block)
    return content.hexdigest()
