"""The models of an engine process, and whose turn it is; every failure is an answer."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

from alula.core.engine import InLanes, Picking, Recording, Session
from alula.core.errors import AlulaError, DeviceLostError
from alula.core.tensor import Feeds
from alula.generate import Generator, Piece
from alula.serve import memory, sequences, wire
from alula.serve.named import Named
from alula.serve.process import Opening
from alula.serve.sequences import Load
from alula.serve.trying import timings
from alula.serve.wire import Kind, Message

log = logging.getLogger(__name__)

Opener = Callable[[Path, Opening], Session | Generator]
"""The root of a bundle to a session that has answered once, or to a generator that has written."""


class Engines:
    """Models by their numbers: some run batches, some write answers step by step.

    `lost` says that the last turn ended the use of this process. Sessions with lanes run beside the turns, where there
    is somebody to `post` their answers to: what is posted belongs to what is new in another turn. There, too, models
    are opened and closed beside the turns, one after the other, so that nobody waits for that.
    """

    def __init__(
        self,
        opener: Opener,
        opening: Opening,
        clock: Callable[[], float] = monotonic,
        *,
        post: Callable[[Message], None] | None = None,
    ) -> None:
        self._opener = opener
        self._opening = opening
        self._clock = clock
        self._post = post
        self._lanes: dict[int, Executor] = {}
        self._sessions: dict[int, Session] = {}
        self._generators: dict[int, Generator] = {}
        self._batches: deque[Message] = deque()
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="opening")
        self._opened: dict[int, tuple[Session | Generator, int]] = {}
        self.lost = False

    @property
    def busy(self) -> bool:
        """Whether there is something to do before anything new comes."""
        return bool(self._batches) or any(generator.busy for generator in self._generators.values())

    def open(self, model: int, bundle: Named) -> Message:
        """Open one bundle, if it is the one the front read; one that changes meanwhile is no better."""
        answer = self._try(model, bundle, self._opening)
        self._adopt(model)
        return answer

    def _try(self, model: int, bundle: Named, opening: Opening) -> Message:
        """Open one bundle, and lay it where `_adopt` finds it; it has answered once then."""
        before = memory.resident_bytes()
        try:
            bundle.refuse_if_replaced()
            opened = self._opener(bundle.root, opening)
            tried = [] if isinstance(opened, Generator) else timings(opened, self._clock)
            bundle.refuse_if_replaced()
        except Exception as error:
            self.lost = self.lost or isinstance(error, DeviceLostError)
            return _failure(model, error)
        lanes = opened.lanes if self._post and isinstance(opened, InLanes) else 1
        self._opened[model] = opened, lanes
        meta: dict[str, Any] = {"bytes": max(memory.resident_bytes() - before, 0)}
        if isinstance(opened, Generator):
            return Message(kind=Kind.READY, number=model, meta={**meta, "holds": opened.holds})
        return Message(kind=Kind.READY, number=model, meta={**meta, "timings": tried, "lanes": lanes})

    def _adopt(self, model: int) -> None:
        """Take turns with a model from now on, if it was opened."""
        opened, lanes = self._opened.pop(model, (None, 1))
        if isinstance(opened, Generator):
            self._generators[model] = opened
        elif opened is not None:
            self._sessions[model] = opened
            if lanes > 1:
                self._lanes[model] = ThreadPoolExecutor(lanes, thread_name_prefix="lane")

    def _open_beside(self, message: Message) -> None:
        assert self._post is not None
        bundle = Named(root=Path(message.meta["root"]), identity=message.meta["identity"])
        self._post(self._try(message.number, bundle, replace(self._opening, again=True)))

    def _close(self, message: Message) -> None:
        """Take no more turns with a model; nothing that it was asked for is unanswered."""
        model = message.meta["model"]
        leaving = self._sessions.pop(model, None) or self._generators.pop(model, None)
        if lanes := self._lanes.pop(model, None):
            lanes.shutdown()
        self._beside.submit(self._closed_beside, message.number, leaving)

    def _closed_beside(self, number: int, leaving: Session | Generator | None) -> None:
        assert self._post is not None
        try:
            if leaving is not None:
                leaving.close()
            memory.collect()
        except Exception as error:
            self._post(_failure(number, error))
        else:
            self._post(Message(kind=Kind.RESULT, number=number))

    def turn(self, new: Iterable[Message]) -> Iterator[Message]:
        """Take what is new, run one batch, and go a step on with every model that writes: nobody waits for long."""
        left: dict[int, list[Piece]] = {}
        for message in new:
            if message.kind is Kind.RUN and message.meta["model"] in self._lanes:
                self._lanes[message.meta["model"]].submit(self._run_beside, message)
            elif message.kind is Kind.RUN:
                self._batches.append(message)
            elif message.kind is Kind.OPEN:
                self._beside.submit(self._open_beside, message)
            elif message.kind is Kind.CLOSE:
                self._close(message)
            elif message.kind in {Kind.READY, Kind.RESULT, Kind.FAILED}:
                self._adopt(message.number)
                yield message  # of what was done beside the turns
            elif message.kind is Kind.CANCEL:
                model = message.meta["model"]
                left.setdefault(model, []).append(self._cancelled(message))
            else:
                yield self._taken(message)
        if self._batches:
            yield self._run(self._batches.popleft())
        for model, generator in self._generators.items():
            pieces = [*left.get(model, ()), *(self._stepped(generator) if generator.busy else ())]
            if pieces or generator.busy:
                yield from sequences.moved(model, pieces, _load(generator))

    def _run_beside(self, message: Message) -> None:
        assert self._post is not None
        self._post(self._run(message))

    def _run(self, message: Message) -> Message:
        """Run one batch."""
        began = self._clock()
        try:
            session = self._sessions[message.meta["model"]]
            before = _replays(session)
            outputs = _some(session, message.arrays, message.meta.get("wanted"))
        except Exception as error:
            self.lost = self.lost or isinstance(error, DeviceLostError)
            return _failure(message.number, error)
        meta: dict[str, float | bool] = {"seconds": self._clock() - began}
        if before is not None:
            meta["replayed"] = _replays(session) != before
        return Message(kind=Kind.RESULT, number=message.number, meta=meta, arrays=outputs)

    def _stepped(self, generator: Generator) -> Sequence[Piece]:
        """Go one step on; where the device is lost, nobody who is here gets any further."""
        try:
            return generator.step(self._clock())
        except DeviceLostError as error:
            self.lost = True
            state = generator.state
            return [Piece(id=each.id, error=str(error)) for each in (*state.running, *state.waiting)]

    def _taken(self, message: Message) -> Message:
        """Put an answer in the line, or say why not."""
        try:
            if message.kind is not Kind.GENERATE:
                raise wire.WireError(f"{message.kind.name} is for the front to receive")  # noqa: TRY301
            request, within_s, later_s = sequences.asked(message)
            generator, now = self._generators[message.meta["model"]], self._clock()
            generator.add(message.number, request, deadline=now + within_s, place=now + later_s, since=now)
        except Exception as error:
            return _failure(message.number, error)
        return Message(kind=Kind.RESULT, number=message.number)

    def _cancelled(self, message: Message) -> Piece:
        """Let go of an answer; one that has ended is not missed."""
        self._generators[message.meta["model"]].cancel(message.number)
        return Piece(id=message.number, error=sequences.CANCELLED)


def _failure(number: int, error: Exception) -> Message:
    if not isinstance(error, AlulaError):
        log.error("message %d failed", number, exc_info=error)
    return wire.failure(number, error)


def _some(session: Session, feeds: Feeds, wanted: Sequence[str] | None) -> Feeds:
    """The outputs that are wanted; of most sessions the others are made and dropped here."""
    if wanted is None:
        return session.run(feeds)
    if isinstance(session, Picking):
        return session.pick(feeds, wanted)
    outputs = session.run(feeds)
    return {name: outputs[name] for name in wanted}


def _replays(session: Session) -> int | None:
    return session.replays if isinstance(session, Recording) else None


def _load(generator: Generator) -> Load:
    state, limits = generator.state, generator.limits
    return Load(
        running=len(state.running),
        waiting=len(state.waiting),
        blocks=state.blocks,
        all_blocks=limits.blocks,
        preempted=generator.preempted,
    )
