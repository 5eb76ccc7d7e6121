"""An engine's session taken apart on a pretended GPU, and all of examples/bench_gpu.py in a dry run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import bench_gpu
import encoders
import numpy as np
import pytest
from fake_gpu import FakeCudart
from gpu_bench import engine_side, options, prepare, record
from gpu_bench.cases import CASES, plan_of
from gpu_bench.engine_side import Inside, in_flight
from gpu_bench.results import Built
from gpus import pretended

from alula.core.engine import Engine, Plan
from alula.core.errors import RunError
from alula.core.profile import Profile
from alula.core.tensor import Array
from alula.engines.cuda import Cuda
from alula.engines.tensorrt.session import TensorRtSession

BERT = CASES["bert"]


@pytest.fixture
def cudart() -> FakeCudart:
    return FakeCudart()


@pytest.fixture
def session(tmp_path: Path, cudart: FakeCudart) -> Iterator[TensorRtSession]:
    graph = encoders.write(tmp_path / "encoder.onnx")
    made = pretended(graph, Plan(profile=encoders.PROFILE), tmp_path / "engine", cudart)
    yield made
    made.close()


def test_a_replay_computes_the_inputs_that_were_arranged(
    session: TensorRtSession, cudart: FakeCudart
) -> None:
    calls = [encoders.feeds(2, 9, seed) for seed in (1, 2)]
    expected = [session.run(each)["embedding"] for each in (*calls, calls[0])][:2]
    inside = Inside(session, Cuda(cudart))
    for count, want in ((1, expected[0]), (2, expected[1])):
        assert len(inside.replay(calls)(count)) == count
        given: Array = session._lanes[0].output("embedding", (2, 9))
        np.testing.assert_allclose(np.asarray(given), np.asarray(want), rtol=1e-6)


def test_layers_alone_copy_nothing(session: TensorRtSession, cudart: FakeCudart) -> None:
    calls = [encoders.feeds(2, 9, seed) for seed in (1, 2)]
    for _ in range(3):
        session.run(calls[0])
    inside = Inside(session, Cuda(cudart))
    inside.layers(calls)(4)
    begun = len(cudart.calls)
    inside.layers(calls)(1)
    done = cudart.calls[begun:]
    after = [call for call in done if call != "cudaGraphExec_t"]
    assert after == [
        *["cudaMemcpyAsync"] * 2,
        "cudaStreamSynchronize",
        "cudaGraphLaunch",
        "cudaStreamSynchronize",
    ]
    inside.close()
    inside.close()


def test_layers_alone_compute_what_was_arranged_and_the_session_goes_on_as_before(
    session: TensorRtSession, cudart: FakeCudart
) -> None:
    calls = [encoders.feeds(2, 9, seed) for seed in (1, 2)]
    expected = [session.run(each) for each in (*calls, *calls)][:2]
    other = encoders.feeds(3, 5)
    before = session.run(other)
    cuda, lane = Cuda(cudart), session._lanes[0]
    Inside(session, cuda).layers(calls)(2)
    again = session.run(other)
    assert encoders.same(again, before), "launched with the shape that the layers alone had"
    Inside(session, cuda).layers(calls)(2)
    given = lane.output("embedding", (2, 9))
    given[...] = 0
    cuda.copy_out(lane._host["embedding"], lane._device["embedding"], given.nbytes, lane.stream)
    cuda.synchronize(lane.stream)
    assert given.tobytes() == expected[1]["embedding"].tobytes()


def test_a_shape_that_was_not_captured_is_not_called_a_replay(
    session: TensorRtSession, cudart: FakeCudart
) -> None:
    with pytest.raises(RunError, match=r"\(2, 9\) was not captured as a graph"):
        Inside(session, Cuda(cudart)).replay([encoders.feeds(2, 9)])


def test_two_requests_are_in_flight_and_all_are_waited_for(session: TensorRtSession) -> None:
    calls = [encoders.feeds(2, 9, seed) for seed in (1, 2, 3)]
    (mean,) = in_flight(session, calls)(7)
    assert mean > 0
    assert session.stats.replayed + session.stats.launched == 7
    assert len(session._lanes) == 2
    assert not session._flying


def test_a_record_opens_the_engine_that_it_was_written_for(tmp_path: Path) -> None:
    graph = encoders.write(tmp_path / "encoder.onnx")
    plan = plan_of(BERT, "each")
    engine = Engine(backend="tensorrt", target="tensorrt 8.6.0", path=tmp_path, graph=graph, plan=plan)
    built = Built(seconds={"write": 1.0}, engine_bytes=5, nodes=3, kept=0, calibrated_on="texts")
    path = tmp_path / record.NAME
    record.write(path, engine, built, {"tune": "each", "level": None})
    assert record.read(path) == engine
    assert record.built(path) == built
    assert record.made_as(path, {"tune": "each", "level": None})
    assert not record.made_as(path, {"tune": "range", "level": None})
    assert not record.made_as(tmp_path / "nothing.json", {})


def test_commands_name_the_interpreter_of_their_side(tmp_path: Path) -> None:
    prefix = """bash -c 'source env.sh && exec $PY "$@"' --"""
    args = ["build", "--work", str(tmp_path), "--python-tensorrt", prefix, "--python-torch", "python3"]
    bench = options.parsed(args, None)
    engine = bench.command(BERT, tmp_path, "tensorrt-fp16")
    assert engine[:4] == ["bash", "-c", 'source env.sh && exec $PY "$@"', "--"]
    assert engine[4:6] == ["-m", "gpu_bench.engine_side"]
    eager = bench.command(BERT, tmp_path, "torch-fp32")
    assert eager == ["python3", "-m", "gpu_bench.torch_side", str(tmp_path), "eager", "fp32", "cuda"]
    assert bench.target == "tensorrt"
    assert bench.folder(CASES["minilm"]) is None


def test_a_dry_run_goes_the_whole_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    work = tmp_path / "work"
    prepare.make(work / "models-tiny", "bert", tiny=True)
    names = "torch-fp32,tensorrt-fp32,tensorrt-int8"
    common = ["--dry-run", "--work", str(work), "--models", "bert,minilm", "--contenders", names]
    speed = ["--rounds", "6", "--turn-ms", "2", "--jobs", "2"]
    code = bench_gpu.main(["all", *common, *speed])
    printed = capsys.readouterr().out
    assert code == 1, "nobody was asked to take torch.compile's place, so that limit cannot hold"
    raw = json.loads((work / "results" / "results.json").read_text())
    bert, minilm = raw["cases"]
    assert minilm["failed"] == {"the case": "no checkpoint: --minilm FOLDER"}
    assert bert["failed"] == {}
    assert set(bert["rows"]["2x16"]) == {"torch-fp32", "tensorrt-fp32", "tensorrt-int8"}
    for shape in ("1x8", "2x16"):
        errors = {name: row["accuracy"]["relative"] for name, row in bert["rows"][shape].items()}
        assert errors["torch-fp32"] == 0
        assert errors["tensorrt-fp32"] < 1e-5 < errors["tensorrt-int8"] < 0.1
        assert set(bert["rows"][shape]["tensorrt-int8"]["turns"]) == {"host", "device"}
    assert bert["opened"]["tensorrt-fp32"]["openings"] == 2
    assert bert["built"]["tensorrt-int8"]["calibrated_on"] == "4 rows of random tokens"
    # A layer of four linears of 32 x 32 and two of 32 x 48, and two products of attention, for 8 tokens.
    assert bert["operations"]["1x8"] == 8 * 2 * (4 * 32 * 32 + 2 * 32 * 48) + 2 * 2 * 8 * 8 * 32
    assert "limit  bert: tensorrt-fp16 at least 4 times" in printed
    assert "| 2x16 | tensorrt-int8 |" in (work / "results" / "results.md").read_text()
    capsys.readouterr()
    assert bench_gpu.main(["build", *common]) == 0
    assert capsys.readouterr().err.count("is there") == 2


def test_a_contender_whose_engine_was_not_built_says_why(tmp_path: Path) -> None:
    assert bench_gpu.unbuilt(tmp_path / "none.log") == "not built"
    (tmp_path / "build.log").write_text("Traceback\n  a line\nalula.core.errors.CompileError: no kernel\n")
    assert bench_gpu.unbuilt(tmp_path / "build.log").endswith("CompileError: no kernel")


def test_a_cpu_is_not_mistaken_for_a_gpu() -> None:
    free, _ = engine_side.Host().free_bytes()
    assert free < 0
    held = np.ones(20_000_000)
    assert engine_side.Host().free_bytes()[0] < free - held.nbytes // 2


def test_a_profile_over_all_sizes_is_what_the_usual_command_line_gives() -> None:
    assert plan_of(BERT, "range").profile == Profile(BERT.axes)
