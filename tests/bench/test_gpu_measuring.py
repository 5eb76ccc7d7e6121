"""How examples/bench_gpu.py measures a case, by workers that answer from a script; its limits and tables."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_bench import drawn, limits, report
from gpu_bench.cases import Case
from gpu_bench.measuring import Inputs, Keep, Settings, measure
from gpu_bench.results import Accuracy, Built, Opened, Result, Row, Turns, Way
from gpu_bench.wire import WorkerError

from alula.core.profile import Range


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
    inputs: Inputs,
    folder: Path,
    fails: Callable[[str, dict[str, Any]], str] = lambda name, m: "",
    case_s: float = 900.0,
    keep: Keep = lambda result: None,
) -> tuple[Result, list[Scripted]]:
    started: list[Scripted] = []
    speeds = {"torch-fp32": 8.0, "torch-fp16": 4.0, "tensorrt-fp16": 1.0}

    def start(name: str) -> Scripted:
        started.append(Scripted(name, speeds[name.split(" ", maxsplit=1)[0]], lambda m: fails(name, m)))
        return started[-1]

    settings = Settings(rounds=6, case_s=case_s)
    result = measure(
        SMALL,
        NAMES,
        inputs,
        start=start,
        folder=folder,
        settings=settings,
        note=lambda text: None,
        keep=keep,
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


def test_what_is_measured_is_kept_shape_by_shape(inputs: Inputs, tmp_path: Path) -> None:
    kept: list[list[str]] = []
    run_scripted(inputs, tmp_path, keep=lambda result: kept.append([*result.rows]))
    assert kept == [["1x4"], ["1x4", "2x8"]]


def test_shapes_left_out_when_the_time_is_over_are_told(inputs: Inputs, tmp_path: Path) -> None:
    result, started = run_scripted(inputs, tmp_path, case_s=0.0)
    assert result.failed == dict.fromkeys(("1x4", "2x8"), "left out: 0 s were over")
    assert all(worker.ended for worker in started)


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
