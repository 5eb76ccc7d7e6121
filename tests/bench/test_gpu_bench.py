"""The parts of examples/bench_gpu.py that need no GPU, and the whole of it in a dry run."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bench_gpu
import encoders
import numpy as np
import pytest
import tiny
from fake_gpu import FakeCudart
from gpu_bench import drawn, engine_side, limits, options, prepare, record, report, turns
from gpu_bench.cases import CASES, Case, cases, contenders, plan_of
from gpu_bench.engine_side import Inside, in_flight
from gpu_bench.measuring import Inputs, Settings, measure
from gpu_bench.results import Accuracy, Built, Opened, Result, Row, Turns, Way
from gpu_bench.wire import Worker, WorkerError
from gpus import pretended

from alula import families
from alula.core.engine import Engine, Plan
from alula.core.errors import InputError, RunError
from alula.core.profile import Profile, Range
from alula.core.tensor import Array
from alula.engines.cuda import Cuda
from alula.engines.tensorrt.session import TensorRtSession

ROOT = Path(bench_gpu.__file__).parent
BERT = CASES["bert"]


# Which cases there are.


def test_every_case_has_shapes_that_its_engine_takes_however_it_is_tuned() -> None:
    for case in CASES.values():
        for tune in ("range", "cells", "each"):
            plan = plan_of(case, tune)
            for shape in case.shapes:
                plan.profile.check(case.sizes(shape))
        assert len(case.calibration[0]) == len(case.axes)


def test_a_profile_for_each_shape_takes_nothing_between_them() -> None:
    plan = plan_of(BERT, "each", level=2, limit_s=60)
    assert len(plan.profiles) == 4
    assert (plan.level, plan.time_limit_s) == (2, 60)
    assert not plan.profile.takes({"batch": 2, "length": 128})


def test_the_largest_shape_has_the_most_cells_and_then_the_longest_rows() -> None:
    assert BERT.largest == (8, 512)
    assert CASES["resnet50-sizes"].largest == (8, 1280, 1280)


def test_names_are_taken_in_order_once_and_unknown_ones_are_refused() -> None:
    assert [case.name for case in cases("dinov2, bert,bert", dry=False)] == ["dinov2", "bert"]
    assert contenders("tensorrt-int8,torch-fp32") == ("torch-fp32", "tensorrt-int8")
    with pytest.raises(InputError, match=r"--models 'gpt' is not one of: bert, minilm, .*"):
        cases("gpt", dry=False)
    with pytest.raises(InputError, match=r"--contenders 'tensorrt-bf16' is not one of: torch-fp32, .*"):
        contenders("tensorrt-bf16")


# Inputs and errors.


def test_calls_come_back_from_their_file_in_order(tmp_path: Path) -> None:
    calls = [{"a": np.full((2, 3), at), "b": np.ones(1, np.float32) * at} for at in range(11)]
    drawn.store(tmp_path / "deep" / "calls.npz", calls)
    back = drawn.stored(tmp_path / "deep" / "calls.npz")
    assert [int(call["a"][0, 0]) for call in back] == [*range(11)]
    assert [call["b"].dtype for call in back] == [np.dtype(np.float32)] * 11
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["calls.npz"]


def test_ragged_rows_are_padded_behind_and_never_empty() -> None:
    whole = {"input_ids": np.full((5, 9), 7), "attention_mask": np.ones((5, 9), np.int64)}
    ragged = drawn.ragged(whole, 1)
    lengths = ragged["attention_mask"].sum(1)
    assert lengths.min() >= 1
    assert len({*lengths.tolist()}) > 1
    assert (ragged["attention_mask"] == (np.arange(9) < lengths[:, None])).all()
    assert (ragged["input_ids"] == 7 * ragged["attention_mask"]).all()
    assert all(ragged[name].dtype == array.dtype for name, array in whole.items())
    images = {"pixel_values": np.ones((1, 3, 2, 2))}
    assert drawn.ragged(images, 1) is images


def test_pictures_are_of_any_size_and_differ(tmp_path: Path) -> None:
    first, second = drawn.pictures(0, (1, 3, 20, 33)), drawn.pictures(1, (1, 3, 20, 33))
    assert first.shape == (1, 3, 20, 33)
    assert 0 <= first.min() < 60
    assert 190 < first.max() <= 255
    assert not np.allclose(first, second)
    told = {"do_rescale": False, "image_mean": [123, 117, 104], "image_std": [1, 1, 1]}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(told))
    scaled = drawn.normalised(first, tmp_path)
    assert scaled.dtype == np.float32
    np.testing.assert_allclose(scaled[0, 1], first[0, 1] - 117, rtol=1e-5)


def test_rows_of_sentences_are_full_and_begin_and_end_as_texts_do(tmp_path: Path) -> None:
    folder = tiny.checkpoint(tmp_path / "bert")
    spec = families.describe(families.open_checkpoint(str(folder)))
    feeds = drawn.draw(spec, folder, (3, 12), 5, real=True)
    assert feeds["input_ids"].shape == (3, 12)
    assert feeds["attention_mask"].all()
    assert {*feeds["input_ids"][:, 0].tolist()} == {2}
    assert {*feeds["input_ids"][:, -1].tolist()} == {3}
    assert set(feeds) == {tensor.name for tensor in spec.part("encoder").inputs}


def test_a_difference_is_relative_to_what_was_expected_over_all_calls() -> None:
    expected = [{"x": np.array([3.0, 0.0])}, {"x": np.array([0.0, 4.0])}]
    given = [{"x": np.array([3.0, 0.5])}, {"x": np.array([0.0, 4.0])}]
    assert drawn.difference(expected, given) == Accuracy(relative=0.1, largest=0.5)
    broken = drawn.difference(expected, [given[0], {"x": np.array([0.0, math.nan])}])
    assert not broken.finite
    with pytest.raises(InputError, match="1 answers to 2 calls"):
        drawn.difference(expected, given[:1])
    with pytest.raises(InputError, match="answers of 3 numbers, expected 4"):
        drawn.difference(expected, [given[0], {"x": np.array([1.0])}])


# Turns.


def test_inputs_take_turns_and_what_is_arranged_is_not_counted() -> None:
    now, did = [0], list[str]()

    def arrange(at: int) -> None:
        did.append(f"arrange {at}")
        now[0] += 1_000_000_000

    def call(at: int) -> None:
        did.append(f"call {at}")
        now[0] += 2_000_000

    calls = turns.one_by_one(call, 2, arrange, clock=lambda: now[0])
    assert calls(3) == [2.0, 2.0, 2.0]
    assert did == ["arrange 0", "call 0", "arrange 1", "call 1", "arrange 0", "call 0"]


@pytest.mark.parametrize(("each_ms", "runs"), [(1.0, 50), (100.0, 5), (0.001, 400)])
def test_a_turn_has_as_many_calls_as_fit_and_the_first_are_not_counted(each_ms: float, runs: int) -> None:
    asked: list[int] = []

    def calls(count: int) -> list[float]:
        asked.append(count)
        return [each_ms] * count if len(asked) != 2 else [99.0] * count

    assert turns.turn(calls, 50) == (each_ms, runs)
    assert asked[-1] == runs
    assert len(asked) == 3


# Between processes.

CHILD = """
import os, sys
from gpu_bench.wire import serve

