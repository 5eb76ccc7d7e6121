"""What examples/bench_gpu.py is made of: which cases there are, inputs and errors, turns, worker processes."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import bench_gpu
import numpy as np
import pytest
import tiny
import torch
import transformers
from gpu_bench import drawn, prepare, turns
from gpu_bench.cases import CASES, cases, contenders, plan_of
from gpu_bench.results import Accuracy
from gpu_bench.torch_side import loaded
from gpu_bench.wire import Worker, WorkerError

from alula import families
from alula.core.errors import InputError

ROOT = Path(bench_gpu.__file__).parent
BERT = CASES["bert"]


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


@pytest.mark.parametrize("kind", ["Dinov2Model", "Dinov2ForImageClassification"])
def test_pytorch_answers_what_an_encoder_of_images_and_a_classifier_are_built_to(
    kind: str, tmp_path: Path
) -> None:
    sizes = {
        "hidden_size": 12,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "image_size": 28,
        "patch_size": 14,
    }
    getattr(transformers, kind)(transformers.Dinov2Config(num_labels=5, **sizes)).save_pretrained(tmp_path)
    prepare.processor(tmp_path, 28)
    spec = families.describe(families.open_checkpoint(str(tmp_path)))
    answers = loaded(tmp_path, spec)(pixel_values=torch.zeros(2, 3, 28, 28))
    assert answers.shape == (2, 12 if kind == "Dinov2Model" else 5)
