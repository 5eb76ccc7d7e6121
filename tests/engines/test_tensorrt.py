"""TensorRT's compile side, for real on any machine through TensorRT-RTX, and what is decided without it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import encoders
import numpy as np
import onnx
import pytest
import tensorrt_rtx_bindings as trt
from fake_gpu import FULL, ILLEGAL, FakeCudart
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from alula.core.engine import Plan
from alula.core.errors import CompileError, DeviceLostError, EngineError, OutOfMemoryError, RunError
from alula.core.graph import Graph
from alula.core.profile import Profile, Range
from alula.core.tensor import TensorSpec
from alula.engines import backend, traits
from alula.engines.cuda import Buffer, Cuda, Device, view
from alula.engines.tensorrt import targets
from alula.engines.tensorrt.compiling import hold, obey_types, progress, types_of
from alula.engines.tensorrt.job import Job
from alula.engines.tensorrt.refusals import Fault, cure_for, one_line, refusal
from alula.engines.tensorrt.shapes import Bucket, may_grow, of_two, padded
from alula.engines.tensorrt.vendor import features_of, number_of

RTX = "tensorrt-rtx"
H200 = Device(name="NVIDIA H200", capability="9.0", memory_bytes=141 << 30)
L4 = Device(name="NVIDIA L4", capability="8.9", memory_bytes=24 << 30)
PLAN = Plan(profile=encoders.PROFILE)


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    return encoders.write(tmp_path / "encoder.onnx")


def small(path: Path, nodes: list[onnx.NodeProto], *weights: onnx.TensorProto) -> Graph:
    made = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ("batch", 4))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        list(weights),
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    onnx.save(helper.make_model(made, opset_imports=opsets, ir_version=8), path)
    specs = [TensorSpec(name=name, dtype="float32", shape=("batch", 4)) for name in ("x", "y")]
    return Graph(
        path=path,
        digest="d" * 64,
        opset=17,
        nodes=1,
        precision="fp32",
        inputs=(specs[0],),
        outputs=(specs[1],),
    )


def refused(graph: Graph, to: Path, plan: Plan | None = None) -> str:
    with pytest.raises(CompileError) as error:
        backend(RTX).compile(graph, plan or Plan(profile=Profile({"batch": Range(1, 2, 4)})), to)
    assert not to.exists(), "a build that failed left a folder behind"
    return str(error.value)


def test_an_engine_is_compiled_without_a_gpu_and_says_what_for(graph: Graph, tmp_path: Path) -> None:
    notes: list[str] = []
    engine = backend(RTX).compile(graph, PLAN, tmp_path / "engine", note=notes.append)
    assert (tmp_path / "engine" / "engine.plan").stat().st_size > 10_000
    assert engine.target == backend(RTX).target == f"{RTX} {trt.__version__} x86_64 sm_80+"
    record = json.loads((tmp_path / "engine" / "engine.json").read_text())
    assert record["target"] == engine.target
    assert "reads the graph" in notes
    assert notes[-1] == "writes the engine"
    assert any(" of " in note for note in notes), "no progress was told"


def test_opening_one_where_no_gpu_is_says_so_and_falls_back_on_nothing(graph: Graph, tmp_path: Path) -> None:
    # microsoft/onnxruntime#23372: a GPU that was asked for and is not there, and a session on the CPU without a word.
    if not traits(RTX).cannot_run:
        pytest.skip("there is a GPU here that TensorRT-RTX runs on")
    engine = backend(RTX).compile(graph, PLAN, tmp_path / "engine")
    with pytest.raises(EngineError, match=r"there is no CUDA GPU here|does not run on"):
        backend(RTX).open(engine)


def test_several_profiles_compile_into_one_engine(graph: Graph, tmp_path: Path) -> None:
    tuned = tuple(
        Profile({"batch": Range(1, 1, rows), "length": Range(1, 8, length)})
        for rows, length in ((1, 128), (16, 32))
    )
    backend(RTX).compile(graph, replace(PLAN, tuned=tuned, level=1), tmp_path / "engine")
    assert (tmp_path / "engine" / "engine.plan").is_file()


def test_an_operator_it_does_not_know_is_named_with_its_layer_and_a_cure(tmp_path: Path) -> None:
    node = helper.make_node("Fancy", ["x"], ["y"], name="block.3/attention/fancy", domain="own")
    said = refused(small(tmp_path / "g.onnx", [node]), tmp_path / "engine")
    assert "at node 'block.3/attention/fancy' (Fancy) of layer 'block.3/attention'" in said
    assert "build for --target onnxruntime" in said


@pytest.mark.parametrize(
    ("weight", "words"),
    [
        (
            np.ones(3, np.float32),
            "broadcast dimensions must be conformable; the sizes at this node do not fit",
        ),
        (
            np.ones(4, np.float16),
            "must have same input types. But they are of types Float and Half; the types",
        ),
    ],
    ids=["sizes", "types"],
)
def test_sizes_and_types_that_do_not_fit_are_named_by_node(tmp_path: Path, weight: Any, words: str) -> None:
    node = helper.make_node("Add", ["x", "w"], ["y"], name="layer.1/add")
    said = refused(
        small(tmp_path / "g.onnx", [node], numpy_helper.from_array(weight, "w")), tmp_path / "engine"
    )
    assert "at node 'layer.1/add' (Add) of layer 'layer.1'" in said
    assert words in said
    assert "_src" not in said


def test_a_missing_data_file_is_named_with_a_cure(graph: Graph, tmp_path: Path) -> None:
    # NVIDIA/TensorRT#4257: weights beside the file were not found, and nothing said so.
    model = onnx.load(graph.path)
    onnx.save(
        model, tmp_path / "out.onnx", save_as_external_data=True, location="out.data", size_threshold=16
    )
    apart = replace(graph, path=tmp_path / "out.onnx")
    backend(RTX).compile(apart, PLAN, tmp_path / "whole")
    (tmp_path / "out.data").unlink()
    said = refused(apart, tmp_path / "engine", PLAN)
    assert "keep the .onnx file and its .data file together" in said


def test_external_weights_are_found_from_any_working_folder(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVIDIA/TensorRT#4257: they were looked up where the build was started."""
    folder = tmp_path / "models" / "deep"
    folder.mkdir(parents=True)
    onnx.save(
        onnx.load(graph.path),
        folder / "m.onnx",
        save_as_external_data=True,
        location="m.data",
        size_threshold=16,
    )
    monkeypatch.chdir(tmp_path / "models")
    relative = replace(graph, path=Path("deep/m.onnx"))
    assert backend(RTX).compile(relative, PLAN, tmp_path / "engine").path.is_dir()


