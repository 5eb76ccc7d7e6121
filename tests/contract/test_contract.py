"""What every engine promises, asked of each of them in the same words."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from alula.core.engine import Session
from alula.core.errors import RunError, ShapeError
from alula.core.profile import Profile, Range
from alula.core.tensor import Array, Feeds, TensorSpec
from alula.engines import fake

Open = Callable[[], Session]


def feeds(rows: int = 3, length: int = 8, seed: int = 0) -> dict[str, Array]:
    """Random ids with ragged right padding; the first row is full."""
    random = np.random.default_rng(seed)
    lengths = [length, *random.integers(1, length + 1, max(rows - 1, 0))][:rows]
    mask = (np.arange(length) < np.array(lengths, np.int64).reshape(-1, 1)).astype(np.int64)
    return {"input_ids": random.integers(1, 50, (rows, length)) * mask, "attention_mask": mask}


def some(given: Feeds, rows: slice) -> dict[str, Array]:
    return {name: array[rows] for name, array in given.items()}


def cosines(left: Array, right: Array) -> Array:
    a, b = np.asarray(left, np.float64), np.asarray(right, np.float64)
    return np.asarray((a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1))


def without_mask() -> dict[str, Array]:
    return {"input_ids": feeds()["input_ids"]}


def with_another() -> dict[str, Array]:
    return {**feeds(), "pixels": np.zeros((1, 1), np.float32)}


def with_mask(mask: Array) -> dict[str, Array]:
    return {**feeds(), "attention_mask": mask}


REFUSALS = [
    ("missing", without_mask(), "missing inputs ['attention_mask']; given ['input_ids']"),
    (
        "unknown",
        with_another(),
        "unknown inputs ['pixels']; the engine takes ['input_ids', 'attention_mask']",
    ),
    (
        "dtype",
        with_mask(feeds()["attention_mask"].astype(np.int32)),
        "attention_mask: dtype int32, expected int64",
    ),
    (
        "rank",
        with_mask(np.ones(8, np.int64)),
        "attention_mask: rank 1, expected 2: ('batch', 'length')",
    ),
    (
        "disagree",
        with_mask(np.ones((3, 9), np.int64)),
        "attention_mask: axis 'length' is 9, expected 8",
    ),
    ("above", feeds(length=33), "axis 'length' is 33; built for 2..32"),
    ("below", feeds(length=1), "axis 'length' is 1; built for 2..32"),
    ("too many rows", feeds(rows=9), "axis 'batch' is 9; built for 1..8"),
    ("no rows", some(feeds(), slice(0, 0)), "axis 'batch' is 0; built for 1..8"),
    ("no tokens", {n: a[:, :0] for n, a in feeds().items()}, "axis 'length' is 0; built for 2..32"),
]


@pytest.mark.parametrize(
    ("bad", "words"), [case[1:] for case in REFUSALS], ids=[case[0] for case in REFUSALS]
)
def test_every_engine_refuses_bad_feeds_in_the_same_words(session: Session, bad: Feeds, words: str) -> None:
    with pytest.raises(ShapeError) as refused:
        session.run(bad)
    assert str(refused.value) == words
    assert set(session.run(feeds())) == {"embedding"}, "a refusal must leave the session usable"


def test_a_session_says_what_it_takes_and_gives(session: Session) -> None:
    assert [spec.name for spec in session.inputs] == ["input_ids", "attention_mask"]
    (output,) = session.outputs
    given = session.run(feeds(rows=5))
    assert list(given) == [output.name]
    assert given[output.name].shape == output.sized({"batch": 5})
    assert given[output.name].dtype == np.dtype(output.dtype)


@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("length", [2, 3, 17, 32])
def test_every_size_within_the_profile_runs(session: Session, rows: int, length: int) -> None:
    assert np.isfinite(session.run(feeds(rows, length))["embedding"]).all()


def test_a_batch_of_one_equals_the_same_row_in_a_batch_of_many(session: Session) -> None:
    many = feeds(rows=8, length=16, seed=1)
    together = session.run(many)["embedding"]
    alone = np.concatenate([session.run(some(many, slice(i, i + 1)))["embedding"] for i in range(8)])
    assert np.abs(np.asarray(alone, np.float64) - np.asarray(together, np.float64)).max() < 1e-5


def test_one_sentence_three_times_is_three_times_one_answer(session: Session) -> None:
    # NVIDIA/TensorRT#3730: only the first row of a batch was right.
    one = feeds(rows=1, length=9, seed=2)
    alone = session.run(one)["embedding"]
    thrice = session.run({name: np.repeat(array, 3, axis=0) for name, array in one.items()})["embedding"]
    assert cosines(thrice, np.repeat(alone, 3, axis=0)).min() > 1 - 1e-6


def test_four_sentences_together_equal_each_without_its_padding(session: Session) -> None:
    # NVIDIA/TensorRT#3730: cosines of 0.51 to 0.75 between a sentence alone and in a batch.
    four = feeds(rows=4, length=12, seed=3)
    together = session.run(four)["embedding"]
    lengths = np.maximum(np.asarray(four["attention_mask"], np.int64).sum(1), 2)
    alone = [
        session.run({name: array[i : i + 1, :length] for name, array in four.items()})["embedding"]
        for i, length in enumerate(lengths)
    ]
    assert cosines(np.concatenate(alone), together).min() > 1 - 1e-6


def test_the_same_feeds_give_the_same_bytes(session: Session) -> None:
    first = session.run(feeds())["embedding"]
    session.run(feeds(rows=8, length=32))
    assert session.run(feeds())["embedding"].tobytes() == first.tobytes()


def test_outputs_belong_to_the_caller(session: Session) -> None:
    kept = session.run(feeds(seed=4))["embedding"]
    before = kept.copy()
    session.run(feeds(seed=5))
    assert kept.tobytes() == before.tobytes(), "the next run wrote into an earlier answer"
    kept[:] = 0
    assert session.run(feeds(seed=4))["embedding"].tobytes() == before.tobytes()


def test_outputs_outlive_the_session(new_session: Open) -> None:
    session = new_session()
    kept = session.run(feeds())["embedding"]
    before = kept.copy()
    session.close()
    del session
    assert kept.tobytes() == before.tobytes()


def test_inputs_are_left_as_they_were(session: Session) -> None:
    given = feeds()
    before = {name: array.copy() for name, array in given.items()}
    session.run(given)
    assert all(given[name].tobytes() == before[name].tobytes() for name in given)


def strided(array: Array) -> Array:
    wide = np.zeros((array.shape[0], 2 * array.shape[1]), array.dtype)
    wide[:, ::2] = array
    return wide[:, ::2]


def frozen(array: Array) -> Array:
    copy = array.copy()
    copy.setflags(write=False)
    return copy


@pytest.mark.parametrize(
    "stored",
    [strided, np.asfortranarray, frozen, lambda array: array[::-1].copy()[::-1]],
    ids=["strided", "by columns", "read-only", "backwards"],
)
def test_arrays_may_lie_in_memory_as_they_like(session: Session, stored: Callable[[Array], Array]) -> None:
    expected = session.run(feeds())["embedding"]
    given = {name: stored(array) for name, array in feeds().items()}
    assert session.run(given)["embedding"].tobytes() == expected.tobytes()


def test_closing_twice_is_fine_and_running_afterwards_is_refused(new_session: Open) -> None:
    session = new_session()
    session.run(feeds())
    session.close()
    session.close()
    with pytest.raises(RunError) as refused:
        session.run(feeds())
    assert str(refused.value) == "session is closed"


def test_two_sessions_do_not_disturb_each_other(session: Session, new_session: Open) -> None:
    other = new_session()
    expected = session.run(feeds())["embedding"]
    other.run(feeds(rows=8, length=32))
    other.close()
    assert session.run(feeds())["embedding"].tobytes() == expected.tobytes()


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads resident memory from /proc")
def test_memory_plateaus_over_random_shapes(session: Session) -> None:
    # microsoft/onnxruntime#24376: memory crept up with every new sequence of shapes.
    random = np.random.default_rng(6)
    shapes = random.integers((1, 2), (9, 33), (500, 2)).tolist()
    levels = []
    for rows, length in shapes:
        session.run(feeds(rows, length))
        levels.append(resident_mib())
    assert levels[-1] - levels[249] < 4, "still growing after 250 runs"


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads resident memory from /proc")
def test_memory_plateaus_over_small_batches_behind_a_large_one(session: Session) -> None:
    """microsoft/onnxruntime#24376: after one large batch, memory grew with every smaller one."""
    session.run(feeds(rows=8, length=32))
    levels = []
    for seed in range(300):
        session.run(feeds(rows=7, length=32, seed=seed))
        levels.append(resident_mib())
    assert levels[-1] - levels[99] < 4, "still growing after 100 runs"


