"""Graphs on disk: the same bytes every time, weights beside them once large, nothing broken passes as whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from alula.core.errors import InputError
from alula.core.tensor import TensorSpec
from alula.graphs import load, rewrite, save
from alula.graphs.passes.attention import DecomposeAttention

MIB = 1 << 20


def stack(rows: int, columns: int, count: int, *, keep: bool = False) -> ir.Model:
    """A sum of `count` lazy matrices of fp32, each of a single number."""
    weights = []
    for index in range(count):
        tensor = ir.LazyTensor(
            lambda index=index: ir.tensor(np.full((rows, columns), index, np.float32)),  # type: ignore[misc] # bound now
            dtype=ir.DataType.FLOAT,
            shape=ir.Shape([rows, columns]),
            name=f"w{index}",
            cache=keep,
        )
        weights.append(ir.val(f"w{index}", const_value=tensor))
    x = ir.val("x", dtype=ir.DataType.FLOAT, shape=("batch", columns))
    nodes, total = [], x
    for weight in weights:
        nodes.append(ir.node("ReduceMax", [weight], {"keepdims": 0}))
        nodes.append(ir.node("Add", [total, nodes[-1].outputs[0]]))
        total = nodes[-1].outputs[0]
    total.name, total.dtype, total.shape = "y", ir.DataType.FLOAT, ir.Shape(["batch", columns])
    graph = ir.Graph([x], [total], nodes=nodes, initializers=weights, opset_imports={"": 23}, name="stack")
    return ir.Model(graph, ir_version=11)


def files(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in folder.iterdir()}


def test_a_graph_says_what_is_in_the_file(tmp_path: Path) -> None:
    graph = save(stack(4, 3, 2), tmp_path / "g.onnx", "fp32")
    assert graph.path == tmp_path / "g.onnx"
    assert (graph.opset, graph.nodes, graph.precision) == (23, 4, "fp32")
    assert graph.inputs == (TensorSpec(name="x", dtype="float32", shape=("batch", 3)),)
    assert graph.outputs == (TensorSpec(name="y", dtype="float32", shape=("batch", 3)),)


@pytest.mark.parametrize(("rows", "external"), [(1024, False), (8192, True)])
def test_weights_leave_the_file_when_they_are_large(rows: int, *, external: bool, tmp_path: Path) -> None:
    save(stack(rows, 1024, 1), tmp_path / "g.onnx", "fp32")
    assert ("g.onnx.data" in files(tmp_path)) == external
    assert sum(files(tmp_path).values()) == pytest.approx(rows * 4096, rel=0.01)


def test_saving_again_over_a_saved_graph_changes_nothing(tmp_path: Path) -> None:
    """The report onnx/onnx#6655: external data doubled when saved again."""
    path = tmp_path / "g.onnx"
    first = save(stack(8192, 1024, 1), path, "fp32")
    sizes = files(tmp_path)
    assert save(stack(8192, 1024, 1), path, "fp32") == first
    assert save(load(path), path, "fp32") == first
    assert files(tmp_path) == sizes
    (tensor,) = onnx.load(path, load_external_data=False).graph.initializer
    length = next(entry.value for entry in tensor.external_data if entry.key == "length")
    assert sizes["g.onnx.data"] == int(length)


def test_a_smaller_model_in_the_same_place_leaves_no_data_file(tmp_path: Path) -> None:
    save(stack(8192, 1024, 1), tmp_path / "g.onnx", "fp32")
    save(stack(4, 4, 1), tmp_path / "g.onnx", "fp32")
    assert set(files(tmp_path)) == {"g.onnx"}


def test_digest_and_loading_do_not_depend_on_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / "some" / "folder"
    one = save(stack(8192, 1024, 1), deep / "g.onnx", "fp32")
    monkeypatch.chdir(tmp_path)
    other = save(stack(8192, 1024, 1), Path("g.onnx"), "fp32")
    assert one.digest == other.digest
    session = onnxruntime.InferenceSession("some/folder/g.onnx", providers=["CPUExecutionProvider"])
    assert session.run(None, {"x": np.ones((1, 1024), np.float32)})[0][0, 0] == 1.0
    loaded = load(Path("g.onnx"))
    monkeypatch.chdir(deep)
    values = [value.const_value for value in loaded.graph.initializers.values()]
    assert [tensor.numpy().max() for tensor in values if tensor is not None] == [0.0]


def test_the_digest_covers_the_weights(tmp_path: Path) -> None:
    graph = save(stack(8192, 1024, 1), tmp_path / "g.onnx", "fp32")
    data = tmp_path / "g.onnx.data"
    data.write_bytes(data.read_bytes()[:-1] + b"\x01")
    assert save(load(graph.path), tmp_path / "other.onnx", "fp32").digest != graph.digest


