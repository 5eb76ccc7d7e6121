"""A user's rows as calls to a session, made exactly as serving makes them, and answers read as serving reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from alula.codecs import Row, TextCodec, answers, classes, entities, fit, relevance, row_outputs, within
from alula.core.check import Check, Reference
from alula.core.engine import Session
from alula.core.errors import RunError
from alula.core.model import ModelSpec
from alula.core.profile import Profile
from alula.core.tensor import Feeds
from alula.data import Dataset, Example
from alula.verify import Answer, Labelled, Prediction, Sample, UserMetric, Verdict, judge, judge_labels

BATCH = 8

CELLS = 1024
"""Padded tokens of one call at most (a single row may be longer)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """Feeds of one call, and the numbers of the rows in it; rows beyond these only fill the smallest batch."""

    feeds: Feeds
    rows: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Questions:
    """Every row of a data set, in calls of rows alike in length; a pair of texts to be embedded is two rows."""

    spec: ModelSpec
    data: Dataset
    rows: tuple[Row, ...]
    calls: tuple[Call, ...]

    @property
    def tokens(self) -> int:
        """Tokens over all rows, padding left out."""
        return sum(len(row.ids) for row in self.rows)

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """The two rows of each example that is embedded as two."""
        if self.spec.task != "embeddings" or not self.data.paired:
            return ()
        return tuple((2 * at, 2 * at + 1) for at in range(len(self.data.examples)))

    def ask(self, session: Session) -> tuple[Feeds, ...]:
        """What a session answers, a mapping of arrays for each call, rows that only fill left out."""
        return tuple(_first(session.run(call.feeds), len(call.rows)) for call in self.calls)

    def some(self, count: int) -> tuple[int, ...]:
        """Numbers of calls that hold about so many rows, evenly spread over short and long ones."""
        rows = sum(len(call.rows) for call in self.calls)
        step = max(1, round(rows / max(count, 1)))
        return tuple(range(step // 2, len(self.calls), step))

    def feeds(self) -> tuple[Feeds, ...]:
        """Every row once, padded as it is asked: what calibration sees."""
        return tuple(_first(call.feeds, len(call.rows)) for call in self.calls)

    def samples(self) -> tuple[Sample, ...]:
        """The calls as samples of the gate."""
        return tuple(Sample(name=f"data {at}", feeds=call.feeds) for at, call in enumerate(self.calls))


@dataclass(frozen=True, kw_only=True, slots=True)
class Promise:
    """What may be lost on which rows, by the task's own metrics or by one that the user wrote."""

    questions: Questions
    budget: float
    metric: UserMetric | None = None

    def judge(
        self, expected: Sequence[Feeds], given: Sequence[Feeds], reference: Reference
    ) -> tuple[Check, ...]:
        """Hold what a candidate gave for all calls to what the reference gave."""
        asked = self.questions
        by_labels = asked.data.labelled or self.metric is not None
        order = {row: place for place, row in enumerate(row for call in asked.calls for row in call.rows)}
        pairs = [(order[first], order[second]) for first, second in asked.pairs]
        compared = self.compared(range(len(asked.calls)), expected, given)
        verdicts = judge(compared, asked.spec, self.budget, reference, pairs=pairs, labelled=by_labels)
        if by_labels:
            labelled = Labelled(
                texts=[example.texts for example in asked.data.examples],
                labels=[example.label for example in asked.data.examples],
                expected=predictions(asked, expected),
                given=predictions(asked, given),
            )
            verdicts += judge_labels(labelled, asked.spec, self.budget, reference, self.metric)
        return tuple(_check(verdict) for verdict in verdicts)

    def compared(
        self, calls: Sequence[int], expected: Sequence[Feeds], given: Sequence[Feeds]
    ) -> list[Answer]:
        """What was expected and given for some calls, by their numbers."""
        chosen = [(self.questions.calls[at], self.questions.samples()[at]) for at in calls]
        return [
            Answer(mask=sample.mask[: len(call.rows)], expected=before, given=after)
            for (call, sample), before, after in zip(chosen, expected, given, strict=True)
        ]


def questions_of(data: Dataset, spec: ModelSpec, profile: Profile, folder: Path) -> Questions:
    """The rows of a data set for an engine of this profile; `folder` holds the tokenizer."""
    served = within(spec, profile)
    codec = TextCodec.open(folder, served)
    rows = tuple(row for example in data.examples for row in _encoded(codec, example))
    order = sorted(range(len(rows)), key=lambda at: len(rows[at].ids))
    calls = tuple(
        Call(feeds=fit([rows[at] for at in group], served, profile), rows=group)
        for group in _grouped(order, rows, min(BATCH, profile.axes["batch"].max))
    )
    return Questions(spec=spec, data=data, rows=rows, calls=calls)


def predictions(asked: Questions, outputs: Sequence[Feeds]) -> list[Prediction]:
    """What answers say of each example, decoded; None where they cannot be."""
    single: dict[int, Prediction] = {}
    for call, batch in zip(asked.calls, outputs, strict=True):
        rows = [asked.rows[at] for at in call.rows]
        for at, one in zip(call.rows, row_outputs(batch, rows, asked.spec), strict=True):
            single[at] = _prediction(asked, at, one)
    if asked.spec.task != "embeddings":
        return [single[at] for at in range(len(asked.rows))]
    each = 2 if asked.data.paired else 1
    return [_stacked([single[at + i] for i in range(each)]) for at in range(0, len(asked.rows), each)]


Decode: TypeAlias = Callable[[Feeds, Row, Example, ModelSpec], Prediction]


def _spans(outputs: Feeds, row: Row, example: Example, spec: ModelSpec) -> Prediction:
    found = entities(outputs, row, example.texts[0], spec)
    return tuple((entity.start, entity.end, entity.entity_group) for entity in found)


def _answer(outputs: Feeds, row: Row, example: Example, spec: ModelSpec) -> Prediction:
    found = answers(outputs, row, example.texts[1])
    return found[0].answer if found else ""


def _classes(outputs: Feeds, row: Row, example: Example, spec: ModelSpec) -> Prediction:
    if len(spec.labels) == 1:
        return relevance(outputs, spec, raw=True)
    scored = classes(outputs, spec)
    if spec.activation == "sigmoid":
        return tuple(one.label for one in scored if one.score > 0.5)
    return scored[0].label


DECODE: Mapping[str, Decode] = {
    "embeddings": lambda outputs, row, example, spec: np.asarray(outputs["embedding"], np.float32),
    "sequence-classification": _classes,
    "reranking": lambda outputs, row, example, spec: relevance(outputs, spec, raw=True),
    "token-classification": _spans,
    "question-answering": _answer,
}
"""By task: the outputs of one row as what `verify.Prediction` describes."""


def _prediction(asked: Questions, at: int, outputs: Feeds) -> Prediction:
    each = len(asked.rows) // len(asked.data.examples)
    try:
        return DECODE[asked.spec.task](outputs, asked.rows[at], asked.data.examples[at // each], asked.spec)
    except (RunError, KeyError, IndexError):  # NaN, an output that is missing, or one of another shape
        return None


def _stacked(vectors: Sequence[Prediction]) -> Prediction:
    arrays = [vector for vector in vectors if isinstance(vector, np.ndarray)]
    whole = len(arrays) == len(vectors) and all(np.isfinite(array).all() for array in arrays)
    return np.stack(arrays) if whole else None


def _encoded(codec: TextCodec, example: Example) -> Iterator[Row]:
    """An example's rows exactly as serving makes them: a question keeps its words when its context is too long."""
    texts, task = example.texts, codec.spec.task
    if task == "embeddings" or len(texts) == 1:
        yield from (codec.encode(text) for text in texts)
    else:
        first, second = texts
        yield codec.encode_pair(first, second, only_second=task == "question-answering")


def _grouped(order: Sequence[int], rows: Sequence[Row], batch: int) -> Iterator[tuple[int, ...]]:
    """Every row once, in calls of at most `batch` rows and `CELLS` padded tokens; rows come sorted by length."""
    group: list[int] = []
    for at in order:
        if group and (len(group) == batch or (len(group) + 1) * len(rows[at].ids) > CELLS):
            yield tuple(group)
            group = []
        group.append(at)
    if group:
        yield tuple(group)


def _first(outputs: Feeds, count: int) -> Feeds:
    return {name: array[:count] for name, array in outputs.items()}


def _check(verdict: Verdict) -> Check:
    """A verdict as the check that bundles keep."""
    notes = [] if verdict.scores is None else ["{:.4f} -> {:.4f}".format(*verdict.scores)]
    notes += [verdict.note] if verdict.note else []
    check = verdict.check
    return Check(
        output=check.output,
        metric=check.metric,
        samples=check.samples,
        worst=check.worst,
        mean=check.mean,
        limit=check.limit,
        higher_is_better=check.higher_is_better,
        reference=check.reference,
        note="; ".join(notes),
    )
