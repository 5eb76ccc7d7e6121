"""A session's graphs, lanes, padding and memory: on the GPU here if there is one, always on a pretended one."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import encoders
import numpy as np
import onnxruntime as ort
import pytest
from encoders import PROFILE, feeds, near, same
from fake_gpu import ILLEGAL, FakeContext, FakeCudart
from gpus import REASON, compiled, pretended

from alula.core.engine import Plan
from alula.core.errors import DeviceLostError, OutOfMemoryError, RunError, ShapeError
from alula.core.graph import Graph
from alula.core.profile import Profile, Range
from alula.core.tensor import Feeds
from alula.engines import backend
from alula.engines.cuda import Cuda
from alula.engines.tensorrt import lane as lanes_module
from alula.engines.tensorrt.session import TensorRtSession
from alula.engines.tensorrt.shapes import Stats

Open = Callable[[], TensorRtSession]
TUNED = (
    Profile({"batch": Range(1, 1, 1), "length": Range(1, 16, 128)}),
    Profile({"batch": Range(1, 8, 16), "length": Range(1, 16, 32)}),
)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    return encoders.write(tmp_path_factory.mktemp("graph") / "encoder.onnx")


@pytest.fixture(scope="module")
def expected(graph: Graph) -> Callable[[Feeds], Feeds]:
    loaded = ort.InferenceSession(graph.path, providers=["CPUExecutionProvider"])
    names = [spec.name for spec in graph.outputs]
    return lambda given: dict(zip(names, loaded.run(names, dict(given)), strict=True))


@pytest.fixture(scope="module", params=["pretended", "real"])
def new_session(
    request: pytest.FixtureRequest, graph: Graph, tmp_path_factory: pytest.TempPathFactory
) -> Open:
    folder = tmp_path_factory.mktemp("engine") / "engine"
    if request.param == "pretended":
        return lambda: pretended(graph, Plan(profile=PROFILE), folder)
    if REASON:
        pytest.skip(f"NOT RUN ON A GPU: {REASON}")
    engine = compiled(graph, Plan(profile=PROFILE), folder)
    return lambda: opened_real(engine)


def opened_real(engine: object) -> TensorRtSession:
    session = backend("tensorrt").open(engine)  # type: ignore[arg-type] # made by `compiled`
    assert isinstance(session, TensorRtSession)
    return session


@pytest.fixture
def session(new_session: Open) -> Iterator[TensorRtSession]:
    opened = new_session()
    yield opened
    opened.close()


def test_a_shape_that_comes_again_is_replayed(session: TensorRtSession) -> None:
    answers = [session.run(feeds(3, 9)) for _ in range(5)]
    assert session.stats == Stats(launched=2, captured=1, replayed=3)
    assert all(same(answer, answers[0]) for answer in answers), "a replay gives other bits than launches"


def test_replays_of_mixed_shapes_do_not_disturb_each_other(
    session: TensorRtSession, expected: Callable[[Feeds], Feeds]
) -> None:
    shapes = [(1, 7), (16, 128), (4, 16), (2, 33), (16, 1), (5, 100)]
    first = {shape: session.run(feeds(*shape)) for shape in shapes}
    for seed in range(4):
        for shape in shapes[:: 1 if seed % 2 else -1]:
            given = feeds(*shape, seed)
            answer = session.run(given)
            assert near(answer, expected(given), given["attention_mask"], 2e-5)
    assert session.stats.replayed >= 3 * len(shapes)
    for shape, answer in first.items():
        assert same(session.run(feeds(*shape)), answer)


def test_requests_in_flight_are_answered_each_with_its_own(
    session: TensorRtSession, expected: Callable[[Feeds], Feeds]
) -> None:
    """NVIDIA/TensorRT#2040: several threads ran one execution context."""
    given = [feeds(1 + at % 16, 1 + 7 * at % 128, at) for at in range(40)]
    alone = [session.run(each) for each in given]
    pending = [session.submit(each) for each in given]
    for each, answer, wait in list(zip(given, alone, pending, strict=True))[::-1]:
        assert same(wait.result(), answer)
        assert near(wait.result(), expected(each), each["attention_mask"], 2e-5)


def test_a_refused_request_takes_no_lane(session: TensorRtSession) -> None:
    for _ in range(10):
        with pytest.raises(ShapeError, match=r"axis 'length' is 129; built for 1..128"):
            session.submit(feeds(1, 129))
    assert set(session.run(feeds(1, 128))) == {"states", "embedding"}


