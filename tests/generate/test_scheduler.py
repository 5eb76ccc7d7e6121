from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from alula.core.errors import InputError, Overloaded
from alula.generate import Entry, Limits, State, Step, answered, cancel, entry, expired, plan, submit

SMALL = Limits(sequences=3, step_tokens=8, chunk_tokens=4, block_tokens=2, blocks=8, waiting=4)
FINE = Limits(sequences=5, step_tokens=10, chunk_tokens=4, block_tokens=1, blocks=11, waiting=9)


@dataclass(frozen=True)
class Visitor:
    """A request of a simulated day: when it comes, what it asks, when it really ends, when it gives up."""

    comes: int
    prompt: int
    max_tokens: int
    answers: int
    leaves: int | None


@dataclass
class Engine:
    """An engine that keeps the books of its own: which tokens of whom are in its cache."""

    limits: Limits
    cache: dict[int, int] = field(default_factory=dict)
    restarts: dict[int, int] = field(default_factory=dict)

    def run(self, step: Step) -> None:
        for gone in step.preempted:
            del self.cache[gone]
            self.restarts[gone] = self.restarts.get(gone, 0) + 1
        for new in step.admitted:
            assert new not in self.cache
            self.cache[new] = 0
        for chunk in step.chunks:
            assert chunk.count >= 1
            assert chunk.start == self.cache[chunk.id], "a token was left out or run twice"
            self.cache[chunk.id] += chunk.count
        taken = sum(self.limits.blocks_for(tokens) for tokens in self.cache.values())
        assert taken <= self.limits.blocks


@dataclass
class Day:
    """Plays visitors against the scheduler and an engine, and looks at every step."""

    limits: Limits
    visitors: list[Visitor]
    state: State = field(default_factory=State)
    got: dict[int, int] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)
    refused: set[int] = field(default_factory=set)
    cancelled: set[int] = field(default_factory=set)
    finished: set[int] = field(default_factory=set)

    def play(self) -> Engine:
        engine = Engine(self.limits)
        now = 0
        last = max((visitor.comes for visitor in self.visitors), default=0)
        while now <= last or self.state != State():
            self._arrive(now)
            self._leave(now, engine)
            before = self.state
            self.state, step = plan(before, self.limits)
            self._look(before, step)
            engine.run(step)
            self.state = answered(self.state, step, self._answer(step, engine))
            now += 1
            assert now < 5_000, "it never ends"
        return engine

    def _arrive(self, now: int) -> None:
        for id, visitor in enumerate(self.visitors):
            if visitor.comes == now:
                try:
                    self.state = submit(
                        self.state, self.limits, entry(id, visitor.prompt, visitor.max_tokens)
                    )
                except (InputError, Overloaded):
                    self.refused.add(id)
                else:
                    self.order.append(id)
                    self.got[id] = 0

    def _leave(self, now: int, engine: Engine) -> None:
        gone = {id for id, visitor in enumerate(self.visitors) if visitor.leaves == now} - self.finished
        self.cancelled |= gone & self.got.keys()
        self.state = cancel(self.state, gone)
        for id in gone:
            engine.cache.pop(id, None)

    def _answer(self, step: Step, engine: Engine) -> set[int]:
        ended = set()
        for chunk in step.chunks:
            visitor = self.visitors[chunk.id]
            whole = engine.cache[chunk.id] == visitor.prompt + self.got[chunk.id]
            assert chunk.answers == whole, "an answer from a part of what is known"
            if chunk.answers:
                self.got[chunk.id] += 1
                if self.got[chunk.id] == visitor.answers:
                    ended.add(chunk.id)
                    del engine.cache[chunk.id]
        self.finished |= ended
        return ended

    def _look(self, before: State, step: Step) -> None:
        limits, after = self.limits, self.state
        assert len(after.running) <= limits.sequences
        assert len(after.waiting) <= limits.waiting + limits.sequences
        assert after.blocks <= limits.blocks
        assert sum(chunk.count for chunk in step.chunks) <= limits.step_tokens
        assert all(chunk.count <= limits.chunk_tokens for chunk in step.chunks)
        ran = [chunk.id for chunk in step.chunks]
        assert len(ran) == len(set(ran))

        here = [each.id for each in (*after.running, *after.waiting)]
        alive = [id for id in self.order if id not in self.finished | self.cancelled]
        assert here == alive, "somebody was lost or overtaken"
        if alive:
            assert alive[0] in ran, "the oldest did not move"
            assert alive[0] not in step.preempted

        assert {each.id for each in after.running} == set(ran), "somebody who runs did not move"
        for each in before.running:
            if each.tokens - each.cached == 1 and each.id not in step.preempted:
                assert each.id in ran, "an answer stalled"
            assert (each.id in step.preempted) == (each.id in [later.id for later in after.waiting])
        self._nobody_waits_for_nothing(step)

    def _nobody_waits_for_nothing(self, step: Step) -> None:
        if not self.state.waiting:
            return
        limits, running = self.limits, self.state.running
        head = limits.blocks_for(self.state.waiting[0].tokens)
        spare = sum(each.blocks < limits.blocks_for(each.most) for each in running) + 1
        full = (
            len(running) == limits.sequences,
            sum(chunk.count for chunk in step.chunks) == limits.step_tokens,
            self.state.blocks + head + spare > limits.blocks,
        )
        assert any(full), "there was room"


