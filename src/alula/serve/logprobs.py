"""How sure the model was, token by token, in both forms of OpenAI's API."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from alula.codecs import TextCodec
from alula.generate import Chosen, Piece

LEAST = -9999.0
"""What OpenAI says of a token that cannot come; JSON has no infinity."""

_BROKEN = "\N{REPLACEMENT CHARACTER}"

# The two ways in which vocabularies name a byte that is no character: SentencePiece's, and GPT-2's alphabet of 256.
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_PRINTED = (*range(33, 127), *range(161, 173), *range(174, 256))
_ALPHABET = {chr(byte): byte for byte in _PRINTED} | {
    chr(256 + at): byte for at, byte in enumerate(sorted({*range(256)} - {*_PRINTED}))
}


class Spelling:
    """What the tokens of one answer say one by one, each behind the one before it."""

    def __init__(self, codec: TextCodec) -> None:
        self._codec = codec
        self._last: tuple[int, ...] = ()
        self._said = ""

    def say(self, token: int) -> str:
        """The text that a token would add; the name of one that adds none, such as an end."""
        both = self._codec.decode((*self._last, token))
        # Where the one before is half a character there is nothing to go on from.
        text = both[len(self._said) :] if both.startswith(self._said) else self._codec.decode((token,))
        return text or self.name(token)

    def name(self, token: int) -> str:
        """What the vocabulary calls a token."""
        return self._codec.called(token)

    def go_on(self, token: int) -> None:
        """Stand behind this token from now on."""
        self._last = (token,)
        self._said = self._codec.decode(self._last)


def reported(piece: Piece) -> Sequence[Chosen]:
    """The tokens of a piece that are reported: an end token is not part of the answer."""
    ends = piece.ending == "stop" and isinstance(piece.stopped_by, int)
    return piece.tokens[:-1] if ends else piece.tokens


def chat(chosen: Sequence[Chosen], spelling: Spelling) -> dict[str, Any]:
    """`logprobs` of a chat's choice."""
    content = []
    for one in chosen:
        top = [_entry(spelling, token, logprob) for token, logprob in one.top]
        content.append({**_entry(spelling, one.token, one.logprob), "top_logprobs": top})
        spelling.go_on(one.token)
    return {"content": content, "refusal": None}


def text(chosen: Sequence[Chosen], spelling: Spelling, offset: int) -> tuple[dict[str, Any], int]:
    """`logprobs` of a completion's choice whose text begins at `offset`, and where it ends."""
    tokens: list[str] = []
    logprobs: list[float] = []
    top: list[Mapping[str, float]] = []
    offsets: list[int] = []
    for one in chosen:
        said = spelling.say(one.token)
        best = {said: _finite(one.logprob)}
        for token, logprob in one.top:
            best.setdefault(spelling.say(token), _finite(logprob))
        spelling.go_on(one.token)
        tokens.append(said)
        logprobs.append(_finite(one.logprob))
        top.append(best)
        offsets.append(offset)
        offset += len(said)
    found = {"tokens": tokens, "token_logprobs": logprobs, "top_logprobs": top, "text_offset": offsets}
    return found, offset


def bytes_of(said: str, name: str) -> list[int] | None:
    """The bytes of a token that says this and has this name; None where nothing tells them."""
    if _BROKEN not in said:
        return list(said.encode())
    if found := _BYTE.fullmatch(name):
        return [int(found[1], 16)]
    there = [_ALPHABET.get(character, -1) for character in name]
    return None if -1 in there else there


def _entry(spelling: Spelling, token: int, logprob: float | None) -> dict[str, Any]:
    said = spelling.say(token)
    return {"token": said, "logprob": _finite(logprob), "bytes": bytes_of(said, spelling.name(token))}


def _finite(logprob: float | None) -> float:
    return LEAST if logprob is None else max(logprob, LEAST)