def test_ids_beyond_what_the_engine_holds_are_refused(session: TensorRtSession) -> None:
    given = feeds(1, 4)
    given["input_ids"] = given["input_ids"].copy()
    given["input_ids"][0, 0] = 2**40
    with pytest.raises(ShapeError, match="input_ids: has 1099511627776, the engine takes int32"):
        session.run(given)
    assert session.run(feeds(1, 4))["embedding"].shape == (1, encoders.WIDTH)


def test_calls_are_padded_to_a_bucket_that_is_faster_and_cut_back(
    session: TensorRtSession, expected: Callable[[Feeds], Feeds]
) -> None:
    session.warm_up([{"batch": rows, "length": length} for rows in (1, 4) for length in (16, 64)])
    assert [bucket.key for bucket in session.buckets] == [(1, 16), (1, 64), (4, 16), (4, 64)]
    # As if launching were much slower, whatever this machine says.
    session.buckets = tuple(bucket.__class__(bucket.key, 10.0, 1.0) for bucket in session.buckets)
    before = session.stats
    given = feeds(3, 50)
    answer = session.run(given)
    assert session.stats == before + Stats(replayed=1, padded=1)
    assert answer["states"].shape == (3, 50, encoders.WIDTH)
    assert near(answer, expected(given), given["attention_mask"], 2e-5)
    assert same(session.run(given), answer)


def test_a_call_that_no_bucket_holds_runs_as_it_is(session: TensorRtSession) -> None:
    session.warm_up([{"batch": 1, "length": 16}])
    before = session.stats
    session.run(feeds(1, 17))
    assert session.stats == before + Stats(launched=1)


def test_graphs_are_bounded_and_the_longest_unused_goes(
    new_session: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes_module, "MOST_GRAPHS", 3)
    session = new_session()
    answers = {length: [session.run(feeds(1, length)) for _ in range(2)][1] for length in range(1, 9)}
    assert session.stats.captured == 8
    assert session.stats.evicted == 5
    for length, answer in answers.items():
        assert same(session.run(feeds(1, length)), answer)
    session.close()


def test_closing_waits_for_what_is_in_flight(new_session: Open) -> None:
    session = new_session()
    answer = session.run(feeds(2, 5))
    pending = session.submit(feeds(2, 5))
    session.close()
    assert same(pending.result(), answer)


def test_profiles_are_chosen_by_size_and_gaps_between_them_are_refused(graph: Graph, tmp_path: Path) -> None:
    plan = Plan(profile=PROFILE, tuned=TUNED)
    session = (
        pretended(graph, plan, tmp_path / "engine")
        if REASON
        else opened_real(compiled(graph, plan, tmp_path / "e"))
    )
    alone = session.run(feeds(1, 128))
    assert alone["states"].shape == (1, 128, encoders.WIDTH)
    assert session.run(feeds(16, 32))["states"].shape == (16, 32, encoders.WIDTH)
    assert same(session.run(feeds(1, 128)), alone)
    with pytest.raises(ShapeError, match="batch 2, length 33: in none of the profiles"):
        session.run(feeds(2, 33))
    session.close()


def test_a_context_is_made_when_its_profile_is_used_first(graph: Graph, tmp_path: Path) -> None:
    session = pretended(graph, Plan(profile=PROFILE, tuned=TUNED), tmp_path / "engine")
    assert session._lanes[0]._contexts == {}
    session.run(feeds(16, 32))
    assert [*session._lanes[0]._contexts] == [1]
    session.run(feeds(1, 128))
    session.run(feeds(1, 128))
    assert [*session._lanes[0]._contexts] == [1, 0]
    session.close()


def test_a_thousand_mixed_requests_keep_memory_level(graph: Graph, tmp_path: Path) -> None:
    cudart = FakeCudart()
    session = pretended(graph, Plan(profile=PROFILE), tmp_path / "engine", cudart)
    random = np.random.default_rng(0)
    for rows, length in random.integers((1, 1), (17, 129), (50, 2)).tolist():
        session.run(feeds(rows, length))
    level = (cudart.used, len(cudart.host))
    for rows, length in random.integers((1, 1), (17, 129), (500, 2)).tolist():
        session.run(feeds(rows, length))
    assert (cudart.used, len(cudart.host)) == level
    assert len(cudart.graphs) <= 64
    session.close()
    del session
    gc.collect()
    assert (cudart.used, len(cudart.host), cudart.streams, cudart.graphs) == (0, 0, {}, {})


