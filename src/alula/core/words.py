"""The words that command line, files, extras and metrics share, and which engine offers which precision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from alula.core.errors import InputError

EngineName = Literal["openvino", "onnxruntime", "tensorrt", "tensorrt-rtx", "torch", "fake"]
Precision = Literal[
    "fp32", "bf16", "fp16", "fp16-mixed", "int8", "int8-mixed", "fp8", "int8-weights", "int4-weights"
]
Task = Literal[
    "embeddings",
    "sequence-classification",
    "reranking",
    "token-classification",
    "question-answering",
    "image-classification",
    "image-embeddings",
    "text-detection",
    "text-recognition",
    "text-generation",
    "text2text-generation",
    "tensors",
]
Pooling = Literal["mean", "cls", "lasttoken", "max", "mean_sqrt_len_tokens", "weightedmean"]
ImagePooling = Literal["pooler", "cls", "mean", "none"]

TASKS: tuple[Task, ...] = get_args(Task)
IMAGE_TASKS: tuple[Task, ...] = (
    "image-classification",
    "image-embeddings",
    "text-detection",
    "text-recognition",
)
MANIFEST = "manifest.json"
"""The file that makes a folder a bundle."""

PIPELINE = ("detect", "turn", "recognise")
"""The bundles in a pipeline's folder: what finds lines, what says which way up they are, what reads them."""

TENSORS: Task = "tensors"
"""The task of an ONNX file that is no model the package knows: arrays in, arrays out, compared as they are."""

TOKENS = "token_embeddings"
"""The output of a sentence encoder that has the states of its tokens before they are pooled; where it was asked for."""

ONNX_TASKS: Mapping[str, Task] = {
    "detection": "text-detection",
    "recognition": "text-recognition",
    "classification": "image-classification",
    "generic": TENSORS,
}
"""What a ready-made ONNX file may be, by a short name; the task's own name is taken too."""

BY_VALUE: tuple[Task, ...] = ("text-detection", TENSORS)
"""Tasks whose outputs are compared value by value: maps of pixels, and whatever is not known."""

WRITING_TASKS: tuple[Task, ...] = ("text-generation", "text2text-generation")
"""Models that write text token by token: from what stands before it, or from a source that an encoder reads."""

TEXT_TASKS: tuple[Task, ...] = tuple(
    task for task in TASKS if task not in {*IMAGE_TASKS, *WRITING_TASKS, TENSORS}
)
"""Models that read texts and answer in one call."""

PRECISIONS: tuple[Precision, ...] = get_args(Precision)
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)
IMAGE_POOLINGS: tuple[ImagePooling, ...] = get_args(ImagePooling)
"""From states to one vector: by the checkpoint's own layer, the first state, the mean of patches; or all of them."""

OPSETS = range(17, 25)
"""Opsets that a graph can be kept in: TensorRT 8.6 reads 17 at most, PyTorch and ONNX Runtime end at 24 today."""

WRITTEN_OPSET = 23
"""What graphs are written in, Attention being of that opset; older ones are lowered to, a newer one is written."""

# Tried, not believed: ONNX Runtime has no bf16 kernels for CPUs and refuses such a graph when it loads it.
OFFERED: Mapping[str, tuple[Precision, ...]] = {
    "openvino": ("fp32", "bf16", "int8", "int8-mixed", "int8-weights", "int4-weights"),
    "onnxruntime": ("fp32", "fp16", "fp16-mixed", "int8", "int8-mixed", "int8-weights", "int4-weights"),
    "tensorrt": ("fp32", "bf16", "fp16", "fp16-mixed", "int8", "int8-mixed"),
    # Weights alone in few bits: its compiler keeps them so. What there is of TensorRT to try has no such kernels (8.6).
    "tensorrt-rtx": (
        *("fp32", "bf16", "fp16", "fp16-mixed", "int8", "int8-mixed"),
        *("int8-weights", "int4-weights"),
    ),
    "torch": ("fp32", "bf16"),
    "fake": ("fp32",),
}