def test_what_is_no_onnx_file_is_refused(graph: Graph, tmp_path: Path) -> None:
    (tmp_path / "g.onnx").write_bytes(b"\x00\x01nothing" * 9)
    assert "is that an ONNX file?" in refused(
        replace(graph, path=tmp_path / "g.onnx"), tmp_path / "engine", PLAN
    )


def test_a_workspace_too_small_says_which_option_to_raise(graph: Graph, tmp_path: Path) -> None:
    assert "raise --workspace" in refused(graph, tmp_path / "engine", replace(PLAN, workspace_bytes=1))


def test_a_time_limit_ends_the_build_and_the_process(graph: Graph, tmp_path: Path) -> None:
    said = refused(graph, tmp_path / "engine", replace(PLAN, time_limit_s=0.1))
    assert "the time limit of 0.1 s ended the build" in said
    assert not _compiling()


def test_an_interrupt_leaves_no_folder_and_no_process(graph: Graph, tmp_path: Path) -> None:
    def interrupt(note: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        backend(RTX).compile(graph, PLAN, tmp_path / "engine", note=interrupt)
    assert not (tmp_path / "engine").exists()
    assert not _compiling()


def test_a_process_that_dies_is_told_by_its_signal(graph: Graph, tmp_path: Path) -> None:
    def kill(note: str) -> None:
        for pid in _compiling():
            subprocess.run(["kill", "-SEGV", pid], check=True)

    with pytest.raises(CompileError, match="ended with SIGSEGV"):
        backend(RTX).compile(graph, PLAN, tmp_path / "engine", note=kill)


def _compiling() -> list[str]:
    return [
        path.parent.name
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if b"alula.engines.tensorrt.compiling" in _read(path) and _parent(path.parent) == str(_own_pid())
    ]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _parent(process: Path) -> str:
    return next(
        (line.split()[1] for line in _read(process / "status").decode().splitlines() if line[:5] == "PPid:"),
        "",
    )


def _own_pid() -> int:
    return int(Path("/proc/self").resolve().name)


class As86:
    """A layer as the parser of 8.6 shows it: casts and constants know their types, all that is given is float."""

    def __init__(self, layer: Any, kind: str = "") -> None:
        self.type = SimpleNamespace(name=kind or layer.type.name)
        self.num_inputs, self.num_outputs = layer.num_inputs, layer.num_outputs
        self.layer = layer
        self.precision: Any = None
        self.outputs: dict[int, Any] = {}
        if layer.type.name == "CAST":
            self.to_type = layer.get_output(0).dtype
        if layer.type.name == "CONSTANT":
            half = layer.get_output(0).dtype == trt.DataType.HALF
            self.weights = np.ones(1, np.float16 if half else np.float32)

    def get_input(self, at: int) -> Any:
        given = self.layer.get_input(at)
        return None if given is None else self._shown(given)

    def get_output(self, at: int) -> Any:
        return self._shown(self.layer.get_output(at))

    def set_output_type(self, at: int, kind: Any) -> None:
        self.outputs[at] = kind

    def _shown(self, tensor: Any) -> Any:
        kind = trt.DataType.FLOAT if tensor.dtype.name == "HALF" else tensor.dtype
        return SimpleNamespace(name=tensor.name, dtype=kind, is_shape_tensor=tensor.is_shape_tensor)


FLAGS = SimpleNamespace(FP16="fp16", INT8="int8", OBEY_PRECISION_CONSTRAINTS="obey")
MODULE_86 = SimpleNamespace(BuilderFlag=FLAGS, DataType=trt.DataType, ICastLayer=As86, IConstantLayer=As86)


@pytest.fixture
def half_layers(tmp_path: Path) -> Any:
    """The layers of a graph in fp16 with parts in fp32, as TensorRT-RTX reads them: there every type is known."""
    from alula import graphs  # noqa: PLC0415 - for this alone

    encoders.write(tmp_path / "full.onnx")
    model = graphs.rewrite(graphs.load(tmp_path / "full.onnx"), graphs.passes_for("tensorrt", "fp16", 17))
    saved = graphs.save(model, tmp_path / "half.onnx", "fp16")
    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, logger)
    assert parser.parse_from_file(str(saved.path))
    return [network.get_layer(at) for at in range(network.num_layers)]


