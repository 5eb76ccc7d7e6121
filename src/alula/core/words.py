"""The words that command line, files, extras and metrics share, and which engine offers which precision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from alula.core.errors import InputError

EngineName = Literal["openvino", "onnxruntime", "torch", "fake"]
Precision = Literal["fp32", "bf16"]
Task = Literal[
    "embeddings", "sequence-classification", "reranking", "token-classification", "question-answering"
]
Pooling = Literal["mean", "cls", "lasttoken", "max", "mean_sqrt_len_tokens", "weightedmean"]

TASKS: tuple[Task, ...] = get_args(Task)
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)

OPSETS = range(17, 25)
"""Opsets that a graph can be kept in: TensorRT 8.6 reads 17 at most, PyTorch and ONNX Runtime end at 24 today."""

WRITTEN_OPSET = 23
"""What graphs are written in, Attention being of that opset; older ones are lowered to, a newer one is written."""

# Tried, not believed: ONNX Runtime has no bf16 kernels for CPUs and refuses such a graph when it loads it.
OFFERED: Mapping[str, tuple[Precision, ...]] = {
    "openvino": ("fp32", "bf16"),
    "onnxruntime": ("fp32",),
    "torch": ("fp32", "bf16"),
    "fake": ("fp32",),
}


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


def precisions_of(engine: str, wanted: str) -> tuple[str, ...]:
    """The precisions to try: all that the engine offers for "auto", else the one named if it is offered."""
    choice("precision", wanted, ("auto", *PRECISIONS))
    if wanted == "auto":
        return OFFERED[engine]
    refuse_unless_offered(engine, wanted)
    return (wanted,)
