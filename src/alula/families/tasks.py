"""From config.json to a ModelSpec: which family, which task, which inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from alula.core.errors import InputError
from alula.core.model import ModelSpec, Part
from alula.core.profile import Range
from alula.core.tensor import Dim, TensorSpec
from alula.core.words import TEXT_TASKS, TOKENS, choice
from alula.families import images, onnx_file, writing
from alula.families.checkpoint import Checkpoint, architecture_of
from alula.families.labels import read_labels
from alula.families.sentence import Embedding, read_embedding, score_function, token_limit
from alula.families.settings import Settings, read_settings
from alula.families.weights import read_weights

FAMILIES: Mapping[str, str] = {
    "bert": "bert",
    "roberta": "roberta",
    "xlm-roberta": "roberta",
    "camembert": "roberta",
    "distilbert": "distilbert",
    "mpnet": "mpnet",
    "electra": "electra",
}
"""The module that writes each model type that reads text; others are traced."""

PACKS = ("bert", "distilbert", "electra", "roberta")
"""Families whose graphs can take several texts in a row; MPNet's attention looks at how far apart tokens are."""

_TASK_BY_ENDING: Mapping[str, str] = {
    "ForSequenceClassification": "sequence-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "Model": "embeddings",
}
_CELLS: tuple[Dim, ...] = ("batch", "length")
# Traced, such a model would keep the image size of the trace: its positions are a table of that many patches.
_NOT_TEXT: Mapping[str, str] = {
    **dict.fromkeys(("image_size", "patch_size", "num_channels", "vision_config"), "images"),
    **dict.fromkeys(("num_mel_bins", "audio_config", "feat_extract_norm", "sampling_rate"), "sound"),
    "max_2d_position_embeddings": "boxes on a page",
}
_NOT_TEXT_ARCHITECTURES = ("Image", "Vision", "Video", "ObjectDetection", "Audio", "Speech", "CTC")
_TEXT_CLASSIFIER: Mapping[str, str] = {
    "bert": "classifier",
    "distilbert": "classifier",
    "electra": "classifier.out_proj",
    "mpnet": "classifier.out_proj",
    "roberta": "classifier.out_proj",
}


def head_layer(family: str, task: str) -> str:
    """The layer that gives the outputs of a task, as a written family names it; none for embeddings."""
    if task == "embeddings":
        return ""
    if task == "question-answering":
        return "qa_outputs"
    return "classifier" if task == "token-classification" else _TEXT_CLASSIFIER[family]


def describe(  # noqa: PLR0913, PLR0917 - six, which is as many as a function may have here
    checkpoint: Checkpoint,
    task: str | None = None,
    pooling: str | None = None,
    stated: Sequence[TensorSpec] = (),
    asked: Mapping[str, Range] = MappingProxyType({}),
    listed: Path | None = None,
) -> ModelSpec:
    """Say what the checkpoint is written as, or why it cannot be; `stated` and `listed`, of labels, are for ONNX files.

    `asked` are sizes by axis: those of an image's height and width open them, which are fixed otherwise.
    """
    if onnx_file.is_onnx(checkpoint):
        return onnx_file.describe(checkpoint, task, pooling, stated, listed)
    if listed:
        raise InputError(
            f"--labels {listed}: {checkpoint.name} has its labels in config.json; those are for ONNX files"
        )
    if stated:
        raise InputError(
            f"--inputs {stated[0]}: the inputs of {checkpoint.name} are known; state those of ONNX files"
        )
    config = checkpoint.config
    if writing.writes(checkpoint, task):
        return writing.describe_writer(checkpoint, task, pooling, asked)
    if _model_type(config) in images.FAMILIES:
        return images.describe_images(checkpoint, task, pooling, asked)
    family = FAMILIES.get(_model_type(config), "traced")
    if family == "traced":
        _check_text(config)
    settings = read_settings(family, config)
    labels = read_labels(config)
    chosen = choice("task", task, TEXT_TASKS) if task else _task(checkpoint, labels)
    _check_head(checkpoint, family, chosen, labels)
    if pooling and chosen != "embeddings":
        raise InputError(f"pooling {pooling!r} is for embeddings; the task is {chosen}")
    embedding = read_embedding(checkpoint, pooling) if chosen == "embeddings" else None
    classifies = chosen not in {"embeddings", "question-answering"}
    return ModelSpec(
        name=checkpoint.name,
        digest=checkpoint.digest,
        revision=checkpoint.revision,
        architecture=architecture_of(config) or _model_type(config),
        family=family,
        task=chosen,
        parts=(
            Part(
                name="encoder",
                inputs=_inputs(settings.types > (0 if family == "traced" else 1)),
                outputs=_outputs(chosen, settings, embedding, len(labels)),
            ),
        ),
        max_length=token_limit(checkpoint.root, settings.tokens),
        vocab_size=settings.vocab,
        pad_id=settings.pad_id,
        pooling=embedding.pooling if embedding else "",
        normalize=embedding is not None and embedding.normalize,
        labels=labels if classifies else (),
        activation=_activation(checkpoint, chosen, len(labels)),
    )


