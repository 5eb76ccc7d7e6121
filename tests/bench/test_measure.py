from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from alula.bench.measure import Contender, Turns, full_feeds, in_turns, measure
from alula.core.errors import InputError
from alula.core.model import ModelSpec, Part
from alula.core.tensor import Feeds, TensorSpec

NAMES = ("input_ids", "attention_mask", "token_type_ids")
INPUTS = tuple(TensorSpec(name=name, dtype="int64", shape=("batch", "length")) for name in NAMES)
OUTPUTS = (TensorSpec(name="embedding", dtype="float32", shape=("batch", 2)),)
SPEC = ModelSpec(
    name="tiny",
    digest="0" * 64,
    revision="local",
    architecture="BertModel",
    family="bert",
    task="embeddings",
    parts=(Part(name="encoder", inputs=INPUTS, outputs=OUTPUTS),),
    max_length=512,
    vocab_size=100,
    pad_id=0,
)


def test_what_makes_a_session_ready_is_not_timed() -> None:
    world = World()

    class Ready(Timed):
        def begin(self) -> None:
            world.ran.append("begin")
            world.now_ns += int(1e9)

    turns = Turns(rounds=2, calls=2, warm_up=1)
    times = in_turns([Ready("a", world, 3.0), Timed("b", world, 5.0)], {"x": np.zeros(1)}, turns, world)
    assert times == [[[3.0, 3.0]] * 2, [[5.0, 5.0]] * 2]
    assert world.ran == ["begin", "a", "b", *["begin", "a", "a", "a", "b", "b", "b"] * 2]


