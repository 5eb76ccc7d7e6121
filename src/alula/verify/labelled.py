"""What a candidate loses by labels: the task's metric of the reference less the candidate's, over the same rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from alula.core.check import Reference
from alula.core.errors import InputError
from alula.core.model import ModelSpec
from alula.core.tensor import Feeds
from alula.verify import characters
from alula.verify.budget import BEST, Clause, Verdict, clauses_for, verdict
from alula.verify.intervals import Interval, Rows, bootstrap, paired_difference
from alula.verify.losses import Loss
from alula.verify.metrics import Floats
from alula.verify.user_metric import UserMetric

Span: TypeAlias = tuple[int, int, str]

Vectors: TypeAlias = NDArray[np.floating]

Prediction: TypeAlias = Vectors | str | float | tuple[str, ...] | tuple[Span, ...] | Feeds | None
"""What a model says of one row, decoded, by task.

Embeddings: an array with one row per text; classification: a label, or a tuple of them where the model gives each by
itself; one label and reranking: a score; token labels: spans as in the data; question answering: the answer's text;
image classification: a tuple of labels, the best `BEST` of them first; text recognition: the line's text; tensors: the
arrays of one call by output.
None stands for outputs that cannot be decoded, NaN above all: one of them and the metric is NaN.
"""

Label: TypeAlias = str | float | tuple[str, ...] | tuple[Span, ...] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Labelled:
    """Rows with their labels, and what the reference (expected) and the candidate (given) say of each."""

    texts: Sequence[tuple[str, ...]]
    labels: Sequence[Label]
    expected: Sequence[Prediction]
    given: Sequence[Prediction]

    @property
    def whole(self) -> bool:
        """Whether both sides have something to say of each row."""
        sides = (self.expected, self.given)
        return all(len(side) == len(self.labels) and all(p is not None for p in side) for side in sides)


def judge_labels(
    labelled: Labelled, spec: ModelSpec, budget: float, reference: Reference, metric: UserMetric | None = None
) -> tuple[Verdict, ...]:
    """The drop in the task's metric, or in the user's, against the budget.

    A row too few or one that could not be decoded is a failed check; labels that the metric cannot use are refused.
    """
    if metric is not None:
        meaning = f"drop of {metric.name}"
        clause = Clause(metric=f"{metric.name}_drop", times=1, when="labels", meaning=meaning)
        return (verdict(clause, _user_loss(labelled, metric), budget, reference),)
    _refuse_missing(labelled.labels)
    wanted = (c for c in clauses_for(spec.task, len(spec.labels)) if c.when == "labels")
    return tuple(verdict(c, _score_loss(labelled, SCORES[c.metric], spec), budget, reference) for c in wanted)


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """A metric of a task: how it reads labels, and how it is lost."""

    known: Callable[[Sequence[Label], ModelSpec], Sequence[Label]]
    loss: Callable[[Sequence[Label], Sequence[Prediction], Sequence[Prediction]], Loss]
    from_nought: bool = True


def _score_loss(labelled: Labelled, score: Score, spec: ModelSpec) -> Loss:
    labels = score.known(labelled.labels, spec)
    if not labelled.whole:
        return _no_loss(labelled)
    loss = score.loss(labels, labelled.expected, labelled.given)
    if score.from_nought and loss.scores is not None and loss.scores[0] <= 0:
        raise InputError(
            f"the reference itself gets nothing right on {loss.samples} labelled rows, so that nothing can be lost; "
            "expected labels that the model was trained to give"
        )
    return loss


def share_right(
    right: Callable[[Label, Prediction], bool],
) -> Callable[[Sequence[Label], Sequence[Prediction], Sequence[Prediction]], Loss]:
    """The loss of a metric that counts rows which are right."""

    def loss(labels: Sequence[Label], expected: Sequence[Prediction], given: Sequence[Prediction]) -> Loss:
        before, after = (
            np.array([right(label, said) for label, said in zip(labels, side, strict=True)])
            for side in (expected, given)
        )
        rows = len(labels)
        lost, won = int((before & ~after).sum()), int((after & ~before).sum())
        interval = paired_difference(lost, won, rows) if rows else None
        return _drop((_mean(before), _mean(after)), rows, interval)

    return loss


def span_f1_loss(
    labels: Sequence[Label], expected: Sequence[Prediction], given: Sequence[Prediction]
) -> Loss:
    """F1 over spans of all rows together; a span is found where start, end and label are the same."""
    before, after = (
        np.array([_counts(label, said) for label, said in zip(labels, side, strict=True)], dtype=np.int64)
        for side in (expected, given)
    )
    if not len(labels) or not before[:, 2].sum():
        raise InputError("no row is labelled with an entity, so that F1 has no meaning; expected some")
    interval = bootstrap(lambda rows: _f1(before[rows]) - _f1(after[rows]), len(labels))
    return _drop((_f1(before), _f1(after)), len(labels), _unsure(interval, len(labels)))


def spearman_loss(
    labels: Sequence[Label], expected: Sequence[Prediction], given: Sequence[Prediction]
) -> Loss:
    """Spearman's correlation of labels with scores, or with the cosine of the two embeddings of a row."""
    wanted = np.array(labels, dtype=np.float64)
    if len(np.unique(wanted)) < 2:
        raise InputError(
            "all scores in the data are the same, so that no order can be judged; expected several"
        )
    before, after = (
        np.array([_score_of(said) for said in side], dtype=np.float64) for side in (expected, given)
    )

    def drop(rows: Rows) -> float:
        return spearman(wanted[rows], before[rows]) - spearman(wanted[rows], after[rows])

    scores = spearman(wanted, before), spearman(wanted, after)
    interval = bootstrap(drop, len(wanted)) if np.isfinite(scores).all() else None
    return _drop(scores, len(wanted), _unsure(interval, len(wanted)))


