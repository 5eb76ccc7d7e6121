"""Engines that compute in the same memory: one after another on the GPU, wherever it lies by then."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import encoders
import pytest
from encoders import PROFILE, feeds, same
from fake_gpu import FakeCudart
from gpus import pretended

from alula.core.engine import Plan
from alula.core.errors import DeviceLostError, OutOfMemoryError
from alula.core.graph import Graph
from alula.engines.cuda import Cuda
from alula.engines.tensorrt.lane import Lane
from alula.engines.tensorrt.scratch import Scratch
from alula.engines.tensorrt.session import TensorRtSession

SMALL, LARGE = 1 << 16, 1 << 18

Open = Callable[[int], TensorRtSession]


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    return encoders.write(tmp_path_factory.mktemp("graph") / "encoder.onnx")


@pytest.fixture
def cudart() -> FakeCudart:
    return FakeCudart()


@pytest.fixture
def opened(graph: Graph, cudart: FakeCudart, tmp_path: Path) -> Open:
    """Sessions that share, by how much each needs."""
    shared = (Scratch(), Scratch())
    return lambda size: pretended(
        graph, Plan(profile=PROFILE), tmp_path, cudart, scratches=shared, scratch_bytes=size
    )


def in_flight(*sessions: TensorRtSession) -> list[bool]:
    """Whether each answers as it does alone while the others compute."""
    alone = [[each.run(feeds(3, 9, seed)) for _ in range(3)][-1] for seed, each in enumerate(sessions)]
    pending = [each.submit(feeds(3, 9, seed)) for seed, each in enumerate(sessions)]
    return [same(wait.result(), answer) for wait, answer in zip(pending, alone, strict=True)]


def test_the_memory_is_that_of_whoever_needs_most(opened: Open, cudart: FakeCudart) -> None:
    first = opened(LARGE)
    alone = cudart.used
    second = opened(SMALL)
    assert cudart.used - alone == alone - LARGE, "buffers of its own and nothing else"
    first.close()
    second.close()
    assert (cudart.used, cudart.events) == (0, {})


def test_who_comes_next_waits_for_who_was_before(opened: Open) -> None:
    assert in_flight(opened(SMALL), opened(SMALL), opened(SMALL)) == [True] * 3


def test_without_waiting_they_would_spoil_each_other(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cuda, "wait_for", lambda self, event, stream: None)
    assert not all(in_flight(opened(SMALL), opened(SMALL)))


def test_graphs_are_captured_again_where_the_memory_moved(opened: Open, cudart: FakeCudart) -> None:
    first = opened(SMALL)
    answer = [first.run(feeds(2, 5)) for _ in range(3)][-1]
    assert first.stats.replayed == 1
    second = opened(LARGE)
    assert in_flight(first, second) == [True, True]
    again = [first.run(feeds(2, 5)) for _ in range(3)]
    assert all(same(each, answer) for each in again)
    assert not cudart.lost


def test_a_graph_with_the_old_place_in_it_would_cost_the_gpu(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = opened(SMALL)
    for _ in range(3):
        first.run(feeds(2, 5))
    opened(LARGE)
    monkeypatch.setattr(Lane, "_look", lambda self, memory: None)
    with pytest.raises(DeviceLostError):
        first.run(feeds(2, 5))


def test_one_that_finds_no_room_leaves_the_others_theirs(opened: Open, cudart: FakeCudart) -> None:
    first = opened(SMALL)
    answer = first.run(feeds(2, 5))
    cudart.memory = cudart.used + (1 << 17)
    with pytest.raises(OutOfMemoryError):
        opened(LARGE)
    assert all(same(first.run(feeds(2, 5)), answer) for _ in range(3))
    first.close()
    assert (cudart.used, cudart.events) == (0, {})


def test_the_first_one_without_room_leaves_nothing(opened: Open, cudart: FakeCudart) -> None:
    cudart.memory = SMALL
    with pytest.raises(OutOfMemoryError):
        opened(LARGE)
    assert (cudart.used, cudart.events, cudart.streams) == (0, {}, {})
