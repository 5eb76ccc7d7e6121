"""The gate: two sessions, or stored outputs and a session, asked the same and compared. Knows no framework."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from alula.core.check import Check, Reference
from alula.core.engine import Session
from alula.core.model import ModelSpec
from alula.core.profile import Profile
from alula.core.tensor import Feeds
from alula.core.words import BY_VALUE
from alula.verify import metrics, outputs
from alula.verify.limits import HIGHER_IS_BETTER, Limits, limits_for, limits_of_invariance, metrics_of
from alula.verify.metrics import Flags, Floats
from alula.verify.samples import Sample, alone, is_right_padded

ROWS_ALONE = 8
"""Rows of one sample that are run again by themselves."""

PADDING = 7
"""Cells added to a row to see that they change nothing: odd, so that no kernel's block hides them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What was expected and what was given for one call, and which cells of it are tokens."""

    mask: Flags
    expected: Feeds
    given: Feeds


def compare(  # noqa: PLR0913, PLR0917 - six, which is as many as a function may have here
    reference: Session | Sequence[Feeds],
    candidate: Session,
    samples: Sequence[Sample],
    spec: ModelSpec,
    precision: str,
    reference_name: Reference,
) -> tuple[Check, ...]:
    """One check per output and metric of the task, over all samples.

    A missing output, another shape, NaN on either side, or no sample at all is a failed check, not an error.
    """
    stored = _outputs(reference, samples)
    if len(stored) != len(samples):
        stored, samples = [], ()
    answers = [
        Answer(mask=sample.mask, expected=expected, given=candidate.run(sample.feeds))
        for sample, expected in zip(samples, stored, strict=True)
    ]
    limits = limits_for(precision)
    if spec.task in BY_VALUE:
        return tuple(_of_arrays(spec, answers, precision, reference_name))
    return tuple(
        _check(output, metric, _measure(output, metric, answers, limits), limits.of(metric), reference_name)
        for output, metric in metrics_of(spec)
    )


def invariance(
    candidate: Session, samples: Sequence[Sample], spec: ModelSpec, profile: Profile, precision: str
) -> tuple[Check, ...]:
    """Whether a row gives in a batch what it gives alone, and with padding what it gives without.

    The engine is compared with itself, so these checks alone never make it verified. What a profile rules out
    (one row only, one length only) is not asked.
    """
    if spec.task in BY_VALUE:
        return tuple(_array_rows(candidate, samples, spec, profile, precision))
    usable = [sample for sample in samples if is_right_padded(sample)]
    pairs: dict[str, list[Answer]] = {}
    if profile.axes["batch"].max > 1:
        pairs["batch_equals_single"] = list(_batched(candidate, usable, spec, profile))
    if "length" in profile.axes and profile.axes["length"].max > profile.axes["length"].min:
        pairs["padding_changes_nothing"] = list(_padded(candidate, usable, spec, profile))
    limits = limits_of_invariance(precision)
    checks = []
    for name, answers in pairs.items():
        for output, metric in metrics_of(spec):
            if not metric.endswith("_agreement"):
                values = _measure(output, metric, answers, limits)
                check = _check(output, metric, values, limits.of(metric), "own-graph")
                checks.append(replace(check, metric=f"{name}_cosine" if metric == "cosine" else name))
    return tuple(checks)


def _outputs(reference: Session | Sequence[Feeds], samples: Sequence[Sample]) -> Sequence[Feeds]:
    if isinstance(reference, Sequence):
        return reference
    return [reference.run(sample.feeds) for sample in samples]


def _of_arrays(
    spec: ModelSpec, answers: Sequence[Answer], precision: str, reference: Reference
) -> Iterator[Check]:
    """Every output, value by value."""
    limits = limits_for(precision)
    for name, metric in metrics_of(spec, precision):
        output, pairs = outputs.output_of(spec, name), [arrays(name, answer) for answer in answers]
        nothing = outputs.proves_nothing(output, pairs, limits) if metric == "rms_error" else ""
        values = np.empty(0) if nothing else outputs.measured(output, metric, pairs)
        yield replace(_check(name, metric, values, limits.of(metric), reference), note=nothing)