BY_NAME: Mapping[str, tuple[Precision, ...]] = {
    "openvino": ("int8-weights", "int4-weights"),
    "onnxruntime": ("fp16", "fp16-mixed", "int8-weights", "int4-weights"),
    "tensorrt-rtx": ("int8-weights", "int4-weights"),
}
"""What "auto" does not try. ONNX Runtime computes fp16 right but slowly, casting around every kernel: it shows a GPU's
numbers. Four-bit weights make files smaller, and no CPU tried faster than int8 does."""

WRITING: Mapping[str, tuple[Precision, ...]] = {
    "openvino": ("fp32", "bf16", "int8-weights", "int4-weights"),
    "onnxruntime": ("fp32", "int8-weights", "int4-weights"),
    "tensorrt": ("fp32", "bf16", "fp16"),
    "tensorrt-rtx": ("fp32", "bf16", "fp16", "int8-weights", "int4-weights"),
}
"""What is offered for models that write text, all of it by "auto": one token at a time is bound by reading weights."""


def refuse_unless_offered(engine: str, precision: str) -> None:
    """Refuse, by name, a precision that `engine` does not offer."""
    if engine not in OFFERED:
        raise InputError(f"no engine {engine!r}; there are {sorted(OFFERED)}")
    if precision not in OFFERED[engine]:
        raise InputError(f"engine {engine!r} offers {', '.join(OFFERED[engine])}, not {precision!r}")


def choice(kind: str, given: str, allowed: tuple[str, ...]) -> str:
    """`given`, if it is one of `allowed`; otherwise an error that lists them."""
    if given not in allowed:
        raise InputError(f"{kind} {given!r} is not one of: {', '.join(allowed)}")
    return given


def check_opset(opset: int) -> None:
    """Refuse an opset that no graph is kept in."""
    if opset not in OPSETS:
        raise InputError(f"opset {opset} is not one of {OPSETS[0]}..{OPSETS[-1]}")


def precisions_of(engine: str, wanted: str, *, writes: bool = False) -> tuple[str, ...]:
    """The precisions to try, highest first: those named, or for "auto" all that the engine runs well.

    Several are separated by commas; "mixed" stands for those that keep some layers in a higher precision. A model that
    `writes` text has precisions of its own.
    """
    if writes:
        return _of_writers(engine, wanted)
    named: set[str] = set()
    for word in wanted.split(","):
        named.update(_named(engine, choice("precision", word.strip(), ("auto", "mixed", *PRECISIONS))))
    return tuple(precision for precision in OFFERED[engine] if precision in named)


def _of_writers(engine: str, wanted: str) -> tuple[str, ...]:
    """Those of `WRITING`, or an error that lists them."""
    if engine not in WRITING:
        raise InputError(
            f"models that write text are built for {', '.join(WRITING)} so far, not for {engine}"
        )
    named = [choice("precision", word.strip(), ("auto", "mixed", *PRECISIONS)) for word in wanted.split(",")]
    if other := [word for word in named if word not in {"auto", *WRITING[engine]}]:
        raise InputError(
            f"precision {other[0]!r}: for models that write text {engine} offers {', '.join(WRITING[engine])}"
        )
    return tuple(precision for precision in WRITING[engine] if "auto" in named or precision in named)


def _named(engine: str, word: str) -> tuple[str, ...]:
    worthwhile = tuple(p for p in OFFERED[engine] if p not in BY_NAME.get(engine, ()))
    if word == "auto":
        return worthwhile
    if word == "mixed":
        mixed = tuple(p for p in worthwhile if p.endswith("-mixed"))
        if not mixed:
            raise InputError(f"engine {engine!r} offers {', '.join(OFFERED[engine])}, none of them mixed")
        return mixed
    refuse_unless_offered(engine, word)
    return (word,)
