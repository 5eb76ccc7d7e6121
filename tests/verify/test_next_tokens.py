from __future__ import annotations

import numpy as np
import pytest

from alula.core.decoding import Logits
from alula.core.errors import InputError
from alula.core.words import WRITING
from alula.verify import Said, Script, compare_next_tokens, same_next_tokens, some_of
from alula.verify.limits import NEXT_TOKENS, next_tokens_for

PRECISIONS = sorted(NEXT_TOKENS)
LOGITS = np.random.default_rng(0).normal(size=(40, 50)).astype(np.float32) * 4


def said(given: Logits, expected: Logits = LOGITS) -> list[Said]:
    script = Script(name="a", prompt=(1, 2), follow=tuple(range(len(expected))))
    return [Said(script=script, expected=expected, given=given)]


def failed(given: Logits, precision: str) -> set[str]:
    checks = compare_next_tokens(said(given), precision, "pytorch")
    return {check.metric for check in checks if not check.passed}


def test_what_is_offered_has_limits_with_a_reason() -> None:
    offered = {precision for precisions in WRITING.values() for precision in precisions}
    assert all(len(next_tokens_for(precision).reason) > 40 for precision in offered)
    with pytest.raises(InputError, match="no limits on next tokens for precision 'int3'"):
        next_tokens_for("int3")


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_same_logits_pass_and_so_do_those_that_are_shifted_together(precision: str) -> None:
    assert failed(LOGITS.copy(), precision) == set()
    assert failed(LOGITS + np.float32(3), precision) == ({"max_error"} if precision == "fp32" else set())


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    "given", [np.full_like(LOGITS, np.nan), LOGITS[:, :-1], LOGITS[:-1], LOGITS[:, ::-1]]
)
def test_nan_another_shape_and_other_tokens_fail(precision: str, given: Logits) -> None:
    assert failed(given, precision) >= {"kl_divergence", "next_token_agreement"}
    assert not same_next_tokens("batch_equals_single", said(given), precision).passed


@pytest.mark.parametrize("precision", PRECISIONS)
def test_one_token_of_which_anything_is_nan_is_enough(precision: str) -> None:
    given = LOGITS.copy()
    given[7, 3] = np.nan
    assert failed(given, precision) >= {"kl_divergence", "next_token_agreement"}


@pytest.mark.parametrize("precision", PRECISIONS)
def test_nothing_proves_nothing(precision: str) -> None:
    assert not any(check.passed for check in compare_next_tokens([], precision, "pytorch"))
    assert not same_next_tokens("chunks_equal_whole", [], precision).passed


def test_a_choice_between_two_that_are_as_good_is_nobodys() -> None:
    expected, given = LOGITS.copy(), LOGITS.copy()
    expected[:, 0], expected[:, 1] = 30.0, 30.0 - 9e-4
    given[:, 0], given[:, 1] = 30.0 - 9e-4, 30.0
    checks = {c.metric: c for c in compare_next_tokens(said(given, expected), "fp32", "pytorch")}
    assert checks["next_token_agreement"].passed
    assert checks["next_token_agreement"].note == "40 of 40 fell between tokens less than 0.001 apart"
    expected[:, 1] = 30.0 - 1.1e-3
    checks = {c.metric: c for c in compare_next_tokens(said(given, expected), "fp32", "pytorch")}
    assert not checks["next_token_agreement"].passed


def test_one_other_token_fails_fp32_and_one_of_fifty_no_lower_one() -> None:
    given = np.repeat(LOGITS, 3, axis=0)
    expected = given.copy()
    best = given[5].argmax()
    given[5, best] -= 20
    checks = {c.metric: c for c in compare_next_tokens(said(given, expected), "fp32", "pytorch")}
    assert not checks["next_token_agreement"].passed
    assert checks["next_token_agreement"].mean == pytest.approx(119 / 120)


def test_divergence_is_that_of_the_distributions() -> None:
    expected, given = np.log([[0.5, 0.25, 0.25]]), np.log([[0.25, 0.5, 0.25]])
    pair = said(given.astype(np.float32), expected.astype(np.float32))
    found = {c.metric: c for c in compare_next_tokens(pair, "bf16", "pytorch")}["kl_divergence"]
    assert found.worst == pytest.approx(0.5 * np.log(2) - 0.25 * np.log(2), rel=1e-5)


def test_a_script_does_not_run_what_nobody_asks_for() -> None:
    script = Script(name="a", prompt=(1, 2), follow=(3, 4, 5))
    assert script.tokens == (1, 2, 3, 4)
    scripts = [Script(name=str(size), prompt=(0,) * size, follow=(1,)) for size in (5, 1, 9, 3, 7)]
    assert list(some_of(scripts, 3)) == [1, 0, 2]
    assert list(some_of(scripts[:2], 4)) == [1, 0]