def test_a_missing_or_cut_data_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "g.onnx"
    save(stack(8192, 1024, 1), path, "fp32")
    data = tmp_path / "g.onnx.data"
    with data.open("r+b") as stream:
        stream.truncate(1000)
    with pytest.raises(InputError, match=r"g\.onnx\.data is cut short: 1000 bytes, but tensor 'w0' ends at"):
        load(path)
    data.unlink()
    with pytest.raises(InputError, match=r"no data file at .*g\.onnx\.data; tensor 'w0' is in it"):
        load(path)


def test_what_is_no_graph_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "g.onnx"
    with pytest.raises(InputError, match=r"no graph at .*g\.onnx"):
        load(path)
    path.write_bytes(b"\xff" * 100)
    with pytest.raises(InputError, match=r"g\.onnx: not a readable ONNX file"):
        load(path)


def test_a_failure_while_writing_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "g.onnx"
    save(stack(8192, 1024, 1), path, "fp32")
    before = files(tmp_path)
    broken = stack(8192, 1024, 1)

    def fail() -> ir.TensorProtocol:
        raise OSError("the checkpoint went away")

    broken.graph.initializers["w0"].const_value = ir.LazyTensor(
        fail, dtype=ir.DataType.FLOAT, shape=ir.Shape([8192, 1024]), name="w0"
    )
    with pytest.raises(OSError, match="went away"):
        save(broken, path, "fp32")
    assert files(tmp_path) == before
    assert load(path).graph.num_nodes() == 2


def test_an_axis_without_size_or_name_is_refused(tmp_path: Path) -> None:
    model = stack(4, 4, 1)
    model.graph.inputs[0].shape = ir.Shape([None, 4])
    with pytest.raises(InputError, match="x: every axis needs a size or a name"):
        save(model, tmp_path / "g.onnx", "fp32")


MEASURE = """
import resource, sys
from pathlib import Path
sys.path.insert(0, {folder!r})
from test_save import stack
from alula.graphs import rewrite, save
from alula.graphs.passes.attention import DecomposeAttention
model = stack(1024, 1024, 25)
save(rewrite(stack(8, 8, 1), [DecomposeAttention()]), Path({path!r}).with_name("small.onnx"), "fp32")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
save(rewrite(model, [DecomposeAttention()]), Path({path!r}), "fp32")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_saving_holds_one_weight_at_a_time(tmp_path: Path) -> None:
    script = MEASURE.format(folder=str(Path(__file__).parent), path=str(tmp_path / "g.onnx"))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert (tmp_path / "g.onnx.data").stat().st_size == 100 * MIB
    assert int(done.stdout) * 1024 < 40 * MIB


def test_more_than_two_gibibytes_are_written_whole(tmp_path: Path) -> None:
    """The report pytorch/pytorch#19277: an empty file above 2 GiB.

    One tensor of 2.1 GB; its lazy zeros cost no memory until they are written, in pieces.
    """
    rows = 2**29 // 1024 + 1024
    zeros = np.memmap(tmp_path / "zeros", np.float32, "w+", shape=(rows, 1024))
    zeros[-1, -1] = 7
    model = stack(rows, 1024, 1)
    model.graph.initializers["w0"].const_value = ir.LazyTensor(
        lambda: ir.tensor(zeros), dtype=ir.DataType.FLOAT, shape=ir.Shape([rows, 1024]), name="w0"
    )
    graph = save(rewrite(model, [DecomposeAttention()]), tmp_path / "g.onnx", "fp32")
    assert (tmp_path / "g.onnx.data").stat().st_size == rows * 4096 > 2**31
    assert 0 < graph.path.stat().st_size < MIB
    onnx.checker.check_model(graph.path)
    tensor = load(graph.path).graph.initializers["w0"].const_value
    assert tensor is not None
    assert tensor.numpy()[-1, -1] == 7


@pytest.mark.parametrize("rows", [1024, 8192])
def test_weights_that_lie_in_another_file_are_taken_along(rows: int, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    save(stack(8192, 1024, 1), tmp_path / "theirs" / "large.onnx", "fp32")
    model = load(tmp_path / "theirs" / "large.onnx")
    if rows < 8192:
        external = model.graph.initializers["w0"].const_value
        assert isinstance(external, ir.ExternalTensor)
        small = ir.ExternalTensor(
            external.location, external.offset, 4 * rows * 1024, external.dtype, shape=ir.Shape([rows, 1024]),
            name="w0", base_dir=external.base_dir,
        )  # fmt: skip
        model.graph.initializers["w0"].const_value = small
    graph = save(model, tmp_path / "ours" / "g.onnx", "fp32")
    assert sorted(files(graph.path.parent)) == (["g.onnx"] if rows < 8192 else ["g.onnx", "g.onnx.data"])
    (tmp_path / "theirs" / "large.onnx.data").unlink()
    session = onnxruntime.InferenceSession(graph.path, providers=["CPUExecutionProvider"])
    x = np.ones((1, 1024), np.float32)
    assert np.array_equal(session.run(None, {"x": x})[0], x)