def with_tokens(checkpoint: Checkpoint, spec: ModelSpec) -> ModelSpec:
    """The same sentence encoder with one output more: the states of its tokens, before they are pooled."""
    if spec.task != "embeddings":
        raise InputError(f"token embeddings are of models that embed texts; the task is {spec.task}")
    (part,) = spec.parts
    hidden = read_settings(spec.family, checkpoint.config).hidden
    states = TensorSpec(name=TOKENS, dtype="float32", shape=(*_CELLS, hidden))
    return replace(spec, parts=(replace(part, outputs=(*part.outputs, states)),))


def packs(spec: ModelSpec) -> bool:
    """Whether its graph can take several texts in a row."""
    return spec.family in PACKS and spec.reads_text


def refuse_unless_packs(spec: ModelSpec) -> None:
    """Refuse a model whose graph cannot take several texts in a row."""
    if not packs(spec):
        raise InputError(
            f"{spec.name} is of the family {spec.family!r}; texts are packed into rows by {', '.join(PACKS)}"
        )


def _model_type(config: Mapping[str, Any]) -> str:
    found = config.get("model_type")
    if not isinstance(found, str):
        raise InputError(f"config.json: model_type is {found!r}; expected a name such as 'bert'")
    return found


def _check_text(config: Mapping[str, Any]) -> None:
    """Refuse a model that reads something else than text, or writes it."""
    named = architecture_of(config) or _model_type(config)
    if config.get("is_encoder_decoder"):
        raise InputError(
            f"{named} (model type {_model_type(config)!r}) is an encoder with a decoder that writes text; "
            f"of those that write text these model types are built so far: {', '.join(writing.FAMILIES)}"
        )
    reads = next((_NOT_TEXT[key] for key in _NOT_TEXT if config.get(key) is not None), None)
    if reads is None and any(word in named for word in _NOT_TEXT_ARCHITECTURES):
        reads = "something else than text"
    if reads:
        raise InputError(
            f"{named} (model type {_model_type(config)!r}) reads {reads}; "
            "only models that read token ids alone, and classifiers of images of the model types "
            f"{', '.join(images.FAMILIES)}, are built so far"
        )


def _task(checkpoint: Checkpoint, labels: tuple[str, ...]) -> str:
    architecture = architecture_of(checkpoint.config)
    for ending, task in _TASK_BY_ENDING.items():
        if architecture.endswith(ending):
            return "reranking" if task == "sequence-classification" and len(labels) == 1 else task
    if (checkpoint.root / "modules.json").is_file():
        return "embeddings"
    raise InputError(f"architecture {architecture!r} names no task; name one of: {', '.join(TEXT_TASKS)}")


def _check_head(checkpoint: Checkpoint, family: str, task: str, labels: tuple[str, ...]) -> None:
    """Refuse a task whose head the checkpoint lacks: transformers would make one up."""
    if task == "reranking" and len(labels) != 1:
        raise InputError(
            f"reranking needs a classifier with one label, the checkpoint has {len(labels)}: {labels}"
        )
    if family == "traced":
        return
    head = head_layer(family, task)
    if head and f"{head}.weight" not in read_weights(checkpoint.root):
        raise InputError(
            f"task {task} needs the layer {head!r}, which the weights of {checkpoint.name} "
            f"({architecture_of(checkpoint.config) or 'no architecture named'}) do not have"
        )


def _inputs(types: bool) -> tuple[TensorSpec, ...]:
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if types else [])]
    return tuple(TensorSpec(name=name, dtype="int64", shape=_CELLS) for name in names)


def _outputs(
    task: str, settings: Settings, embedding: Embedding | None, labels: int
) -> tuple[TensorSpec, ...]:
    outputs: Mapping[str, tuple[Dim, ...]]
    if embedding:
        outputs = {"embedding": ("batch", embedding.size(settings.hidden))}
    elif task == "question-answering":
        outputs = {"start_logits": _CELLS, "end_logits": _CELLS}
    else:
        outputs = {"logits": (*_CELLS, labels) if task == "token-classification" else ("batch", labels)}
    return tuple(TensorSpec(name=name, dtype="float32", shape=shape) for name, shape in outputs.items())


def _activation(checkpoint: Checkpoint, task: str, labels: int) -> str:
    """What turns logits into scores."""
    problem = checkpoint.config.get("problem_type")
    if task == "embeddings" or (task == "sequence-classification" and problem == "regression"):
        return "none"
    if task == "reranking":
        return score_function(checkpoint)
    one_each = problem == "multi_label_classification" or labels == 1
    return "sigmoid" if task == "sequence-classification" and one_each else "softmax"
