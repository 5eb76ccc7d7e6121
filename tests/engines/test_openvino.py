from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from onnx import helper

from alula.core.engine import Engine, Plan
from alula.core.errors import EngineError, RunError, ShapeError
from alula.core.graph import Graph
from alula.core.profile import Profile, Range
from alula.engines.openvino import FILE, OpenVino, check_hint, settings
from alula.graphs import save


@pytest.fixture
def engine(graph: Graph, plan: Plan, tmp_path: Path) -> Engine:
    return OpenVino().compile(graph, plan, tmp_path / "engine")


def test_the_graphs_own_types_are_always_obeyed() -> None:
    assert settings(threads=2)["INFERENCE_PRECISION_HINT"] == "f32"


def test_a_model_that_took_another_hint_is_refused() -> None:
    check_hint("f32")
    with pytest.raises(EngineError, match=r"^openvino runs with precision hint bf16, asked for f32$"):
        check_hint("bf16")


def test_an_engine_opens_without_its_graph(engine: Engine) -> None:
    engine.graph.path.unlink()
    session = OpenVino().open(engine, threads=1)
    assert session.run({"input_ids": np.array([[2]], np.int64)})["hidden"][0, 0, 0] == 32
    session.close()


def test_calls_in_lanes_give_what_each_gives_alone(engine: Engine) -> None:
    calls = [{"input_ids": np.full((1, 1 + at % 3), at % 5, np.int64)} for at in range(40)]
    with closing(OpenVino().open(engine, threads=1)) as session:
        expected = [session.run(call)["hidden"] for call in calls]
    with closing(OpenVino().open_lanes(engine, threads=2)) as session, ThreadPoolExecutor(2) as pool:
        assert session.lanes == 2
        for found, alone in zip(pool.map(session.run, calls), expected, strict=True):
            assert np.array_equal(found["hidden"], alone)


@pytest.mark.parametrize(("asked", "lanes"), [(0, 2), (1, 1), (2, 2), (9, 2)])
def test_there_are_as_many_lanes_as_are_asked_for_and_no_more_than_threads(
    engine: Engine, asked: int, lanes: int
) -> None:
    with closing(OpenVino().open_lanes(engine, threads=2, lanes=asked)) as session:
        assert session.lanes == lanes


# NVIDIA/TensorRT#2072 and #2177 again: a file cut short is named before the runtime reads it.


@pytest.mark.parametrize("keep", [0, 1, 1000, -1])
def test_a_blob_cut_short_is_refused(engine: Engine, keep: int) -> None:
    path = engine.path / FILE
    whole = path.read_bytes()
    path.write_bytes(whole[:keep])
    size = len(whole[:keep])
    with pytest.raises(EngineError) as refused:
        OpenVino().open(engine)
    assert str(refused.value) == (
        f"{path} has {size} bytes, was written with {len(whole)}; build the engine again"
    )


def test_a_missing_blob_is_refused(engine: Engine) -> None:
    (engine.path / FILE).unlink()
    with pytest.raises(EngineError, match=f"{FILE} is missing; build the engine again$"):
        OpenVino().open(engine)


def test_a_blob_of_noise_is_an_error_and_no_crash(engine: Engine) -> None:
    path = engine.path / FILE
    path.write_bytes(np.random.default_rng(0).bytes(path.stat().st_size))
    with pytest.raises(EngineError, match=r"^openvino cannot load .*; build the engine again$"):
        OpenVino().open(engine)


def test_running_leaves_the_blob_as_it_was(engine: Engine) -> None:
    before = (engine.path / FILE).read_bytes()
    session = OpenVino().open(engine, threads=1)
    for length in range(1, 9):
        session.run({"input_ids": np.full((4, length), length, np.int64)})
    session.close()
    assert (engine.path / FILE).read_bytes() == before


def test_sizes_that_the_network_does_not_take_give_nobody_anothers_answer(tmp_path: Path) -> None:
    """Half as large and twice again is not what it was for odd sizes, where OpenVINO leaves the last call's outputs."""
    x, y = (helper.make_tensor_value_info(name, 1, ["batch", 1, "height", 4]) for name in "xy")
    nodes = [
        helper.make_node("MaxPool", ["x"], ["half"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Resize", ["half", "", "scales"], ["whole"], mode="nearest"),
        helper.make_node("Add", ["x", "whole"], ["y"]),
    ]
    scales = helper.make_tensor("scales", 1, [4], [1, 1, 2, 2])
    proto = helper.make_model(
        helper.make_graph(nodes, "odd", [x], [y], [scales]), opset_imports=[helper.make_opsetid("", 17)]
    )
    graph = save(ir.from_proto(proto), tmp_path / "odd.onnx", "fp32")
    plan = Plan(profile=Profile({"batch": Range(1, 1, 4), "height": Range(2, 8, 16)}))
    made = OpenVino().compile(graph, plan, tmp_path / "engine")
    with closing(OpenVino().open_lanes(made, threads=2, lanes=2)) as session:
        even = {"x": np.random.default_rng(0).random((2, 1, 8, 4)).astype(np.float32)}
        wanted = session.run(even)["y"]
        for height in (5, 7, 9):
            with pytest.raises((ShapeError, RunError)):
                session.run({"x": np.zeros((2, 1, height, 4), np.float32)})
            for _ in range(4):
                np.testing.assert_array_equal(session.run(even)["y"], wanted)


def test_sizes_that_do_not_fit_one_another_are_the_callers_fault_and_told_with_those_that_do(
    tmp_path: Path,
) -> None:
    left, right = (helper.make_tensor_value_info(name, 1, ["batch", name]) for name in ("left", "right"))
    out = helper.make_tensor_value_info("out", 1, ["batch", "left"])
    proto = helper.make_model(
        helper.make_graph([helper.make_node("Add", ["left", "right"], ["out"])], "add", [left, right], [out]),
        opset_imports=[helper.make_opsetid("", 17)],
    )
    graph = save(ir.from_proto(proto), tmp_path / "add.onnx", "fp32")
    plan = Plan(profile=Profile({axis: Range(2, 4, 16) for axis in ("batch", "left", "right")}))
    made = OpenVino().compile(graph, plan, tmp_path / "engine")
    with closing(OpenVino().open(made)) as session:
        ones = np.ones((2, 5), np.float32)
        with pytest.raises(
            ShapeError,
            match=r"does not take batch 2, left 5, right 3.*fit one another as in batch 4, left 4, right 4",
        ):
            session.run({"left": ones, "right": ones[:, :3]})
        np.testing.assert_array_equal(session.run({"left": ones, "right": ones})["out"], ones * 2)
