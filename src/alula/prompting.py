"""Prompts and chats as requests to a bundle's model; what its makers and its callers say of sampling and length.

The weakest word is OpenAI's defaults; then comes the bundle's generation_config.json, which answers greedily, at
temperature 0, unless it says do_sample; then what the caller gave. Who narrows the choice by top_p, top_k or min_p asks
for sampling: temperature is then what the file says, or 1, unless it is given as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from alula.bundles import PROCESSOR, Bundle
from alula.codecs import (
    ChatTemplate,
    ImagePart,
    Message,
    Parts,
    Patcher,
    Patches,
    Seen,
    TextCodec,
    patches_of,
    read_config,
    with_images,
)
from alula.core.errors import InputError
from alula.core.model import ModelSpec
from alula.core.tensor import Feeds
from alula.generate import Request, Sampling, Stopping, parse_sampling, parse_stopping

SETTINGS = "generation_config.json"
SYSTEM, TENCENT = "system", "tencent"
NOTHING_ASKED: Mapping[str, Any] = MappingProxyType({})

_COUNTS = ("top_k", "max_new_tokens", "min_new_tokens")
_NUMBERS = ("temperature", "top_p", "min_p", "repetition_penalty")
_CHOOSING = ("top_p", "top_k", "min_p", "repetition_penalty")
# What narrows the choice of a sampled token, and the values that leave it as it is.
_NARROWS: Mapping[str, tuple[object, ...]] = {"top_p": (None, 1), "top_k": (None, 0, -1), "min_p": (None, 0)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Defaults:
    """What a bundle's makers say: how tokens are chosen, how long answers are, and the temperature if one samples."""

    sampling: Sampling
    temperature: float = 1.0
    max_tokens: int | None = None
    min_tokens: int = 0


class Prompts:
    """The texts of one bundle, to requests. Safe to use from several threads.

    `positions` are the tokens that prompt and answer may have together, of each side where an encoder reads the prompt.
    `patcher` cuts up images, where the model reads any.
    """

    def __init__(
        self,
        codec: TextCodec,
        folder: Path,
        defaults: Defaults,
        positions: int,
        patcher: Patcher | None = None,
    ) -> None:
        self.codec = codec
        self.defaults = defaults
        self.positions = positions
        self.patcher = patcher
        self._folder = folder

    @classmethod
    def open(cls, bundle: Bundle) -> Prompts:
        """Read a bundle's tokenizer and settings; refuses one whose model writes no text."""
        spec = bundle.model
        if not spec.writes:
            raise InputError(f"{spec.name} is for task {spec.task!r}, which takes no prompt")
        prompts = cls.of(bundle.tokenizer, spec)
        if prompts.patcher is not None:
            down, across = bundle.grid
            prompts.patcher = prompts.patcher.within(across, down)
        return prompts

    @classmethod
    def of(cls, folder: Path, spec: ModelSpec) -> Prompts:
        """The same of the files that a bundle would have, the image processor's in the folder beside this one."""
        defaults = read_defaults(folder / SETTINGS)
        patcher = Patcher.open(folder.with_name(PROCESSOR)) if spec.sees else None
        return cls(TextCodec.open(folder, spec), folder, defaults, spec.max_length, patcher)

    def within(self, positions: int) -> Prompts:
        """The same for an engine that holds fewer tokens of one sequence."""
        fewer = min(positions, self.positions)
        return Prompts(self.codec, self._folder, self.defaults, fewer, self.patcher)

    @property
    def spec(self) -> ModelSpec:
        """The model."""
        return self.codec.spec

    @cached_property
    def template(self) -> ChatTemplate | None:
        """The chat template; None where the checkpoint has none."""
        return ChatTemplate.open(self._folder)

    def text(
        self, prompt: str | Sequence[int], body: Mapping[str, Any], images: Sequence[Seen] = ()
    ) -> Request:
        """A request to go on with a prompt, or with tokens that the caller made; `body` is what else was asked.

        The prompt has the token that keeps an image's place once for each of the `images`.
        """
        if not prompt:
            raise InputError("the prompt is empty, expected a text")
        if isinstance(prompt, str):
            return self._request(self.codec.prompt(prompt, most=self.positions), body, images)
        return self._request(self.codec.encode_ids(prompt, truncate=False).ids, body, images)

    def look(
        self,
        text: str,
        images: Sequence[Seen],
        body: Mapping[str, Any] = NOTHING_ASKED,
        *,
        system: str | None = None,
    ) -> Request:
        """A request about images, which stand before the text, as a chat of one message.

        An image is upright: Pillow's, levels uint8 [height, width, 3], or patches that `patches` gave for one. `body`
        has the words of OpenAI's API and of vLLM: max_tokens, temperature, repetition_penalty, stop and so on. Raises
        InputError where the model reads none, or where the prompt has no place for each.
        """
        parts: Parts = (*[ImagePart()] * len(images), text)
        opening = [] if system is None else [Message(role=SYSTEM, content=system)]
        return self.chat([*opening, Message(role="user", content=parts if images else text)], body, images)

    def patches(self, image: Seen) -> Patches:
        """An image as the vision part reads it, [down, across, features]: what takes a processor's time, done ahead."""
        return patches_of(image, self._sees())

    def chat(
        self, messages: Sequence[Message], body: Mapping[str, Any], images: Sequence[Seen] = ()
    ) -> Request:
        """A request to answer a conversation; tools and what a template is told besides are for `render`."""
        return self.rendered(self.render(messages), body, images)

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The conversation as the model reads it, up to where the answer begins."""
        if self.template is None:
            raise InputError(
                f"{self.spec.name} has no chat template, so it takes prompts and no messages; a checkpoint has one in "
                "chat_template.jinja or tokenizer_config.json"
            )
        return self.template.render(self._opened(messages), tools=tools, variables=variables)

    def rendered(self, text: str, body: Mapping[str, Any], images: Sequence[Seen] = ()) -> Request:
        """A request to answer a conversation that is rendered."""
        return self._request(self.codec.prompt(text, rendered=True, most=self.positions), body, images)

    def _opened(self, messages: Sequence[Message]) -> Sequence[Message]:
        """The conversation as Tencent's own client of HunyuanOCR begins it, with a system message that may be empty."""
        if self.spec.compat != TENCENT or any(message.role == SYSTEM for message in messages):
            return messages
        return [Message(role=SYSTEM, content=""), *messages]

    def _sees(self) -> Patcher:
        if self.patcher is None:
            raise InputError(f"{self.spec.name} reads no images")
        return self.patcher

    def _request(self, ids: tuple[int, ...], body: Mapping[str, Any], images: Sequence[Seen] = ()) -> Request:
        seen: Feeds = {}
        if images or self.spec.sees:
            patcher = self._sees()
            patches = [patches_of(image, patcher) for image in images]
            ids, seen = with_images(ids, self.spec.image_id, patcher, patches)
        start, source = ids, tuple[int, ...]()
        if self.spec.reads_source:
            start, source = (self.spec.start_id,), ids
        if not ids:
            raise InputError("the prompt has no tokens, expected at least one")
        left = self.positions - len(start)
        if len(ids) > self.positions or left < 1:
            raise InputError(
                f"the prompt has {len(ids)} tokens; {self.spec.name} takes {self.positions}"
                + ("" if source else ", at least one of them for the answer")
            )
        return Request(
            prompt=start,
            source=source,
            seen=seen,
            sampling=_sampling(body, self.defaults),
            stopping=_stopping(body, self.defaults, self.spec, len(start), left),
        )


