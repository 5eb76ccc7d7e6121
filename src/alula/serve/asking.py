"""Bodies of chats and completions to requests; what is not supported is refused by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from alula.codecs import Parts, messages_of
from alula.core.errors import InputError
from alula.core.words import WRITING_TASKS
from alula.generate import Request
from alula.serve import bodies
from alula.serve.bodies import Fields
from alula.serve.catalogue import Catalogue
from alula.serve.errors import Refused
from alula.serve.uploads import image_at
from alula.serve.writer import CHATS, Writer

MOST_ANSWERS = 128
"""To one prompt, as OpenAI has it."""

MOST_STOP_CHARACTERS = 1_000
"""Of one stop string. A longer one would hold back as much of every answer."""

MESSAGE_CHARACTERS = 20

IMAGE_CHARACTERS = 2_000
"""What a place for an image, which becomes some hundred tokens, is beside the characters of a text."""

SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "logit_bias",
    "stop",
    "max_tokens",
    "min_tokens",
    "ignore_eos",
    "stop_token_ids",
)

# Fields of OpenAI's API that do nothing here, and what they may be all the same, since that asks for nothing.
UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "tools": ([],),
    "tool_choice": ("none",),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none",),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "reasoning_effort": (),
    "verbosity": (),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
}

# What tells who asks and what for, and changes no answer.
IGNORED = ("user", "safety_identifier", "prompt_cache_key", "metadata")


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What a body asks for: the answers to one prompt stand beside one another.

    `echo` is what each answer begins with in the reply; `read` counts the tokens of each prompt once.
    """

    writer: Writer
    requests: tuple[Request, ...]
    echo: tuple[str, ...]
    read: int
    stream: bool
    include_usage: bool
    logprobs: bool


async def chat(catalogue: Catalogue, fields: Fields) -> Asked:
    """`POST /v1/chat/completions`."""
    writer = catalogue.pick(Writer, CHATS, fields.maybe("model", str))
    messages = messages_of(fields.any("messages"), images=writer.spec.sees)
    body = fields.some((*SAMPLING, "max_completion_tokens", "top_logprobs"))
    body["logprobs"] = fields.get("logprobs", bool, default=False)
    variables = fields.maybe("chat_template_kwargs", dict)
    count, stream, include_usage = _shape(fields)
    writer.refuse_unless_room(count)
    shown = [part for message in messages for part in message.images]
    images = await writer.looked(
        [image_at(part.url, f"image {at}") for at, part in enumerate(shown, start=1)]
    )

    def make() -> Request:
        return writer.prompts.rendered(writer.prompts.render(messages, variables=variables), body, images)

    request = _checked(await writer.made(sum(_length(message.content) for message in messages), make), writer)
    return Asked(
        writer=writer,
        requests=_repeated(request, count),
        echo=("",) * count,
        read=request.read,
        stream=stream,
        include_usage=include_usage,
        logprobs=body["logprobs"],
    )


async def completion(catalogue: Catalogue, fields: Fields) -> Asked:
    """`POST /v1/completions`."""
    writer = catalogue.pick(Writer, WRITING_TASKS, fields.maybe("model", str))
    prompts = bodies.inputs(fields.any("prompt"), "prompt")
    if not prompts:
        raise InputError("prompt is an empty list; expected at least one prompt")
    body = fields.some(SAMPLING)
    body["logprobs"] = fields.maybe("logprobs", int)
    echo = fields.get("echo", bool, default=False)
    if echo and body["logprobs"] is not None:
        raise _unsupported("logprobs", "is not there for the tokens of the prompt, so not together with echo")
    count, stream, include_usage = _shape(fields, best_of=True)
    writer.refuse_unless_room(len(prompts) * count)

    def make() -> list[Request]:
        return [_checked(writer.prompts.text(prompt, body), writer) for prompt in prompts]

    requests = await writer.made(sum(map(len, prompts)), make)
    shown = [_shown(prompt, writer) if echo else "" for prompt in prompts]
    return Asked(
        writer=writer,
        requests=tuple(each for request in requests for each in _repeated(request, count)),
        echo=tuple(text for text in shown for _ in range(count)),
        read=sum(request.read for request in requests),
        stream=stream,
        include_usage=include_usage,
        logprobs=body["logprobs"] is not None,
    )


def _shape(fields: Fields, *, best_of: bool = False) -> tuple[int, bool, bool]:
    """How many answers to a prompt, whether streamed, and whether with usage at the end; nothing else is left over."""
    count = fields.get("n", int, 1)
    if not 1 <= count <= MOST_ANSWERS:
        raise InputError(f"n is {count}; expected 1 to {MOST_ANSWERS}")
    if best_of and (of := fields.get("best_of", int, count)) != count:
        raise _unsupported("best_of", f"is {of}; expected as many as n, {count}")
    stream = fields.get("stream", bool, default=False)
    options = fields.within("stream_options")
    if fields.maybe("stream_options", dict) is not None and not stream:
        raise InputError("stream_options is given without stream; expected stream to be true")
    include_usage = options.get("include_usage", bool, default=False)
    options.some(("include_obfuscation",), told=False)
    options.done()
    _refuse_unsupported(fields)
    fields.done()
    return count, stream, include_usage


def _refuse_unsupported(fields: Fields) -> None:
    for name, value in fields.some(UNSUPPORTED, told=False).items():
        if value not in UNSUPPORTED[name]:
            raise _unsupported(name, "is not supported")
    fields.some(IGNORED, told=False)


def _unsupported(name: str, why: str) -> Refused:
    return Refused(f"{name} {why}", status=400, code="unsupported_parameter", param=name)


def _checked(request: Request, writer: Writer) -> Request:
    """What the engine would find out only while it writes."""
    for stop in request.stopping.stop:
        if len(stop) > MOST_STOP_CHARACTERS:
            raise InputError(
                f"a stop string has {len(stop)} characters; expected at most {MOST_STOP_CHARACTERS}"
            )
    known = writer.spec.vocab_size
    biased = [token for token, _ in request.sampling.logit_bias]
    for name, tokens in (("logit_bias", biased), ("stop_token_ids", request.stopping.end_tokens)):
        for token in tokens:
            if token >= known:
                raise InputError(f"{name} names token {token}; the model knows 0..{known - 1}")
    return request


def _repeated(request: Request, count: int) -> tuple[Request, ...]:
    """The same request so often; with a seed, each from a seed of its own, or all would be equal."""
    seed = request.sampling.seed
    if seed is None:
        return (request,) * count
    seeds = ((seed + at + 2**63) % 2**64 - 2**63 for at in range(count))
    return tuple(replace(request, sampling=replace(request.sampling, seed=its)) for its in seeds)


def _shown(prompt: str | Sequence[int], writer: Writer) -> str:
    return prompt if isinstance(prompt, str) else writer.prompts.codec.decode(prompt)


def _length(content: str | Parts | None) -> int:
    """What a message is to a template: its characters, and something for being one."""
    if content is None or isinstance(content, str):
        return MESSAGE_CHARACTERS + len(content or "")
    return sum(
        MESSAGE_CHARACTERS + len(part) if isinstance(part, str) else IMAGE_CHARACTERS for part in content
    )
