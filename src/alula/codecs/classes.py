"""Sequence classification and reranking: the logits of one row as scores."""

from __future__ import annotations

from dataclasses import dataclass

from alula.codecs.scores import activate, finite, sigmoid
from alula.core.errors import InputError
from alula.core.model import ModelSpec
from alula.core.tensor import Feeds


@dataclass(frozen=True, kw_only=True, slots=True)
class Scored:
    """A label and how much the model believes in it."""

    label: str
    score: float


def classes(outputs: Feeds, spec: ModelSpec, *, raw: bool = False) -> list[Scored]:
    """Every label with its score (or its logit, if `raw`), the best one first."""
    scores = activate(finite(outputs, "logits"), "none" if raw else spec.activation)
    labels = names(spec, scores.shape[-1])
    found = [Scored(label=label, score=float(score)) for label, score in zip(labels, scores, strict=True)]
    return sorted(found, key=lambda scored: -scored.score)


def relevance(outputs: Feeds, spec: ModelSpec, *, raw: bool = False) -> float:
    """How well the second text answers the first: of several labels, the last one speaks for a match."""
    logits = finite(outputs, "logits")
    if raw:
        return float(logits[-1])
    if logits.shape[-1] == 1:
        return float(sigmoid(logits)[0])
    return float(activate(logits, "softmax" if spec.activation == "none" else spec.activation)[-1])


def names(spec: ModelSpec, count: int) -> tuple[str, ...]:
    """The model's labels, or numbered ones where it names none."""
    labels = spec.labels or tuple(f"LABEL_{at}" for at in range(count))
    if len(labels) != count:
        raise InputError(f"{spec.name} names {len(labels)} labels and gives {count} scores")
    return labels
