"""HunyuanOCR as a reader: pages in one running batch, each asked its task's prompt, loops ended as they are written."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from alula.bundles import Bundle
from alula.codecs import Patches
from alula.core.errors import InputError
from alula.documents import TASKS, Notice, Page, Scan, Task
from alula.generate import Piece, Request
from alula.looking import Looker
from alula.ocr.answers import Written, page_of, plainer, untaught
from alula.ocr.odds import Odds
from alula.ocr.prompts import Version, prompt
from alula.ocr.reader import Ask
from alula.ocr.repetition import Guard
from alula.prompting import Prompts

AHEAD = 2
"""Pages that are cut into patches before the batch has room for them."""

WAITING = 2
"""For each answer of the batch, pages that may be read and wait for one before them."""

_FIRST_VERSION_PIXELS = 1 << 22
"""The most pixels of a page of version 1.0; 1.5 takes four times as many."""

Cut: TypeAlias = "Future[Patches]"


@dataclass(slots=True)
class _Answer:
    """A page that is being read: its place among the pages given, what is asked of it, and what was written so far."""

    at: int
    scan: Scan
    cut: Cut
    begun: float
    ask: Ask
    known: Sequence[Notice]
    guard: Guard = field(default_factory=Guard)
    odds: Odds = field(default_factory=Odds)


class ModelReader:
    """A bundle of HunyuanOCR that reads pages. Owns its engines; one owner at a time, who closes it."""

    def __init__(self, looker: Looker, name: str) -> None:
        self.name = name
        self.tasks: Collection[Task] = TASKS
        self._looker = looker

    @classmethod
    def open(cls, folder: Path, threads: int = 0) -> ModelReader:
        """Load a bundle, proved whole."""
        bundle = Bundle.open(folder)
        return cls(Looker.open(bundle, threads=threads), bundle.model.name)

    @property
    def version(self) -> Version:
        """Which of the published models it is made like, as its image processor tells."""
        return version_of(self._looker.prompts)

    def read(self, scans: Iterable[Scan], ask: Ask) -> Iterator[Page]:
        """One page for each scan, in order; pages of as many as the batch holds are written side by side."""
        prompt(ask, self.version)  # what cannot be asked is refused before any page is cut
        with ThreadPoolExecutor(max_workers=1) as threads:
            cut = _ahead(scans, lambda scan: threads.submit(self._looker.prompts.patches, scan.pixels))
            known = untaught(self.name, self._looker.prompts.spec.taught, ask)
            reading = _Reading(self._looker, ask, self.version, known)
            try:
                yield from reading.pages(cut)
            finally:
                reading.end()

    def close(self) -> None:
        """Release engines and cache. Safe to call twice."""
        self._looker.close()


def version_of(prompts: Prompts) -> Version:
    """Which of the published models a bundle is made like, as its image processor tells."""
    patcher = prompts.patcher
    return "1.5" if patcher is not None and patcher.most_pixels > _FIRST_VERSION_PIXELS else "1.0"


def bounded(request: Request, ask: Ask, prompts: Prompts) -> Request:
    """A request about a page, whose answer ends at the most tokens that are asked for.

    A model that was taught a part of all tasks says how probable its words are, too: of others nothing was measured.
    """
    most = min(ask.max_tokens, request.stopping.max_tokens)
    sampling = replace(request.sampling, logprobs=0) if prompts.spec.taught else request.sampling
    return replace(request, stopping=replace(request.stopping, max_tokens=most), sampling=sampling)


class _Reading:
    """One run of pages through a looker."""

    def __init__(self, looker: Looker, ask: Ask, version: Version, known: Sequence[Notice]) -> None:
        self._looker, self._ask, self._version, self._known = looker, ask, version, known
        self._answers: dict[int, _Answer] = {}
        self._ready: dict[int, Page] = {}
        self._taken = 0
        self._given = 0

    def pages(self, cut: Iterator[tuple[Scan, Cut]]) -> Iterator[Page]:
        """Take pages as there is room, step the batch, and give what is next in order."""
        more = True
        while more or self._answers or self._ready:
            while more and self._has_room():
                if (one := next(cut, None)) is None:
                    more = False
                else:
                    self._take(*one)
            if self._answers:
                for number, piece in self._looker.step():
                    self._hear(self._answers[number], piece)
            while self._given in self._ready:
                yield self._ready.pop(self._given)
                self._given += 1

    def end(self) -> None:
        """Cancel what is open."""
        for number in list(self._answers):
            self._looker.end(number)
        self._answers.clear()

    def _has_room(self) -> bool:
        """Whether the batch has, and not too many pages wait for a slow one before them."""
        sequences = self._looker.sequences
        return len(self._answers) < sequences and self._taken - self._given < WAITING * sequences

    def _take(self, scan: Scan, cut: Cut) -> None:
        at, self._taken = self._taken, self._taken + 1
        begun = time.perf_counter()
        self._begin(_Answer(at=at, scan=scan, cut=cut, begun=begun, ask=self._ask, known=self._known))

    def _begin(self, answer: _Answer) -> None:
        try:
            request = self._looker.request(prompt(answer.ask, self._version), [answer.cut.result()])
            refused = self._looker.add(answer.at, bounded(request, answer.ask, self._looker.prompts))
        except InputError as error:
            self._fail(answer, str(error))
            return
        if refused is not None:
            self._fail(answer, refused.error)
        else:
            self._answers[answer.at] = answer

    def _hear(self, answer: _Answer, piece: Piece) -> None:
        if piece.error:
            self._fail(answer, piece.error)
            return
        loop = answer.guard.push(piece.text)
        answer.odds.push(piece, len(answer.guard.text))
        if loop is not None:
            self._looker.end(answer.at)
        if loop is None and piece.ending is None:
            return
        written = Written(text=answer.guard.text, cut=piece.ending == "length", loop=loop, odds=answer.odds)
        if (other := plainer(answer.ask, written)) is not None:
            ask, why = other
            known = (*answer.known, why)
            self._begin(replace(answer, ask=ask, known=known, guard=Guard(), odds=Odds()))
            return
        timings = {"read_ms": (time.perf_counter() - answer.begun) * 1e3}
        self._keep(answer, page_of(answer.scan, written, answer.ask, known=answer.known, timings=timings))

    def _fail(self, answer: _Answer, why: str) -> None:
        self._keep(answer, Page.of(answer.scan, notices=(Notice(code="failed", message=why),)))

    def _keep(self, answer: _Answer, page: Page) -> None:
        self._answers.pop(answer.at, None)
        self._ready[answer.at] = page


def _ahead(scans: Iterable[Scan], prepare: Callable[[Scan], Cut]) -> Iterator[tuple[Scan, Cut]]:
    """Each scan and its patches, a few of which are cut before they are asked for."""
    waiting: deque[tuple[Scan, Cut]] = deque()
    for scan in scans:
        waiting.append((scan, prepare(scan)))
        if len(waiting) > AHEAD:
            yield waiting.popleft()
    yield from waiting