def test_types_that_8_6_does_not_show_are_found_again(half_layers: list[Any]) -> None:
    found = types_of(MODULE_86, [As86(layer) for layer in half_layers])
    true = {
        layer.get_output(at).name: layer.get_output(at).dtype
        for layer in half_layers
        for at in range(layer.num_outputs)
    }
    assert found == true
    assert {"HALF", "FLOAT"} <= {kind.name for kind in true.values()}


def test_layers_of_8_6_are_held_to_the_types_of_the_graph(half_layers: list[Any]) -> None:
    shown = [As86(layer) for layer in half_layers]
    flags: list[str] = []
    hold(
        SimpleNamespace(set_flag=flags.append),
        FLAGS.OBEY_PRECISION_CONSTRAINTS,
        shown,
        types_of(MODULE_86, shown),
    )
    assert flags == ["obey"]
    held = {layer.layer.name: layer.precision.name for layer in shown if layer.precision is not None}
    products = [kind for name, kind in held.items() if name.endswith("/product")]
    assert products == ["HALF"] * 3
    assert next(kind for name, kind in held.items() if "mean" in name) == "FLOAT"


@pytest.mark.parametrize(
    ("as_if", "expected"),
    [({}, ["fp16"]), ({"SOFTMAX": "UNARY", "NORMALIZATION": "UNARY"}, ["fp16", "obey"])],
    ids=["a transformer is one region, which obeys nothing", "what is none obeys"],
)
def test_what_8_6_is_told_about_types(
    half_layers: list[Any], as_if: dict[str, str], expected: list[str]
) -> None:
    shown = [As86(layer, as_if.get(layer.type.name, "")) for layer in half_layers]
    flags: list[str] = []
    network = SimpleNamespace(num_layers=len(shown), get_layer=shown.__getitem__)
    obey_types(MODULE_86, network, SimpleNamespace(set_flag=flags.append))
    assert flags == expected


def test_a_quantised_network_of_8_6_is_permitted_eight_bits_and_held_to_nothing(
    half_layers: list[Any],
) -> None:
    shown = [As86(layer, "QUANTIZE" if layer.type.name == "UNARY" else "") for layer in half_layers]
    shown.append(As86(half_layers[-1], "QUANTIZE"))
    flags: list[str] = []
    network = SimpleNamespace(num_layers=len(shown), get_layer=shown.__getitem__)
    obey_types(MODULE_86, network, SimpleNamespace(set_flag=flags.append))
    assert flags == ["int8", "fp16"]