class Broken:
    """A session that keeps every promise but those a subclass breaks."""

    def __init__(self, new_session: Open) -> None:
        self.inner = new_session()
        self.inputs: tuple[TensorSpec, ...] = self.inner.inputs
        self.outputs: tuple[TensorSpec, ...] = self.inner.outputs

    def run(self, feeds: Feeds) -> Feeds:
        return self.inner.run(feeds)

    def close(self) -> None:
        self.inner.close()


class SharesItsBuffer(Broken):
    buffer = np.zeros((8, 8), np.float32)

    def run(self, feeds: Feeds) -> Feeds:
        answer = self.inner.run(feeds)["embedding"]
        view = self.buffer[: len(answer)]
        view[:] = answer
        return {"embedding": view}


class LeavesTheFirstRowOnly(Broken):
    def run(self, feeds: Feeds) -> Feeds:
        answer = self.inner.run(feeds)["embedding"].copy()
        answer[1:] = answer[1:, ::-1]
        return {"embedding": answer}


class IgnoresTheMask(Broken):
    def run(self, feeds: Feeds) -> Feeds:
        return self.inner.run({**feeds, "attention_mask": np.ones_like(feeds["attention_mask"])})


class WritesIntoItsInputs(Broken):
    def run(self, feeds: Feeds) -> Feeds:
        answer = self.inner.run(feeds)
        feeds["input_ids"][:] = 0
        return answer


