"""Any ONNX file: what is said of it, and the graph of ours that it becomes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from tiny_onnx import (
    FLOAT,
    INT64,
    Array,
    Shape,
    branching,
    model_of,
    node,
    numbers,
    picture_net,
    saved,
    token_net,
    value,
)

from alula import families, graphs
from alula.core.errors import InputError
from alula.core.model import ModelSpec
from alula.families import parse_inputs


def described(model: onnx.ModelProto, to: Path, *inputs: str, task: str | None = None) -> ModelSpec:
    checkpoint = families.open_checkpoint(str(saved(model, to / "m.onnx")))
    return families.describe(checkpoint, task, stated=parse_inputs(inputs))


def taken(spec: ModelSpec) -> list[str]:
    return [str(tensor) for tensor in spec.parts[0].inputs]


def given(spec: ModelSpec) -> list[str]:
    return [str(tensor) for tensor in spec.parts[0].outputs]


def sums_of(*shapes: Shape, made: Shape = ("n",)) -> onnx.ModelProto:
    """A model whose inputs have these shapes; nothing about its output follows from them."""
    names = [f"x{at}" for at in range(len(shapes))]
    flat = [node("Flatten", name, f"{name}f", axis=1) for name in names]
    rows = [node("ReduceSum", f"{name}f one", f"{name}r", keepdims=0) for name in names]
    total = helper.make_node("Sum", [f"{name}r" for name in names], ["y"])
    inputs = [value(name, shape) for name, shape in zip(names, shapes, strict=True)]
    return model_of([*flat, *rows, total], inputs, [value("y", made)], {"one": np.array([1])})


def runs(path: Path, feeds: dict[str, Array]) -> dict[str, Array]:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(path, options)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def same_as_written(model: onnx.ModelProto, to: Path, feeds: dict[str, Array]) -> int:
    """Whether the written graph gives what the file gives, under the same names; the graph's opset."""
    file = saved(model, to / "m.onnx")
    checkpoint = families.open_checkpoint(str(file))
    spec = families.describe(checkpoint)
    graph = graphs.save(families.write(checkpoint, spec, "encoder"), to / "ours.onnx", "fp32")
    expected, found = runs(file, feeds), runs(graph.path, feeds)
    assert list(found) == list(expected) == [tensor.name for tensor in spec.parts[0].outputs]
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-5)
    assert [str(tensor) for tensor in graph.inputs] == [text.partition(":")[0] for text in taken(spec)]
    return graph.opset


def test_a_file_is_what_it_says_itself(tmp_path: Path) -> None:
    spec = described(picture_net(), tmp_path)
    assert (spec.task, spec.family, spec.comes_in, spec.reads_text) == ("tensors", "onnx", "fp32", False)
    assert taken(spec) == ["x=float32[batch,3,h,w]"]
    # What a sigmoid gives lies between 0 and 1, and what is known of the axes is inferred before it is believed.
    assert given(spec) == ["map=float32[batch,1,oh,ow]:0:1", "scores=float32[batch,5]"]
    checkpoint = families.open_checkpoint(str(tmp_path / "m.onnx"))
    assert families.original(checkpoint, spec).outputs == {"map": "map", "scores": "scores"}


def test_integers_that_pick_from_a_table_have_its_range(tmp_path: Path) -> None:
    spec = described(token_net(), tmp_path)
    assert taken(spec) == ["ids=int64[batch,seq]:0:10", "mask=int64[batch,seq]", "flip=bool[]"]
    assert given(spec) == ["vector=float32[batch,6]", "best=int64[batch]"]
    stated = described(token_net(), tmp_path, "ids=int64[batch,seq]:1:3")
    assert taken(stated)[0] == "ids=int64[batch,seq]:1:3"


