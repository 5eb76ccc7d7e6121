from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from alula.core.engine import Plan
from alula.core.errors import EngineError, InputError
from alula.core.graph import Graph
from alula.engines.onnxruntime import CPU, OnnxRuntime, check_provider

# microsoft/onnxruntime#23372: a GPU was asked for, and the session ran on the CPU without a word.


def test_a_provider_that_is_not_here_is_refused_by_name() -> None:
    with pytest.raises(
        InputError, match=r"has no 'CUDAExecutionProvider' here; it has .*CPUExecutionProvider"
    ):
        OnnxRuntime(provider="CUDAExecutionProvider")


@pytest.mark.parametrize("reported", [(CPU,), (CPU, "CUDAExecutionProvider"), ()])
def test_a_session_that_fell_back_is_refused(reported: tuple[str, ...]) -> None:
    with pytest.raises(EngineError, match=r"^onnxruntime runs on .*, asked for CUDAExecutionProvider$"):
        check_provider("CUDAExecutionProvider", reported)


def test_the_provider_that_runs_is_the_one_asked_for() -> None:
    check_provider(CPU, (CPU,))
    check_provider("CUDAExecutionProvider", ("CUDAExecutionProvider", CPU))


def test_a_precision_it_does_not_offer_is_refused(graph: Graph, plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^engine 'onnxruntime' offers fp32, fp16, .*, not 'bf16'$"):
        OnnxRuntime().compile(dataclasses.replace(graph, precision="bf16"), plan, tmp_path / "engine")


def test_an_engine_holds_no_second_copy_of_the_weights(graph: Graph, plan: Plan, tmp_path: Path) -> None:
    engine = OnnxRuntime().compile(graph, plan, tmp_path / "engine")
    assert sorted(path.name for path in engine.path.iterdir()) == ["engine.json", "layers.json"]
    assert sum(path.stat().st_size for path in engine.path.iterdir()) < 64 * 16 * 4
    graph.path.unlink()
    with pytest.raises(EngineError, match=r"^onnxruntime cannot load .*lookup.onnx"):
        OnnxRuntime().open(engine)