limits = st.builds(
    lambda sequences, more, chunk, block, blocks, waiting: Limits(
        sequences=sequences,
        step_tokens=sequences + more,
        chunk_tokens=chunk,
        block_tokens=block,
        blocks=blocks,
        waiting=waiting,
    ),
    sequences=st.integers(1, 6),
    more=st.integers(0, 10),
    chunk=st.integers(1, 12),
    block=st.integers(1, 3),
    blocks=st.integers(8, 20),
    waiting=st.integers(1, 12),
)


@st.composite
def visitors(draw: st.DrawFn) -> Visitor:
    """Most come early, ask for little, get all they ask for and stay: such a crowd outgrows the cache."""
    max_tokens = draw(st.integers(1, 16))
    comes = draw(st.integers(0, 3) | st.integers(0, 20))
    return Visitor(
        comes=comes,
        prompt=draw(st.integers(1, 4) | st.integers(1, 24)),
        max_tokens=max_tokens,
        answers=draw(st.just(max_tokens) | st.integers(1, max_tokens)),
        leaves=draw(st.none() | st.none() | st.integers(comes, comes + 25)),
    )


def crowd(prompt: int, answers: int, count: int) -> list[Visitor]:
    """All at once, each asking for as much as it gets, nobody leaving."""
    return [Visitor(0, prompt, answers, answers, None)] * count


@given(limits=limits, guests=st.lists(visitors(), max_size=14))
@example(limits=SMALL, guests=crowd(prompt=1, answers=12, count=4))
@example(limits=FINE, guests=crowd(prompt=1, answers=11, count=5))
@example(limits=replace(SMALL, step_tokens=3), guests=crowd(prompt=9, answers=8, count=4))
def test_a_day_of_visitors(limits: Limits, guests: list[Visitor]) -> None:
    """No step exceeds its limits, nobody is lost, overtaken, starved or run twice, and all is free in the end."""
    day = Day(limits, guests)
    engine = day.play()
    assert engine.cache == {}
    assert day.state == State()
    assert day.state.blocks == 0
    assert day.finished | day.cancelled | day.refused == set(range(len(guests)))
    for id in day.finished:
        assert day.got[id] == guests[id].answers


def test_a_crowd_that_outgrows_the_cache_is_preempted_and_finishes_all_the_same() -> None:
    day = Day(SMALL, crowd(prompt=1, answers=12, count=4))
    engine = day.play()
    assert engine.restarts  # otherwise this says nothing
    assert day.finished == {0, 1, 2, 3}


def test_several_go_back_at_once_and_keep_their_order() -> None:
    running = tuple(Entry(id=id, tokens=3, most=11, cached=2, blocks=2) for id in range(5))
    state, step = plan(State(running=running), FINE)
    assert step.preempted == (3, 4)
    assert [each.id for each in state.waiting] == [3, 4]


def test_answers_go_on_while_a_long_prompt_comes_in_chunks() -> None:
    limits = Limits(sequences=4, step_tokens=6, chunk_tokens=5, block_tokens=4, blocks=64)
    state = submit(State(), limits, entry(1, prompt=2, max_tokens=20))
    state, step = plan(state, limits)
    state = answered(state, step)
    state = submit(state, limits, entry(2, prompt=12, max_tokens=3))
    seen = []
    for _ in range(4):
        state, step = plan(state, limits)
        state = answered(state, step)
        seen.append([(chunk.id, chunk.start, chunk.count, chunk.answers) for chunk in step.chunks])
    assert seen == [
        [(1, 2, 1, True), (2, 0, 5, False)],
        [(1, 3, 1, True), (2, 5, 5, False)],
        [(1, 4, 1, True), (2, 10, 2, True)],
        [(1, 5, 1, True), (2, 12, 1, True)],
    ]


def test_prompts_share_what_is_left_of_a_step_oldest_first() -> None:
    limits = Limits(sequences=4, step_tokens=8, chunk_tokens=6, block_tokens=1, blocks=99)
    state = State()
    for id, prompt in enumerate((9, 9, 9)):
        state = submit(state, limits, entry(id, prompt, max_tokens=5))
    state, step = plan(state, limits)
    assert [(chunk.id, chunk.count) for chunk in step.chunks] == [(0, 6), (1, 2)]
    assert [each.id for each in state.waiting] == [2]  # it would only hold blocks


def test_the_youngest_goes_back_to_the_line_with_its_tokens_and_is_run_again_from_the_first() -> None:
    limits = Limits(sequences=2, step_tokens=8, chunk_tokens=8, block_tokens=2, blocks=5)
    old = Entry(id=1, tokens=7, most=10, cached=6, blocks=3)
    young = Entry(id=2, tokens=4, most=6, cached=3, blocks=2, preempted=1)
    state, step = plan(State(running=(old, young)), limits)
    assert step.preempted == (2,)
    assert [chunk.id for chunk in step.chunks] == [1]
    assert state.waiting == (Entry(id=2, tokens=4, most=6, preempted=2),)
    state, step = plan(answered(state, step, ended={1}), limits)
    assert step.admitted == (2,)
    assert [(chunk.start, chunk.count, chunk.answers) for chunk in step.chunks] == [(0, 4, True)]


