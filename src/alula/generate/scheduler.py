"""Who runs in the next step of a running batch. Pure: a state and limits in, a new state and a step out.

Sequences join and leave at every step. Those that answer run in each one; what is left of the step's tokens goes to
prompts, oldest first, cut in chunks. Whoever runs moves in every step: one is let in only where those who are older
leave it a token, and what they take does not grow again. A running sequence holds blocks of the cache for every token
it knows. Where answers have outgrown the cache, the youngest goes back to the line with its tokens, to be run again
from the first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from math import inf

from alula.core.errors import InputError, Overloaded


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What one step and the cache hold, and how many sequences may wait.

    `chunk_tokens` is the most of one prompt in one step, `longest` the most tokens that the engine runs of one
    sequence. Every sequence that runs must find room for its next token in a step, so that no answer stalls.
    """

    sequences: int = 64
    step_tokens: int = 512
    chunk_tokens: int = 512
    block_tokens: int = 16
    blocks: int = 4_096
    waiting: int = 1_024
    longest: int = 2**31

    def __post_init__(self) -> None:
        for name in (
            "sequences",
            "step_tokens",
            "chunk_tokens",
            "block_tokens",
            "blocks",
            "waiting",
            "longest",
        ):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; expected at least 1")
        if self.sequences > self.step_tokens:
            raise InputError(
                f"step_tokens is {self.step_tokens}; expected at least one for each of {self.sequences} sequences"
            )

    @property
    def holds(self) -> int:
        """The most tokens that a prompt and its answer have together; the last one is never run."""
        return min(self.longest, self.blocks * self.block_tokens) + 1

    def blocks_for(self, tokens: int) -> int:
        """How many blocks so many tokens take."""
        return -(-tokens // self.block_tokens)


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One sequence in the line or at work.

    `tokens` are known, of which the cache has the first `cached`; `most` is how many will be run at the most, which
    is one less than prompt and answer have: the last token answered is never run. `place` is where it stands in the
    line, in seconds: usually when it came.
    """

    id: int
    tokens: int
    most: int
    deadline: float = inf
    place: float = 0.0
    cached: int = 0
    blocks: int = 0
    preempted: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """Who waits, by their places, and who runs, oldest first: they were let in in this order."""

    waiting: tuple[Entry, ...] = ()
    running: tuple[Entry, ...] = ()

    @property
    def blocks(self) -> int:
        """How many blocks of the cache are taken."""
        return sum(sequence.blocks for sequence in self.running)


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """Run the tokens `start` to `start + count` of a sequence; the logits are wanted where it `answers`."""

    id: int
    start: int
    count: int
    answers: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One call of the engine. It forgets what it holds of the preempted first; the admitted are new to it."""

    chunks: tuple[Chunk, ...] = ()
    admitted: tuple[int, ...] = ()
    preempted: tuple[int, ...] = ()


def entry(id: int, prompt: int, max_tokens: int, deadline: float = inf, place: float = 0.0) -> Entry:
    """What the line takes: a request with a prompt of so many tokens, and at most so many answered."""
    assert prompt > 0, "a prompt without tokens"
    assert max_tokens > 0, "an answer without tokens"
    return Entry(id=id, tokens=prompt, most=prompt + max_tokens - 1, deadline=deadline, place=place)


def submit(state: State, limits: Limits, newcomer: Entry) -> State:
    """The state with one more in the line, behind those whose place is not behind its own, and those who have run.

    Refuses for good what engine or cache could never hold, and for now what the line has no room for.
    """
    assert newcomer.id not in _ids((*state.waiting, *state.running)), f"{newcomer.id} is here already"
    if newcomer.most >= limits.holds:
        which = "the engine runs" if limits.holds > limits.longest else "the cache holds"
        raise InputError(
            f"prompt and max_tokens make {newcomer.most + 1} tokens; "
            f"expected at most {limits.holds}, which is what {which} for one"
        )
    if len(state.waiting) >= limits.waiting:
        raise Overloaded(f"{len(state.waiting)} sequences are waiting")
    behind = len(state.waiting)
    while behind and _passes(newcomer, state.waiting[behind - 1]):
        behind -= 1
    return replace(state, waiting=(*state.waiting[:behind], newcomer, *state.waiting[behind:]))


def _passes(newcomer: Entry, other: Entry) -> bool:
    return newcomer.place < other.place and not other.preempted


def plan(state: State, limits: Limits) -> tuple[State, Step]:
    """The next step, and the state once it has run; a step without chunks says that there is nothing to do."""
    running, preempted = _fit(state.running, limits)
    waiting = (*preempted, *state.waiting)
    budget = limits.step_tokens - sum(_answering(sequence) for sequence in running)
    chunks: list[Chunk] = []
    ran: list[Entry] = []
    for sequence in running:
        count = 1
        if not _answering(sequence):
            count = min(sequence.tokens - sequence.cached, limits.chunk_tokens, budget)
            budget -= count
        ran.append(_run(sequence, count, chunks))
    admitted = []
    for sequence in waiting:
        joining = replace(sequence, blocks=limits.blocks_for(sequence.tokens))
        if not (budget and len(ran) < limits.sequences and _has_room([*ran, joining], limits)):
            break
        count = min(joining.tokens, limits.chunk_tokens, budget)
        budget -= count
        ran.append(_run(joining, count, chunks))
        admitted.append(joining.id)
    after = State(waiting=waiting[len(admitted) :], running=tuple(ran))
    return after, Step(chunks=tuple(chunks), admitted=tuple(admitted), preempted=_ids(preempted))


def answered(state: State, step: Step, ended: Collection[int] = ()) -> State:
    """The state after the engine has answered the step: a token more for each that answers, and the ended gone.

    What was cancelled meanwhile is no longer here and gets nothing.
    """
    answering = {chunk.id for chunk in step.chunks if chunk.answers}
    assert answering.issuperset(ended), "a sequence ended that has not answered"
    staying = (each for each in state.running if each.id not in ended)
    return replace(state, running=tuple(_grown(each) if each.id in answering else each for each in staying))


def cancel(state: State, ids: Collection[int]) -> State:
    """The state without these sequences, wherever they are; those that are not here are ignored."""
    return State(
        waiting=tuple(sequence for sequence in state.waiting if sequence.id not in ids),
        running=tuple(sequence for sequence in state.running if sequence.id not in ids),
    )


def expired(state: State, now: float) -> tuple[int, ...]:
    """The sequences whose deadline has passed, to be cancelled before the next step."""
    return _ids(each for each in (*state.running, *state.waiting) if each.deadline <= now)


def _fit(running: tuple[Entry, ...], limits: Limits) -> tuple[list[Entry], list[Entry]]:
    """Who stays, with blocks for all that is known, and who goes back to the line; oldest first, both.

    The oldest always stays: `submit` has refused what the whole cache could not hold.
    """
    kept = [replace(each, blocks=limits.blocks_for(each.tokens)) for each in running]
    taken = sum(each.blocks for each in kept)
    preempted: list[Entry] = []
    while taken > limits.blocks:
        youngest = kept.pop()
        taken -= youngest.blocks
        preempted.insert(0, replace(youngest, cached=0, blocks=0, preempted=youngest.preempted + 1))
    return kept, preempted


def _has_room(running: list[Entry], limits: Limits) -> bool:
    """Whether the cache holds these and a block more for each that can grow; one let in without is thrown out next."""
    growing = sum(each.blocks < limits.blocks_for(each.most) for each in running)
    return sum(each.blocks for each in running) + growing <= limits.blocks


def _answering(sequence: Entry) -> bool:
    """Whether one token is left to run: the last answered one, or the last of a prompt."""
    assert sequence.cached < sequence.tokens, f"sequence {sequence.id} has run and was not answered"
    return sequence.tokens - sequence.cached == 1


def _run(sequence: Entry, count: int, chunks: list[Chunk]) -> Entry:
    """The sequence with so many tokens more in the cache; the chunk that does it is added to the others."""
    assert count > 0, f"sequence {sequence.id} runs and does not move"
    cached = sequence.cached + count
    answers = cached == sequence.tokens
    chunks.append(Chunk(id=sequence.id, start=sequence.cached, count=count, answers=answers))
    return replace(sequence, cached=cached)


def _grown(sequence: Entry) -> Entry:
    """The sequence with one token more that is known and has not run."""
    assert sequence.cached == sequence.tokens, f"sequence {sequence.id} is answered twice"
    assert sequence.tokens < sequence.most, f"sequence {sequence.id} has all its tokens and was not ended"
    return replace(sequence, tokens=sequence.tokens + 1)


def _ids(sequences: Iterable[Entry]) -> tuple[int, ...]:
    return tuple(sequence.id for sequence in sequences)
