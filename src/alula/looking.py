"""A bundle that reads images, opened: questions about pages in, pieces of answers out, many at once.

    with Looker.open(bundle) as looker:
        asked = (looker.request("Extract the text in the image.", [page], {"max_tokens": 512}) for page in pages)
        for number, piece in looker.answers(asked):
            texts[number] += piece.text
            if piece.error or piece.ending:
                ...  # the last of this page: "stop" at an end token or a stop string, or "length"

Whoever prepares pages ahead of the engine, in threads or processes, has `Prompts.patches` do what takes their time, and
gives its patches in place of the page.
"""

from __future__ import annotations

from collections import abc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from time import monotonic
from types import TracebackType
from typing import Any, TypeAlias

from alula.bundles import Bundle
from alula.codecs import Seen
from alula.core.errors import AlulaError, DeviceLostError, InputError, RunError
from alula.generate import Generator, Piece, Request
from alula.generating import SEQUENCES, open_generator
from alula.prompting import NOTHING_ASKED, Prompts

Pieces: TypeAlias = "abc.Generator[tuple[int, Piece], None, None]"
"""Numbers of requests and what came of their answers; `close` ends it early."""


class Looker:
    """The engines of a bundle and its words, which it owns. One owner at a time; `request` alone is for any thread.

    `sequences` answers are written at once, each as if it were alone.
    """

    def __init__(self, prompts: Prompts, generator: Generator) -> None:
        self.prompts = prompts.within(generator.holds)
        self.sequences = generator.limits.sequences
        self._generator = generator
        self._numbers = count()
        self._places: dict[int, int] = {}
        self._answering = False

    @classmethod
    def open(
        cls,
        bundle: Bundle,
        *,
        threads: int = 0,
        cache_bytes: int | None = None,
        sequences: int = SEQUENCES,
    ) -> Looker:
        """Load a bundle; the limits are those of `open_generator`. Refuses one that reads no images."""
        if not bundle.model.sees:
            raise InputError(f"{bundle.root}: {bundle.model.name} reads no images beside a prompt")
        prompts = Prompts.open(bundle)
        generator = open_generator(
            bundle, threads=threads, cache_bytes=cache_bytes, sequences=sequences, codec=prompts.codec
        )
        return cls(prompts, generator)

    def request(
        self,
        text: str,
        images: Sequence[Seen],
        body: Mapping[str, Any] = NOTHING_ASKED,
        *,
        system: str | None = None,
    ) -> Request:
        """A question about some images, as `Prompts.look` has it; raises InputError for what cannot be asked."""
        return self.prompts.look(text, images, body, system=system)

    @property
    def open_answers(self) -> int:
        """How many are being written."""
        return len(self._places)

    def add(self, number: int, request: Request) -> Piece | None:
        """Begin an answer under a number of the caller's; its last piece where it can never be answered.

        For whoever decides when to take how many; `answers` does so for all others.
        """
        if number in self._places.values():
            raise RunError(f"answer {number} is being written already")
        id = next(self._numbers)
        try:
            self._generator.add(id, request, given=request.given)
        except DeviceLostError:
            raise
        except AlulaError as error:
            return Piece(id=id, error=str(error))
        self._places[id] = number
        return None

    def step(self) -> list[tuple[int, Piece]]:
        """What one step of the running batch gave, by the caller's numbers."""
        found = []
        for piece in self._generator.step(monotonic()):
            found.append((self._places[piece.id], piece))
            if piece.ending or piece.error:
                del self._places[piece.id]
        return found

    def end(self, number: int) -> None:
        """Cancel an answer; nothing more is heard of it. One that has ended is not missed."""
        for id in [id for id, at in self._places.items() if at == number]:
            self._generator.cancel(id)
            del self._places[id]

    def answers(self, requests: Iterable[Request]) -> Pieces:
        """Pieces of all answers as they come, with the number of the request, counted from 0.

        The last piece of an answer has an `ending` or an `error`; an error is of that request alone. Requests are taken
        as there is room for them, so that a long document need not be in memory. Whoever stops reading has all that
        are open cancelled.
        """
        if self._answering:
            raise RunError("answers are being read already; read them to the end, or close the iterator")
        self._answering = True
        line = enumerate(requests)
        try:
            more = True
            while more or self._places:
                while more and self.open_answers < self.sequences:
                    if (taken := next(line, None)) is None:
                        more = False
                    elif refused := self.add(*taken):
                        yield taken[0], refused
                yield from self.step()
        finally:
            for number in list(self._places.values()):
                self.end(number)
            self._answering = False

    def ask(
        self,
        text: str,
        images: Sequence[Seen],
        body: Mapping[str, Any] = NOTHING_ASKED,
        *,
        system: str | None = None,
    ) -> Iterator[Piece]:
        """The pieces of one answer."""
        for _, piece in self.answers([self.request(text, images, body, system=system)]):
            yield piece

    def close(self) -> None:
        """Release engines and cache. Safe to call twice."""
        self._generator.close()

    def __enter__(self) -> Looker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
