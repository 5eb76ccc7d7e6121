"""The command that a foreign engine is refused with: read by the command line, it asks for the same plan."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from alula import build as build_module
from alula.build import BuildRequest
from alula.bundles import Manifest, cpu_command, rebuild_command
from alula.cli import main
from alula.core.engine import Engine, Plan
from alula.core.graph import Graph
from alula.core.model import ModelSpec, Part
from alula.core.profile import Profile, Range, hull
from alula.core.tensor import TensorSpec
from alula.planning import plan_of

IDS = TensorSpec(name="input_ids", dtype="int64", shape=("batch", "length"))
TEXTS = ModelSpec(
    name="minilm",
    digest="",
    revision="local",
    architecture="BertModel",
    family="bert",
    task="embeddings",
    parts=(Part(name="encoder", inputs=(IDS,), outputs=()),),
    max_length=256,
    vocab_size=99,
    pad_id=0,
    pooling="mean",
)
ALONE = Profile({"batch": Range(1, 1, 1), "length": Range(1, 64, 128)})
MANY = Profile({"batch": Range(1, 8, 64), "length": Range(16, 128, 256)})
PROMISE = {
    "budget": 0.004,
    "metric": None,
    "data": {"file": "rows.jsonl", "rows": 9, "skipped": 0, "labelled": False},
}


def manifest(plan: Plan, model: ModelSpec = TEXTS, source: str = "models/minilm", **more: Any) -> Manifest:
    graph = Graph(path=Path("g"), digest="", opset=23, nodes=1, precision="fp16", inputs=(IDS,), outputs=())
    target = "tensorrt 8.6.0 x86_64 sm_90 NVIDIA H200"
    engine = Engine(backend="tensorrt", target=target, path=Path("e"), graph=graph, plan=plan)
    return Manifest(
        model=model,
        source=source,
        graphs={"encoder.fp16": graph},
        engines={"encoder": engine},
        rungs=(),
        files=(),
        built_on={},
        **more,
    )


def asked(command: str, monkeypatch: pytest.MonkeyPatch) -> BuildRequest:
    """What the command line makes of a command."""
    requests: list[BuildRequest] = []

    def build(request: BuildRequest, progress: object) -> None:
        requests.append(request)
        raise KeyboardInterrupt

    monkeypatch.setattr(build_module, "build", build)
    monkeypatch.setattr(sys, "argv", shlex.split(command))
    assert main() == 130
    return requests[0]


PLANS: Sequence[Plan] = (
    Plan(profile=MANY),
    Plan(profile=hull((MANY, ALONE)), tuned=(MANY, ALONE)),
    Plan(
        profile=ALONE, workspace_bytes=4 << 30, level=0, time_limit_s=1200, portable=True, strip_weights=True
    ),
)


@pytest.mark.parametrize("plan", PLANS)
def test_the_command_asks_for_the_same_plan(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    request = asked(rebuild_command(manifest(plan), Path("out/my bundle")), monkeypatch)
    assert plan_of(TEXTS, request.axes, request.compiling) == plan
    assert (request.model, request.to) == ("models/minilm", Path("out/my bundle"))
    assert (request.target, request.precision) == ("tensorrt", "fp16")
    assert (request.task, request.pooling, request.revision) == ("embeddings", "mean", "main")
    assert request.name is None
    assert request.data is None


def test_a_model_of_the_hub_is_named_with_its_commit_and_a_name_of_its_own_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hub = replace(TEXTS, name="org/minilm", revision="c0ffee")
    request = asked(rebuild_command(manifest(PLANS[0], hub, "org/minilm"), Path("b")), monkeypatch)
    assert (request.model, request.revision, request.name) == ("org/minilm", "c0ffee", None)
    request = asked(rebuild_command(manifest(PLANS[0], replace(hub, name="mine")), Path("b")), monkeypatch)
    assert request.name == "mine"


def test_what_was_proved_on_rows_names_their_file_and_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    request = asked(rebuild_command(manifest(PLANS[0], promise=PROMISE), Path("b")), monkeypatch)
    assert (request.data, request.budget) == (Path("rows.jsonl"), 0.004)
    assert (request.metric, request.calibration) == (None, "min-max")


def test_a_metric_and_a_calibration_of_ones_own_are_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    promise = {**PROMISE, "metric": "mine:score", "calibration": {"method": "entropy, smoothed"}}
    request = asked(rebuild_command(manifest(PLANS[0], promise=promise), Path("b")), monkeypatch)
    assert (request.metric, request.calibration) == ("mine:score", "entropy")


def test_for_a_cpu_sizes_are_kept_and_what_a_compiler_of_gpus_was_told_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = replace(PLANS[2], tuned=(MANY, ALONE), profile=hull((MANY, ALONE)))
    request = asked(cpu_command(manifest(plan, promise=PROMISE), Path("out/b")), monkeypatch)
    assert (request.to, request.target, request.precision) == (Path("out/b-cpu"), "cpu", "auto")
    assert plan_of(TEXTS, request.axes, request.compiling) == Plan(profile=plan.profile)
    assert request.data == Path("rows.jsonl")


def test_the_command_is_short_where_there_is_little_to_say() -> None:
    assert rebuild_command(manifest(PLANS[0]), Path("b")) == (
        "alula build models/minilm -o b --target tensorrt --precision fp16 --task embeddings --pooling mean "
        "--batch 1:8:64 --length 16:128:256"
    )


def test_other_axes_are_named_in_full() -> None:
    plan = Plan(
        profile=Profile({"batch": Range(1, 1, 1), "width": Range(32, 64, 96), "depth": Range(1, 2, 3)})
    )
    command = rebuild_command(manifest(plan), Path("b"))
    assert command.endswith("--batch 1:1:1 --width 32:64:96 --axis depth=1:2:3")


def test_the_inputs_of_an_onnx_file_are_stated_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = TensorSpec(name="x", dtype="float32", shape=("batch", 3, "height", 32), range=(0.0, 1.0))
    part = Part(name="encoder", inputs=(pixels, replace(pixels, name="y", range=None)), outputs=())
    model = replace(TEXTS, name="net", task="tensors", pooling="", vocab_size=0, parts=(part,))
    profile = Profile({"batch": Range(1, 1, 1), "height": Range(32, 64, 96)})
    request = asked(
        rebuild_command(manifest(Plan(profile=profile), model, "net.onnx"), Path("b")), monkeypatch
    )
    assert (request.task, request.inputs) == ("tensors", part.inputs)
    assert request.axes == profile.axes
