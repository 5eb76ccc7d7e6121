from __future__ import annotations

import pytest

from alula.core.errors import InputError
from alula.core.words import BY_VALUE, IMAGE_TASKS, OFFERED, TEXT_TASKS
from alula.verify.limits import HIGHER_IS_BETTER, LIMITS, limits_for, metrics_for

KNOWN = tuple(task for task in (*TEXT_TASKS, *IMAGE_TASKS) if task not in BY_VALUE)
"""Tasks whose outputs have a meaning; of tensors each output is compared as it is."""


def test_every_precision_that_an_engine_offers_has_limits_with_a_reason() -> None:
    offered = {precision for precisions in OFFERED.values() for precision in precisions}
    assert all(limits_for(precision).reason for precision in offered)
    assert all(len(limits.reason) > 40 for limits in LIMITS.values())


@pytest.mark.parametrize("task", KNOWN)
def test_every_task_has_a_numeric_metric_first_and_at_least_two(task: str) -> None:
    chosen = metrics_for(task, labels=3)
    assert len(chosen) >= 2
    assert chosen[0][1] in {"cosine", "max_error", "step_error"}


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_sameness_has_limits_near_one_and_distance_limits_near_zero(precision: str) -> None:
    limits = limits_for(precision)
    for task in KNOWN:
        for _, metric in metrics_for(task, labels=3, normalize=True):
            assert (limits.of(metric) >= 0.99) == (metric in HIGHER_IS_BETTER)
            assert limits.of(metric) <= 0.1 or limits.of(metric) >= 0.99


def test_two_logits_that_move_by_the_limit_can_swap_within_the_tie_only() -> None:
    fp32 = limits_for("fp32")
    assert fp32.tie == pytest.approx(2 * fp32.max_error)


def test_an_unknown_precision_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"no limits for precision 'int3'; there are \['bf16', 'fp16', "):
        limits_for("int3")


def test_an_unknown_task_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="no metrics for task 'poetry'"):
        metrics_for("poetry")


@pytest.mark.parametrize(
    ("labels", "activation", "metric"),
    [
        (1, "none", "order_agreement"),
        (1, "sigmoid", "order_agreement"),
        (3, "softmax", "label_agreement"),
        (3, "sigmoid", "decision_agreement"),
    ],
)
@pytest.mark.parametrize("task", ["sequence-classification", "image-classification"])
def test_a_classifier_is_judged_by_what_it_decides(
    task: str, labels: int, activation: str, metric: str
) -> None:
    chosen = metrics_for(task, labels=labels, activation=activation)
    assert chosen[1] == ("logits", metric)
