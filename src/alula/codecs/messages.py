"""Messages of a chat, as OpenAI's API has them: JSON to typed values at the edge; errors name the place."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from alula.codecs.text import valid_text
from alula.core.errors import InputError

ROLES = ("system", "developer", "user", "assistant", "tool", "function")

# Names for what a model thought before it answered; templates read the first two.
_THOUGHTS = ("reasoning_content", "thinking", "reasoning")


@dataclass(frozen=True, kw_only=True, slots=True)
class ImagePart:
    """Where an image stands in a message; `url` is how the caller gave it, empty where it is at hand."""

    url: str = ""


Parts: TypeAlias = tuple[str | ImagePart, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """One message; `content` is a text, or its parts, texts and images, or None beside tool calls.

    `more` is what else the caller said, such as tool_calls, tool_call_id and name: the template reads what it knows.
    """

    role: str
    content: str | Parts | None
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def images(self) -> tuple[ImagePart, ...]:
        """The images among the parts."""
        parts = () if self.content is None or isinstance(self.content, str) else self.content
        return tuple(part for part in parts if isinstance(part, ImagePart))

    def as_json(self, *, parts: bool) -> dict[str, Any]:
        """What a template sees; one that takes no parts gets them as lines of one text."""
        made: dict[str, Any] = {"role": self.role}
        if isinstance(self.content, str):
            made["content"] = self.content
        elif self.content is not None:
            if self.images and not parts:
                raise InputError("the chat template of the model has no place for images in a message")
            shown = [_shown(part) for part in self.content]
            made["content"] = shown if parts else "\n".join(each["text"] for each in shown)
        made |= self.more
        thought = next((made[name] for name in _THOUGHTS if name in made), None)
        return made if thought is None else {"thinking": thought, **made, "reasoning_content": thought}


def _shown(part: str | ImagePart) -> dict[str, str]:
    return {"type": "text", "text": part} if isinstance(part, str) else {"type": "image"}


def messages_of(raw: Any, *, images: bool = False) -> tuple[Message, ...]:
    """The messages in a JSON body; there must be one. Parts of type image_url are taken where `images` are read."""
    if not isinstance(raw, list):
        raise InputError(f"messages is {_name(raw)}, expected a list of messages")
    if not raw:
        raise InputError("messages is empty, expected at least one message")
    return tuple(_message(item, f"messages[{at}]", images=images) for at, item in enumerate(raw))


def tools_of(raw: Any) -> tuple[Mapping[str, Any], ...] | None:
    """The tools in a JSON body; None where it has none."""
    if raw is None or raw == []:
        return None
    if not isinstance(raw, list):
        raise InputError(f"tools is {_name(raw)}, expected a list of tools")
    for at, tool in enumerate(raw):
        _function(tool, f"tools[{at}]")
    return tuple(raw)


def _message(raw: Any, where: str, *, images: bool) -> Message:
    if not isinstance(raw, dict):
        raise InputError(f"{where} is {_name(raw)}, expected an object with role and content")
    given = {key: value for key, value in raw.items() if value is not None}
    role = given.pop("role", None)
    if role not in ROLES:
        found = "missing" if role is None else repr(role) if isinstance(role, str) else _name(role)
        raise InputError(f"{where}.role is {found}, expected one of: {', '.join(ROLES)}")
    calls = _calls(given.pop("tool_calls", None), f"{where}.tool_calls")
    content = given.pop("content", None)
    if content is None and not (calls or "function_call" in given):
        raise InputError(f"{where}.content is missing, expected a string or a list of parts")
    return Message(
        role=role,
        content=None if content is None else _content(content, f"{where}.content", images=images),
        more=given | ({"tool_calls": calls} if calls else {}),
    )


def _content(raw: Any, where: str, *, images: bool) -> str | Parts:
    if isinstance(raw, str):
        return _text(raw, where)
    if not isinstance(raw, list):
        raise InputError(f"{where} is {_name(raw)}, expected a string or a list of parts")
    return tuple(_part(item, f"{where}[{at}]", images=images) for at, item in enumerate(raw))


def _part(raw: Any, where: str, *, images: bool) -> str | ImagePart:
    if not isinstance(raw, dict):
        raise InputError(f"{where} is {_name(raw)}, expected an object with type and text")
    if images and raw.get("type") == "image_url":
        return _image(raw.get("image_url"), f"{where}.image_url")
    if raw.get("type") != "text":
        kind = repr(raw["type"]) if "type" in raw else "missing"
        taken = "'text' or 'image_url'" if images else "'text', which is all that this model reads"
        raise InputError(f"{where}.type is {kind}, expected {taken}")
    if not isinstance(raw.get("text"), str):
        raise InputError(f"{where}.text is {_name(raw.get('text'))}, expected a string")
    return _text(raw["text"], f"{where}.text")


def _image(raw: Any, where: str) -> ImagePart:
    """OpenAI's object, whose `detail` asks for nothing that could be done here, or the URL itself."""
    url = raw.get("url") if isinstance(raw, dict) else raw
    if not isinstance(url, str) or not url:
        raise InputError(f"{where} has no url, expected an object with a data URL: data:image/png;base64,...")
    return ImagePart(url=url)


def _calls(raw: Any, where: str) -> list[dict[str, Any]]:
    """Tool calls with their arguments as values, which is what templates write out; OpenAI's are JSON in a string."""
    if raw is None:
        return []
    if not isinstance(raw, list):
        raise InputError(f"{where} is {_name(raw)}, expected a list of calls")
    made = []
    for at, call in enumerate(raw):
        function = _function(call, f"{where}[{at}]")
        arguments = function.get("arguments", {})
        if isinstance(arguments, str):
            arguments = _arguments(arguments, f"{where}[{at}].function.arguments")
        made.append({**call, "function": {**function, "arguments": arguments}})
    return made


def _function(raw: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(raw, dict):
        raise InputError(f"{where} is {_name(raw)}, expected an object with type and function")
    function = raw.get("function")
    if not isinstance(function, dict):
        raise InputError(f"{where}.function is {_name(function)}, expected an object")
    if not isinstance(function.get("name"), str):
        raise InputError(f"{where}.function.name is {_name(function.get('name'))}, expected a string")
    return function


def _arguments(text: str, where: str) -> Any:
    try:
        return json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is not JSON: {error}") from error


def _text(text: str, where: str) -> str:
    try:
        return valid_text(text)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def _name(value: object) -> str:
    """A kind of JSON value, as its readers call it."""
    names: Mapping[type, str] = {dict: "an object", list: "a list", str: "a string", bool: "a boolean"}
    return "missing" if value is None else names.get(type(value), "a number")