class AnswersAfterClose(Broken):
    def close(self) -> None:
        pass


class Leaks(Broken):
    kept: list[Array]

    def run(self, feeds: Feeds) -> Feeds:
        self.kept = [*getattr(self, "kept", []), np.ones((1 << 17,), np.float32)]
        return self.inner.run(feeds)


def ignores_the_profile(new_session: Open) -> Session:
    wide = Profile({"batch": Range(1, 1, 99), "length": Range(1, 1, 99)})
    inner = new_session()
    return fake.session(inner.inputs, inner.outputs, wide, _row_means)


def _row_means(feeds: Feeds) -> Feeds:
    rows = np.asarray(feeds["input_ids"], np.float32).sum(1, keepdims=True)
    return {"embedding": np.repeat(rows, 8, axis=1)}


PLANTED: list[tuple[Callable[[Open], Session], Callable[[Session], None]]] = [
    (SharesItsBuffer, test_outputs_belong_to_the_caller),
    (LeavesTheFirstRowOnly, test_a_batch_of_one_equals_the_same_row_in_a_batch_of_many),
    (LeavesTheFirstRowOnly, test_one_sentence_three_times_is_three_times_one_answer),
    (IgnoresTheMask, test_four_sentences_together_equal_each_without_its_padding),
    (WritesIntoItsInputs, test_inputs_are_left_as_they_were),
    (Leaks, test_memory_plateaus_over_random_shapes),
    (
        AnswersAfterClose,
        lambda session: test_closing_twice_is_fine_and_running_afterwards_is_refused(lambda: session),
    ),
    *[
        (
            ignores_the_profile,
            lambda session, case=case: test_every_engine_refuses_bad_feeds_in_the_same_words(
                session, *case[1:]
            ),
        )
        for case in REFUSALS
        if "built for" in case[2]
    ],
]


@pytest.mark.parametrize("new_session", ["fake"], indirect=True)
@pytest.mark.parametrize(("broken", "claim"), PLANTED)
def test_a_planted_violation_fails_the_claim(
    new_session: Open, broken: Callable[[Open], Session], claim: Callable[[Session], None]
) -> None:
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        claim(broken(new_session))