def spearman(a: Floats, b: Floats) -> float:
    """The correlation of ranks, tied ones at their mean; NaN where either side is constant or not finite."""
    if not (np.isfinite(a).all() and np.isfinite(b).all()) or len(a) < 2:
        return float("nan")
    x, y = (ranks - ranks.mean() for ranks in (_ranks(a), _ranks(b)))
    scale = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / scale if scale else float("nan")


def character_loss(
    labels: Sequence[Label], expected: Sequence[Prediction], given: Sequence[Prediction]
) -> Loss:
    """Character accuracy: 1 less the edits of all lines per character of the labels."""
    wanted = [str(label) for label in labels]
    if not any(wanted):
        raise InputError("every line is labelled as empty, so that no character can be judged; expected some")
    before, after = (characters.edits(wanted, [str(said) for said in side]) for side in (expected, given))

    def drop(rows: Rows) -> float:
        return characters.error_rate(after[rows]) - characters.error_rate(before[rows])

    scores = 1 - characters.error_rate(before), 1 - characters.error_rate(after)
    return _drop(scores, len(labels), _unsure(bootstrap(drop, len(labels)), len(labels)))


def _known_classes(labels: Sequence[Label], spec: ModelSpec) -> Sequence[Label]:
    known: list[Label] = []
    for at, label in enumerate(labels):
        several = isinstance(label, tuple)
        if several and spec.activation != "sigmoid":
            raise InputError(
                f"example {at + 1} has several labels; {spec.name} gives one of {len(spec.labels)}"
            )
        known.append(
            tuple(_class(one, at, spec) for one in _each(label)) if several else _class(label, at, spec)
        )
    return known


def _known_class(labels: Sequence[Label], spec: ModelSpec) -> Sequence[Label]:
    """One class for each."""
    return [_class(label, at, spec) for at, label in enumerate(labels)]


def _class(label: object, at: int, spec: ModelSpec) -> str:
    """A label by its name, else by its number."""
    if isinstance(label, str):
        if label in spec.labels:
            return label
        if label.isdecimal() and int(label) < len(spec.labels):
            return spec.labels[int(label)]
    shown = ", ".join(spec.labels[:10]) + (", ..." if len(spec.labels) > 10 else "")
    raise InputError(f"label {label!r} of example {at + 1} is none of the model's: {shown}")


def _known_spans(labels: Sequence[Label], spec: ModelSpec) -> Sequence[Label]:
    """Spans whose label the model can give at all, with or without "B-" and "I-"."""
    known = {label.removeprefix("B-").removeprefix("I-") for label in spec.labels} - {"O"}
    for at, label in enumerate(labels):
        for span in label if isinstance(label, tuple) else ():
            if span[2] not in known:
                shown = ", ".join(sorted(known)[:10]) + (", ..." if len(known) > 10 else "")
                raise InputError(f"label {span[2]!r} of example {at + 1} is none of the model's: {shown}")
    return labels


def _known_numbers(labels: Sequence[Label], spec: ModelSpec) -> Sequence[Label]:
    return [_number(label, at) for at, label in enumerate(labels)]


