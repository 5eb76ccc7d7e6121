"""Is an engine equal to the model, or near enough? Metrics, limits with reasons, budgets, the gate."""

from alula.verify.budget import (
    BEST,
    CLAUSES,
    Clause,
    Verdict,
    budget_limits,
    clauses_for,
    judge,
    parse_budget,
)
from alula.verify.gate import Answer, compare, invariance
from alula.verify.intervals import Interval
from alula.verify.labelled import Labelled, Prediction, judge_labels
from alula.verify.limits import CALIBRATED, LIMITS, Limits, held_to, limits_for, metrics_for, metrics_of
from alula.verify.next_tokens import (
    DIVERGENCE,
    NEXT_TOKEN_LOSSES,
    Said,
    Script,
    compare_next_tokens,
    same_next_tokens,
    some_of,
)
from alula.verify.samples import Sample, alone, draw
from alula.verify.texts import texts_for
from alula.verify.user_metric import UserMetric, load_metric
from alula.verify.written import Likely, Reply, beside, judge_written, likely

__all__ = [
    "BEST",
    "CALIBRATED",
    "CLAUSES",
    "DIVERGENCE",
    "LIMITS",
    "NEXT_TOKEN_LOSSES",
    "Answer",
    "Clause",
    "Interval",
    "Labelled",
    "Likely",
    "Limits",
    "Prediction",
    "Reply",
    "Said",
    "Sample",
    "Script",
    "UserMetric",
    "Verdict",
    "alone",
    "beside",
    "budget_limits",
    "clauses_for",
    "compare",
    "compare_next_tokens",
    "draw",
    "held_to",
    "invariance",
    "judge",
    "judge_labels",
    "judge_written",
    "likely",
    "limits_for",
    "load_metric",
    "metrics_for",
    "metrics_of",
    "parse_budget",
    "same_next_tokens",
    "some_of",
    "texts_for",
]