def arrays(output: str, answer: Answer) -> tuple[Floats, Floats]:
    """Expected and given; NaN where one is missing or shapes differ, none of both being a shape too."""
    expected, given = answer.expected.get(output), answer.given.get(output)
    if expected is None or given is None or expected.shape != given.shape:
        return np.full(1, np.nan), np.full(1, np.nan)
    return expected.astype(np.float64), given.astype(np.float64)


def _array_rows(
    candidate: Session, samples: Sequence[Sample], spec: ModelSpec, profile: Profile, precision: str
) -> Iterator[Check]:
    """Whether rows of a batch are what they are alone, where a model has rows."""
    limits = limits_of_invariance(precision)
    for name, pairs in outputs.rows_alone(candidate, samples, spec, profile, ROWS_ALONE).items():
        values = outputs.measured(outputs.output_of(spec, name), "rms_error", pairs)
        check = _check(name, "rms_error", values, limits.max_error, "own-graph")
        note = "" if check.passed else outputs.mixed_rows(spec)
        yield replace(check, metric="batch_equals_single", note=note)


def _check(output: str, metric: str, values: Floats, limit: float, reference: Reference) -> Check:
    """Values to a verdict. Decisions are judged by their share, everything else by its worst value."""
    higher = metric in HIGHER_IS_BETTER
    mean = worst = float("nan")
    if len(values):
        mean = float(values.mean())
        worst = float(values.min() if higher else values.max())
    return Check(
        output=output,
        metric=metric,
        samples=len(values),
        worst=mean if metric.endswith("_agreement") else worst,
        mean=mean,
        limit=limit,
        higher_is_better=higher,
        reference=reference,
    )


def _measure(output: str, metric: str, answers: Sequence[Answer], limits: Limits) -> Floats:
    """All values of one metric: per row, token, pair or logit, whichever it judges."""
    if not answers:
        return np.empty(0)
    if output == "span":
        return _spans(answers, limits)
    scale = _scale(output, answers)
    pairs = [pair(output, answer) for answer in answers]
    if metric == "order_agreement":
        expected, given = (np.concatenate(side) for side in zip(*pairs, strict=True))
        return metrics.order_agreements(expected, given, limits.tie * scale)
    judge = _JUDGES[metric]
    return np.concatenate(
        [
            judge(expected, given, answer.mask, limits, scale)
            for answer, (expected, given) in zip(answers, pairs, strict=True)
        ]
    )


Judge = Callable[[Floats, Floats, Flags, Limits, float], Floats]

_JUDGES: Mapping[str, Judge] = {
    "cosine": lambda a, b, mask, limits, scale: metrics.cosines(_tokens(a, mask), _tokens(b, mask)),
    "max_abs": lambda a, b, mask, limits, scale: metrics.differences(_tokens(a, mask), _tokens(b, mask)),
    "max_error": lambda a, b, mask, limits, scale: metrics.differences(
        _tokens(a, mask), _tokens(b, mask), scale
    ),
    "label_agreement": lambda a, b, mask, limits, scale: metrics.label_agreements(a, b, limits.tie * scale),
    "decision_agreement": lambda a, b, mask, limits, scale: metrics.decision_agreements(
        a, b, limits.tie * scale
    ),
    "token_label_agreement": lambda a, b, mask, limits, scale: metrics.label_agreements(
        a[mask], b[mask], limits.tie * scale
    ),
    "step_error": lambda a, b, mask, limits, scale: metrics.step_differences(a, b, scale),
    "step_label_agreement": lambda a, b, mask, limits, scale: metrics.label_agreements(
        _steps(a), _steps(b), limits.tie * scale
    ),
}


