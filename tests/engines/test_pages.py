"""Pages of a cache: nobody's tokens lie in another's, and a step says where they all are."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alula.core.decoding import Room, Work
from alula.core.errors import RunError
from alula.engines.paged.pages import Pages, filled, pages_for

ROOM = Room(sequences=3, blocks=6, block_tokens=4)


def work(sequence: int, *tokens: int, answers: bool = True) -> Work:
    return Work(sequence=sequence, tokens=tokens, answers=answers)


def started(room: Room, page_tokens: int, *sequences: int, longest: int = 99) -> Pages:
    pages = Pages(room, page_tokens, longest)
    for sequence in sequences:
        pages.start(sequence)
    return pages


def test_a_step_says_whose_tokens_stand_where() -> None:
    pages = started(ROOM, 4, 7, 8)
    first = pages.pack([work(7, 10, 11, 12, 13, 14, answers=False), work(8, 20)])
    assert first["input_ids"].tolist() == [[10], [11], [12], [13], [14], [20]]
    assert first["position_ids"].tolist() == [[0], [1], [2], [3], [4], [0]]
    assert first["past_lens"].tolist() == [0, 0]
    assert first["subsequence_begins"].tolist() == [0, 5, 6]
    assert first["block_indices_begins"].tolist() == [0, 2, 3]
    assert first["max_context_len"] == 5
    assert first["answers"].tolist() == [5]
    second = pages.pack([work(8, 21, 22), work(7, 15)])
    assert second["position_ids"].tolist() == [[1], [2], [5]]
    assert second["past_lens"].tolist() == [1, 5]
    assert second["answers"].tolist() == [1, 2]
    mine, others = first["block_indices"][:2], first["block_indices"][2:]
    assert second["block_indices"].tolist() == [*others, *mine]
    assert len(set(first["block_indices"].tolist())) == 3


def test_a_step_that_has_no_room_changes_nothing() -> None:
    pages = started(ROOM, 4, 0, 1)
    pages.pack([work(0, *range(16)), work(1, *range(5))])
    assert pages.free == 0
    with pytest.raises(RunError, match="the step takes 7 blocks of the cache; there is room for 6"):
        pages.pack([work(1, 1, 2), work(0, 1)])
    assert pages.pack([work(1, 6)])["position_ids"].tolist() == [[5]]
    with pytest.raises(RunError, match="sequence 1 would hold 9 tokens; the decoder takes 8 at most"):
        started(ROOM, 4, 1, longest=8).pack([work(1, *range(9))])


def test_a_step_is_filled_up_with_rows_of_nobody_in_a_page_of_their_own() -> None:
    pages = started(ROOM, 4, 7, 8)
    pages.pack([work(7, *range(5)), work(8, 20)])
    step = pages.pack([work(7, 15, answers=False), work(8, 21)])
    full = filled(step, 4, pages.nobodys)
    assert full["input_ids"].tolist() == [[15], [21], [0], [0]]
    assert full["position_ids"].tolist() == [[5], [1], [0], [0]]
    assert full["past_lens"].tolist() == [5, 1, 0, 0]
    assert full["subsequence_begins"].tolist() == [0, 1, 2, 3, 4]
    assert full["block_indices_begins"].tolist() == [0, 2, 3, 4, 5]
    assert full["block_indices"].tolist() == [*step["block_indices"], pages.nobodys, pages.nobodys]
    assert full["answers"].tolist() == [1, 0, 0, 0]
    assert full["max_context_len"] == 6
    assert {name: value.dtype for name, value in full.items()} == {n: v.dtype for n, v in step.items()}
    assert pages.nobodys not in step["block_indices"]
    assert pages.nobodys < pages.count


def test_released_pages_are_the_next_ones() -> None:
    pages = started(ROOM, 4, 0)
    for _ in range(5):
        before = pages.pack([work(0, *range(24))])["block_indices"]
        assert (len(before), pages.free) == (6, 0)
        pages.release(0)
        pages.release(0)
        assert pages.free == 6
        pages.start(0)


def test_sequences_are_started_once_and_within_the_room() -> None:
    pages = started(ROOM, 4, 0, 1, 2)
    with pytest.raises(RunError, match="sequence 1 was started already"):
        pages.start(1)
    with pytest.raises(RunError, match="sequence 3 is one too many; there is room for 3"):
        pages.start(3)
    pages.release(1)
    pages.start(3)
    with pytest.raises(RunError, match="sequence 1 was not started"):
        pages.pack([work(1, 5)])


def test_the_lost_hold_no_pages_and_can_only_be_released() -> None:
    pages = started(ROOM, 4, 0, 1)
    pages.pack([work(0, *range(8)), work(1, 3)])
    pages.lose([0])
    assert pages.free == 5
    with pytest.raises(RunError, match="sequence 0 was lost in an error; release it and start it again"):
        pages.pack([work(0, 1)])
    with pytest.raises(RunError, match="sequence 0 was started already"):
        pages.start(0)
    pages.release(0)
    pages.start(0)
    assert pages.pack([work(0, 5), work(1, 4)])["position_ids"].tolist() == [[0], [1]]


@settings(deadline=None)
@given(
    page=st.integers(1, 9),
    block=st.integers(1, 9),
    steps=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 12)), max_size=60),
)
def test_what_the_room_holds_the_pages_hold_and_nobody_shares_one(
    page: int, block: int, steps: list[tuple[int, int]]
) -> None:
    """A step of 0 tokens is a release. Whatever the sizes of blocks and pages, only the room is a reason to refuse."""
    room = Room(sequences=5, blocks=8, block_tokens=block)
    pages = started(room, page, *range(5), longest=10_000)
    lengths = dict.fromkeys(range(5), 0)
    owners: dict[int, int] = {}
    for sequence, count in steps:
        if not count:
            pages.release(sequence)
            pages.start(sequence)
            lengths[sequence] = 0
            owners = {each: owner for each, owner in owners.items() if owner != sequence}
            continue
        grown = {**lengths, sequence: lengths[sequence] + count}
        if sum(-(-length // block) for length in grown.values()) > room.blocks:
            with pytest.raises(RunError, match="blocks of the cache"):
                pages.pack([work(sequence, *range(count))])
            continue
        lengths = grown
        held = pages.pack([work(sequence, *range(count))])["block_indices"].tolist()
        assert len(held) == -(-lengths[sequence] // page)
        assert all(owners.setdefault(each, sequence) == sequence for each in held)
    assert pages.free + sum(-(-length // page) for length in lengths.values()) == pages.nobodys
    assert pages.count == pages_for(room, page) + 1


def test_blocks_of_whole_pages_take_none_besides() -> None:
    assert pages_for(Room(sequences=9, blocks=5, block_tokens=64), 32) == 10
    assert pages_for(Room(sequences=9, blocks=5, block_tokens=16), 32) == 3 + 9


@settings(deadline=None)
@given(sizes=st.lists(st.tuples(st.integers(1, 6), st.booleans()), min_size=1, max_size=8))
def test_chunks_lie_behind_one_another(sizes: list[tuple[int, bool]]) -> None:
    room = Room(sequences=8, blocks=99, block_tokens=1)
    pages = started(room, 3, *range(len(sizes)))
    step = pages.pack([work(at, *range(size), answers=answers) for at, (size, answers) in enumerate(sizes)])
    begins = step["subsequence_begins"].tolist()
    assert [end - begin for begin, end in pairwise(begins)] == [size for size, _ in sizes]
    assert len(step["input_ids"]) == begins[-1]
    answering = [end - 1 for end, (_, answers) in zip(begins[1:], sizes, strict=True) if answers]
    assert step["answers"].tolist() == (answering or [0])
    for name in ("past_lens", "subsequence_begins", "block_indices", "block_indices_begins"):
        assert step[name].dtype == np.int32
