"""The fields of one row as a prompt for a model that writes text, and the answers that are accepted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from alula.data.dataset import Example, Label
from alula.data.images import IMAGES, image_of
from alula.data.rows import BadRow, Fields, listed, mistyped, words

MESSAGES = "messages"
PLAIN = "text"
PROMPTS = ("prompt", "question", PLAIN, MESSAGES)
"""What a row asks is in one of these: `text` is gone on with as it stands, even where there is a chat template."""

ANSWERS = ("answers", "answer")


def prompt_of(fields: Fields, line: int, base: Path) -> Example:
    """The example that a row spells, or a `BadRow` that says what is wrong with it.

    An image that a prompt is about is a field beside it, its path relative to `base`.
    """
    used = [name for name in PROMPTS if fields.get(name) is not None]
    if not used:
        raise BadRow(f"has no prompt: expected a field of {', '.join(PROMPTS)}; it has {listed(fields)}")
    if len(used) > 1:
        raise BadRow(
            f"has the fields {used[0]} and {used[1]}, which name the same thing; expected one of them"
        )
    label = _answers(fields)
    seen = any(fields.get(name) is not None for name in IMAGES)
    if used[0] == MESSAGES:
        if seen:
            raise BadRow(f"has {MESSAGES} and an image; expected a prompt beside an image")
        messages = _messages(fields[MESSAGES])
        return Example(texts=(_said(messages[-1]),), messages=messages, label=label, line=line)
    text = words(fields[used[0]], used[0])
    image = image_of(fields, base) if seen else None
    return Example(texts=(text,), plain=used[0] == PLAIN, image=image, label=label, line=line)


def _messages(value: object) -> tuple[Mapping[str, Any], ...]:
    """A chat up to where an answer is due: what the model once answered last says nothing of what it answers now."""
    if not isinstance(value, list):
        raise mistyped(MESSAGES, value, "a list of messages")
    for at, message in enumerate(value):
        if not isinstance(message, dict):
            raise mistyped(f"{MESSAGES}[{at}]", message, "an object with role and content")
    last = len(value)
    while last and value[last - 1].get("role") == "assistant":
        last -= 1
    if not last:
        raise BadRow(
            f"field {MESSAGES!r} holds nothing to answer; expected a message that is not the assistant's"
        )
    return tuple(value[:last])


def _said(message: Mapping[str, Any]) -> str:
    """The text of a message, or of its parts."""
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(str(part["text"]) for part in content if isinstance(part, dict) and "text" in part)
    return content if isinstance(content, str) else ""


def _answers(fields: Fields) -> Label:
    """One answer, or a list of them."""
    given = [name for name in ANSWERS if fields.get(name) is not None]
    if not given:
        return None
    if len(given) > 1:
        raise BadRow(f"has the fields {given[0]} and {given[1]}; expected one of them")
    name, value = given[0], fields[given[0]]
    if isinstance(value, str):
        return (words(value, name),)
    if not isinstance(value, list):
        raise mistyped(name, value, "str or a list of str")
    if not value:
        raise BadRow(f"field {name!r} is empty; a prompt without an answer has no such field")
    return tuple(words(item, f"{name}[{at}]") for at, item in enumerate(value))
