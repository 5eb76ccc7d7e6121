from __future__ import annotations

import json
from typing import Any

import pytest

from alula.core.errors import InputError
from alula.generate import Request, Sampling, Stopping, parse_sampling, parse_stopping

ASKED = Stopping(max_tokens=16, end_tokens=(2,))


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("temperature", 2.1, "0 to 2"),
        ("temperature", -0.1, "0 to 2"),
        ("temperature", float("nan"), "0 to 2"),
        ("top_p", 1.01, "0 to 1"),
        ("min_p", -1, "0 to 1"),
        ("repetition_penalty", 0, "0.01 to 100"),
        ("repetition_penalty", float("inf"), "0.01 to 100"),
        ("presence_penalty", -2.5, "-2 to 2"),
        ("frequency_penalty", 3, "-2 to 2"),
        ("seed", 2**63, "-9223372036854775808 to 9223372036854775807"),
        ("logprobs", 21, "0 to 20"),
        ("top_k", -2, "1 or more, or 0 for all"),
    ],
)
def test_a_value_out_of_range_is_refused_with_the_range(name: str, value: float, expected: str) -> None:
    asked: dict[str, Any] = {name: value}
    with pytest.raises(InputError) as refusal:
        Sampling(**asked)
    assert str(refusal.value) == f"{name} is {value}; expected {expected}"
    with pytest.raises(InputError, match=f"{name} is"):
        parse_sampling(asked, Sampling())


@pytest.mark.parametrize(
    ("asked", "refusal"),
    [
        ({"max_tokens": 0}, "max_tokens is 0; expected at least 1"),
        ({"max_tokens": 4, "min_tokens": 5}, "min_tokens is 5; expected 0 to 4"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop has 5 strings; expected at most 4"),
        ({"stop": ["a", ""]}, "stop[1] is empty; expected at least one character"),
        ({"stop": ["a", 1]}, "stop[1] is int; expected a string"),
        ({"stop": {}}, "stop is dict; expected a string or a list of strings"),
        ({"stop_token_ids": [1, "2"]}, "stop_token_ids[1] is str; expected a token"),
        ({"stop_token_ids": {}}, "stop_token_ids is dict; expected a list of tokens"),
        ({"stop_token_ids": [-1]}, "an end token is -1; expected 0 to 2147483647"),
        ({"stop_token_ids": [2**70]}, f"an end token is {2**70}; expected 0 to 2147483647"),
        ({"max_tokens": 1.5}, "max_tokens is float; expected a whole number"),
        ({"ignore_eos": 1}, "ignore_eos is int; expected true or false"),
        (
            {"max_tokens": 1, "max_completion_tokens": 2},
            "max_tokens is 1 and max_completion_tokens is 2; expected one of them",
        ),
    ],
)
def test_an_end_that_cannot_be_is_refused(asked: dict[str, Any], refusal: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_stopping(asked, ASKED)
    assert str(refused.value) == refusal


@pytest.mark.parametrize(
    ("asked", "refusal"),
    [
        ({"temperature": "hot"}, "temperature is str; expected a number"),
        ({"temperature": True}, "temperature is bool; expected a number"),
        ({"top_p": 10**400}, f"top_p is {10**400}; expected 0 to 1"),
        ({"top_k": 1.5}, "top_k is float; expected a whole number"),
        ({"logit_bias": [1]}, "logit_bias is list; expected an object of tokens and numbers"),
        ({"logit_bias": {"hello": 1}}, "logit_bias has the key 'hello'; expected the number of a token"),
        ({"logit_bias": {"-1": 1}}, "logit_bias has the key '-1'; expected the number of a token"),
        ({"logit_bias": {"٣": 1}}, "logit_bias has the key '٣'; expected the number of a token"),
        ({"logit_bias": {"7": "1"}}, "logit_bias of token 7 is str; expected a number"),
        ({"logit_bias": {"7": 101}}, "logit_bias of token 7 is 101; expected -100 to 100"),
        ({"logit_bias": {"7": 10**400}}, f"logit_bias of token 7 is {10**400}; expected -100 to 100"),
        ({"logit_bias": {"07": 2}}, "logit_bias has the key '07'; expected the number of a token"),
        ({"logprobs": "yes"}, "logprobs is str; expected true, false or a whole number"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs is 21; expected 0 to 20"),
        ({"top_logprobs": 2}, "top_logprobs is 2 without logprobs; expected logprobs to be true"),
    ],
)
def test_what_a_body_says_wrong_is_named(asked: dict[str, Any], refusal: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_sampling(asked, Sampling())
    assert str(refused.value) == refusal


def test_a_bias_is_checked_in_the_value_itself() -> None:
    with pytest.raises(InputError, match="logit_bias of token 3 is 200; expected -100 to 100"):
        Sampling(logit_bias=((3, 200),))


def test_what_is_not_said_or_null_is_as_the_checkpoint_has_it() -> None:
    defaults = Sampling(temperature=0.6, top_k=20, repetition_penalty=1.08)
    nothing: dict[str, Any] = {
        "temperature": None,
        "top_k": None,
        "logit_bias": None,
        "model": "m",
        "messages": [],
    }
    assert parse_sampling(nothing, defaults) == defaults
    assert parse_stopping({"max_tokens": None, "stop": None, "stop_token_ids": None}, ASKED) == ASKED


def test_what_is_said_wins_zero_too() -> None:
    body = json.loads(
        """{"temperature": 0, "top_p": 0.5, "top_k": 5, "min_p": 0.1, "repetition_penalty": 1, "seed": -1,
        "presence_penalty": 1, "frequency_penalty": -1.5, "logit_bias": {"5": -100, "6": 2.5}}"""
    )
    assert parse_sampling(body, Sampling(repetition_penalty=1.08, top_k=9)) == Sampling(
        temperature=0.0,
        top_p=0.5,
        top_k=5,
        min_p=0.1,
        presence_penalty=1.0,
        frequency_penalty=-1.5,
        logit_bias=((5, -100.0), (6, 2.5)),
        seed=-1,
    )


def test_top_k_of_minus_one_looks_at_all() -> None:
    assert parse_sampling({"top_k": -1}, Sampling(top_k=50)).top_k == 0


@pytest.mark.parametrize(
    ("asked", "logprobs"),
    [
        ({}, None),
        ({"logprobs": False}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 5}, 5),
        ({"logprobs": 3}, 3),
        ({"logprobs": 0}, 0),
    ],
)
def test_both_spellings_of_logprobs(asked: dict[str, Any], logprobs: int | None) -> None:
    assert parse_sampling(asked, Sampling()).logprobs == logprobs


def test_ends_are_those_of_the_checkpoint_and_more() -> None:
    assert parse_stopping({"stop_token_ids": [7]}, ASKED).end_tokens == (2, 7)
    assert parse_stopping({"stop_token_ids": [7], "ignore_eos": True}, ASKED).end_tokens == (7,)
    assert parse_stopping({"stop": "END", "max_completion_tokens": 5, "min_tokens": 2}, ASKED) == Stopping(
        max_tokens=5, min_tokens=2, end_tokens=(2,), stop=("END",)
    )


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(InputError, match="the prompt has no tokens; expected at least one"):
        Request(prompt=(), sampling=Sampling(), stopping=ASKED)
