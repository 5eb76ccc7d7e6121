"""What is asked of a generation, checked once; nothing below looks at it again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from alula.core.decoding import NOTHING_GIVEN
from alula.core.errors import InputError
from alula.core.tensor import Feeds

MAX_STOPS = 4

# Ranges of OpenAI's API. What it lacks (repetition_penalty, min_p) is bounded so that no score leaves the floats.
_RANGES = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "repetition_penalty": (0.01, 100),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
}
_BIAS = (-100, 100)
_LOGPROBS = (0, 20)
_SEED = (-(2**63), 2**63 - 1)
_TOKEN = (0, 2**31 - 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How one token is chosen; temperature 0 takes the best, top_k 0 looks at all.

    `logit_bias` are pairs of a token and what is added to its logit; `logprobs` says how many of the best to report
    beside the chosen one, None that nothing is reported.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    logprobs: int | None = None

    def __post_init__(self) -> None:
        for name, bounds in _RANGES.items():
            _within(name, getattr(self, name), bounds)
        if self.top_k < 0:
            raise InputError(f"top_k is {self.top_k}; expected 1 or more, or 0 for all")
        for token, bias in self.logit_bias:
            _within(f"logit_bias of token {token}", bias, _BIAS)
        if len({token for token, _ in self.logit_bias}) < len(self.logit_bias):
            raise InputError("logit_bias names a token twice")
        if self.seed is not None:
            _within("seed", self.seed, _SEED)
        if self.logprobs is not None:
            _within("logprobs", self.logprobs, _LOGPROBS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stopping:
    """When an answer ends: at an end token, at a stop string, or after so many tokens.

    Before `min_tokens` no end token is chosen, and stop strings in the text so far do not count.
    """

    max_tokens: int
    min_tokens: int = 0
    end_tokens: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise InputError(f"max_tokens is {self.max_tokens}; expected at least 1")
        _within("min_tokens", self.min_tokens, (0, self.max_tokens))
        for token in self.end_tokens:
            _within("an end token", token, _TOKEN)
        if len(self.stop) > MAX_STOPS:
            raise InputError(f"stop has {len(self.stop)} strings; expected at most {MAX_STOPS}")
        if "" in self.stop:
            raise InputError(f"stop[{self.stop.index('')}] is empty; expected at least one character")


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One prompt, as tokens, and what is asked of its answer.

    Where an encoder reads the text, its tokens are `source`, and `prompt` is what the decoder begins with. Where there
    are images, `seen` is what a sequence with them is started with.
    """

    prompt: tuple[int, ...]
    sampling: Sampling
    stopping: Stopping
    source: tuple[int, ...] = ()
    seen: Feeds = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.prompt:
            raise InputError("the prompt has no tokens; expected at least one")

    @property
    def given(self) -> Feeds:
        """What the sequence is started with: images, or the tokens that an encoder reads once, as one row."""
        if self.seen:
            return self.seen
        return {"input_ids": np.array([self.source], np.int64)} if self.source else NOTHING_GIVEN

    @property
    def read(self) -> int:
        """How many tokens the caller's text has, whoever reads them."""
        return len(self.source or self.prompt)


def parse_sampling(raw: Mapping[str, Any], defaults: Sampling) -> Sampling:
    """The sampling that a JSON body asks for; what it lacks or sets to null is as in `defaults`.

    Takes the words of OpenAI's API and of vLLM, whose top_k -1 means all, as 0 does. Other keys are left alone.
    """
    given: dict[str, Any] = {name: _number(raw, name) for name in _RANGES}
    given["seed"] = _integer(raw, "seed")
    given["top_k"] = _integer(raw, "top_k")
    if given["top_k"] == -1:
        given["top_k"] = 0
    if raw.get("logit_bias") is not None:
        given["logit_bias"] = _bias(raw["logit_bias"])
    given |= _logprobs(raw)
    return replace(defaults, **{name: value for name, value in given.items() if value is not None})