def test_no_room_at_all_is_said_with_sizes_and_leaves_nothing_behind(graph: Graph, tmp_path: Path) -> None:
    cudart = FakeCudart(memory=1 << 17)
    with pytest.raises(OutOfMemoryError) as refused:
        pretended(graph, Plan(profile=PROFILE), tmp_path / "engine", cudart)
    assert str(refused.value).startswith("GPU out of memory: ")
    assert "lower the largest sizes of the profile" in str(refused.value)
    assert (cudart.used, len(cudart.host), cudart.streams) == (0, 0, {})


def test_without_room_for_a_second_lane_requests_run_one_by_one(graph: Graph, tmp_path: Path) -> None:
    cudart = FakeCudart()
    session = pretended(graph, Plan(profile=PROFILE), tmp_path / "engine", cudart)
    cudart.memory = cudart.used + 100
    pending = [session.submit(feeds(2, 5, seed)) for seed in range(5)]
    answers = [each.result() for each in pending]
    for seed, answer in enumerate(answers):
        assert same(session.run(feeds(2, 5, seed)), answer)
    session.close()
    assert cudart.used == 0


def test_an_error_that_stays_kills_the_session_and_says_so(graph: Graph, tmp_path: Path) -> None:
    cudart = FakeCudart()
    session = pretended(graph, Plan(profile=PROFILE), tmp_path / "engine", cudart)
    session.run(feeds(1, 4))
    cudart.lost = ILLEGAL
    words = "the GPU is lost to this process after .* cudaErrorIllegalAddress .700.*; start the process again"
    for _ in range(3):
        with pytest.raises(DeviceLostError, match=words):
            session.run(feeds(1, 4))
    session.close()


def test_a_graph_that_cannot_be_captured_costs_speed_only(graph: Graph, tmp_path: Path) -> None:
    cudart = FakeCudart()
    session = pretended(graph, Plan(profile=PROFILE), tmp_path / "engine", cudart)
    cudart.fails["cudaGraphInstantiate"] = cudart.cudaFree(12345)[0]
    answers = [session.run(feeds(1, 4)) for _ in range(5)]
    assert all(same(answer, answers[0]) for answer in answers)
    assert session.stats == Stats(launched=5)
    session.close()


def test_an_answer_read_before_it_is_there_is_noticed(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Planted: the pretended GPU computes when it is waited for, so a session that does not wait gives nonsense.
    session = pretended(graph, Plan(profile=PROFILE), tmp_path / "engine")
    right = session.run(feeds(2, 6, 1))
    session.run(feeds(2, 6))
    monkeypatch.setattr(Cuda, "synchronize", lambda self, stream: None)
    assert not near(session.run(feeds(2, 6, 1)), right, feeds(2, 6, 1)["attention_mask"], 1e-3)


def test_layers_are_timed_and_the_session_answers_as_before(session: TensorRtSession) -> None:
    before = session.run(feeds(4, 16))
    found = session.layer_times(feeds(4, 16), 5)
    assert found.layers
    assert found.runs == 5
    assert all(milliseconds >= 0 for _, milliseconds in found.layers)
    assert found.call_ms > 0
    assert same(session.run(feeds(4, 16)), before)
    assert same(session.run(feeds(4, 16)), before)
    session.run(feeds(2, 3))


def test_a_closed_session_refuses(new_session: Open) -> None:
    session = new_session()
    session.close()
    with pytest.raises(RunError, match="session is closed"):
        session.submit(feeds(1, 4))


def test_an_output_without_a_size_is_refused_before_memory_is_given_to_it(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TensorRT gives no shape at all where sizes do not go together."""
    monkeypatch.setattr(FakeContext, "get_tensor_shape", lambda self, name: ())
    with closing(pretended(graph, Plan(profile=PROFILE), tmp_path)) as session:
        lane = session._new_lane(session._usable())
        with pytest.raises(RunError, match=r"the size of output '\w+' is not known for .*do not go together"):
            lane.prepare(
                (2, 8), 0, {spec.name: spec.sized({"batch": 2, "length": 8}) for spec in graph.inputs}
            )
        lane.close()