def test_nobody_is_let_in_where_the_next_step_would_throw_it_out() -> None:
    limits = Limits(sequences=2, step_tokens=8, block_tokens=2, blocks=4)
    old = Entry(id=1, tokens=3, most=8, cached=2, blocks=2)
    new = entry(2, prompt=3, max_tokens=4)
    state, step = plan(State(waiting=(new,), running=(old,)), limits)
    assert (step.admitted, state.waiting) == ((), (new,))
    done = replace(old, most=4)  # it has all the blocks it will ever need
    state, step = plan(State(waiting=(replace(new, most=4),), running=(done,)), limits)
    assert step.admitted == (2,)


def test_who_leaves_frees_everything_wherever_it_is() -> None:
    state = State()
    for id in range(4):
        state = submit(state, SMALL, entry(id, prompt=3, max_tokens=3))
    state, step = plan(state, SMALL)
    assert [each.id for each in state.running] == [0, 1]
    assert state.blocks == 4
    state = cancel(state, {1, 3, 77})
    assert state.blocks == 2
    state = answered(state, step)  # the step was under way: nothing comes back
    assert [each.id for each in (*state.running, *state.waiting)] == [0, 2]


def test_a_full_line_refuses_for_now() -> None:
    state = State()
    for id in range(SMALL.waiting):
        state = submit(state, SMALL, entry(id, prompt=1, max_tokens=1))
    with pytest.raises(Overloaded, match="4 sequences are waiting"):
        submit(state, SMALL, entry(9, prompt=1, max_tokens=1))


def test_what_the_cache_never_holds_is_refused_for_good() -> None:
    submit(State(), SMALL, entry(1, prompt=10, max_tokens=7))  # 16 are run, 8 blocks of 2
    with pytest.raises(
        InputError, match="make 18 tokens; expected at most 17, which is what the cache holds"
    ):
        submit(State(), SMALL, entry(1, prompt=10, max_tokens=8))


def test_deadlines_name_those_whose_time_is_over() -> None:
    running = Entry(id=1, tokens=2, most=3, cached=1, blocks=1, deadline=5.0)
    waiting = (entry(2, 1, 1, deadline=6.0), entry(3, 1, 1))
    state = State(waiting=waiting, running=(running,))
    assert expired(state, 4.9) == ()
    assert expired(state, 5.0) == (1,)
    assert expired(state, 1e9) == (1, 2)


def test_a_state_is_a_value_that_a_failed_step_leaves_as_it_was() -> None:
    before = submit(State(), SMALL, entry(1, prompt=6, max_tokens=2))
    again = [plan(before, SMALL) for _ in range(2)]
    assert again[0] == again[1]
    assert before.running == ()


def test_nothing_to_do_is_a_step_without_chunks() -> None:
    assert plan(State(), SMALL) == (State(), Step())


@pytest.mark.parametrize(
    "name", ["sequences", "step_tokens", "chunk_tokens", "block_tokens", "blocks", "waiting"]
)
def test_a_limit_of_nothing_is_refused(name: str) -> None:
    nothing: dict[str, Any] = {name: 0}
    with pytest.raises(InputError, match=f"{name} is 0; expected at least 1"):
        Limits(**nothing)


def test_a_step_must_hold_a_token_for_everyone() -> None:
    with pytest.raises(InputError, match="step_tokens is 7; expected at least one for each of 8 sequences"):
        Limits(sequences=8, step_tokens=7)


def test_an_answer_that_nobody_ends_is_our_bug() -> None:
    state, step = plan(submit(State(), SMALL, entry(1, prompt=2, max_tokens=1)), SMALL)
    with pytest.raises(AssertionError, match="has all its tokens and was not ended"):
        answered(state, step)
    assert answered(state, step, ended={1}) == State()


def test_what_is_not_here_or_here_already_is_our_bug() -> None:
    state = submit(State(), SMALL, entry(1, prompt=2, max_tokens=9))
    with pytest.raises(AssertionError, match="1 is here already"):
        submit(state, SMALL, entry(1, prompt=3, max_tokens=1))
    with pytest.raises(AssertionError, match="ended that has not answered"):
        answered(state, Step(), ended={1})
    prompts = tuple(Entry(id=id, tokens=9, most=9, blocks=5) for id in range(2))
    with pytest.raises(AssertionError, match="sequence 1 runs and does not move"):
        plan(State(running=prompts), Limits(sequences=2, step_tokens=4))


def test_a_step_is_answered_once() -> None:
    state, step = plan(submit(State(), SMALL, entry(1, prompt=2, max_tokens=9)), SMALL)
    with pytest.raises(AssertionError, match="answered twice"):
        answered(answered(state, step), step)
    with pytest.raises(AssertionError, match="has run and was not answered"):
        plan(state, SMALL)