def pair(output: str, answer: Answer) -> tuple[Floats, Floats]:
    """Expected and given in float64; what is missing or has another shape on either side is NaN."""
    expected, given = answer.expected.get(output), answer.given.get(output)
    if expected is None:
        like = np.zeros((*answer.mask.shape, 1)) if given is None else given
        return metrics.aligned(like, None), metrics.aligned(like, None)
    return expected.astype(np.float64), metrics.aligned(expected, given)


def _tokens(values: Floats, mask: Flags) -> Floats:
    """`values` with padding cells at zero on both sides, where an output has a value per token."""
    if values.shape[:2] != mask.shape:
        return values
    kept = mask.reshape(mask.shape + (1,) * (values.ndim - 2))
    return np.where(kept, values, 0.0)


def _steps(values: Floats) -> Floats:
    """A row per step, those over padding too: what they give is read as well."""
    return values.reshape(-1, values.shape[-1])


def _scale(output: str, answers: Sequence[Answer]) -> float:
    """Largest magnitude the reference gives: what a difference is measured against."""
    largest = max(
        float(np.abs(_tokens(pair(output, answer)[0], answer.mask)).max(initial=0.0)) for answer in answers
    )
    return largest or 1.0


def _spans(answers: Sequence[Answer], limits: Limits) -> Floats:
    """Span agreement per row; a tie is a share of both logits' scales together."""
    names = ("start_logits", "end_logits")
    tie = limits.tie * sum(_scale(name, answers) for name in names)
    values = []
    for answer in answers:
        (start, given_start), (end, given_end) = (pair(name, answer) for name in names)
        for row, kept in enumerate(answer.mask):
            if start.shape != answer.mask.shape or end.shape != answer.mask.shape:
                values.append(float("nan"))
                continue
            expected = start[row, kept], end[row, kept]
            given = given_start[row, kept], given_end[row, kept]
            values.append(metrics.span_agreement(expected, given, tie))
    return np.array(values, dtype=np.float64)


def _batched(
    candidate: Session, samples: Sequence[Sample], spec: ModelSpec, profile: Profile
) -> Iterator[Answer]:
    """Rows of each batch against the same rows alone, unpadded."""
    for sample in samples:
        rows = len(sample.mask)
        if rows < 2:
            continue
        together = candidate.run(sample.feeds)
        for row in np.unique(np.linspace(0, rows - 1, ROWS_ALONE).astype(int)):
            size = int(sample.mask[row].sum())
            single = candidate.run(alone(sample, row, spec, profile).feeds)
            yield _row_answer(spec, size, (single, 0), (together, int(row)))


def _padded(
    candidate: Session, samples: Sequence[Sample], spec: ModelSpec, profile: Profile
) -> Iterator[Answer]:
    """First, middle and last row of each sample with more cells against fewer."""
    longest = profile.axes["length"].max
    for sample in samples:
        rows = len(sample.mask)
        for row in sorted({0, rows // 2, rows - 1}):
            size = int(sample.mask[row].sum())
            short = alone(sample, row, spec, profile)
            room = min(longest, short.mask.shape[1] + PADDING) - size
            if size + room == short.mask.shape[1]:
                continue
            long = alone(sample, row, spec, profile, padding=room)
            yield _row_answer(spec, size, (candidate.run(short.feeds), 0), (candidate.run(long.feeds), 0))


def _row_answer(spec: ModelSpec, size: int, expected: tuple[Feeds, int], given: tuple[Feeds, int]) -> Answer:
    """Row against row, per-token outputs cut to the row's own tokens."""
    return Answer(
        mask=np.ones((1, size), dtype=np.bool_),
        expected=_cut(spec, size, *expected),
        given=_cut(spec, size, *given),
    )


def _cut(spec: ModelSpec, size: int, outputs: Feeds, row: int) -> Feeds:
    """One row of every output that has it."""
    cut = {}
    for tensor in spec.parts[0].outputs:
        if row < len(outputs.get(tensor.name, ())):
            one = outputs[tensor.name][row : row + 1]
            cut[tensor.name] = one[:, :size] if "length" in tensor.shape else one
    return cut