@pytest.mark.parametrize(
    ("shapes", "names"),
    [
        ([["N", 3]], ["batch,3"]),
        ([["unk__653", 4]], ["batch,4"]),
        ([[None, "time"]], ["batch,time"]),
        ([["?", "?"]], ["batch,x0_1"]),
        ([[-1, "p2o.DynamicDimension.1"]], ["batch,p2o_DynamicDimension_1"]),
        ([["batch_size", "s1"], ["batch_size", "s2"]], ["batch,s1", "batch,s2"]),
        ([["s0", 2], ["s0", 3]], ["batch,2", "batch,3"]),
        # Numbers of a compiler say that these are two axes; a name that says something is kept.
        ([["s0", 2], ["s1", 2]], ["s0,2", "s1,2"]),
        ([["boxes", 4]], ["boxes,4"]),
        # Rows are elsewhere, or not along the first axis of all.
        ([["seq", "batch", 4]], ["seq,batch,4"]),
        ([[5, 4]], ["5,4"]),
        ([["N", 3], ["M", 3]], ["N,3", "M,3"]),
        ([["N", 3], [5, 3]], ["N,3", "5,3"]),
        # No two axes get one name that the file keeps apart.
        ([["boxes", "a.b", "a_b"]], ["boxes,a_b,a_b_2"]),
        ([["boxes", "2 * n", "-"]], ["boxes,axis_2_n,x0_2"]),
    ],
)
def test_axes_are_called_as_in_the_file_and_rows_are_the_batch(
    shapes: list[Shape], names: list[str], tmp_path: Path
) -> None:
    made = ("n", "a", "b") if len(shapes[0] or ()) == 3 else ("n",)
    spec = described(sums_of(*shapes, made=made[:1]), tmp_path)
    assert [text.partition("[")[2].rstrip("]") for text in taken(spec)] == names


def test_what_is_stated_fixes_and_renames_axes_wherever_the_file_uses_them(tmp_path: Path) -> None:
    model = sums_of(["N", "len"], ["N", "len"], ["N", "other"], made=["N"])
    spec = described(model, tmp_path, "x0=float32[rows,16]")
    assert taken(spec) == ["x0=float32[rows,16]", "x1=float32[rows,16]", "x2=float32[rows,other]"]
    assert given(spec) == ["y=float32[rows]"]


def test_two_axes_are_one_when_one_is_stated_by_the_others_name(tmp_path: Path) -> None:
    spec = described(sums_of(["N", "left"], ["N", "right"]), tmp_path, "x1=float32[batch,left]")
    assert taken(spec) == ["x0=float32[batch,left]", "x1=float32[batch,left]"]


def test_an_input_without_a_shape_is_to_be_stated(tmp_path: Path) -> None:
    model = sums_of(["n", 4])
    model.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(
        InputError, match=r"input 'x0' has no shape; state it: --inputs 'x0=float32\[batch,3,height,width\]'"
    ):
        described(model, tmp_path)
    assert taken(described(model, tmp_path, "x0=float32[batch,4]")) == ["x0=float32[batch,4]"]


def test_an_output_whose_axes_nobody_knows_has_names_by_their_place(tmp_path: Path) -> None:
    nodes = [node("NonZero", "x", "where"), node("Transpose", "where", "y", perm=[1, 0])]
    model = model_of(nodes, [value("x", ["n", 3])], [value("y", None, INT64)])
    model.graph.output[0].type.tensor_type.ClearField("shape")
    assert given(described(model, tmp_path)) == ["y=int64[y_0,2]"]


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (
            model_of(
                [
                    helper.make_node("MatMulNBits", ["x"], ["a"], domain="com.microsoft"),
                    helper.make_node("Gelu", ["a"], ["y"], domain="com.microsoft"),
                ],
                [value("x", ["n", 4])],
                [value("y", ["n", 4])],
            ),
            "uses operators that are not ONNX's own: MatMulNBits, Gelu of com.microsoft; export it without them",
        ),
        (
            model_of(
                [node("Identity", "x", "y")],
                [value("x", ["n"], TensorProto.STRING)],
                [value("y", ["n"], TensorProto.STRING)],
            ),
            "input 'x' is string, expected one of: float32, float16",
        ),
        (
            model_of([node("Relu", "w", "y")], [], [value("y", [2])], {"w": numbers(2)}),
            "has no inputs: it gives the same each time",
        ),
        (
            model_of(
                [node("SequenceConstruct", "x", "y")],
                [value("x", ["n"])],
                [helper.make_tensor_sequence_value_info("y", FLOAT, None)],
            ),
            "output 'y' is sequence, expected a tensor",
        ),
    ],
    ids=["foreign operators", "strings", "no inputs", "sequences"],
)
def test_what_cannot_be_a_bundle_is_refused_by_name(
    model: onnx.ModelProto, said: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"m\.onnx") as refused:
        described(model, tmp_path)
    assert said in str(refused.value)


