"""TensorRT's inspector, read from real documents.

8.6: made on an H200 with TensorRT 8.6.0, shortened to some layers.
10: the convolutional network from NVIDIA's cookbook, which trtexec --exportLayerInfo wrote
(https://github.com/NVIDIA/trt-samples-for-hackathon-cn, cookbook/07-Tool/trtexec/model-trained-exportLayerInfo.log at
379647ea), its two profiles as cookbook/04-Feature/EngineInspector/log-main.py.log at 02ed7b10 shows them in text
(10.16), and a BERT's layers of https://github.com/NVIDIA/TensorRT/issues/4397, in text too.
11: the same convolutional network by 11.0.0, at a7d5daee of the cookbook; what NVIDIA says of the change is at
https://docs.nvidia.com/deeplearning/tensorrt/11.3.0/api/migration/tensorrt-10x-to-11x-IEngineInspector.html.
All are shortened to a few layers, whose fields and values are as they were.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from made import SAMPLES, graph, sample

from alula.core.errors import ManifestError
from alula.fusion import Layer, Report, page, report_of, summary
from alula.fusion.report import by_precision, counts
from alula.fusion.tensorrt import NAMES_ONLY, SCHEMA_10, SCHEMA_11, names_in

# The graph of the cookbook's network, as far as the samples go.
CONVNET = graph(
    "node_conv2d: conv2d = Conv(x, w, b)",
    "node_relu: relu = Relu(conv2d)",
    "node_max_pool2d: max_pool2d = MaxPool(relu)",
    "node_view: view = Reshape(max_pool2d, w)",
    "node_linear: linear = Gemm(view, w, b)",
    "node_relu_2: relu_2 = Relu(linear)",
    "node_linear_1: y = Gemm(relu_2, w, b)",
    "node_softmax: softmax = Softmax(y)",
    "node_argmax: z = ArgMax(softmax)",
)


def by_name(report: Report) -> dict[str, Layer]:
    return {layer.name: layer for layer in report.layers}


def test_the_form_of_10_is_read_with_the_nodes_of_each_layer() -> None:
    report = report_of(sample("tensorrt-10-convnet"), CONVNET)
    assert report.listing.schema == SCHEMA_10
    assert report.listing.inputs == ("x",)
    layers = by_name(report)
    convolution = layers["node_conv2d + node_relu"]
    assert convolution.nodes == ("node_conv2d", "node_relu")
    assert (convolution.kind, convolution.precision, convolution.role) == (
        "CaskConvolution",
        "fp32",
        "compute",
    )
    assert convolution.outputs[0].shape == (1, 32, 28, 28)
    # The reshape before the product is in no layer's words: the product reads what the reshape reads.
    assert layers["node_linear_myl4_0"].nodes == ("node_view", "node_linear", "node_relu_2")
    assert layers["__myl_AddMaxrSubExpSum_myl4_2"].nodes == ("node_linear_1", "node_softmax")
    cast = layers["__myl_CastReshCast_myl4_4"]
    assert (cast.role, cast.inserted) == ("cast", True)
    assert report.removed == ()
    assert counts(report)["split"] == 2
    assert report.attention.verdict == "none"


def test_the_form_of_11_is_read_to_the_same_fusion() -> None:
    report = report_of(sample("tensorrt-11-convnet"), CONVNET)
    assert report.listing.schema == SCHEMA_11
    assert report.listing.inputs == ("x",)
    layers = by_name(report)
    assert layers["node_conv2d_myl0_2"].nodes == ("node_conv2d", "node_relu")
    assert layers["node_linear_myl0_7"].nodes == ("node_linear", "node_relu_2")
    assert layers["__myl_Resh_myl0_6"].nodes == ("node_view",)
    assert layers["__mye1085_myl0_0"].role == "upkeep"
    assert layers["__myl_Move_myl0_1"].role == "reformat"
    assert layers["__myl_CastReshCast_myl0_11"].role == "cast"
    assert layers["__myl_DivMulMaxr_myl0_10"].outputs[0].dtype == "int32"
    # fp32 that the kernel rounds to tf32 is not fp32.
    assert by_precision(report) == {"fp32": 6, "tf32": 1}
    assert report.removed == ()


def test_of_several_profiles_the_first_is_reported_and_the_number_said() -> None:
    report = report_of(sample("tensorrt-10-profiles"))
    assert report.listing.profiles == 2
    assert report.listing.notes == ("the engine has 2 profiles; these are the layers of the first",)
    assert len(report.layers) == 8
    assert not any("profile 1" in layer.name or "myl13" in layer.name for layer in report.layers)
    roles = [layer.role for layer in report.layers]
    assert roles == ["reformat", "compute", "view", "compute", "upkeep", "compute", "compute", "cast"]
    assert by_precision(report) == {"fp16": 4}
    layers_line = dict(summary(report))["layers"]
    assert layers_line.endswith("; 1 reformat, 1 cast")


def test_a_kernel_for_attention_is_known_by_what_it_does_and_by_its_name() -> None:
    block = "/encoder/layers.3/mha/attn"
    nodes = graph(
        f"{block}/MatMul = MatMul(q, k)",
        f"{block}/mha_prob/Div = Div({block}/MatMul, w)",
        f"{block}/mha_prob/Add = Add({block}/mha_prob/Div, mask)",
        f"{block}/mha_prob/Softmax = Softmax({block}/mha_prob/Add)",
        f"{block}/mha_prob/MatMul = MatMul({block}/mha_prob/Softmax, v)",
        inputs="q k v mask",
    )
    found = report_of(sample("tensorrt-10-attention"), nodes).attention
    assert (found.verdict, found.places, found.fused) == ("fused", 1, 1)
    kernel = "_gemm_mha_v2_0x957a2fe283f77dcf35c142c1390a3e6a"
    assert found.evidence == f"both products and the softmax are in one layer, kgen, kernel {kernel}"
    by_kernel = report_of(sample("tensorrt-10-attention")).attention
    assert by_kernel.verdict == "fused"
    assert kernel in by_kernel.evidence


def test_8_6_tells_no_types_where_sizes_are_open_so_weights_and_kernels_do() -> None:
    report = report_of(sample("tensorrt-8.6-resnet"))
    assert report.listing.version == "8.6.0"
    assert by_precision(report) == {"fp32": 8}
    assert [layer.name for layer in report.layers if layer.role == "view"] == [
        "pixel_values/fp16",
        "encoder.stages.3.layers.2/Relu/fp32",
        "Reformatting CopyNode for Input Tensor 0 to classifier.1/MatMul",
    ]
    fused = next(layer for layer in report.layers if "shortcut" in layer.name and layer.role == "compute")
    assert [name.rpartition("/")[2] for name in fused.nodes] == ["Conv", "Add", "Relu"]


def test_a_region_of_8_6_holds_all_that_lies_between_its_ends() -> None:
    nodes = graph(
        "found = Gather(w, input_ids)",
        "mask = Cast(attention_mask)",
        "scores = MatMul(found, found)",
        "masked = Add(scores, mask)",
        "soft = Softmax(masked)",
        "mixed = MatMul(soft, found)",
        "embedding = Div(mixed, b)",
        inputs="input_ids attention_mask token_type_ids",
    )
    report = report_of(sample("tensorrt-8.6-bert"), nodes)
    (region,) = report.layers
    assert region.opaque
    assert len(region.nodes) == 7
    assert counts(report) == {
        "graph": 7,
        "fused": 0,
        "in_regions": 7,
        "alone": 0,
        "split": 0,
        "removed": 0,
    }
    assert report.attention.verdict == "unknown"
    assert report.attention.evidence == "inside a region of 7 nodes that the runtime does not look into"


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("tensorrt-*.json")), ids=lambda path: path.stem)
def test_every_sample_is_read_without_its_graph(path: Path) -> None:
    report = report_of(sample(path.stem))
    assert report.layers
    assert report.nodes is None
    assert "the graph is not at hand" in dict(summary(report))["nodes"]
    # What was removed is not known.
    assert "nodes removed" not in page(report, "t")


@pytest.mark.parametrize(
    ("name", "nodes", "span"),
    [
        ("conv + relu", ("conv", "relu"), None),
        ("conv_1 || conv_2", ("conv_1", "conv_2"), None),
        ("PWN(/act/Sigmoid, /act/Mul)", ("/act/Sigmoid", "/act/Mul"), None),
        ("/Conv + PWN(PWN(/act/Sigmoid), /act/Mul)", ("/Conv", "/act/Sigmoid", "/act/Mul"), None),
        ("weight + (Unnamed Layer* 21) [Shuffle] + MatMul", ("weight", "MatMul"), None),
        ("{ForeignNode[/a/Shape.../z/Tanh]}", ("/a/Shape", "/z/Tanh"), ("/a/Shape", "/z/Tanh")),
        ("{ForeignNode[bert.a + bert.b...bert.z]}", ("bert.a", "bert.b", "bert.z"), ("bert.a", "bert.z")),
        ("Reformatting CopyNode for Input Tensor 0 to conv + relu", (), None),
        ("node_linear [profile 1]_myl13_2", ("node_linear",), None),
        ("__myl_MaxrSubExpSum_myl4_2", (), None),
        ("(Unnamed Layer* 52) [Shuffle]", (), None),
    ],
)
def test_names_that_tensorrt_joined_are_taken_apart(
    name: str, nodes: tuple[str, ...], span: tuple[str, str] | None
) -> None:
    assert names_in(name) == (nodes, span)


def test_metadata_is_taken_at_its_word_with_either_separator_and_inner_graphs_cut() -> None:
    inner = "[ONNX Layer: Gather_27 | sub_graph1 (then_branch) | If_26 (If)]"
    for joined in (
        f"[ONNX Layer: a[0]]\x1e{inner}",
        f"[ONNX Layer: a[0]]\x1f{inner}",
        f"[ONNX Layer: a[0]]{inner}",
    ):
        raw = {
            "Name": "__myl_Foo_myl0_1",
            "LayerType": "kgen",
            "Outputs": [{"Name": "y"}],
            "Metadata": joined,
        }
        (layer,) = report_of({"Layers": [raw]}).layers
        assert layer.nodes == ("a[0]", "Gather_27")


def test_a_document_of_names_alone_says_how_to_get_more() -> None:
    report = report_of({"Layers": ["conv + relu", "pool"], "Bindings": ["x", "y"]})
    assert report.listing.notes == (NAMES_ONLY,)
    assert [layer.nodes for layer in report.layers] == [("conv", "relu"), ("pool",)]


def test_reformats_that_cast_and_quantise_are_told_apart() -> None:
    def layer(origin: str) -> dict[str, object]:
        ends = {"Inputs": [{"Name": "x"}], "Outputs": [{"Name": "y"}]}
        return {"Name": origin, "LayerType": "Reformat", "Origin": origin, **ends}

    report = report_of({"Layers": [layer("REFORMAT"), layer("CAST"), layer("QDQ")]})
    assert [each.role for each in report.layers] == ["reformat", "cast", "quantize"]


@pytest.mark.parametrize(
    ("kernel", "precision"),
    [
        ("sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize32x32x64", "fp16"),
        ("sm80_xmma_fprop_implicit_gemm_indexed_f32f32_tf32f32_f32_nhwckrsc", "tf32"),
        ("sm80_xmma_fprop_implicit_gemm_interleaved_i8i8_i8i32_f32_nchw_vect_c_32", "int8"),
        ("sm50_xmma_pooling_tiled_FP32NCHW_kMAX_tP4", "fp32"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n", "bf16"),
        ("", ""),
    ],
)
def test_a_kernels_name_says_the_precision_where_nothing_else_does(kernel: str, precision: str) -> None:
    raw = {"Name": "a", "LayerType": "gemm", "Outputs": [{"Name": "y"}], "TacticName": kernel}
    assert report_of({"Layers": [raw]}).layers[0].precision == precision


def test_integers_that_are_read_are_the_precision_whatever_is_given() -> None:
    ends = {"Inputs": [tensor("Row major Int8 format")], "Outputs": [tensor("Row major linear FP32")]}
    (read,) = report_of({"Layers": [{"Name": "a", "LayerType": "CaskConvolution", **ends}]}).layers
    assert read.precision == "int8"
    assert [value.dtype for value in (*read.inputs, *read.outputs)] == ["int8", "fp32"]


def tensor(described: str) -> dict[str, object]:
    return {"Name": described, "Dimensions": [1], "Format/Datatype": described}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"Layers": [7]}, r"^Layers\[0\]: is neither a name nor an object$"),
        ({"Layers": ["a", {"LayerType": "gemm"}]}, r"^Layers\[1\].Name: is missing$"),
        ({"source": "tensorrt", "version": "11", "layers": {"Layers": "x"}}, r"^layers.Layers: is str"),
        ({"source": "tvm", "version": "1", "layers": []}, r"^source: is 'tvm', expected one of: tensorrt"),
        (
            {"version": "1"},
            r"^lists no layers; expected a bundle's layers.json, or what TensorRT's inspector or",
        ),
        ({"Layers": []}, r"^Layers: is empty: the engine has no layers$"),
        ({"Layers": ["a"], "times": [{"name": "a"}]}, r"^times\[0\].timeMs: is missing$"),
        (
            {"Layers": ["a"], "times": [{"name": "b", "timeMs": 1.0}]},
            r"^times: none of these 1 is of a layer here$",
        ),
        ({"Layers": ["a"], "times": ["a"]}, r"^times\[0\]: is not an object$"),
    ],
)
def test_what_is_no_such_document_is_refused_with_the_place(
    document: dict[str, object], message: str
) -> None:
    with pytest.raises(ManifestError, match=message):
        report_of(document)