def read_defaults(file: Path) -> Defaults:
    """What a generation_config.json says of choosing tokens and of length; what it does not say is neutral."""
    raw = read_config(file)
    given = {name: raw[name] for name in (*_NUMBERS, *_COUNTS) if raw.get(name) is not None}
    for name, value in given.items():
        if type(value) not in ((int,) if name in _COUNTS else (int, float)):
            raise InputError(f"{file}: {name} is {value!r}, expected a {'whole ' * (name in _COUNTS)}number")
    samples = raw.get("do_sample") is True
    temperature = float(given.get("temperature", 1))
    used = {name: value for name, value in given.items() if name in _CHOOSING}
    used["temperature"] = temperature if samples else 0
    try:
        sampling = parse_sampling(used, Sampling())
    except InputError as error:
        raise InputError(f"{file}: {error}") from error
    return Defaults(
        sampling=sampling,
        temperature=temperature,
        max_tokens=given.get("max_new_tokens"),
        min_tokens=given.get("min_new_tokens", 0),
    )


def _sampling(body: Mapping[str, Any], defaults: Defaults) -> Sampling:
    start = defaults.sampling
    if any(body.get(name) not in neutral for name, neutral in _NARROWS.items()):
        start = replace(start, temperature=defaults.temperature)
    return parse_sampling(body, start)


def _stopping(
    body: Mapping[str, Any], defaults: Defaults, spec: ModelSpec, prompt: int, left: int
) -> Stopping:
    start = Stopping(max_tokens=min(defaults.max_tokens or left, left), end_tokens=spec.end_ids)
    asked = parse_stopping(body, start)
    if asked.max_tokens > left:
        raise InputError(
            f"max_tokens is {asked.max_tokens} behind {prompt} tokens; expected at most {left}, "
            f"since {spec.name} has {left + prompt} positions"
        )
    if body.get("min_tokens") is None:
        asked = replace(asked, min_tokens=min(defaults.min_tokens, asked.max_tokens))
    return asked
