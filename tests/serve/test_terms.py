"""Priorities: who names them, who may, and what they change."""

from __future__ import annotations

import pytest

from alula.core.errors import InputError
from alula.serve import terms
from alula.serve.errors import Refused, failure_of
from alula.serve.terms import Terms


def test_of_two_priorities_the_lower_one_holds() -> None:
    assert Terms().priority == "normal"
    assert Terms().asking("high").priority == "high"
    assert Terms().asking("high").asking("low").priority == "low"
    assert Terms().asking("low").asking("high").priority == "low"
    assert Terms().asking("normal").asking("high").priority == "normal"
    assert Terms().asking("high").asking(None).priority == "high"


def test_a_key_has_a_highest_priority_and_is_told_so() -> None:
    low = Terms(highest="low")
    assert low.priority == "low"
    with pytest.raises(Refused, match="may not ask for priority 'high'; its highest is 'low'") as caught:
        low.asking("high")
    assert failure_of(caught.value).status == 403
    with pytest.raises(Refused):
        low.asking("normal")


def test_triton_counts_from_the_highest() -> None:
    assert [terms.numbered(value) for value in (None, 0, 1, 2, 3)] == [None, None, "high", "normal", "low"]
    for odd in (-1, 4, 2**63):
        with pytest.raises(InputError, match="expected 1"):
            terms.numbered(odd)


@pytest.mark.parametrize("value", ["urgent", "", 1, True, ["high"]])
def test_a_field_that_names_no_priority_is_refused(value: object) -> None:
    with pytest.raises(InputError, match="priority is"):
        terms.from_field(value)
