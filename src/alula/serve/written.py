"""Answers that are being written as OpenAI's JSON: whole, or chunk by chunk."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from time import time
from typing import Any, ClassVar
from uuid import uuid4

from alula import __version__
from alula.generate import Chosen, Piece
from alula.serve import asking, logprobs
from alula.serve.asking import Asked
from alula.serve.bodies import Fields
from alula.serve.catalogue import Catalogue
from alula.serve.events import Events
from alula.serve.logprobs import Spelling
from alula.serve.writer import Answers


async def chat(catalogue: Catalogue, fields: Fields) -> dict[str, Any] | Events:
    """`POST /v1/chat/completions`, as OpenAI has it."""
    return await _answer(Chat(await asking.chat(catalogue, fields)))


async def completion(catalogue: Catalogue, fields: Fields) -> dict[str, Any] | Events:
    """`POST /v1/completions`, as OpenAI has it."""
    return await _answer(Completion(await asking.completion(catalogue, fields)))


async def _answer(reply: Reply) -> dict[str, Any] | Events:
    answers = await reply.asked.writer.write(reply.asked.requests)
    if reply.asked.stream:
        return Events(objects=_chunks(reply, answers), close=answers.close)
    try:
        while taken := await answers.take():
            for at, piece in taken:
                reply.add(at, piece)
        return reply.whole()
    finally:
        answers.close()


async def _chunks(reply: Reply, answers: Answers) -> AsyncIterator[list[Mapping[str, Any]]]:
    yield [
        reply.chunk(at, **opening)
        for at, choice in enumerate(reply.choices)
        for opening in reply.openings(choice)
    ]
    while taken := await answers.take():
        yield [reply.chunk(at, **change) for at, piece in taken for change in reply.changes(at, piece)]
    if reply.asked.include_usage:
        yield [{**reply.head(), "choices": [], "usage": reply.usage()}]


class Choice:
    """One answer as far as it is written; `offset` is where in the text its next token begins."""

    def __init__(self, spelling: Spelling, echo: str) -> None:
        self.spelling = spelling
        self.texts = [echo]
        self.chosen: list[Chosen] = []
        self.offset = len(echo)
        self.ending: str | None = None


class Reply(ABC):
    """The reply to one request, as it grows."""

    kind: ClassVar[str]
    chunk_kind: ClassVar[str]
    prefix: ClassVar[str]

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.choices = [Choice(Spelling(asked.writer.prompts.codec), echo) for echo in asked.echo]
        self._id = f"{self.prefix}-{uuid4().hex}"
        self._created = int(time())
        self._written = 0

    def head(self, kind: str | None = None) -> dict[str, Any]:
        """What every object of the reply begins with."""
        return {
            "id": self._id,
            "object": kind or self.chunk_kind,
            "created": self._created,
            "model": self.asked.writer.name,
            "system_fingerprint": f"fp_{__version__}_{self.asked.writer.spec.digest[:12]}",
        }

    def usage(self) -> dict[str, int]:
        """Tokens read and written; an end token is one too."""
        read, written = self.asked.read, self._written
        return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}

    def chunk(self, at: int, *, ending: str | None = None, **change: Any) -> dict[str, Any]:
        """One change of one choice."""
        choice = {"index": at, "logprobs": None, **change, "finish_reason": ending}
        usage = {"usage": None} if self.asked.include_usage else {}
        return {**self.head(), "choices": [choice], **usage}

    def add(self, at: int, piece: Piece) -> None:
        """Take a piece for the whole reply."""
        choice = self.choices[at]
        choice.texts.append(piece.text)
        if self.asked.logprobs:
            choice.chosen.extend(logprobs.reported(piece))
        choice.ending = piece.ending
        self._written += len(piece.tokens)

    def whole(self) -> dict[str, Any]:
        """The reply in one object."""
        choices = [
            {"index": at, **self.said(choice), "finish_reason": choice.ending}
            for at, choice in enumerate(self.choices)
        ]
        return {**self.head(self.kind), "choices": choices, "usage": self.usage()}

    def changes(self, at: int, piece: Piece) -> list[dict[str, Any]]:
        """What a piece changes in its choice; nothing where its text is held back."""
        self._written += len(piece.tokens)
        chosen = logprobs.reported(piece) if self.asked.logprobs else ()
        if not (piece.text or chosen or piece.ending):
            return []
        return self.changed(self.choices[at], piece, chosen)

    @abstractmethod
    def openings(self, choice: Choice) -> list[dict[str, Any]]:
        """What a choice begins with, before anything is written."""

    @abstractmethod
    def changed(self, choice: Choice, piece: Piece, chosen: Sequence[Chosen]) -> list[dict[str, Any]]:
        """The changes that a piece makes."""

    @abstractmethod
    def said(self, choice: Choice) -> dict[str, Any]:
        """A finished choice without index and ending."""


class Chat(Reply):
    """The next message of a conversation."""

    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"
    prefix = "chatcmpl"

    def openings(self, choice: Choice) -> list[dict[str, Any]]:
        """Who speaks."""
        return [{"delta": {"role": "assistant", "content": "", "refusal": None}}]

    def changed(self, choice: Choice, piece: Piece, chosen: Sequence[Chosen]) -> list[dict[str, Any]]:
        """Text, and then the ending in a change of its own."""
        found: list[dict[str, Any]] = []
        if piece.text or chosen:
            sure = logprobs.chat(chosen, choice.spelling) if self.asked.logprobs else None
            found.append({"delta": {"content": piece.text}, "logprobs": sure})
        if piece.ending:
            found.append({"delta": {}, "ending": piece.ending})
        return found

    def said(self, choice: Choice) -> dict[str, Any]:
        """The message."""
        sure = logprobs.chat(choice.chosen, choice.spelling) if self.asked.logprobs else None
        message = {"role": "assistant", "content": "".join(choice.texts), "refusal": None}
        return {"message": message, "logprobs": sure}


class Completion(Reply):
    """The text behind a prompt, or what an encoder-decoder makes of it."""

    kind = chunk_kind = "text_completion"
    prefix = "cmpl"

    def openings(self, choice: Choice) -> list[dict[str, Any]]:
        """The prompt where it is to be echoed."""
        return [{"text": echo} for echo in choice.texts if echo]

    def changed(self, choice: Choice, piece: Piece, chosen: Sequence[Chosen]) -> list[dict[str, Any]]:
        """Text and ending together."""
        return [{"text": piece.text, "logprobs": self._sure(choice, chosen), "ending": piece.ending}]

    def said(self, choice: Choice) -> dict[str, Any]:
        """The text."""
        return {"text": "".join(choice.texts), "logprobs": self._sure(choice, choice.chosen)}

    def _sure(self, choice: Choice, chosen: Sequence[Chosen]) -> dict[str, Any] | None:
        if not self.asked.logprobs:
            return None
        found, choice.offset = logprobs.text(chosen, choice.spelling, choice.offset)
        return found