@pytest.mark.parametrize(
    ("target", "version", "opset", "typed", "bf16"),
    [
        ("tensorrt", "8.6.1", 17, "layers", False),
        ("tensorrt", "10.0.1", 17, "flag", True),
        ("tensorrt", "10.14.1.48", None, "flag", True),
        ("tensorrt", "11.4.0.106", None, "always", True),
        ("tensorrt-rtx", "1.7.1.116", None, "always", True),
    ],
)
def test_versions_differ_in_one_table(
    target: str, version: str, opset: int | None, typed: str, bf16: bool
) -> None:
    features = features_of(target, number_of(version))
    assert (features.opset, features.typed, features.bf16) == (opset, typed, bf16)


BUILT = "tensorrt 10.3.0 x86_64 sm_90 NVIDIA H200"
PORTABLE = "tensorrt 10.3.0 x86_64 sm_80+"


@pytest.mark.parametrize(
    ("built", "here", "runs"),
    [
        (BUILT, BUILT, True),
        (BUILT, "tensorrt 10.3.1 x86_64 sm_90 NVIDIA H200", False),
        (BUILT, "tensorrt 10.3.0 x86_64 sm_90 NVIDIA H100", False),
        (BUILT, "tensorrt 10.3.0 aarch64 sm_90 NVIDIA H200", False),
        (PORTABLE, BUILT, True),
        (PORTABLE, "tensorrt 10.14.0 x86_64 sm_89 NVIDIA L4", True),
        (PORTABLE, "tensorrt 10.2.0 x86_64 sm_89 NVIDIA L4", False),
        (PORTABLE, "tensorrt 11.0.0 x86_64 sm_89 NVIDIA L4", False),
        (PORTABLE, "tensorrt 10.3.0 x86_64 sm_75 Tesla T4", False),
        ("tensorrt-rtx 1.7.1 x86_64 sm_80+", "tensorrt-rtx 1.7.1 x86_64 sm_80+", True),
        ("tensorrt-rtx 1.7.1 x86_64 sm_80+", "tensorrt-rtx 1.7.2 x86_64 sm_80+", False),
        ("openvino 2026.4.1 x86_64 avx2", BUILT, False),
    ],
)
def test_where_an_engine_runs(built: str, here: str, runs: bool) -> None:
    assert targets.runs_on(built, here) is runs


def test_targets_name_version_processor_capability_and_gpu() -> None:
    assert (
        targets.target("tensorrt", "8.6.0", "x86_64", H200, portable=False)
        == "tensorrt 8.6.0 x86_64 sm_90 NVIDIA H200"
    )
    assert (
        targets.target("tensorrt", "8.6.0", "x86_64", H200, portable=True) == "tensorrt 8.6.0 x86_64 sm_80+"
    )
    assert (
        targets.target("tensorrt", "8.6.0", "x86_64", None, portable=False) == "tensorrt 8.6.0 x86_64 no GPU"
    )


def test_rtx_says_which_gpus_it_does_not_run_on() -> None:
    assert (
        targets.refuses_device(RTX, H200)
        == "TensorRT-RTX does not run on NVIDIA H200 (9.0); use --target tensorrt"
    )
    assert targets.refuses_device(RTX, L4) == ""
    assert targets.refuses_device("tensorrt", H200) == ""


def test_a_job_survives_its_way_to_another_process() -> None:
    job = Job(
        target="tensorrt",
        graph="/g.onnx",
        engine="/e",
        layers="/l",
        profiles=({"x": ((1, 2), (3, 4), (5, 6))}, {"x": ((1, 2), (1, 2), (1, 2))}),
        workspace_bytes=None,
        level=3,
        portable=False,
        strip_weights=True,
        timing_cache=None,
    )
    assert Job.parse(job.to_json()) == job


def test_a_refusal_without_a_node_of_the_parser_finds_it_in_what_was_said() -> None:
    said = refusal("g.onnx", (), ["Node name: 'a/b' has no implementation"], "tensorrt 8.6.0")
    assert said.startswith("tensorrt 8.6.0 cannot compile g.onnx at node 'a/b' of layer 'a': Node name")
    assert refusal("g.onnx", (), (), "t 1") == "t 1 cannot compile g.onnx: TensorRT gave no reason"
    many = refusal("g.onnx", [Fault(text="bad", node="n")] * 3, (), "t 1")
    assert many.endswith("at node 'n': bad; 2 more nodes are refused")


