"""What a budget means: how much of a task may be lost, judged on outputs. One table, decided before any run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Literal, TypeAlias

from alula.core.check import Check, Reference
from alula.core.errors import InputError
from alula.core.model import ModelSpec
from alula.verify.gate import Answer
from alula.verify.intervals import Interval
from alula.verify.losses import MEASURES, Loss, Pairs

When: TypeAlias = Literal["always", "pairs", "no labels", "labels"]

BEST = 5
"""Labels that are looked at beside the best one, where a model has many more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Clause:
    """One thing that a budget of x limits, to `times` x, and when it counts."""

    metric: str
    times: float
    when: When
    meaning: str


_DISTANCES = (
    Clause(
        metric="cosine_distance_mean",
        times=1,
        when="always",
        meaning="mean of 1 - cosine over all texts or images",
    ),
    Clause(
        metric="cosine_distance_worst",
        times=5,
        when="always",
        meaning="largest 1 - cosine of any text or image",
    ),
    Clause(
        metric="nearest_disagreement",
        times=1,
        when="pairs",
        meaning="share of first texts whose nearest second text is another one",
    ),
    Clause(
        metric="spearman_drop",
        times=1,
        when="labels",
        meaning="drop of Spearman's correlation of cosine and score",
    ),
)
_SCORES = (
    Clause(
        metric="order_disagreement",
        times=1,
        when="no labels",
        meaning="share of pairs of rows that the scores put in another order",
    ),
    Clause(
        metric="spearman_drop",
        times=1,
        when="labels",
        meaning="drop of Spearman's correlation of score and label",
    ),
)
_CLASSES = (
    Clause(
        metric="label_disagreement",
        times=1,
        when="no labels",
        meaning="share of texts with another label (of several labels: with any other)",
    ),
    Clause(metric="accuracy_drop", times=1, when="labels", meaning="drop of accuracy"),
)
_TOKENS = (
    Clause(
        metric="token_label_disagreement",
        times=1,
        when="no labels",
        meaning="share of tokens with another label",
    ),
    Clause(metric="span_f1_drop", times=1, when="labels", meaning="drop of F1 over whole entities"),
)
_SPANS = (
    Clause(
        metric="span_disagreement", times=1, when="no labels", meaning="share of questions with another span"
    ),
    Clause(metric="exact_match_drop", times=1, when="labels", meaning="drop of exact matches"),
)
_IMAGES = (
    Clause(
        metric="label_disagreement", times=1, when="no labels", meaning="share of images with another label"
    ),
    Clause(metric="top1_drop", times=1, when="labels", meaning="drop of accuracy"),
    Clause(
        metric="top5_drop",
        times=1,
        when="labels",
        meaning="drop of the share of images whose label is among the best five (more than five labels)",
    ),
)
_LINES = (
    Clause(
        metric="character_error_rate",
        times=1,
        when="no labels",
        meaning="edits from the reference's text to the candidate's, per character of the reference's",
    ),
    Clause(
        metric="character_accuracy_drop",
        times=1,
        when="labels",
        meaning="drop of character accuracy, which is 1 - the character error rate against the labels",
    ),
)

_MAPS = (
    Clause(
        metric="area_disagreement",
        times=1,
        when="always",
        meaning="share of the area that either calls text and not both do, of all that either calls text",
    ),
)
_ANSWERS = (
    Clause(
        metric="next_token_disagreement",
        times=1,
        when="no labels",
        meaning="share of the next tokens that are another one than the reference's, and clearly less likely by it",
    ),
    Clause(
        metric="perplexity_rise",
        times=1,
        when="no labels",
        meaning="rise of the perplexity of what the reference says of the next token: e to the mean divergence, less 1",
    ),
    Clause(metric="exact_match_drop", times=1, when="labels", meaning="drop of exact matches"),
)
_ARRAYS = (
    Clause(
        metric="energy_of_error",
        times=1,
        when="always",
        meaning="squares of all differences, as a share of the squares of what was expected; of whole numbers, the "
        "share of values that differ. Of several outputs the worst counts",
    ),
)