def start():
    print("chatter of a library")
    return {
        "add": lambda m: {"sum": m["a"] + m["b"]},
        "fail": lambda m: 1 / 0,
        "die": lambda m: (print("the last words", file=sys.stderr, flush=True), os._exit(7)),
        "sleep": lambda m: __import__("time").sleep(60),
    }

sys.exit(serve(start))
"""


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    path = os.pathsep.join([str(ROOT), *sys.path])
    made = Worker([sys.executable, "-c", CHILD], {**os.environ, "PYTHONPATH": path}, tmp_path / "log")
    yield made
    made.end()


def test_a_worker_answers_whatever_its_libraries_print_and_goes_on_after_an_error(worker: Worker) -> None:
    assert worker.ask(30, do="add", a=2, b=3) == {"sum": 5}
    with pytest.raises(WorkerError, match="ZeroDivisionError: division by zero") as refused:
        worker.ask(30, do="fail")
    assert not refused.value.gone
    assert worker.ask(30, do="add", a=1, b=1) == {"sum": 2}


def test_a_worker_that_dies_says_so_with_its_last_words(worker: Worker) -> None:
    with pytest.raises(
        WorkerError, match=r"ended with exit code 7 while it was at it: .*the last words"
    ) as died:
        worker.ask(30, do="die")
    assert died.value.gone
    with pytest.raises(WorkerError, match="exit code 7"):
        worker.ask(30, do="add", a=1, b=1)


def test_a_worker_that_takes_too_long_is_ended(worker: Worker) -> None:
    worker.ask(30, do="add", a=1, b=1)
    with pytest.raises(WorkerError, match=r"took longer than 0\.3 s") as late:
        worker.ask(0.3, do="sleep")
    assert late.value.gone


# Measuring, by workers that answer from a script.


class Scripted:
    """A worker that computes its answers, takes a fixed time, and fails when it is told to."""

    def __init__(self, name: str, ms: float, fails: Callable[[dict[str, Any]], str] = lambda m: "") -> None:
        self.name, self.ms, self.fails = name, ms, fails
        self.asked: list[dict[str, Any]] = []
        self.ended = False

    def ask(self, limit_s: float, **message: Any) -> dict[str, Any]:
        self.send(**message)
        return self.receive(limit_s)

    def send(self, **message: Any) -> None:
        assert not self.ended
        self.asked.append(message)

    def receive(self, limit_s: float) -> dict[str, Any]:
        message = self.asked[-1]
        if reason := self.fails(message):
            raise WorkerError(reason, gone=reason == "died")
        if message["do"] == "facts":
            return {"ways": ["host", "device"]}
        if message.get("at_once"):
            return {"first_ms": 5 * self.ms}
        if message["do"] == "open":
            keys = ("context_ms", "load_ms", "first_ms", "memory_bytes")
            return dict.fromkeys(keys, self.ms)
        if message["do"] == "answer":
            calls = drawn.stored(Path(message["feeds"]))
            drawn.store(Path(message["to"]), [{"y": np.multiply(call["x"], self.ms)} for call in calls])
        if message["do"] == "time":
            return {"ms": self.ms, "runs": 5}
        return {"operations": 1000} if message["do"] == "warm" else {}

    def end(self) -> None:
        self.ended = True


SMALL = Case(
    name="bert",
    what="",
    folder="",
    axes={"batch": Range(1, 2, 2), "length": Range(1, 8, 8)},
    shapes=((1, 4), (2, 8)),
    openings=3,
)
NAMES = ("torch-fp32", "torch-fp16", "tensorrt-fp16")


@pytest.fixture
def inputs(tmp_path: Path) -> Inputs:
    files = {name: tmp_path / f"{name}.npz" for name in ("1x4", "2x8")}
    for path in files.values():
        drawn.store(path, [{"x": np.ones(3)}])
    return Inputs(timed=files, compared=files)


def run_scripted(
    inputs: Inputs, folder: Path, fails: Callable[[str, dict[str, Any]], str] = lambda name, m: ""
) -> tuple[Result, list[Scripted]]:
    started: list[Scripted] = []
    speeds = {"torch-fp32": 8.0, "torch-fp16": 4.0, "tensorrt-fp16": 1.0}

    def start(name: str) -> Scripted:
        started.append(Scripted(name, speeds[name.split(" ", maxsplit=1)[0]], lambda m: fails(name, m)))
        return started[-1]

    settings = Settings(rounds=6)
    result = measure(
        SMALL, NAMES, inputs, start=start, folder=folder, settings=settings, note=lambda text: None
    )
    return result, started


def test_everybody_is_compared_and_timed_and_engines_are_opened_several_times(
    inputs: Inputs, tmp_path: Path
) -> None:
    result, started = run_scripted(inputs, tmp_path)
    assert not result.failed
    assert [worker.name for worker in started] == [
        *NAMES,
        "tensorrt-fp16 opening 0",
        "tensorrt-fp16 opening 1",
    ]
    assert all(worker.ended for worker in started)
    assert {name: opened.openings for name, opened in result.opened.items()} == {
        "torch-fp32": 1,
        "torch-fp16": 1,
        "tensorrt-fp16": 3,
    }
    assert result.opened["tensorrt-fp16"] == Opened(
        context_ms=1, load_ms=1, first_ms=5, memory_bytes=1, openings=3
    ), "the first answer is that of a process that opened at once"
    times = result.times("2x8", "tensorrt-fp16", "torch-fp32", "host")
    assert times is not None
    assert (times.median, times.rounds) == (8.0, 6)
    accuracy = result.row("1x4", "torch-fp16").accuracy
    assert accuracy == Accuracy(relative=0.5, largest=4.0)
    assert result.operations == {"1x4": 1000, "2x8": 1000}
    assert result.items_per_s("2x8", "tensorrt-fp16", "host") == 2000


def test_each_round_begins_with_another_contender(inputs: Inputs, tmp_path: Path) -> None:
    order: list[str] = []

    def noted(name: str, message: dict[str, Any]) -> str:
        if message["do"] == "time" and message["way"] == "host":
            order.append(name)
        return ""

    run_scripted(inputs, tmp_path, noted)
    rounds = [order[at : at + 3] for at in range(0, 18, 3)]
    assert [each[0] for each in rounds] == [*NAMES, *NAMES]
    assert all({*each} == {*NAMES} for each in rounds)


@pytest.mark.parametrize("do", ["facts", "open", "warm", "answer", "time"])
@pytest.mark.parametrize("reason", ["died", "no memory"])
def test_one_that_fails_is_told_and_the_others_go_on(
    do: str, reason: str, inputs: Inputs, tmp_path: Path
) -> None:
    def fails(name: str, message: dict[str, Any]) -> str:
        at = str(message.get("feeds", "1x4"))
        return reason if name == "torch-fp16" and message["do"] == do and "1x4" in at else ""

    result, started = run_scripted(inputs, tmp_path, fails)
    assert all(worker.ended for worker in started)
    for shape in ("1x4", "2x8"):
        assert result.times(shape, "tensorrt-fp16", "torch-fp32", "host") is not None
    assert result.turns("1x4", "torch-fp16", "host") is None
    for_good = reason == "died" or do in {"facts", "open"}
    assert result.failed == ({"torch-fp16": reason} if for_good else {})
    assert (result.turns("2x8", "torch-fp16", "host") is None) is for_good
    assert reason in "\n".join(report.section(result))


def test_without_a_baseline_nothing_is_compared(inputs: Inputs, tmp_path: Path) -> None:
    result, _ = run_scripted(inputs, tmp_path, lambda name, m: "died" if name == "torch-fp32" else "")
    assert result.row("1x4", "tensorrt-fp16").accuracy is None
    assert not any(verdict.passed for verdict in limits.verdicts(result) if "finite" in verdict.what)


# Limits.


def measured(name: str, shapes: tuple[str, ...], ms: dict[str, float], **changed: float) -> Result:
    """A result in which contenders take so many ms everywhere; `changed` at a side of so many pixels."""
    result = Result(
        name=name,
        what="",
        shapes=shapes,
        batches=dict.fromkeys(shapes, 8),
        pixels={shape: math.prod(map(int, shape.split("x"))) for shape in shapes if shape.count("x") == 2},
    )
    for shape in shapes:
        for contender, each in ms.items():
            pixels = result.pixels.get(shape, 1)
            took = each * pixels * changed.get(f"at_{shape.rsplit('x', maxsplit=1)[-1]}", 1.0)
            row = result.row(shape, contender)
            ways: tuple[Way, ...] = ("host", "device")
            row.turns = {way: Turns(rounds_ms=(took,) * 7, runs=(5,) * 7) for way in ways}
            row.accuracy = Accuracy(relative=1e-3, largest=1e-2)
    return result


def opened(load_ms: float, first_ms: float, memory_bytes: float) -> Opened:
    return Opened(context_ms=1, load_ms=load_ms, first_ms=first_ms, memory_bytes=memory_bytes)


def good_bert() -> Result:
    ms = {"torch-fp32": 8.0, "torch-compile-fp16": 1.1, "tensorrt-fp16": 1.0}
    result = measured("bert", ("1x128", "8x512"), ms)
    result.opened = {"torch-fp32": opened(1, 1, 100.0), "tensorrt-fp16": opened(300, 500, 50.0)}
    return result


def failing(result: Result) -> list[str]:
    return [verdict.what for verdict in limits.verdicts(result) if not verdict.passed]


WAYS: tuple[Way, ...] = ("host", "device")
T_SAME: Turns = Turns(rounds_ms=(1.1, 0.9, 1.1, 0.9, 1.1, 1.1, 1.1), runs=(5,) * 7)
T_SLOW = Turns(rounds_ms=(2.1,) * 7, runs=(5,) * 7)


def test_all_limits_hold_at_their_ends() -> None:
    assert failing(good_bert()) == []
    assert len(limits.verdicts(good_bert())) == 2 + 4 + 2 + 1 + 2


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (
            lambda r: r.rows["1x128"].update({"torch-compile-fp16": Row(turns=dict.fromkeys(WAYS, T_SAME))}),
            "surely",
        ),
        (lambda r: r.rows["8x512"]["tensorrt-fp16"].turns.update({"host": T_SLOW}), "at least 4 times"),
        (lambda r: r.rows["8x512"].pop("tensorrt-fp16"), "at least 4 times"),
        (lambda r: r.opened.update({"tensorrt-fp16": opened(301, 400, 50)}), "loaded within 300 ms"),
        (lambda r: r.opened.update({"tensorrt-fp16": opened(200, 501, 50)}), "within 500 ms"),
        (lambda r: r.opened.update({"tensorrt-fp16": opened(200, 400, 51)}), "device memory"),
        (lambda r: r.opened.update({"tensorrt-fp16": opened(200, 400, 0)}), "device memory"),
        (lambda r: r.opened.clear(), "device memory"),
        (lambda r: set_error(r, math.nan), "finite everywhere"),
        (lambda r: set_error(r, 0.011), "relative error at most 0.01"),
    ],
)
def test_a_limit_that_is_missed_is_told(fault: Callable[[Result], object], told: str) -> None:
    result = good_bert()
    fault(result)
    assert any(told in what for what in failing(result)), failing(result)


def set_error(result: Result, relative: float) -> None:
    result.rows["8x512"]["tensorrt-fp16"].accuracy = Accuracy(relative=relative, largest=0.1)


def test_time_per_pixel_may_move_by_eight_percent_from_640_on() -> None:
    shapes = tuple(f"8x{side}x{side}" for side in (320, 640, 1280))
    ms = {"torch-fp32": 1.0, "tensorrt-fp16": 0.5}
    assert failing(measured("resnet50-sizes", shapes, ms, at_320=3.0, at_1280=1.0799)) == []
    slow = measured("resnet50-sizes", shapes, ms, at_1280=1.081)
    fast = measured("resnet50-sizes", shapes, ms, at_1280=0.919)
    expected = ["resnet50-sizes 8x1280x1280: time per pixel within 8% of that at 640"]
    assert failing(slow) == failing(fast) == expected
    gone = measured("resnet50-sizes", shapes, {"torch-fp32": 1.0})
    assert expected[0] in failing(gone)


def test_every_limit_is_told_before_the_run() -> None:
    told = "\n".join(limits.printed())
    for word in ("1x128", "4 times", "300 ms", "500 ms", "0.5", "8%", "NaN", "0.0001 in fp32, 0.01 in fp16"):
        assert word in told


# Tables.


def test_tables_show_what_was_measured_and_leave_out_empty_columns() -> None:
    result = good_bert()
    result.built = {
        "tensorrt-fp16": Built(
            seconds={"write": 2.4, "compile": 40.0},
            engine_bytes=219_000_000,
            nodes=400,
            kept=3,
            calibrated_on="",
        )
    }
    text = report.page({"gpu": "a GPU", "settings": {"rounds": 7}}, [result])
    assert "- settings: rounds 7" in text
    assert "| 1x128 | tensorrt-fp16 | 1.000 (1.000-1.000) | 8.00 (8.00-8.00) | 8000 |" in text
    assert "| tensorrt-fp16 | 42 | 219 | 400 | 3 | 1 | 300 | 500 | 1 | 0 |" in text
    assert "in flight" not in text
    raw = json.loads(report.document({"when": "now"}, [result]))
    assert raw["cases"][0]["rows"]["1x128"]["tensorrt-fp16"]["turns"]["host"]["rounds_ms"] == [1.0] * 7
    assert all(verdict["passed"] for verdict in raw["cases"][0]["verdicts"])


# An engine's session taken apart, on a pretended GPU.


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


def test_layers_alone_copy_nothing_and_leave_the_session_as_it_was(
    session: TensorRtSession, cudart: FakeCudart
) -> None:
    calls = [encoders.feeds(2, 9, seed) for seed in (1, 2)]
    for _ in range(3):
        expected = session.run(calls[0])
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
    assert encoders.same(session.run(calls[0]), expected)
    other = encoders.feeds(3, 5)
    assert encoders.same(session.run(other), session.run(other))
    inside.close()
    inside.close()


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


# The whole.


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
