"""Rows side by side: what is copied and when, what padding may hold, what an error leaves, odd profiles."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tiny_writers import HEADS, POISON, SIZE, VOCABULARY, decode, parts

from alula.core.decoding import Cost, Logits, Room, Work
from alula.core.engine import Engine, Plan, Session
from alula.core.errors import InputError, RunError
from alula.core.graph import Graph
from alula.core.profile import Profile, Range
from alula.core.tensor import Feeds, TensorSpec
from alula.engines import cache_cost
from alula.engines import dense as dense_module
from alula.engines.dense import Dense, Loaded

ROOM = Room(sequences=8, blocks=64, block_tokens=4)


class Watched:
    """A session, and what it was called with and gave; it fails where it is told to."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.inputs, self.outputs = session.inputs, session.outputs
        self.seen: list[Feeds] = []
        self.gave: list[Feeds] = []
        self.fails_at: int | None = None

    def run(self, feeds: Feeds) -> Feeds:
        if self.fails_at == len(self.seen):
            raise RunError("planted")
        self.seen.append(feeds)
        self.gave.append(self._session.run(feeds))
        return self.gave[-1]

    def close(self) -> None:
        self._session.close()

    def shapes(self) -> list[tuple[int, int, int]]:
        """Rows, tokens and past of each call since the last look."""
        shapes = [(*feeds["input_ids"].shape, feeds["past.0.key"].shape[2]) for feeds in self.seen]
        self.seen.clear()
        return [(rows, tokens, past) for rows, tokens, past in shapes]


def opened(
    room: Room = ROOM, tuned: tuple[Profile, ...] = (), *, grows: bool = True, **axes: Range
) -> tuple[Dense, Watched]:
    part = parts(grows=grows, axes=axes)["decoder"]
    watched = Watched(part.session)
    return Dense(
        {"decoder": Loaded(session=watched, profile=replace(part.profile, tuned=tuned))}, room
    ), watched


def run(dense: Dense, tokens: dict[int, Sequence[int]]) -> Logits:
    return dense.step([Work(sequence=each, tokens=tuple(ids), answers=True) for each, ids in tokens.items()])


def prompt(dense: Dense, *lengths: int) -> None:
    """Sequences 0, 1, ... with prompts of these lengths, one after another."""
    for each, length in enumerate(lengths):
        dense.start(each)
        run(dense, {each: [each + 1] * length})


def whole(tokens: Sequence[int]) -> Logits:
    """The logits of the last of some tokens, in one call."""
    ids = np.array([tokens])
    nothing = np.zeros((1, HEADS, 0, SIZE), np.float32)
    feeds = {
        "input_ids": ids,
        "position_ids": np.arange(ids.shape[1])[None],
        "attention_mask": np.ones_like(ids),
        "answers": np.array([ids.shape[1] - 1]),
        "past.0.key": nothing,
        "past.0.value": nothing,
    }
    logits: Logits = np.asarray(decode(feeds)["logits"], np.float32)[0, 0]
    return logits


def test_what_a_call_gives_is_what_the_next_one_takes() -> None:
    """The very same array, while the same sequences go on; one that joins or leaves costs one copy."""
    dense, watched = opened()
    prompt(dense, 5, 2, 3)
    for _ in range(3):
        run(dense, {2: [3], 0: [3], 1: [3]})
    assert watched.seen[-1]["past.0.key"] is watched.gave[-2]["present.0.key"]
    assert watched.seen[-2]["past.0.key"] is watched.gave[-3]["present.0.key"]
    run(dense, {0: [3], 1: [3], 2: [3]})  # in another order
    assert watched.seen[-1]["past.0.key"] is watched.gave[-2]["present.0.key"]
    dense.release(0)
    run(dense, {1: [3], 2: [3]})
    assert watched.seen[-1]["past.0.key"] is not watched.gave[-2]["present.0.key"]
    run(dense, {1: [3], 2: [3]})
    assert watched.seen[-1]["past.0.key"] is watched.gave[-2]["present.0.key"]
    # The longest has left, and its padding with it.
    assert watched.shapes()[3:] == [(3, 1, 5), (3, 1, 6), (3, 1, 7), (3, 1, 8), (2, 1, 7), (2, 1, 8)]


