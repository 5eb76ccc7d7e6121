"""The chat template of a checkpoint: messages to the text that the model was trained on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alula.codecs.messages import Message
from alula.codecs.text import read_config
from alula.core.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from alula.codecs.templates import Template

FILE = "chat_template.jinja"
FOLDER = "additional_chat_templates"
_WITH_TOOLS = "tool_use"
_DEFAULT = "default"


class ChatTemplate:
    """The templates of one checkpoint by name, compiled; safe to use from several threads."""

    def __init__(self, templates: Mapping[str, Template], tokens: Mapping[str, str], source: Path) -> None:
        self._templates = templates
        self._tokens = tokens
        self._source = source

    @classmethod
    def open(cls, folder: Path) -> ChatTemplate | None:
        """Read the template files of a folder, or what its `tokenizer_config.json` has; None if there are none."""
        config = read_config(folder / "tokenizer_config.json")
        texts = _in_files(folder) or _in_config(config, folder)
        if not texts:
            return None
        try:
            from alula.codecs.templates import compiled  # noqa: PLC0415 - most models have no use for jinja2
        except ImportError as error:
            raise MissingExtraError("a chat template", "serve") from error
        special = read_config(folder / "special_tokens_map.json") | config
        return cls(
            {name: compiled(text, _called(folder, name)) for name, text in texts.items()},
            {key: token for key, raw in special.items() if (token := _token(key, raw)) is not None},
            folder,
        )

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The conversation as one text; `variables` are what else a template asks for, such as enable_thinking."""
        template = self._chosen(tools is not None)
        if tools is not None and not template.reads("tools"):
            raise InputError("tools are given, and the model's chat template has no place for them")
        own = {*self._tokens, "messages", "tools", "documents", "add_generation_prompt"}
        for name in variables or {}:
            if name in own:
                raise InputError(
                    f"{name!r} is what the conversation is rendered with, and not a variable of its own"
                )
            if not template.reads(name):
                raise InputError(f"the model's chat template reads no variable {name!r}")
        return template.render(
            {
                **self._tokens,
                **(variables or {}),
                "messages": [message.as_json(parts=template.takes_parts) for message in messages],
                "tools": None if tools is None else json.loads(json.dumps(list(tools))),
                "documents": None if documents is None else json.loads(json.dumps(list(documents))),
                "add_generation_prompt": add_generation_prompt,
            }
        )

    def _chosen(self, with_tools: bool) -> Template:
        if with_tools and _WITH_TOOLS in self._templates:
            return self._templates[_WITH_TOOLS]
        if _DEFAULT in self._templates:
            return self._templates[_DEFAULT]
        raise InputError(
            f"{self._source} has the chat templates {', '.join(sorted(self._templates))}, "
            f"expected one that is called {_DEFAULT}"
        )


def _in_files(folder: Path) -> dict[str, str]:
    texts = {path.stem: path.read_text("utf-8") for path in sorted((folder / FOLDER).glob("*.jinja"))}
    if (folder / FILE).is_file():
        texts[_DEFAULT] = (folder / FILE).read_text("utf-8")
    return texts


def _in_config(config: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """One text, or a list of texts with names."""
    found = config.get("chat_template")
    where = f"{folder / 'tokenizer_config.json'}: chat_template"
    if found is None:
        return {}
    if isinstance(found, str):
        return {_DEFAULT: found}
    if not isinstance(found, list):
        raise InputError(f"{where} is {type(found).__name__}, expected a text or a list of texts with names")
    texts = {}
    for at, item in enumerate(found):
        pair = (item.get("name"), item.get("template")) if isinstance(item, dict) else (None, None)
        name, text = pair
        if not isinstance(name, str) or not isinstance(text, str):
            raise InputError(f"{where}[{at}] has no name and template, expected both to be texts")
        texts[name] = text
    return texts


def _called(folder: Path, name: str) -> str:
    file = folder / FILE if name == _DEFAULT else folder / FOLDER / f"{name}.jinja"
    return str(file if file.is_file() else folder / "tokenizer_config.json")


def _token(key: str, raw: Any) -> str | None:
    """A special token, which is a text or an object with the text in it."""
    if not key.endswith("_token"):
        return None
    content = raw.get("content") if isinstance(raw, dict) else raw
    return content if isinstance(content, str) else None