def parse_stopping(raw: Mapping[str, Any], defaults: Stopping) -> Stopping:
    """When the answer to a JSON body ends; what it lacks or sets to null is as in `defaults`.

    `max_completion_tokens` is OpenAI's newer word for `max_tokens`; `ignore_eos` and `stop_token_ids` are vLLM's.
    """
    old, new = _integer(raw, "max_tokens"), _integer(raw, "max_completion_tokens")
    if old is not None and new is not None and old != new:
        raise InputError(f"max_tokens is {old} and max_completion_tokens is {new}; expected one of them")
    ends = () if _flag(raw, "ignore_eos") else defaults.end_tokens
    given: dict[str, Any] = {
        "max_tokens": old if new is None else new,
        "min_tokens": _integer(raw, "min_tokens"),
        "end_tokens": (*ends, *_ids(raw, "stop_token_ids")),
        "stop": _strings(raw, "stop"),
    }
    return replace(defaults, **{name: value for name, value in given.items() if value is not None})


def _within(name: str, value: float, bounds: tuple[float, float]) -> None:
    low, high = bounds
    if not low <= value <= high:  # NaN is in no range
        raise InputError(f"{name} is {value}; expected {low} to {high}")


def _is(value: object, name: str, expected: str, *kinds: type) -> None:
    """JSON's true is no number, though Python's is."""
    if type(value) not in kinds:
        raise InputError(f"{name} is {type(value).__name__}; expected {expected}")


def _number(raw: Mapping[str, Any], name: str) -> float | None:
    if (value := raw.get(name)) is None:
        return None
    _is(value, name, "a number", int, float)
    _within(name, value, _RANGES[name])  # before float(), which an integer of 400 digits overflows
    return float(value)


def _integer(raw: Mapping[str, Any], name: str) -> int | None:
    value: int | None = _whole(raw.get(name))
    if value is not None:
        _is(value, name, "a whole number", int)
    return value


def _whole(value: Any) -> Any:
    """JSON does not tell 4 from 4.0."""
    return int(value) if type(value) is float and value.is_integer() else value


def _flag(raw: Mapping[str, Any], name: str) -> bool:
    if (value := raw.get(name)) is None:
        return False
    _is(value, name, "true or false", bool)
    return bool(value)


def _ids(raw: Mapping[str, Any], name: str) -> tuple[int, ...]:
    if (value := raw.get(name)) is None:
        return ()
    _is(value, name, "a list of tokens", list)
    tokens = tuple(map(_whole, value))
    for index, token in enumerate(tokens):
        _is(token, f"{name}[{index}]", "a token", int)
    return tokens


def _strings(raw: Mapping[str, Any], name: str) -> tuple[str, ...] | None:
    if (value := raw.get(name)) is None:
        return None
    if isinstance(value, str):
        return (value,)
    _is(value, name, "a string or a list of strings", list)
    for index, item in enumerate(value):
        _is(item, f"{name}[{index}]", "a string", str)
    return tuple(value)


def _bias(value: object) -> tuple[tuple[int, float], ...]:
    if not isinstance(value, dict):
        raise InputError(f"logit_bias is {type(value).__name__}; expected an object of tokens and numbers")
    pairs = []
    for key, bias in value.items():
        if not (key.isascii() and key.isdecimal() and len(key) < 10 and str(int(key)) == key):
            raise InputError(f"logit_bias has the key {key[:20]!r}; expected the number of a token")
        _is(bias, f"logit_bias of token {key}", "a number", int, float)
        _within(f"logit_bias of token {key}", bias, _BIAS)
        pairs.append((int(key), float(bias)))
    return tuple(pairs)


def _logprobs(raw: Mapping[str, Any]) -> dict[str, int]:
    """Both spellings: a number (completions), or true and `top_logprobs` beside it (chat)."""
    value, top = raw.get("logprobs"), _integer(raw, "top_logprobs")
    if value is not None:
        _is(value, "logprobs", "true, false or a whole number", bool, int)
    if top is not None:
        _within("top_logprobs", top, _LOGPROBS)
        if value is not True:
            raise InputError(f"top_logprobs is {top} without logprobs; expected logprobs to be true")
    if value is None or value is False:
        return {}
    return {"logprobs": (top or 0) if value is True else value}
