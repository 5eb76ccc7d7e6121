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

    def answers(self, requests: Iterable[Request]) -> Pieces:
        """Pieces of all answers as they come, with the number of the request, counted from 0.

        The last piece of an answer has an `ending` or an `error`; an error is of that request alone. Requests are taken
        as there is room for them, so that a long document need not be in memory. Whoever stops reading has all that
        are open cancelled.
        """
        if self._answering:
            raise RunError("answers are being read already; read them to the end, or close the iterator")
        self._answering = True
        line, places = enumerate(requests), dict[int, int]()
        try:
            more = True
            while more or places:
                while more and len(places) < self.sequences:
                    if (taken := next(line, None)) is None:
                        more = False
                    elif refused := self._add(*taken, places):
                        yield taken[0], refused
                for piece in self._generator.step(monotonic()):
                    at = places[piece.id]
                    if piece.ending or piece.error:
                        del places[piece.id]
                    yield at, piece
        finally:
            for number in places:
                self._generator.cancel(number)
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

    def _add(self, at: int, request: Request, places: dict[int, int]) -> Piece | None:
        """Put a request in the line; the last piece of one that could never be answered."""
        number = next(self._numbers)
        try:
            self._generator.add(number, request, given=request.given)
        except DeviceLostError:
            raise
        except AlulaError as error:
            return Piece(id=number, error=str(error))
        places[number] = at
        return None