CLAUSES: Mapping[str, tuple[Clause, ...]] = {
    "embeddings": _DISTANCES,
    "sequence-classification": _CLASSES,
    "reranking": _SCORES,
    "token-classification": _TOKENS,
    "question-answering": _SPANS,
    "image-classification": _IMAGES,
    "image-embeddings": _DISTANCES[:2],
    "text-detection": _MAPS,
    "text-recognition": _LINES,
    "text-generation": _ANSWERS,
    "text2text-generation": _ANSWERS,
    "tensors": _ARRAYS,
}
"""Labels judge in place of agreement, which bounds the same loss from above; distances of embeddings always count."""

BESIDE_LABELS = 5
"""Times the budget that answers may differ from the reference's where labels judge.

A drop alone lets a fault through where labels are few: on six labelled sentences six faults of seven raised F1. A sound
engine changes some answers for better and for worse; one that changes many is another model.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """A check against a budget, with what its number of samples can tell.

    The check goes by the value itself: to ask that the whole interval lie within 0.4 % would refuse every set of
    fewer than 957 rows, agreement throughout included, and to ask that some of it do would pass nearly all. `scores`
    are the reference's and the candidate's where the check is a drop between the two.
    """

    check: Check
    interval: Interval | None = None
    scores: tuple[float, float] | None = None

    @property
    def note(self) -> str:
        """Says that there are too few samples to tell the budget apart, where that is so; else nothing."""
        limit, interval = self.check.limit, self.interval
        if interval is None or not interval.low <= limit < interval.high:
            return ""
        return (
            f"too few samples ({self.check.samples}) to tell {_percent(limit)} apart: "
            f"95 % of {_percent(interval.low)} to {_percent(interval.high)}"
        )

    def kept(self, rows: str) -> Check:
        """The check as bundles keep it: with notes, and what it knows the user's `rows` by."""
        notes = [] if self.scores is None else ["{:.4f} -> {:.4f}".format(*self.scores)]
        notes += [self.note] if self.note else []
        return replace(self.check, note="; ".join(notes), rows=rows)


def parse_budget(text: str) -> float:
    """A share from "0.4%" or "0.004"."""
    found = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*(%?)\s*", text, re.ASCII)
    share = Decimal(found[1]) / (100 if found[2] else 1) if found else Decimal(-1)
    if not 0 <= share <= 1:
        raise InputError(f"budget {text!r} is no share from 0 to 1; expected one such as 0.4% or 0.004")
    return float(share)


def clauses_for(task: str, labels: int = 0) -> tuple[Clause, ...]:
    """What counts for a task; a classifier with one label gives scores, as a reranker does.

    Of five labels or fewer, any is among the best five.
    """
    if task not in CLAUSES:
        raise InputError(f"no budget for task {task!r}; there are {', '.join(CLAUSES)}")
    if labels == 1 and task in {"sequence-classification", "image-classification"}:
        return _SCORES
    few = 0 < labels <= BEST
    return tuple(clause for clause in CLAUSES[task] if not (few and clause.metric == "top5_drop"))


def budget_limits(task: str, budget: float, labels: int = 0) -> dict[str, float]:
    """The limit of each metric of a task."""
    return {clause.metric: clause.times * budget for clause in clauses_for(task, labels)}


def judge(  # noqa: PLR0913 - six, which is as many as a function may have here
    answers: Sequence[Answer],
    spec: ModelSpec,
    budget: float,
    reference: Reference,
    *,
    pairs: Pairs = (),
    labelled: bool = False,
) -> tuple[Verdict, ...]:
    """How far given outputs are from the expected ones; `labelled` says that `judge_labels` judges the labels.

    A missing output, another shape, NaN, or nothing to compare is a failed check, not an error.
    """
    wanted: set[When] = {"always", "no labels"}
    if len(pairs) > 1:
        wanted.add("pairs")
    return tuple(
        verdict(
            replace(clause, times=BESIDE_LABELS) if labelled and clause.when == "no labels" else clause,
            MEASURES[clause.metric](answers, spec, pairs),
            budget,
            reference,
        )
        for clause in clauses_for(spec.task, len(spec.labels))
        if clause.when in wanted
    )


def verdict(clause: Clause, loss: Loss, budget: float, reference: Reference) -> Verdict:
    """A measured loss against what the clause allows."""
    check = Check(
        output=loss.output,
        metric=clause.metric,
        samples=loss.samples,
        worst=loss.value,
        mean=loss.mean,
        limit=clause.times * budget,
        higher_is_better=False,
        reference=reference,
    )
    return Verdict(check=check, interval=loss.interval, scores=loss.scores)


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
