"""Keys: who is known by them, what is said of mistakes, and how much each may ask for."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alula.core.errors import InputError, Overloaded
from alula.serve import callers
from alula.serve.callers import Caller, Callers
from alula.serve.errors import Refused, failure_of
from alula.serve.turnstile import Allowance, Turnstile

FILE = """
# who may ask
ann secret-of-ann
bob secret-of-bob at_once=2 per_minute=60 highest=low  # at night
"""


def known(text: str = FILE) -> Callers:
    return Callers(keys=tuple(callers.parsed(text.splitlines(), "keys", Caller(at_once=9))))


def test_a_key_is_known_wherever_it_stands() -> None:
    for headers in (
        {"authorization": "Bearer secret-of-ann"},
        {"authorization": "bearer  secret-of-ann "},
        {"api-key": "secret-of-ann"},
        {"x-api-key": "secret-of-ann", "authorization": "Basic x"},
    ):
        assert known().of(headers) == Caller(name="ann", at_once=9)
    assert known().of({"api-key": "secret-of-bob"}) == Caller(
        name="bob", at_once=2, per_minute=60, highest="low"
    )


@pytest.mark.parametrize("shown", ["secret-of-an", "secret-of-ann0", "ann", "\ud800", "é" * 9])
def test_a_key_that_nobody_has_is_refused_and_not_repeated(shown: str) -> None:
    with pytest.raises(Refused) as caught:
        known().of({"api-key": shown})
    failure = failure_of(caught.value)
    assert (failure.status, failure.code) == (401, "invalid_api_key")
    assert failure.headers == {"www-authenticate": "Bearer"}
    assert shown not in str(caught.value)


def test_without_keys_everybody_is_anybody() -> None:
    assert Callers(anybody=Caller(per_minute=3)).of({"api-key": "x"}) == Caller(per_minute=3)
    with pytest.raises(Refused, match="no API key"):
        known().of({"authorization": "Basic secret-of-ann"})


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("ann short", "line 1: the key of ann is no key"),
        ("a/b secret-of-ann", "line 1: expected NAME KEY"),
        ("ann secret-of-ann at_once=-1", "line 1: 'at_once' is no limit"),
        ("ann secret-of-ann highest=top", "line 1: highest is 'top'"),
        ("ann secret-of-ann often", "line 1: 'often' is no limit"),
    ],
)
def test_a_mistake_in_a_file_of_keys_is_named_and_no_key_is_shown(line: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        known(line)
    assert "secret" not in str(caught.value)


def test_keys_come_from_a_file_and_from_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(FILE)
    found = callers.read(file, "key-alone-here; eve secret-of-eve", Caller())
    assert [caller.name for _, caller in found.keys] == ["ann", "bob", "key-1", "eve"]
    assert "secret" not in repr(found)
    with pytest.raises(InputError, match="two keys have the name 'ann'"):
        callers.read(file, "ann secret-again", Caller())
    with pytest.raises(InputError, match="cannot be read"):
        callers.read(tmp_path / "none", "", Caller())
    file.write_text("# nobody\n")
    with pytest.raises(InputError, match="no key in it"):
        callers.read(file, "", Caller())


@pytest.mark.parametrize(
    ("variable", "said"),
    [
        (";;", "no key in it; expected NAME KEY"),
        ("# nothing", "no key in it; expected NAME KEY"),
        ("ann K1SECRETXX;bob K1SECRETXX admin", "'ann' and 'bob' have the same key"),
    ],
)
def test_keys_that_hold_nothing_or_are_two_peoples_are_refused(variable: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as refused:
        callers.read(None, variable, Caller())
    assert "K1SECRETXX" not in str(refused.value)


def test_so_many_requests_of_a_key_are_in_flight_at_once() -> None:
    turnstile, bob, ann = Turnstile(), Caller(name="bob", at_once=2), Caller(name="ann", at_once=1)
    with turnstile.passed(bob), turnstile.passed(ann):
        with pytest.raises(RuntimeError), turnstile.passed(bob):
            raise RuntimeError
        with (
            turnstile.passed(bob),
            pytest.raises(Overloaded, match="2 requests with this key"),
            turnstile.passed(bob),
        ):
            pass
    with turnstile.passed(bob), turnstile.passed(bob):
        pass


def test_a_rate_lets_in_a_minutes_worth_at_once_and_then_as_it_grows() -> None:
    now = 0.0
    turnstile, bob = Turnstile(lambda: now), Caller(name="bob", per_minute=30)
    for _ in range(30):
        with turnstile.passed(bob):
            pass
    with pytest.raises(Overloaded) as caught, turnstile.passed(bob):
        pass
    assert caught.value.retry_s == 2.0
    assert failure_of(caught.value).headers == {"retry-after": "2"}
    now = 2.0
    with turnstile.passed(bob):
        pass
    with pytest.raises(Overloaded), turnstile.passed(bob):
        pass


@given(gaps=st.lists(st.floats(0, 200), max_size=60), rate=st.integers(1, 100))
def test_no_minute_takes_more_than_twice_the_rate(gaps: list[float], rate: int) -> None:
    """What was saved up, and what grows meanwhile."""
    now, taken = 0.0, []
    allowed = Allowance.full(rate, now)
    for gap in gaps:
        now += gap
        allowed = allowed.grown(rate, now)
        assert 0 <= allowed.left <= rate
        if allowed.left >= 1:
            allowed = allowed.taken()
            taken.append(now)
    for at in taken:
        assert sum(at <= other < at + 60 for other in taken) <= 2 * rate