def _number(label: Label, at: int) -> float:
    try:
        if isinstance(label, str | float):
            return float(label)
    except ValueError:
        pass
    raise InputError(f"label {label!r} of example {at + 1} is no number; the model gives scores")


def _known_lines(labels: Sequence[Label], spec: ModelSpec) -> Sequence[Label]:
    for at, label in enumerate(labels):
        if not isinstance(label, str):
            raise InputError(f"label {label!r} of example {at + 1} is no text; expected what the line says")
    return labels


def _as_they_are(labels: Sequence[Label], spec: ModelSpec) -> Sequence[Label]:
    return labels


def _same_class(label: Label, said: Prediction) -> bool:
    """Of several labels, all must be right."""
    several = isinstance(label, tuple) or isinstance(said, tuple)
    return set(_each(label)) == set(_each(said)) if several else label == said


def _among_best(count: int) -> Callable[[Label, Prediction], bool]:
    """Whether the label is one of the first `count` that were said, which are the best first."""
    return lambda label, said: isinstance(said, tuple) and label in said[:count]


def _each(value: object) -> tuple[object, ...]:
    return value if isinstance(value, tuple) else (value,)


def _exact(label: Label, said: Prediction) -> bool:
    """Whether the answer is one of the accepted ones, letter by letter, white space at the ends aside."""
    return isinstance(said, str) and said.strip() in {str(answer).strip() for answer in _each(label)}


SCORES: Mapping[str, Score] = {
    "accuracy_drop": Score(known=_known_classes, loss=share_right(_same_class)),
    "exact_match_drop": Score(known=_as_they_are, loss=share_right(_exact)),
    "top1_drop": Score(known=_known_class, loss=share_right(_among_best(1))),
    "top5_drop": Score(known=_known_class, loss=share_right(_among_best(BEST))),
    "character_accuracy_drop": Score(known=_known_lines, loss=character_loss),
    "span_f1_drop": Score(known=_known_spans, loss=span_f1_loss),
    "spearman_drop": Score(known=_known_numbers, loss=spearman_loss, from_nought=False),
}
"""By metric: what `judge_labels` can measure."""


def _refuse_missing(labels: Sequence[Label]) -> None:
    missing = [at for at, label in enumerate(labels) if label is None]
    if missing:
        raise InputError(f"example {missing[0] + 1} has no label; expected one for each of {len(labels)}")


def _user_loss(labelled: Labelled, metric: UserMetric) -> Loss:
    if not labelled.whole or not len(labelled.labels):
        return _no_loss(labelled)
    before, after = (
        metric.score(side, labelled.labels, labelled.texts) for side in (labelled.expected, labelled.given)
    )
    return _drop((before, after), len(labelled.labels), None)


def _no_loss(labelled: Labelled) -> Loss:
    nan = float("nan")
    return Loss(output="labels", value=nan, mean=nan, samples=len(labelled.labels))


def _drop(scores: tuple[float, float], rows: int, interval: Interval | None) -> Loss:
    # Not by a rounding of the two: 0.9 - 0.896 is more than 0.004.
    drop = round(scores[0] - scores[1], 12)
    return Loss(output="labels", value=drop, mean=drop, samples=rows, interval=interval, scores=scores)


def _unsure(interval: Interval | None, rows: int) -> Interval | None:
    """Rows of which none changed are drawn as nought for ever; they still rule out little where they are few."""
    return interval if interval is None or interval.low < interval.high else paired_difference(0, 0, rows)


def _counts(label: Label, said: Prediction) -> tuple[int, int, int]:
    """Spans that are found, that were said, and that there are."""
    wanted, given = set(_each(label)), set(said) if isinstance(said, tuple) else set()
    return len(wanted & given), len(given), len(wanted)


def _f1(counts: NDArray[np.int64]) -> float:
    found, said, wanted = counts.sum(axis=0)
    return float(2 * found / (said + wanted)) if said + wanted else float("nan")


def _score_of(said: Prediction) -> float:
    if isinstance(said, np.ndarray):
        if said.shape[:1] != (2,):
            raise InputError(f"a score compares two texts, and the data has {len(said)} in a row")
        first, second = said.astype(np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            return float(first @ second / np.sqrt((first @ first) * (second @ second)))
    return float(said) if isinstance(said, float | np.floating) else float("nan")


def _ranks(values: Floats) -> Floats:
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(count)
    means: Floats = ends - (count - 1) / 2
    return means[place]


def _mean(right: NDArray[np.bool_]) -> float:
    return float(right.mean()) if len(right) else float("nan")
