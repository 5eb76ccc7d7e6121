"""Requests to pieces of their answers, one step of a running batch at a time. No clock: the time is an argument."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np

from alula.core.decoding import NOTHING_GIVEN, Decoding, Work
from alula.core.errors import AlulaError, DeviceLostError, InputError, RunError
from alula.core.tensor import Feeds
from alula.generate.request import Request
from alula.generate.sampling import Chosen, Logits, Seen, choose, generator
from alula.generate.scheduler import (
    Chunk,
    Limits,
    State,
    Step,
    answered,
    cancel,
    entry,
    expired,
    plan,
    submit,
)
from alula.generate.stopping import Answer, Decode, Ending


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """What a step gave of one answer; an `ending` or an `error` is the last that is heard of it.

    `text` is what may be sent now, which may be nothing. `stopped_by` is the end token or stop string that ended it.
    With the first token comes how long the request `waited_s` in the line.
    """

    id: int
    text: str = ""
    tokens: tuple[Chosen, ...] = ()
    ending: Ending | None = None
    stopped_by: int | str | None = None
    error: str = ""
    waited_s: float | None = None


@dataclass(kw_only=True, slots=True)
class _Sequence:
    """A request being answered, with random numbers of its own, so that it is written alike in any company."""

    request: Request
    given: Feeds
    answer: Answer
    seen: Seen
    since: float
    waited_s: float | None = None
    random: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.random = generator(self.request.sampling.seed)

    def let_in(self, now: float) -> None:
        """It need not wait any more; one that had to go back to the line did so before."""
        if not self.answer.tokens:
            self.waited_s = now - self.since

    def tokens(self, chunk: Chunk) -> tuple[int, ...]:
        """Those of prompt and answer that a chunk names."""
        prompt, answer = self.request.prompt, self.answer.tokens
        behind = chunk.start - len(prompt)
        if behind >= 0:
            return tuple(answer[behind : behind + chunk.count])
        return (*prompt, *answer)[chunk.start : chunk.start + chunk.count]

    def next(self, logits: Logits) -> tuple[str, Chosen]:
        """Choose the next token; the text that may be sent with it."""
        chosen = choose(logits, self.seen, self.request.sampling, self.random, self.answer.banned)
        self.seen.add(chosen.token)
        return self.answer.push(chosen.token), chosen


class Generator:
    """Answers many requests at once on one session, which it owns. One owner at a time.

    What a sequence gets does not depend on who runs beside it: `step` runs a chunk of some prompts and a token of
    everybody else, and what had to make room is run again later without a word being lost or said twice. `unsettled`
    are the ends of a text that `decode` may change once more has come.
    """

    def __init__(
        self, session: Decoding, limits: Limits, decode: Decode, unsettled: Sequence[str] = ()
    ) -> None:
        room = session.room
        apart = limits.block_tokens != room.block_tokens
        if apart or limits.sequences > room.sequences or limits.blocks > room.blocks:
            raise InputError(
                f"limits of {limits.sequences} sequences and {limits.blocks} blocks of {limits.block_tokens} tokens; "
                f"the session has room for {room.sequences} and {room.blocks} of {room.block_tokens}"
            )
        self.limits = limits
        self.state = State()
        self.preempted = 0
        self._session = session
        self._decode = decode
        self._unsettled = unsettled
        self._sequences: dict[int, _Sequence] = {}
        self._closed = False

    @property
    def busy(self) -> bool:
        """Whether a step has something to do."""
        return self.state != State()

    @property
    def holds(self) -> int:
        """The most tokens that a prompt and its answer have together."""
        return self.limits.holds

    def add(  # noqa: PLR0913 - six, which is as many as a function may have here
        self,
        id: int,
        request: Request,
        *,
        given: Feeds = NOTHING_GIVEN,
        deadline: float = inf,
        place: float = 0.0,
        since: float = 0.0,
    ) -> None:
        """Put a request in the line; `given` is what its sequence is started with, if that is not its source.

        Who has a smaller `place` goes first; of one place who came first. It waits `since` then.

        Raises InputError for what could never be answered, and Overloaded where the line is full.
        """
        if self._closed:
            raise RunError("generator is closed")
        vocabulary = self._session.vocabulary
        _refuse_unknown("the prompt has token", request.prompt, vocabulary)
        _refuse_unknown("logit_bias names token", [at for at, _ in request.sampling.logit_bias], vocabulary)
        newcomer = entry(id, len(request.prompt), request.stopping.max_tokens, deadline, place)
        self.state = submit(self.state, self.limits, newcomer)
        self._sequences[id] = _Sequence(
            request=request,
            given=given or request.given,
            answer=Answer(request.stopping, self._decode, self._unsettled),
            seen=Seen(vocabulary, request.prompt),
            since=since,
        )

    def cancel(self, id: int) -> None:
        """Forget a request, wherever it is; nothing more is heard of it. One that is not here is not missed."""
        self._forget([id])

    def step(self, now: float) -> list[Piece]:
        """Run one step; a piece for everyone who was given a token or has ended.

        An error of one sequence, its deadline among them, ends that one; one of the engine ends all who took part. A
        device that is lost is the caller's: DeviceLostError comes through, and the generator is of no more use.
        """
        late = expired(self.state, now)
        pieces = [
            Piece(id=id, error=f"not finished in time, after {len(self._sequences[id].answer.tokens)} tokens")
            for id in late
        ]
        self._forget(late)
        self.state, step = plan(self.state, self.limits)
        self.preempted += len(step.preempted)
        for id in step.preempted:
            self._session.release(id)
        for id in step.admitted:
            self._sequences[id].let_in(now)
        failed = self._start(step.admitted)
        chunks = [chunk for chunk in step.chunks if chunk.id not in failed]
        pieces += failed.values()
        if chunks:
            pieces += self._run(chunks)
        return pieces

    def close(self) -> None:
        """Close the session and forget all requests. Safe to call twice."""
        self._closed = True
        self._sequences.clear()
        self.state = State()
        self._session.close()

    def _start(self, admitted: Iterable[int]) -> dict[int, Piece]:
        """Start sequences; the pieces of those that the session does not take, by their ids."""
        said = {id: self._refused(id) for id in admitted}
        failed = {id: Piece(id=id, error=error) for id, error in said.items() if error}
        self._forget(failed)
        return failed

    def _refused(self, id: int) -> str:
        """Why the session does not start a sequence; nothing if it did."""
        try:
            self._session.start(id, self._sequences[id].given)
        except DeviceLostError:
            raise
        except AlulaError as error:
            return str(error)
        return ""

    def _run(self, chunks: Sequence[Chunk]) -> list[Piece]:
        """One call of the session, and what everybody who answers makes of it."""
        work = [
            Work(sequence=chunk.id, tokens=self._sequences[chunk.id].tokens(chunk), answers=chunk.answers)
            for chunk in chunks
        ]
        try:
            rows = self._session.step(work)
        except DeviceLostError:
            raise
        except AlulaError as error:
            self._forget([chunk.id for chunk in chunks])
            return [Piece(id=chunk.id, error=str(error)) for chunk in chunks]
        answering = [chunk.id for chunk in chunks if chunk.answers]
        pieces = [self._piece(id, logits) for id, logits in zip(answering, rows, strict=True)]
        ended = [piece.id for piece in pieces if piece.ending or piece.error]
        self.state = answered(self.state, Step(chunks=tuple(chunks)), ended)
        self._forget(ended)
        return pieces

    def _piece(self, id: int, logits: Logits) -> Piece:
        sequence = self._sequences[id]
        try:
            text, chosen = sequence.next(logits)
        except AlulaError as error:
            return Piece(id=id, error=str(error))
        answer = sequence.answer
        return Piece(
            id=id,
            text=text,
            tokens=(chosen,),
            ending=answer.ending,
            stopped_by=answer.stopped_by,
            waited_s=sequence.waited_s if len(answer.tokens) == 1 else None,
        )

    def _forget(self, ids: Iterable[int]) -> None:
        gone = [id for id in ids if id in self._sequences]
        self.state = cancel(self.state, gone)
        for id in gone:
            del self._sequences[id]
            self._session.release(id)


def _refuse_unknown(what: str, tokens: Sequence[int], vocabulary: int) -> None:
    """An id outside the vocabulary would fail the step of everybody."""
    if unknown := [token for token in tokens if not 0 <= token < vocabulary]:
        raise InputError(f"{what} {unknown[0]}; the model knows 0..{vocabulary - 1}")