@pytest.mark.parametrize("opset", [6, 25])
def test_opsets_from_7_to_24_are_read(opset: int, tmp_path: Path) -> None:
    model = sums_of(["n", 4])
    model.opset_import[0].version = opset
    with pytest.raises(InputError, match=rf"has opset {opset}; expected 7 to 24"):
        described(model, tmp_path)


def test_pooling_and_other_tasks_are_not_for_files(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"expected one of the tasks detection .*, generic .tensors., not 'reranking'"
    ):
        described(picture_net(), tmp_path, task="reranking")
    assert described(picture_net(), tmp_path, task="tensors").task == "tensors"


def test_inputs_are_stated_of_files_alone(minilm_folder: Path) -> None:
    checkpoint = families.open_checkpoint(str(minilm_folder))
    with pytest.raises(InputError, match=r"--inputs x=float32\[2\]: the inputs of .* are known"):
        families.describe(checkpoint, stated=parse_inputs(["x=float32[2]"]))


@pytest.mark.parametrize("opset", [7, 9, 11, 13, 17, 18, 21, 23, 24])
def test_files_of_every_opset_become_graphs_that_give_the_same(opset: int, tmp_path: Path) -> None:
    feeds = {"x": numbers(2, 3, 16, 24)}
    assert same_as_written(picture_net(opset), tmp_path, feeds) == max(opset, 23)


def test_several_inputs_of_several_types_become_a_graph(tmp_path: Path) -> None:
    feeds = {
        "ids": np.array([[1, 10, 3]]),
        "mask": np.array([[1, 1, 0]]),
        "flip": np.array(True),
    }
    same_as_written(token_net(), tmp_path, feeds)


@pytest.mark.parametrize("yes", [True, False])
def test_branches_are_raised_with_the_rest(yes: bool, tmp_path: Path) -> None:
    same_as_written(branching(), tmp_path, {"x": numbers(3, 1, 4), "yes": np.array(yes)})


def test_functions_of_the_file_are_written_out(tmp_path: Path) -> None:
    double = helper.make_function(
        "mine", "Double", ["a"], ["b"], [node("Add", "a a", "b")], [helper.make_opsetid("", 18)]
    )
    model = model_of(
        [helper.make_node("Double", ["x"], ["y"], domain="mine")],
        [value("x", ["n", 4])],
        [value("y", ["n", 4])],
        opset=18,
    )
    model.functions.append(double)
    model.opset_import.append(helper.make_opsetid("mine", 1))
    same_as_written(model, tmp_path, {"x": numbers(2, 4)})


def test_one_value_under_two_names_keeps_both(tmp_path: Path) -> None:
    nodes = [node("Relu", "x", "a"), node("Identity", "a", "b"), node("Identity", "x", "c")]
    outputs = [value(name, ["n", 4]) for name in "abc"]
    same_as_written(model_of(nodes, [value("x", ["n", 4])], outputs), tmp_path, {"x": numbers(2, 4)})