def test_messages_are_one_line_without_places_in_foreign_source() -> None:
    raw = "IBuilder::build: Error Code 4: API Usage Error (bad thing\n In check at /_src/a/b/)"
    assert one_line(raw) == "bad thing"
    assert cure_for("nothing known") == ""
    lean = "6: Unable to load library: libnvinfer_lean.so.8.6.0"
    assert cure_for(lean).startswith(
        "portable engines carry TensorRT's lean runtime: pip install tensorrt-lean"
    )


def test_memory_that_a_workspace_withholds_is_asked_for_by_its_option() -> None:
    assert cure_for("OutOfMemory (Requested size was 46592512 bytes.)").startswith("raise --workspace where")


def test_a_library_that_cannot_be_loaded_is_not_called_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, source in (
        ("broken", "raise ImportError('libnvinfer.so.8: not found')"),
        ("old", "__version__ = '7.2'"),
    ):
        (tmp_path / name / "tensorrt").mkdir(parents=True)
        (tmp_path / name / "tensorrt" / "__init__.py").write_text(source)
    if traits("tensorrt").cannot_compile != "tensorrt is not installed here":
        pytest.skip("TensorRT is installed here")
    monkeypatch.syspath_prepend(tmp_path / "broken")
    said = traits("tensorrt")
    assert said.cannot_run == "tensorrt is installed but cannot be loaded: libnvinfer.so.8: not found"
    monkeypatch.syspath_prepend(tmp_path / "old")
    assert traits("tensorrt").cannot_compile == "TensorRT 7.2 is here; 8.6 is the oldest that works"
    sys.modules.pop("tensorrt", None)


def test_leaving_weights_out_without_a_gpu_is_refused_before_anything_is_read() -> None:
    if not traits(RTX).cannot_run:
        pytest.skip("there is a GPU here that TensorRT-RTX runs on")
    assert (
        traits(RTX).lacks["--strip-weights"]
        == f"{RTX} leaves weights out on a GPU only, and {traits(RTX).cannot_run}"
    )


def test_progress_tells_steps_and_what_is_left() -> None:
    assert progress("Tactics", 20, 80, 1.0) == "Tactics: 20 of 80, 3 s left"
    assert progress("Tactics", 80, 80, 9.0) == "Tactics: 80 of 80"
    assert progress("Tactics", 1, 0, 9.0) == "Tactics: 1 of 0"


BUCKETS = [Bucket((1, 16), 0.8, 0.3), Bucket((1, 64), 1.0, 0.5), Bucket((4, 64), 2.0, 1.5)]
BOTH = (True, True)


def test_a_call_is_padded_where_the_bucket_replayed_is_surely_faster_than_itself_launched() -> None:
    assert padded((1, 20), BUCKETS, BOTH) == (1, 64)
    assert padded((1, 16), BUCKETS, BOTH) == (1, 16)
    assert padded((2, 20), BUCKETS, BOTH) == (2, 20), (
        "1.5 ms replayed is not surely faster than some 0.8 launched"
    )
    assert padded((1, 8), BUCKETS, BOTH) == (1, 8), "nothing smaller was timed, so nothing is sure"
    assert padded((1, 65), BUCKETS, BOTH) == (1, 65)
    assert padded((1, 20), BUCKETS, (True, False)) == (1, 20)


@given(
    st.tuples(st.integers(1, 9), st.integers(1, 90)),
    st.lists(
        st.builds(Bucket, st.tuples(st.integers(1, 9), st.integers(1, 90)), st.floats(0, 9), st.floats(0, 9)),
        max_size=6,
    ),
    st.tuples(st.booleans(), st.booleans()),
)
def test_padding_never_shrinks_and_grows_only_what_may(
    key: tuple[int, int], buckets: list[Bucket], grows: tuple[bool, bool]
) -> None:
    at = padded(key, buckets, grows)
    assert at == key or at in {bucket.key for bucket in buckets}
    assert all(a == b or (may and a > b) for a, b, may in zip(at, key, grows, strict=True))