def test_a_past_that_comes_back_as_wide_is_doubled_when_it_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a step has the sizes of the one before, and rows are copied once in a while alone."""
    monkeypatch.setattr(dense_module, "NARROWEST", 4)
    dense, watched = opened(grows=False, past=Range(1, 8, 40), total=Range(2, 12, 88))
    prompt(dense, 3, 6)
    logits = [run(dense, {0: [4], 1: [4]}) for _ in range(11)]
    widths = [past for _, _, past in watched.shapes()]
    assert widths == [4, 8, *[8] * 2, *[16] * 8, 32]
    assert np.allclose(logits[-1][0], whole([1] * 3 + [4] * 11), atol=1e-5)
    assert np.allclose(logits[-1][1], whole([2] * 6 + [4] * 11), atol=1e-5)
    run(dense, {1: [5] * 23})
    assert watched.shapes() == [(1, 23, 40)]
    with pytest.raises(RunError, match="sequence 1 would hold 41 tokens; the decoder takes 40 at most"):
        run(dense, {1: [5]})


def test_a_past_of_one_width_is_shared_by_rows() -> None:
    """As of an engine for one width alone: nothing narrower is asked for, and rows still run side by side."""
    dense, watched = opened(
        grows=False, past=Range(128, 128, 128), total=Range(129, 129, 136), length=Range(1, 1, 8)
    )
    prompt(dense, 5, 2, 3)
    watched.shapes()
    assert run(dense, {0: [3], 1: [3], 2: [3]}).shape[0] == 3
    assert watched.shapes() == [(3, 1, 128)]


def test_a_prompt_that_is_taken_token_by_token_is_not_copied_for_each() -> None:
    dense, watched = opened(length=Range(1, 1, 1))
    prompt(dense, 6)
    assert watched.shapes() == [(1, 1, past) for past in range(6)]
    dense, watched = opened(grows=False, length=Range(1, 1, 1), total=Range(2, 12, 49))
    prompt(dense, 6)
    assert all(
        after["past.0.key"] is before["present.0.key"]
        for before, after in zip(watched.gave, watched.seen[1:], strict=False)
    )
    assert len(watched.seen) == 6


def test_those_who_come_back_under_their_old_numbers_share_a_call_again() -> None:
    dense, watched = opened()
    prompt(dense, 2, 2, 2)
    for _ in range(2):
        run(dense, {0: [3], 1: [3], 2: [3]})
    for each in range(3):
        dense.release(each)
    prompt(dense, 2, 2, 2)
    watched.shapes()
    run(dense, {0: [3], 1: [3], 2: [3]})
    assert watched.shapes() == [(3, 1, 2)]


def test_prompts_share_a_call_where_that_costs_no_padding() -> None:
    dense, watched = opened()
    for each in range(5):
        dense.start(each)
    run(dense, {0: [1] * 6, 1: [2] * 4, 2: [3] * 6, 3: [4] * 4})
    assert watched.shapes() == [(2, 6, 0), (2, 4, 0)]
    given = run(dense, {4: [5] * 2, 0: [1] * 2, 2: [3] * 2, 1: [6], 3: [6]})
    assert watched.shapes() == [(2, 1, 4), (1, 2, 0), (2, 2, 6)]
    expected = [[5] * 2, [1] * 8, [3] * 8, [2] * 4 + [6], [4] * 4 + [6]]
    for logits, tokens in zip(given, expected, strict=True):
        np.testing.assert_allclose(logits, whole(tokens), atol=1e-5)


def test_rows_are_apart_where_padding_would_outgrow_the_room() -> None:
    dense, watched = opened(Room(sequences=4, blocks=20, block_tokens=4))
    prompt(dense, 30, 3, 2, 2)
    watched.shapes()
    given = run(dense, {each: [9] for each in range(4)})
    assert sorted(watched.shapes()) == [(1, 1, 30), (3, 1, 3)]
    for each, length in enumerate((30, 3, 2, 2)):
        np.testing.assert_allclose(given[each], whole([each + 1] * length + [9]), atol=1e-5)
    for _ in range(4):
        run(dense, {each: [9] for each in range(4)})
    assert watched.seen[-1]["past.0.key"] is watched.gave[-3]["present.0.key"]
    dense.release(0)
    watched.shapes()
    run(dense, {each: [9] for each in range(1, 4)})
    assert watched.shapes() == [(3, 1, 8)]


def test_rows_that_grow_out_of_the_room_side_by_side_come_apart() -> None:
    dense, watched = opened(Room(sequences=2, blocks=44, block_tokens=1))
    prompt(dense, 20, 4)
    watched.shapes()
    for _ in range(3):
        run(dense, {0: [9], 1: [9]})
    assert watched.shapes() == [(2, 1, 20), (2, 1, 21), (1, 1, 6), (1, 1, 22)]


def test_rows_that_nobody_needs_are_let_go() -> None:
    dense, watched = opened()
    dense.start(0)
    dense.start(1)
    run(dense, {0: [3] * 6, 1: [4] * 6})
    both = weakref.ref(watched.gave[-1]["present.0.key"])
    watched.gave.clear()
    run(dense, {0: [3, 5]})
    watched.seen.clear()
    assert both() is None
    np.testing.assert_allclose(run(dense, {1: [5]})[0], whole([4] * 6 + [5]), atol=1e-5)


def test_not_a_number_in_one_sequence_is_nobody_elses() -> None:
    """Nothing times NaN is NaN: a row that breaks stays in its own row, and what lay in padding goes."""
    dense, _ = opened()
    prompt(dense, 3, 9, 2)
    given = run(dense, {0: [4], 1: [POISON], 2: [4]})
    assert np.isnan(given[1]).all()
    for step in range(4):
        given = run(dense, {0: [4], 1: [4], 2: [4]})
        assert np.isnan(given[1]).all()
        np.testing.assert_allclose(given[0], whole([1] * 3 + [4] * (step + 2)), atol=1e-5)
        np.testing.assert_allclose(given[2], whole([3] * 2 + [4] * (step + 2)), atol=1e-5)
    dense.release(1)
    dense.start(1)
    given = run(dense, {1: [7] * 12, 0: [4], 2: [4]})
    np.testing.assert_allclose(given[0], whole([7] * 12), atol=1e-5)
    given = run(dense, {0: [4], 1: [4], 2: [4]})
    assert not np.isnan(given).any()
    np.testing.assert_allclose(given[2], whole([3] * 2 + [4] * 7), atol=1e-5)


def test_an_error_costs_those_of_the_step_and_nobody_else() -> None:
    dense, watched = opened()
    prompt(dense, 5, 2, 3)
    run(dense, {0: [4], 1: [4], 2: [4]})
    watched.fails_at = len(watched.seen)
    with pytest.raises(RunError, match="planted"):
        run(dense, {0: [4], 1: [4]})
    watched.fails_at = None
    with pytest.raises(RunError, match="sequence 1 was lost in an error; release it and start it again"):
        run(dense, {1: [4], 2: [4]})
    np.testing.assert_allclose(run(dense, {2: [4]})[0], whole([3] * 3 + [4] * 2), atol=1e-5)
    dense.release(1)
    dense.start(1)
    np.testing.assert_allclose(run(dense, {1: [6, 7]})[0], whole([6, 7]), atol=1e-5)


def test_what_is_lost_takes_a_place_until_it_is_released() -> None:
    dense, watched = opened(Room(sequences=2, blocks=8, block_tokens=4))
    prompt(dense, 2, 2)
    watched.fails_at = len(watched.seen)
    with pytest.raises(RunError, match="planted"):
        run(dense, {0: [4]})
    with pytest.raises(RunError, match="there is room for 2"):
        dense.start(2)
    with pytest.raises(RunError, match="started already"):
        dense.start(0)


def test_an_engine_that_takes_no_empty_past_and_no_single_row_is_given_padding() -> None:
    dense, watched = opened(batch=Range(2, 2, 4), past=Range(3, 8, 48), total=Range(6, 8, 48))
    dense.start(0)
    np.testing.assert_allclose(run(dense, {0: [5]})[0], whole([5]), atol=1e-5)
    np.testing.assert_allclose(run(dense, {0: [6, 7]})[0], whole([5, 6, 7]), atol=1e-5)
    dense.start(1)
    given = run(dense, {0: [8], 1: [9]})
    np.testing.assert_allclose(given[0], whole([5, 6, 7, 8]), atol=1e-5)
    np.testing.assert_allclose(given[1], whole([9]), atol=1e-5)
    assert watched.shapes() == [(2, 1, 5), (2, 2, 6), (2, 1, 5)]
    # To the last token that it takes: what it was padded with goes.
    run(dense, {0: [3] * 44})
    assert watched.shapes()[-1][1:] == (44, 4)
    with pytest.raises(RunError, match="would hold 49 tokens"):
        run(dense, {0: [3]})


def test_a_prompt_longer_than_the_engine_takes_at_once_runs_in_several_calls() -> None:
    dense, watched = opened(length=Range(1, 4, 5))
    dense.start(0)
    tokens = [*range(1, 13)]
    np.testing.assert_allclose(run(dense, {0: tokens})[0], whole(tokens), atol=1e-5)
    assert watched.shapes() == [(1, 5, 0), (1, 5, 5), (1, 2, 10)]


def test_an_engine_of_several_profiles_is_called_within_one_of_them() -> None:
    """One for a single token of many, one for long prompts of one: five tokens lie between."""
    going = Profile(
        {
            "batch": Range(1, 4, 8),
            "length": Range(1, 1, 1),
            "past": Range(1, 8, 47),
            "total": Range(2, 8, 48),
            "answers": Range(1, 1, 1),
            "source": Range(1, 1, 1),
        }
    )
    prompts = replace(
        going,
        axes={
            **going.axes,
            "batch": Range(1, 1, 1),
            "length": Range(8, 16, 48),
            "past": Range(0, 8, 40, least=0),
            "total": Range(8, 8, 48),
        },
    )
    dense, watched = opened(tuned=(going, prompts))
    dense.start(0)
    dense.start(1)
    given = run(dense, {0: [5] * 9, 1: [6] * 9})
    assert watched.shapes() == [(1, 9, 0), (1, 9, 0)]
    np.testing.assert_allclose(given[1], whole([6] * 9), atol=1e-5)
    given = run(dense, {0: [7, 8, 9], 1: [4]})
    assert watched.shapes() == [(1, 1, 9), (1, 1, 9), (1, 1, 10), (1, 1, 11)]
    np.testing.assert_allclose(given[0], whole([5] * 9 + [7, 8, 9]), atol=1e-5)
    run(dense, {0: [3], 1: [3]})
    assert watched.shapes() == [(2, 1, 12)]


def test_sizes_that_no_profile_takes_are_named() -> None:
    short = Profile(
        {
            "batch": Range(1, 1, 1),
            "length": Range(4, 4, 4),
            "past": Range(1, 8, 44),
            "total": Range(1, 8, 48),
            "answers": Range(1, 1, 1),
            "source": Range(1, 1, 1),
        }
    )
    dense, _ = opened(tuned=(short,))
    dense.start(0)
    with pytest.raises(
        RunError, match="1 sequences with up to 0 tokens in the cache: not taken by the decoder"
    ):
        run(dense, {0: [3, 3]})


moves = st.lists(
    st.tuples(st.integers(0, 4), st.integers(1, 5), st.booleans(), st.booleans()), min_size=1, max_size=6
)


@given(days=st.lists(moves, max_size=12), room=st.sampled_from([24, 64]))
def test_logits_are_those_of_the_sequence_alone_whatever_the_others_do(days: list[Any], room: int) -> None:
    """Sequences come, go on by one or some tokens, are passed over and leave, as chance has it."""
    dense, _ = opened(Room(sequences=5, blocks=room, block_tokens=1))
    held: dict[int, list[int]] = {}
    for moving in days:
        new: dict[int, list[int]] = {}
        for each, count, leaves, one in moving:
            if leaves and each not in new:
                dense.release(each)
                held.pop(each, None)
                continue
            tokens = [(each * 5 + count + at) % (VOCABULARY - 1) for at in range(1 if one else count)]
            total = sum(map(len, held.values())) + sum(map(len, new.values())) + len(tokens)
            if each in new or total > room or len(held.get(each, ())) + len(tokens) > 48:
                continue
            if each not in held:
                dense.start(each)
                held[each] = []
            new[each] = tokens
        given = run(dense, dict(new))
        for logits, (each, tokens) in zip(given, new.items(), strict=True):
            held[each] += tokens
            np.testing.assert_allclose(logits, whole(held[each]), atol=2e-5)


def spec(name: str, *shape: int | str) -> TensorSpec:
    return TensorSpec(name=name, dtype="float32", shape=shape)


@pytest.mark.parametrize(
    ("inputs", "outputs", "why"),
    [
        ((), (spec("logits", "batch", "answers", 9),), "the decoder takes no past"),
        ((spec("past.0.key", "batch", "past", 4),), (), r"expected \[batch,heads,past,features\]"),
        ((spec("past.0.key", "batch", 2, "past", 4),), (), "gives no logits, expected logits"),
        (
            (spec("past.0.key", "batch", 2, "past", 4),),
            (spec("logits", "batch", "answers", 9),),
            "takes 'past.0.key' and gives no 'present.0.key'",
        ),
    ],
)
def test_what_is_no_decoder_is_refused(
    inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...], why: str
) -> None:
    part = parts()["decoder"]
    other = Watched(part.session)
    other.inputs, other.outputs = inputs, outputs
    with pytest.raises(InputError, match=why):
        Dense({"decoder": Loaded(session=other, profile=part.profile)}, ROOM)


def test_parts_that_make_no_model_are_refused() -> None:
    part = parts()["decoder"]
    with pytest.raises(InputError, match=r"parts \['cross', 'decoder'\]; expected"):
        Dense({"decoder": part, "cross": part}, ROOM)


def test_the_poison_works() -> None:
    values: NDArray[np.float32] = whole([3, POISON, 4])
    assert np.isnan(values).all()
    assert not np.isnan(whole([3, 4])).any()


def test_a_cache_costs_twice_its_arrays_and_a_source_as_long_as_it_may_be() -> None:
    part = parts(reads=True)["decoder"]
    graph = Graph(
        path=Path("graph.onnx"),
        digest="0" * 64,
        opset=23,
        nodes=1,
        precision="fp32",
        inputs=part.session.inputs,
        outputs=part.session.outputs,
    )
    engine = Engine(
        backend="fake", target="fake 1", path=Path("engine"), graph=graph, plan=Plan(profile=part.profile)
    )
    pair = 2 * HEADS * SIZE * 4
    assert cache_cost({"decoder": engine}) == Cost(token_bytes=2 * pair, sequence_bytes=2 * pair * 24)
    alone = replace(graph, inputs=parts()["decoder"].session.inputs)
    assert cache_cost({"decoder": replace(engine, graph=alone)}) == Cost(token_bytes=2 * pair)
    in_place = replace(alone, outputs=parts(grows=False)["decoder"].session.outputs)
    found = cache_cost({"decoder": replace(engine, graph=in_place)})
    assert found == Cost(token_bytes=4 * pair, sequence_bytes=64 * 2 * pair)
    for tokens in (1, 64, 65, 129, 2000):
        width = max(64, 1 << (tokens - 1).bit_length())
        assert 2 * width * pair <= found.sequence_bytes + tokens * found.token_bytes