def test_weights_among_the_inputs_of_an_old_file_are_no_inputs(tmp_path: Path) -> None:
    model = picture_net(7)
    for tensor in model.graph.initializer:
        model.graph.input.append(value(tensor.name, list(tensor.dims)))
    assert taken(described(model, tmp_path)) == ["x=float32[batch,3,h,w]"]
    same_as_written(model, tmp_path, {"x": numbers(1, 3, 8, 8)})


def test_weights_in_a_subfolder_are_found_from_any_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # NVIDIA/TensorRT#4257: looked up in the working folder.
    (tmp_path / "models" / "deep").mkdir(parents=True)
    file = tmp_path / "models" / "deep" / "m.onnx"
    onnx.save(picture_net(), file, save_as_external_data=True, location="m.data", size_threshold=0)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    checkpoint = families.open_checkpoint("../models/deep/m.onnx")
    spec = families.describe(checkpoint)
    written = families.write(checkpoint, spec, "encoder")
    tensors = {str(name): one.const_value for name, one in written.graph.initializers.items()}
    # Read when they are saved, not before: a file may be larger than memory.
    assert isinstance(tensors["kernel"], ir.ExternalTensor)
    graph = graphs.save(written, tmp_path / "ours.onnx", "fp32")
    feeds = {"x": numbers(1, 3, 16, 8)}
    monkeypatch.chdir(tmp_path)
    np.testing.assert_allclose(runs(graph.path, feeds)["map"], runs(file, feeds)["map"], atol=1e-6)
    data = file.with_name("m.data")
    data.write_bytes(data.read_bytes()[:-4])
    with pytest.raises(InputError, match=r"m\.data is cut short: \d+ bytes, but m\.onnx keeps \d+ in it"):
        families.open_checkpoint(str(file))


def doubles() -> onnx.ModelProto:
    nodes = [
        node("MatMul", "x w", "a"),
        node("Cast", "a", "d", to=TensorProto.DOUBLE),
        node("Cast", "d", "y", to=FLOAT),
    ]
    return model_of(nodes, [value("x", ["n", 4])], [value("y", ["n", 4])], {"w": numbers(4, 4)})


def halves() -> onnx.ModelProto:
    half = TensorProto.FLOAT16
    return model_of(
        [node("MatMul", "x w", "y")],
        [value("x", ["n", 4], half)],
        [value("y", ["n", 4], half)],
        {"w": numbers(4, 4).astype(np.float16)},
    )


def eighths() -> onnx.ModelProto:
    nodes = [
        node("QuantizeLinear", "x scale zero", "q"),
        node("DequantizeLinear", "q scale zero", "d"),
        node("MatMul", "d w", "y"),
    ]
    weights = {"w": numbers(4, 4), "scale": np.array(0.1, np.float32), "zero": np.array(3, np.uint8)}
    return model_of(nodes, [value("x", ["n", 4])], [value("y", ["n", 4])], weights)


@pytest.mark.parametrize(
    ("model", "comes_in", "why"),
    [
        (picture_net(), "fp32", ""),
        (eighths(), "int8", "the file computes in int8 itself, and is built as it is"),
        (halves(), "fp16", "the file computes in fp16 itself, and is built as it is"),
        (branching(), "fp32", "the file has branches or loops, which no other precision is written into"),
        (doubles(), "fp32", "'d' in the file is float64, which no other precision is written beside"),
        (
            sums_of(["n", 4]),
            "fp32",
            "the file has none of Attention, Conv, ConvTranspose, Gemm, MatMul, which are what other precisions "
            "compute",
        ),
    ],
    ids=["fp32", "int8", "fp16", "branches", "float64", "no layers"],
)
def test_a_file_that_can_be_built_in_one_way_only_says_why(
    model: onnx.ModelProto, comes_in: str, why: str, tmp_path: Path
) -> None:
    spec = described(model, tmp_path)
    assert spec.comes_in == comes_in
    checkpoint = families.open_checkpoint(str(tmp_path / "m.onnx"))
    assert families.only_as_it_is(checkpoint, spec) == why
