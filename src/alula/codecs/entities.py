"""Token classification: the logits of one row as labels and as entities of the user's text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from alula.codecs.classes import names
from alula.codecs.rows import SPECIAL, Row
from alula.codecs.scores import activate, finite
from alula.core.model import ModelSpec
from alula.core.tensor import Feeds


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenLabel:
    """The label of one token; `index` is its position in the row, `start` and `end` are code points."""

    entity: str
    score: float
    index: int
    word: str
    start: int
    end: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Entity:
    """A run of tokens that one label covers; `start` and `end` are code points of the user's text."""

    entity_group: str
    score: float
    word: str
    start: int
    end: int


def token_labels(outputs: Feeds, row: Row, text: str, spec: ModelSpec) -> list[TokenLabel]:
    """The best label of every token that comes from the text, whatever it is."""
    scores = activate(finite(outputs, "logits"), spec.activation)
    labels = names(spec, scores.shape[-1])
    found = []
    for index, source in enumerate(row.sources):
        if source == SPECIAL:
            continue
        best = int(scores[index].argmax())
        start, end = stripped(text, *row.offsets[index])
        found.append(
            TokenLabel(
                entity=labels[best],
                score=float(scores[index, best]),
                index=index,
                word=text[start:end],
                start=start,
                end=end,
            )
        )
    return found


def entities(
    outputs: Feeds, row: Row, text: str, spec: ModelSpec, *, outside: frozenset[str] = frozenset({"O"})
) -> list[Entity]:
    """Neighbouring tokens of one label as one entity: what transformers calls aggregation "simple".

    A label that begins with "B-" starts a new entity; labels named `outside` are left out.
    """
    groups: list[list[TokenLabel]] = []
    for token in token_labels(outputs, row, text, spec):
        if groups and not token.entity.startswith("B-") and tag(groups[-1][-1].entity) == tag(token.entity):
            groups[-1].append(token)
        else:
            groups.append([token])
    return [_entity(group, text) for group in groups if tag(group[0].entity) not in outside]


def tag(label: str) -> str:
    """The label without its "B-" or "I-"."""
    return label[2:] if label.startswith(("B-", "I-")) else label


def stripped(text: str, start: int, end: int) -> tuple[int, int]:
    """The span without white space at its ends: some tokenizers count the space before a word as part of it."""
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    return start, end


def _entity(group: list[TokenLabel], text: str) -> Entity:
    start, end = group[0].start, group[-1].end
    return Entity(
        entity_group=tag(group[0].entity),
        score=_mean(token.score for token in group),
        word=text[start:end],
        start=start,
        end=end,
    )


def _mean(scores: Iterable[float]) -> float:
    kept = list(scores)
    return sum(kept) / len(kept)