class World:
    """A clock that moves when a session runs, and a log of who ran."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.ran: list[str] = []

    def __call__(self) -> int:
        return self.now_ns


class Timed:
    """A session whose calls take as long as it is told: the last time again when it was told no more."""

    inputs, outputs = INPUTS, OUTPUTS

    def __init__(self, name: str, world: World, *times_ms: float) -> None:
        self._name, self._world = name, world
        self._times = self._endless(times_ms)

    def run(self, feeds: Feeds) -> Feeds:
        self._world.ran.append(self._name)
        self._world.now_ns += int(next(self._times) * 1e6)
        rows = len(np.atleast_1d(next(iter(feeds.values()))))
        return {"embedding": np.zeros((rows, 2), np.float32)}

    def close(self) -> None:
        pass

    @staticmethod
    def _endless(times: tuple[float, ...]) -> Iterator[float]:
        yield from times
        while True:
            yield times[-1]


def test_engines_take_turns_and_the_first_call_of_a_turn_is_not_counted() -> None:
    world = World()
    sessions = [Timed("A", world, 1.0), Timed("B", world, 2.0), Timed("C", world, 3.0)]
    times = in_turns(
        sessions, full_feeds(SPEC, (1, 8)), Turns(rounds=2, calls=2, least=1, warm_up=1), clock=world
    )
    assert "".join(world.ran) == "ABC" + "AAABBBCCC" * 2
    assert times == [[[1.0, 1.0]] * 2, [[2.0, 2.0]] * 2, [[3.0, 3.0]] * 2]


def test_the_warm_up_is_not_counted() -> None:
    world = World()
    session = Timed("A", world, 900.0, 800.0, 700.0, 1.0)
    measured = measure(
        [Contender(engine="fake", precision="fp32", session=session)],
        SPEC,
        [(1, 8)],
        Turns(rounds=6, warm_up=3),
        clock=world,
    )
    assert measured.rows[0].p50_ms == 1.0
    assert measured.rows[0].p90_ms == 1.0


def test_no_round_is_begun_after_the_time_is_spent_but_the_least_are_kept() -> None:
    world = World()
    turns = Turns(rounds=50, calls=1, least=4, seconds=1.0, warm_up=0)
    assert len(in_turns([Timed("A", world, 100.0)], full_feeds(SPEC, (1, 8)), turns, clock=world)[0]) == 6
    assert len(in_turns([Timed("A", world, 9000.0)], full_feeds(SPEC, (1, 8)), turns, clock=world)[0]) == 4


def test_rows_say_what_was_measured_and_ratios_are_against_pytorch() -> None:
    world = World()
    contenders = [
        Contender(engine="openvino", precision="bf16", session=Timed("A", world, 5.0), load_ms=80.0),
        Contender(
            engine="torch", precision="fp32", session=Timed("B", world, 20.0), metric="cosine", worst=1.0
        ),
    ]
    measured = measure(contenders, SPEC, [(1, 8), (4, 8)], Turns(rounds=25, calls=4), clock=world)
    first = measured.rows[0]
    assert (first.engine, first.precision, first.shape, first.runs) == ("openvino", "bf16", "1x8", 100)
    assert (first.p50_ms, first.p90_ms, first.p99_ms, first.load_ms) == (5.0, 5.0, 5.0, 80.0)
    assert [row.items_per_s for row in measured.rows] == [200.0, 50.0, 800.0, 200.0]
    ratios = [(r.shape, r.engine, r.baseline, r.ratio.median, r.ratio.verdict) for r in measured.ratios]
    assert ratios == [
        ("1x8", "openvino bf16", "torch fp32", 4.0, "faster"),
        ("4x8", "openvino bf16", "torch fp32", 4.0, "faster"),
    ]


def test_without_pytorch_the_first_is_the_baseline() -> None:
    world = World()
    names = ("fp32", "bf16")
    contenders = [
        Contender(engine="openvino", precision=name, session=Timed(name, world, 2.0)) for name in names
    ]
    measured = measure(contenders, SPEC, [(1, 8)], Turns(rounds=6), clock=world)
    assert [(r.engine, r.baseline) for r in measured.ratios] == [("openvino bf16", "openvino fp32")]


def test_feeds_fill_a_shape_with_nothing_masked() -> None:
    feeds = full_feeds(SPEC, (3, 7))
    assert {name: array.shape for name, array in feeds.items()} == dict.fromkeys(NAMES, (3, 7))
    assert feeds["attention_mask"].all()
    assert len(np.unique(feeds["input_ids"])) > 10
    assert {array.dtype.name for array in feeds.values()} == {"int64"}


def test_nothing_to_measure_is_refused() -> None:
    with pytest.raises(InputError, match="at least one session is needed"):
        measure([], SPEC, [(1, 8)], Turns())
    with pytest.raises(InputError, match="at least one round and one call, got 0, 6 and 4"):
        Turns(rounds=0)


def test_arrays_of_any_model_fill_a_shape_within_their_ranges() -> None:
    inputs = (
        TensorSpec(name="size", dtype="int64", shape=(2,), range=(3.0, 4.0)),
        TensorSpec(name="x", dtype="float32", shape=("seq", "batch", 3)),
        TensorSpec(name="on", dtype="bool", shape=()),
    )
    part = replace(SPEC.parts[0], inputs=inputs)
    spec = replace(SPEC, task="tensors", parts=(part,), vocab_size=0)
    feeds = full_feeds(spec, (5, 2))
    assert {name: (array.shape, array.dtype.name) for name, array in feeds.items()} == {
        "size": ((2,), "int64"),
        "x": ((5, 2, 3), "float32"),
        "on": ((), "bool"),
    }
    assert set(feeds["size"].tolist()) <= {3, 4}


def test_items_are_rows_wherever_their_axis_is() -> None:
    world = World()
    x = TensorSpec(name="x", dtype="float32", shape=("seq", "batch"))
    spec = replace(SPEC, task="tensors", parts=(replace(SPEC.parts[0], inputs=(x,)),), vocab_size=0)
    contender = Contender(engine="fake", precision="fp32", session=Timed("A", world, 2.0))
    (row,) = measure([contender], spec, [(5, 3)], Turns(rounds=6), clock=world).rows
    assert row.shape == "5x3"
    assert row.items_per_s == pytest.approx(3e3 / row.p50_ms)
    fixed = replace(spec, parts=(replace(SPEC.parts[0], inputs=(replace(x, shape=(2, 2)),)),))
    (row,) = measure([contender], fixed, [()], Turns(rounds=6), clock=world).rows
    assert row.shape == "fixed"
    assert row.items_per_s == pytest.approx(1e3 / row.p50_ms)
