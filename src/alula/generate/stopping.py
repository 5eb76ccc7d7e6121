"""From tokens to text that may be sent, and when an answer ends. Each class belongs to one answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

from alula.generate.request import Stopping

Decode: TypeAlias = Callable[[Sequence[int]], str]
Ending: TypeAlias = Literal["stop", "length"]

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"

# A character of UTF-8 has at most four bytes and a token at least one, so what is older than three tokens is decided.
_OPEN_TOKENS = 3
_MAX_PENDING = 8


class Detokenizer:
    """Text as tokens come, whole characters only.

    What is decoded at a time are the last few tokens, however long the answer is: those whose text is out, since a
    tokenizer may treat the first token otherwise, and those that wait for the rest of a character. A text that ends as
    one of `unsettled` does waits too: what comes next may change it.
    """

    def __init__(self, decode: Decode, unsettled: Sequence[str] = ()) -> None:
        self._decode = decode
        self._open = (_UNFINISHED, *unsettled)
        self._shown: list[int] = []
        self._shown_text = ""
        self._pending: list[int] = []

    def push(self, token: int) -> str:
        """The text that this token completes; nothing while a character is open."""
        self._pending.append(token)
        text = self._decode(self._shown + self._pending)
        if text.endswith(self._open):
            return self._give_up() if len(self._pending) > _MAX_PENDING else ""
        if len(self._pending) == 1 and text == self._shown_text:
            self._pending.clear()  # a token without text, which would push the others out of the window
            return ""
        return self._show(len(self._pending), text)

    def finish(self) -> str:
        """The text that is left; a character that the end has cut shows as U+FFFD, as in any decoding of the whole."""
        if not self._pending:
            return ""
        return self._show(len(self._pending), self._decode(self._shown + self._pending))

    def _give_up(self) -> str:
        """So many tokens are no open character but bytes that form none: they go out as decoded."""
        decided = len(self._pending) - _OPEN_TOKENS
        return self._show(decided, self._decode(self._shown + self._pending[:decided]))

    def _show(self, count: int, text: str) -> str:
        fresh = text[len(self._shown_text) :]
        self._shown, self._pending = self._pending[:count], self._pending[count:]
        self._shown_text = self._decode(self._shown)
        return fresh


class StopStrings:
    """Passes text on up to the first stop string, and holds back what may still become one.

    The first is the one that is complete first, and of those that end together the longest: so it does not matter how
    the text is cut into pieces. Every character is looked at once per stop string.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._borders = [_borders(stop) for stop in stops]
        self._matched = [0] * len(stops)
        self._held = ""
        self.found: str | None = None

    def push(self, piece: str) -> str:
        """The text that may be sent now that `piece` has come; once a stop string is found, nothing more."""
        if self.found is not None or not self._stops:
            return "" if self.found is not None else piece
        text = self._held + piece
        for index in range(len(self._held), len(text)):
            complete = self._step(text[index])
            if complete:
                self.found, self._held = complete, ""
                return text[: index + 1 - len(complete)]
        safe = len(text) - max(self._matched)
        self._held = text[safe:]
        return text[:safe]

    def finish(self) -> str:
        """What was held back and has not become a stop string."""
        held, self._held = self._held, ""
        return held

    def _step(self, character: str) -> str:
        """Go on by one character; the longest stop string that is complete with it, or nothing."""
        complete = ""
        for which, stop in enumerate(self._stops):
            matched = self._matched[which]
            while matched and stop[matched] != character:
                matched = self._borders[which][matched - 1]
            matched += stop[matched] == character
            self._matched[which] = matched
            if matched == len(stop):
                complete = max(complete, stop, key=len)
        return complete


def _borders(text: str) -> list[int]:
    """For every beginning of the text, the length of its longest proper beginning that is also its end."""
    borders = [0] * len(text)
    for index in range(1, len(text)):
        length = borders[index - 1]
        while length and text[index] != text[length]:
            length = borders[length - 1]
        borders[index] = length + (text[index] == text[length])
    return borders


class Answer:
    """One answer as it grows: `push` takes a token and gives the text that may be sent; `ending` says why it is over.

    An end token counts as a token and has no text. `stopped_by` is the end token or stop string that ended it.
    """

    def __init__(self, stopping: Stopping, decode: Decode, unsettled: Sequence[str] = ()) -> None:
        self._stopping = stopping
        self._text = Detokenizer(decode, unsettled)
        self._stops = StopStrings(stopping.stop)
        self.tokens: list[int] = []
        self.ending: Ending | None = None
        self.stopped_by: int | str | None = None

    @property
    def banned(self) -> tuple[int, ...]:
        """The tokens that must not be chosen next."""
        return self._stopping.end_tokens if len(self.tokens) < self._stopping.min_tokens else ()

    def push(self, token: int) -> str:
        """Take the next token; where it ends the answer, all text that was held back comes with it."""
        assert self.ending is None, f"a token for an answer that ended by {self.ending}"
        free = len(self.tokens) >= self._stopping.min_tokens
        self.tokens.append(token)
        if free and token in self._stopping.end_tokens:
            return self._end("stop", token, self._stops.push(self._text.finish()))
        piece = self._text.push(token)
        text = self._stops.push(piece) if free else piece
        if self._stops.found is not None:
            return self._end("stop", self._stops.found, text)
        if len(self.tokens) == self._stopping.max_tokens:
            rest = self._text.finish()
            return self._end("length", None, text + (self._stops.push(rest) if free else rest))
        return text

    def _end(self, ending: Ending, by: int | str | None, text: str) -> str:
        """Ends by the stop string after all, where the last characters have completed one."""
        self.ending, self.stopped_by = ending, by
        if self._stops.found is not None:
            self.ending, self.stopped_by = "stop", self._stops.found
        return text + self._stops.finish()
