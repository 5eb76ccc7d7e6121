"""What chats and completions take, for the description of the endpoints."""

from __future__ import annotations

from typing import Any

from alula.codecs.messages import ROLES

TEXT = {"type": "string"}
FLAG = {"type": "boolean", "default": False}
OBJECT = {"type": "object"}


def _number(low: float, high: float, about: str = "") -> dict[str, Any]:
    return {"type": "number", "minimum": low, "maximum": high, **({"description": about} if about else {})}


def _count(low: int, about: str, **more: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": low, **more, "description": about}


BIAS = _number(-100, 100)
IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
TEXTS_OR_IDS = {
    "anyOf": [
        TEXT,
        {"type": "array", "items": TEXT, "minItems": 1},
        IDS,
        {"type": "array", "items": IDS, "minItems": 1},
    ],
    "description": "a text, texts, token ids, or lists of token ids",
}
ENDING = {**TEXT, "minLength": 1, "maxLength": 1_000}
STOP = {
    "oneOf": [ENDING, {"type": "array", "items": ENDING, "maxItems": 4}],
    "description": "texts that end the answer and are not part of it",
}

# Left out, a field is as generation_config.json of the checkpoint has it.
COMMON: dict[str, dict[str, Any]] = {
    "model": {**TEXT, "description": "which of the served models; by default the first that fits"},
    "stream": {**FLAG, "description": "server-sent events instead of one answer"},
    "stream_options": {
        **OBJECT,
        "properties": {"include_usage": FLAG},
        "description": "include_usage: a last event with the usage",
    },
    "n": _count(1, "answers to each prompt", maximum=128, default=1),
    "max_tokens": _count(1, "tokens of an answer at most; by default as many as there is room for"),
    "stop": STOP,
    "temperature": _number(0, 2, "0 takes the best token always"),
    "top_p": _number(0, 1),
    "top_k": _count(-1, "0 and -1 look at all tokens"),
    "min_p": _number(0, 1),
    "seed": {"type": "integer", "description": "the same seed gives the same answer"},
    "repetition_penalty": _number(0.01, 100, "once for each token that is there, in the prompt too"),
    "presence_penalty": _number(-2, 2),
    "frequency_penalty": _number(-2, 2),
    "logit_bias": {
        **OBJECT,
        "additionalProperties": BIAS,
        "description": "by token id, what is added to its logit",
    },
    "min_tokens": _count(0, "no end before so many tokens"),
    "ignore_eos": {**FLAG, "description": "go on behind an end token"},
    "stop_token_ids": {"type": "array", "items": {"type": "integer"}, "description": "more end tokens"},
}

PART = {
    **OBJECT,
    "properties": {"type": {"enum": ["text", "image_url"]}, "text": TEXT, "image_url": {}},
    "required": ["type"],
}
CALL = {
    **OBJECT,
    "properties": {
        "function": {**OBJECT, "properties": {"name": TEXT, "arguments": {}}, "required": ["name"]}
    },
    "required": ["function"],
}
CONTENT = {"anyOf": [TEXT, {"type": "array", "items": PART}]}
CALLS = {"type": "array", "items": CALL, "minItems": 1}
MESSAGE = {
    **OBJECT,
    "properties": {"role": {"enum": list(ROLES)}},
    "required": ["role"],
    "anyOf": [
        {"properties": {"content": CONTENT}, "required": ["content"]},
        {"properties": {"content": CONTENT, "tool_calls": CALLS}, "required": ["tool_calls"]},
    ],
}

CHAT: dict[str, dict[str, Any]] = {
    "messages": {
        "type": "array",
        "minItems": 1,
        "items": MESSAGE,
        "description": "role (system, user, assistant ...) and content: a text, or parts of type text; of models that "
        "read images also of type image_url, whose url is a data URL in base64",
    },
    **COMMON,
    "max_completion_tokens": _count(1, "the newer word for max_tokens"),
    "logprobs": FLAG,
    "top_logprobs": _count(0, "with logprobs: so many of the best tokens beside each", maximum=20),
    "chat_template_kwargs": {**OBJECT, "description": "what else the chat template asks for"},
}

COMPLETION: dict[str, dict[str, Any]] = {
    "prompt": TEXTS_OR_IDS,
    **COMMON,
    "echo": {**FLAG, "description": "the prompt before each answer"},
    "logprobs": _count(0, "so many of the best tokens beside each", maximum=20),
    "best_of": _count(1, "only as many as n"),
}

CHAT_EXAMPLE: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Why do parrots talk?"}],
    "max_tokens": 64,
}
COMPLETION_EXAMPLE: dict[str, Any] = {"prompt": "Parrots can", "max_tokens": 32}
