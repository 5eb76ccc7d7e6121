from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import packaged
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from alula import families, graphs
from alula.core.engine import Plan
from alula.core.errors import InputError
from alula.core.graph import Graph
from alula.core.profile import Profile, Range
from alula.engines import backend
from alula.families.onnx_file import HEIGHT

Pixels = NDArray[np.float32]

CHANNELS, CHARACTERS = 8, "0123456789."
PROFILE = Profile({"batch": Range(1, 2, 4), "width": Range(32, 64, 640)})


def nodes_of() -> list[onnx.NodeProto]:
    """A convolution and its norm, the height averaged away, a product, a softmax; as old exporters write it."""
    return [
        helper.make_node("Conv", ["x", "kernel"], ["wide"], kernel_shape=[HEIGHT, 4], strides=[1, 4]),
        helper.make_node("BatchNormalization", ["wide", "gamma", "beta", "mean", "variance"], ["even"]),
        helper.make_node("Squeeze", ["even"], ["flat"], axes=[2]),
        helper.make_node("Identity", ["flat"], ["same"]),
        helper.make_node("Transpose", ["same"], ["steps"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["steps", "matrix"], ["probabilities"]),
        helper.make_node("Softmax", ["probabilities"], ["softmax_0"], axis=2),
    ]


def weights_of(classes: int) -> dict[str, Pixels]:
    rng = np.random.default_rng(0)
    vectors = {name: rng.uniform(0.5, 1.5, CHANNELS) for name in ("gamma", "beta", "mean", "variance")}
    arrays = {
        "kernel": rng.normal(size=(CHANNELS, 3, HEIGHT, 4)) / 10,
        "matrix": rng.normal(size=(CHANNELS, classes)),
        **vectors,
    }
    return {name: array.astype(np.float32) for name, array in arrays.items()}


def model_of(
    characters: Iterable[str] = CHARACTERS,
    classes: int = len(CHARACTERS) + 2,
    taken: tuple[int | str, ...] = ("n", 3, "?", "w"),
    given: tuple[int | str, ...] | None = None,
    opset: int = 11,
) -> onnx.ModelProto:
    constants = [
        helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array, name))
        for name, array in weights_of(classes).items()
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, taken)
    y = helper.make_tensor_value_info("softmax_0", TensorProto.FLOAT, given or ("n", "t", classes))
    graph = helper.make_graph([*constants, *nodes_of()], "old", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=6)
    if characters:
        helper.set_model_props(model, {"character": "\n".join(characters)})
    return model


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "lines.onnx"
    onnx.save(model_of(), path)
    return path


def written(file: Path, to: Path) -> Graph:
    checkpoint = families.open_checkpoint(str(file))
    model = families.write(checkpoint, families.describe(checkpoint), "encoder")
    return graphs.save(model, to / "encoder.onnx", "fp32")