def test_pixels_are_never_padded_and_tokens_only_with_a_mask() -> None:
    pixels = (TensorSpec(name="pixel_values", dtype="float32", shape=("batch", 3, "height", "width")),)
    assert may_grow(pixels, ("batch", "height", "width")) == (True, False, False)
    ids = TensorSpec(name="input_ids", dtype="int64", shape=("batch", "length"))
    mask = TensorSpec(name="attention_mask", dtype="int64", shape=("batch", "length"))
    assert may_grow((ids, mask), ("batch", "length")) == (True, True)
    assert may_grow((ids,), ("batch", "length")) == (True, False)


def test_a_full_gpu_is_said_with_sizes_and_leaves_cuda_usable() -> None:
    cuda = Cuda(FakeCudart(memory=64 << 20))
    with pytest.raises(OutOfMemoryError, match="GPU out of memory: 100 MiB asked for, 64 MiB of 64 MiB free"):
        cuda.malloc(100 << 20)
    cuda.free(cuda.malloc(1 << 20))


@pytest.mark.parametrize("code", [ILLEGAL, FULL])
def test_only_errors_that_stay_are_remembered(code: Any) -> None:
    binding = FakeCudart()
    cuda = Cuda(binding)
    binding.fails["cudaStreamSynchronize"] = code
    stream = cuda.stream()
    with pytest.raises(RunError):
        cuda.synchronize(stream)
    binding.fails.clear()
    if code is FULL:
        cuda.synchronize(stream)
        return
    with pytest.raises(DeviceLostError, match=r"cudaStreamSynchronize: cudaErrorIllegalAddress .700."):
        cuda.synchronize(stream)


def test_a_failed_capture_ends_the_capture() -> None:
    binding = FakeCudart()
    cuda = Cuda(binding)
    stream = cuda.stream()

    def fail() -> None:
        raise RunError("no")

    with pytest.raises(RunError, match="no"):
        cuda.capture(stream, fail)
    assert binding.captured == {}
    cuda.synchronize(stream)


def test_a_view_beyond_its_buffer_is_refused() -> None:
    with pytest.raises(RunError, match=r"takes 8 bytes, the buffer has 4"):
        view(Buffer(1234, 4), "float32", (2,))


def test_tensorrt_itself_compiles_on_the_gpu_only(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from alula.engines.tensorrt import backend as module  # noqa: PLC0415 - patched below

    found: Callable[[str], str | None] = lambda name: "10.3.0"  # noqa: E731
    monkeypatch.setattr(module, "version_of", found)
    monkeypatch.setattr(module, "devices", tuple)
    tensorrt = module.TensorRt("tensorrt")
    with pytest.raises(
        CompileError, match="compiles on the GPU that is to run the engine; there is no CUDA GPU here"
    ):
        tensorrt.compile(graph, PLAN, tmp_path / "engine")
    with pytest.raises(CompileError, match=r"reads opset 17 at most, .* has 20; build with --opset 17"):
        tensorrt.compile(replace(graph, opset=20), PLAN, tmp_path / "engine")
    monkeypatch.setattr(module, "version_of", lambda name: "8.6.1")
    with pytest.raises(CompileError, match=r"8.6.1 has no bf16; 10 and later have"):
        module.TensorRt("tensorrt").compile(replace(graph, precision="bf16"), PLAN, tmp_path / "engine")
    with pytest.raises(CompileError, match=r"8.6.1 cannot leave weights out of an engine"):
        module.TensorRt("tensorrt").compile(graph, replace(PLAN, strip_weights=True), tmp_path / "engine")


def test_steps_behind_a_source_are_told_as_steps_of_one_or_two() -> None:
    """Where a version gets a T5's wrong; prompts, decoders alone, and models that answer in one call, stay."""
    cache = {"past": Range(64, 64, 128), "source": Range(1, 8, 16)}
    one = {"length": Range(1, 1, 1), "total": Range(65, 65, 129)}
    told = of_two(Profile({**cache, **one}))
    assert told.axes == {**cache, "length": Range(1, 1, 2), "total": Range(65, 65, 130)}
    stay = (
        {**cache, "length": Range(1, 8, 16), "total": Range(65, 72, 144)},
        {"past": Range(64, 64, 128), **one},
        {"batch": Range(1, 1, 8), "length": Range(1, 1, 1)},
    )
    for axes in stay:
        assert of_two(Profile(axes)).axes == axes
    wrong = [
        features_of("tensorrt", (8, 6, 0)),
        features_of("tensorrt", (10, 0)),
        features_of("tensorrt-rtx", (1, 2)),
    ]
    assert [each.one_query_wrong for each in wrong] == [True, False, False]
