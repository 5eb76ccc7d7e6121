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


def precisions_of(engine: str, wanted: str) -> tuple[str, ...]:
    """The precisions to try: all that the engine offers for "auto", else the one named if it is offered."""
    choice("precision", wanted, ("auto", *PRECISIONS))
    if wanted == "auto":
        return OFFERED[engine]
    refuse_unless_offered(engine, wanted)
    return (wanted,)