def runs(file: Path, pixels: Pixels) -> Pixels:
    """What ONNX Runtime makes of the file as it came."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    (output,) = ort.InferenceSession(file, options).run(None, {"x": pixels})
    probabilities: Pixels = output
    return probabilities


def test_a_file_is_described_from_itself(file: Path) -> None:
    checkpoint = families.open_checkpoint(str(file))
    assert (checkpoint.name, checkpoint.revision, checkpoint.root) == ("lines", "local", file)
    spec = families.describe(checkpoint)
    assert (spec.task, spec.family, spec.reads_text) == ("text-recognition", "onnx", False)
    assert spec.labels == ("", *CHARACTERS, " ")
    ((taken,), (given,)) = spec.parts[0].inputs, spec.parts[0].outputs
    assert (taken.name, taken.dtype, taken.shape) == ("x", "float32", ("batch", 3, 48, "width"))
    assert (given.name, given.shape) == ("probabilities", ("batch", "steps", 13))
    assert spec.parts[0].axes == ("batch", "width")
    original = families.original(checkpoint, spec)
    assert (original.path, original.outputs) == (file, {"probabilities": "softmax_0"})


def test_a_folder_with_one_file_is_that_file_whatever_it_is_called(file: Path) -> None:
    digest = families.open_checkpoint(str(file)).digest
    moved = file.rename(file.parent / "model.onnx")
    folder = families.open_checkpoint(str(file.parent))
    assert (folder.root, folder.name, folder.digest) == (moved, file.parent.name, digest)
    onnx.save(model_of(), file.parent / "another.onnx")
    with pytest.raises(
        InputError, match=r"has 2 ONNX files \(another\.onnx, model\.onnx\); name one of them"
    ):
        families.open_checkpoint(str(file.parent))


def test_a_file_has_no_revision(file: Path) -> None:
    with pytest.raises(InputError, match="is a local file, which has no revision 'v2'"):
        families.open_checkpoint(str(file), "v2")


def test_weights_beside_the_file_belong_to_its_digest(tmp_path: Path) -> None:
    file, data = tmp_path / "lines.onnx", tmp_path / "lines.data"
    onnx.save(
        model_of(),
        file,
        save_as_external_data=True,
        location=data.name,
        size_threshold=0,
        convert_attribute=True,
    )
    digest = families.open_checkpoint(str(file)).digest
    whole = data.read_bytes()
    data.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert families.open_checkpoint(str(file)).digest != digest
    data.write_bytes(whole[:-1])
    with pytest.raises(
        InputError, match=rf"lines\.data is cut short: {len(whole) - 1} bytes, but lines\.onnx"
    ):
        families.open_checkpoint(str(file))
    data.unlink()
    with pytest.raises(
        InputError, match=r"no data file at .*lines\.data, in which lines\.onnx keeps weights"
    ):
        families.open_checkpoint(str(file))


def test_weights_outside_the_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    file = tmp_path / "in" / "lines.onnx"
    onnx.save(
        model_of(), file, save_as_external_data=True, location="d", size_threshold=0, convert_attribute=True
    )
    (tmp_path / "in" / "d").rename(tmp_path / "d")
    (tmp_path / "in" / "d").symlink_to(tmp_path / "d")
    with pytest.raises(InputError, match="its data file 'd' lies outside its folder"):
        families.open_checkpoint(str(file))


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (
            model_of(characters=()),
            r"there is no metadata 'character' \(it has inputs x FLOAT \[n,3,\?,w\]; outputs ",
        ),
        (model_of(classes=12, characters="01"), "2 characters do not make 12 classes"),
        (model_of(taken=("n", 1, 48, "w")), "the input is no batch of lines"),
        (model_of(taken=(1, 3, 48, "w")), "the input is no batch of lines"),
        (model_of(taken=("n", 3, 48, 320)), "the input is no batch of lines"),
        (model_of(given=("n", "t", "c")), "the output is no classes for each step"),
    ],
)
def test_another_model_is_refused_by_what_it_is(tmp_path: Path, model: onnx.ModelProto, reason: str) -> None:
    file = tmp_path / "m.onnx"
    onnx.save(model, file)
    with pytest.raises(InputError, match=f"m.onnx: {reason}") as refused:
        families.describe(families.open_checkpoint(str(file)), "text-recognition")
    assert "a text recogniser has metadata 'character'" in str(refused.value)
    assert str(refused.value).endswith("or with --task tensors, its outputs are compared as they are")
    assert "metadata " in str(refused.value).partition("it has")[2]


def test_an_output_that_is_no_softmax_is_refused(tmp_path: Path) -> None:
    file, model = tmp_path / "m.onnx", model_of()
    model.graph.node[-1].op_type = "Relu"
    del model.graph.node[-1].attribute[:]
    onnx.save(model, file)
    with pytest.raises(InputError, match="the output comes from Relu"):
        families.describe(families.open_checkpoint(str(file)), "text-recognition")


def test_a_file_that_is_no_onnx_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "m.onnx"
    file.write_bytes(b"not protobuf at all")
    with pytest.raises(InputError, match=r"m\.onnx: not a readable ONNX file: "):
        families.open_checkpoint(str(file))
    file.write_bytes(b"")
    with pytest.raises(InputError, match=r"m\.onnx: names no opset of ONNX; it is empty, or no ONNX file"):
        families.describe(families.open_checkpoint(str(file)))


def test_another_task_and_pooling_are_refused(file: Path) -> None:
    checkpoint = families.open_checkpoint(str(file))
    with pytest.raises(
        InputError, match=r"is an ONNX file; expected one of the tasks detection .*, not 'embeddings'"
    ):
        families.describe(checkpoint, "embeddings")
    with pytest.raises(InputError, match="pooling 'mean' is for embeddings"):
        families.describe(checkpoint, pooling="mean")


@pytest.mark.parametrize("opset", [11, 12])
def test_an_old_file_becomes_a_graph_of_ours(tmp_path: Path, opset: int) -> None:
    file = tmp_path / "lines.onnx"
    onnx.save(model_of(opset=opset), file)
    graph = written(file, tmp_path)
    assert graph.opset == 23
    assert [(spec.name, spec.shape) for spec in graph.inputs] == [("x", ("batch", 3, 48, "width"))]
    assert [(s.name, s.shape) for s in graph.outputs] == [("probabilities", ("batch", "steps", 13))]
    model = graphs.load(graph.path)
    names = [node.name for node in model.graph]
    assert all(names)
    assert len(set(names)) == len(names)
    kinds = [node.op_type for node in model.graph]
    assert set(kinds).isdisjoint({"Constant", "Identity", "Flatten"})
    assert kinds[-1] == "Softmax"
    # Passes and calibration go by ranks.
    assert all(value.shape is not None for node in model.graph for value in node.outputs)
    assert not model.metadata_props
    pixels = np.random.default_rng(1).uniform(-1, 1, (3, 3, HEIGHT, 64)).astype(np.float32)
    assert runs(graph.path, pixels) == pytest.approx(runs(file, pixels), abs=1e-6)


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_the_real_recogniser_gives_what_its_file_gives(tmp_path: Path, engine: str) -> None:
    file = packaged.recogniser()
    checkpoint = families.open_checkpoint(str(file))
    spec = families.describe(checkpoint)
    assert len(spec.labels) == 6625
    model = graphs.rewrite(families.write(checkpoint, spec, "encoder"), graphs.passes_for(engine, "fp32"))
    graph = graphs.save(model, tmp_path / "encoder.onnx", "fp32")
    compiled = backend(engine).compile(graph, Plan(profile=PROFILE), tmp_path / "engine")
    rng = np.random.default_rng(2)
    with closing(backend(engine).open(compiled)) as session:
        for rows, width in ((1, 32), (4, 64), (2, 321), (1, 640)):
            pixels = rng.uniform(-1, 1, (rows, 3, HEIGHT, width)).astype(np.float32)
            given = np.asarray(session.run({"x": pixels})["probabilities"], np.float32)
            expected = runs(file, pixels)
            assert given.shape == expected.shape
            # Measured: 1e-6 in ONNX Runtime, 6e-6 in OpenVINO.
            assert np.abs(given - expected).max() < 3e-5
