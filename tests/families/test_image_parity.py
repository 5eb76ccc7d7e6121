"""Classifiers of images give what transformers gives, on random small networks and on trained weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
import transformers
from numpy.typing import NDArray
from tiny_images import scatter

from alula.core.errors import InputError
from alula.core.profile import Range
from alula.engines.torch import INTERPOLATE, reference
from alula.families import describe, open_checkpoint, write

Floats = NDArray[np.float32]

LIMIT = 2e-5
RESNET: dict[str, Any] = {"embedding_size": 6, "hidden_sizes": [8, 12, 20], "depths": [2, 1, 2]}
EFFICIENTNET: dict[str, Any] = {
    "width_coefficient": 0.25,
    "depth_coefficient": 1.1,
    "hidden_dim": 320,
    "in_channels": [32, 16, 24],
    "out_channels": [16, 24, 40],
    "kernel_sizes": [3, 5, 3],
    "strides": [1, 2, 2],
    "num_block_repeats": [1, 2, 1],
    "expand_ratios": [1, 6, 4],
}
VIT: dict[str, Any] = {
    **{"hidden_size": 24, "num_attention_heads": 3, "num_hidden_layers": 2, "intermediate_size": 40},
    **{"image_size": 24, "patch_size": 8, "layer_norm_eps": 1e-6},
}
DINOV2: dict[str, Any] = {
    **{"hidden_size": 24, "num_attention_heads": 3, "num_hidden_layers": 2, "mlp_ratio": 2},
    **{"image_size": 35, "patch_size": 7, "layerscale_value": 0.5},
}
BASE = {"resnet": RESNET, "efficientnet": EFFICIENTNET, "vit": VIT, "deit": VIT, "dinov2": DINOV2}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("resnet", {}),
    ("resnet", {"layer_type": "basic"}),
    ("resnet", {"layer_type": "basic", "downsample_in_first_stage": True, "hidden_act": "gelu"}),
    ("resnet", {"downsample_in_bottleneck": True, "hidden_sizes": [6, 8, 8]}),
    ("resnet", {"downsample_in_first_stage": True, "hidden_act": "swish"}),
    ("efficientnet", {}),
    ("efficientnet", {"hidden_act": "relu6", "batch_norm_eps": 0.3}),
    ("efficientnet", {"depthwise_padding": [2, 5], "depth_coefficient": 1.6}),
    ("efficientnet", {"pooling_type": "max", "squeeze_expansion_ratio": 0.01}),
    ("efficientnet", {"width_coefficient": 0.6, "depth_divisor": 4, "hidden_dim": 768}),
]


LOADERS = {
    "classifier": transformers.AutoModelForImageClassification,
    "encoder": transformers.AutoModel,
}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Networks this small lose more time to threads waiting for each other than they win."""
    torch.set_num_threads(1)


def save_processor(folder: Path, height: int, width: int) -> None:
    size = {"height": height, "width": width}
    told = {"image_processor_type": "ViTImageProcessor", "size": size}
    (folder / "preprocessor_config.json").write_text(json.dumps(told))


def make(folder: Path, model_type: str, seed: int = 0, kind: str = "classifier", **changes: Any) -> Any:
    """Save a network with random weights and statistics of batches."""
    values = {"num_labels": 5, "architectures": [], **BASE[model_type], **changes}
    torch.manual_seed(seed)
    config = transformers.AutoConfig.for_model(model_type, **values)
    model = LOADERS[kind].from_config(config)
    scatter(model)
    model.save_pretrained(folder)
    return model.eval()


def images(count: int, height: int, width: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).normal(size=(count, 3, height, width)).astype(np.float32)


def tell_apart(model: Any, pixels: Floats) -> Floats:
    """What transformers says, once that differs from image to image: the same of all would prove little."""
    expected = told(model, pixels)
    assert len(pixels) == 1 or np.ptp(expected, axis=0).min() > 0.01
    return expected


class Written:
    """The graph of a checkpoint, in ONNX Runtime."""

    def __init__(self, folder: Path, opset: int = 23, **asked: Any) -> None:
        checkpoint = open_checkpoint(str(folder))
        self.spec = describe(checkpoint, **asked)
        self.model = write(checkpoint, self.spec, "encoder", opset)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(ir.to_proto(self.model).SerializeToString(), options)

    def run(self, pixels: Floats) -> Floats:
        (output,) = self.session.run(None, {"pixel_values": pixels})
        found: Floats = output
        return found


def told(model: Any, pixels: Floats) -> Floats:
    """What transformers says to the same pixels."""
    with torch.no_grad():
        logits: Floats = model(pixel_values=torch.from_numpy(pixels)).logits.numpy()
    return logits


def farthest(found: NDArray[Any], expected: Floats) -> float:
    assert found.shape == expected.shape
    return float((np.abs(found - expected) / np.maximum(1, np.abs(expected).max())).max())


@pytest.mark.parametrize(("height", "width"), [(64, 64), (67, 45)])
@pytest.mark.parametrize(("model_type", "changes"), CASES)
def test_a_written_graph_equals_transformers(
    tmp_path: Path, model_type: str, changes: dict[str, Any], height: int, width: int
) -> None:
    model = make(tmp_path, model_type, seed=height, **changes)
    save_processor(tmp_path, height, width)
    graph = Written(tmp_path)
    assert (graph.spec.task, graph.spec.reads_text) == ("image-classification", False)
    assert graph.spec.part("encoder").inputs[0].shape == ("batch", 3, height, width)
    for count in (1, 3):
        pixels = images(count, height, width, seed=count)
        assert farthest(graph.run(pixels), tell_apart(model, pixels)) <= LIMIT


@pytest.mark.parametrize(
    ("model_type", "changes", "height", "width"),
    [
        ("vit", {}, 24, 24),
        ("vit", {"image_size": [16, 40], "qkv_bias": False, "hidden_act": "gelu_new"}, 16, 40),
        ("vit", {"image_size": 27, "layer_norm_eps": 0.1}, 27, 27),
        ("deit", {}, 24, 24),
        ("deit", {"image_size": [16, 40]}, 16, 40),
        ("dinov2", {}, 35, 35),
        ("dinov2", {"qkv_bias": False, "mlp_ratio": 3}, 21, 21),
        ("dinov2", {}, 42, 14),
        ("dinov2", {"image_size": 37}, 36, 65),
    ],
)
def test_a_transformer_over_patches_equals_transformers(
    tmp_path: Path, model_type: str, changes: dict[str, Any], height: int, width: int
) -> None:
    """Positions of other sizes than that of training are interpolated as transformers does it."""
    model = make(tmp_path, model_type, seed=height, **changes)
    save_processor(tmp_path, height, width)
    graph = Written(tmp_path)
    for count in (1, 3):
        pixels = images(count, height, width, seed=count)
        assert farthest(graph.run(pixels), tell_apart(model, pixels)) <= LIMIT


def test_the_two_heads_of_a_taught_deit_are_averaged(tmp_path: Path) -> None:
    config = transformers.DeiTConfig(num_labels=5, **VIT)
    model = transformers.DeiTForImageClassificationWithTeacher(config)
    scatter(model)
    model.eval().save_pretrained(tmp_path)
    save_processor(tmp_path, 24, 24)
    pixels = images(3, 24, 24)
    with torch.no_grad():
        heads = model(pixel_values=torch.from_numpy(pixels))
    assert (heads.cls_logits - heads.distillation_logits).abs().max() > 0.1
    assert farthest(Written(tmp_path).run(pixels), tell_apart(model, pixels)) <= LIMIT


ENCODERS: list[tuple[str, dict[str, Any], str, Callable[[Any], Any]]] = [
    ("resnet", {}, "mean", lambda said: said.pooler_output.flatten(1)),
    ("efficientnet", {}, "mean", lambda said: said.pooler_output.flatten(1)),
    ("efficientnet", {"pooling_type": "max"}, "max", lambda said: said.pooler_output.flatten(1)),
    ("vit", {}, "pooler", lambda said: said.pooler_output),
    ("vit", {"pooler_output_size": 7, "pooler_act": "gelu"}, "pooler", lambda said: said.pooler_output),
    ("vit", {}, "cls", lambda said: said.last_hidden_state[:, 0]),
    ("vit", {}, "mean", lambda said: said.last_hidden_state[:, 1:].mean(1)),
    ("deit", {}, "pooler", lambda said: said.pooler_output),
    ("deit", {}, "mean", lambda said: said.last_hidden_state[:, 2:].mean(1)),
    ("deit", {}, "none", lambda said: said.last_hidden_state),
    ("dinov2", {"image_size": 21}, "cls", lambda said: said.pooler_output),
    ("dinov2", {"image_size": 21}, "none", lambda said: said.last_hidden_state),
]


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize(("model_type", "changes", "pooling", "read"), ENCODERS)
def test_an_encoder_gives_the_embedding_of_transformers(
    tmp_path: Path,
    model_type: str,
    changes: dict[str, Any],
    pooling: str,
    read: Callable[[Any], Any],
    opened: bool,
) -> None:
    model = make(tmp_path, model_type, kind="encoder", **changes)
    side = changes.get("image_size", 24)
    save_processor(tmp_path, side, side)
    sizes = {"height": Range(8, 24, 64), "width": Range(8, 24, 64)} if opened else {}
    graph = Written(tmp_path, pooling=pooling, asked=sizes)
    assert (graph.spec.task, graph.spec.pooling) == ("image-embeddings", pooling)
    pixels = images(3, side, 2 * side if opened else side)
    options = {INTERPOLATE: True} if opened and model_type in {"vit", "deit"} else {}
    with torch.no_grad():
        expected: Floats = read(model(pixel_values=torch.from_numpy(pixels), **options)).numpy()
    assert np.ptp(expected, axis=0).max() > 0.1
    assert farthest(graph.run(pixels), expected) <= LIMIT


@pytest.mark.parametrize("pooling", ["pooler", "cls", "mean", "none"])
def test_the_reference_pools_images_as_the_graph_does(tmp_path: Path, pooling: str) -> None:
    make(tmp_path, "deit", kind="encoder")
    save_processor(tmp_path, 24, 24)
    graph, pixels = Written(tmp_path, pooling=pooling), images(2, 24, 24)
    session = reference(tmp_path, graph.spec, threads=1)
    assert farthest(session.run({"pixel_values": pixels})["embedding"], graph.run(pixels)) <= LIMIT


def test_a_classifier_is_an_encoder_where_that_is_asked_for(tmp_path: Path) -> None:
    model = make(tmp_path, "vit")
    save_processor(tmp_path, 24, 24)
    graph, pixels = Written(tmp_path, task="image-embeddings"), images(2, 24, 24)
    with torch.no_grad():
        expected = model.vit(pixel_values=torch.from_numpy(pixels)).last_hidden_state[:, 0].numpy()
    assert farthest(graph.run(pixels), expected) <= LIMIT
    session = reference(tmp_path, graph.spec, threads=1)
    assert farthest(session.run({"pixel_values": pixels})["embedding"], expected) <= LIMIT


def test_the_opset_asked_for_is_the_one_written(tmp_path: Path) -> None:
    make(tmp_path, "efficientnet")
    save_processor(tmp_path, 32, 32)
    graph = Written(tmp_path, opset=24)
    assert graph.model.opset_imports == {"": 24}
    assert np.isfinite(graph.run(images(2, 32, 32))).all()


def test_batch_normalisation_leaves_no_node_and_no_weight_of_its_own(tmp_path: Path) -> None:
    make(tmp_path, "resnet")
    save_processor(tmp_path, 32, 32)
    model = Written(tmp_path).model
    assert {node.op_type for node in model.graph} == {
        *("Add", "Conv", "Flatten", "GlobalAveragePool", "MatMul", "MaxPool", "Relu")
    }
    assert not [name for name in model.graph.initializers if "norm" in name]


@pytest.mark.parametrize(
    ("model_type", "changes", "text"),
    [
        ("resnet", {"depths": [2, 1, 3]}, r"no weight 'resnet.encoder.stages.2.layers.2.layer.0.convol"),
        (
            "resnet",
            {"depths": [2, 1, 1]},
            r"2 layers in resnet.encoder.stages.2.layers.\*, .* 1 \(depths\[2\]\)",
        ),
        ("resnet", {"depths": [2, 1], "hidden_sizes": [8, 12]}, r"3 layers in .*stages.\*, .* 2 \(depths\)"),
        ("efficientnet", {"num_block_repeats": [1, 1, 1]}, r"7 layers in .*blocks.\*, .* 6 \(num_block_rep"),
        ("vit", {"num_hidden_layers": 1}, r"2 layers in vit.encoder.layer.\*, .* 1 \(num_hidden_layers\)"),
        ("deit", {"num_hidden_layers": 1}, r"2 layers in deit.encoder.layer.\*, .* 1 \(num_hidden_layers\)"),
        (
            "dinov2",
            {"num_hidden_layers": 1},
            r"2 layers in dinov2.encoder.layer.\*, .* 1 \(num_hidden_layers\)",
        ),
        ("resnet", {"embedding_size": 7}, r"embedder.convolution.weight is 6 x 3 x 7 x 7, its .* for 7 x 3"),
        ("resnet", {"id2label": {"0": "a"}}, "classifier.1.weight has 5 rows, config.json says 1"),
        ("resnet", {"hidden_act": "softsign"}, "activation 'softsign' is not one of: gelu"),
        (
            "efficientnet",
            {"kernel_sizes": [5, 5, 3]},
            r"depthwise_conv.weight is 8 x 1 x 3 x 3, its .* for 8 x",
        ),
    ],
)
def test_weights_of_another_shape_than_config_json_says_are_refused(
    tmp_path: Path, model_type: str, changes: dict[str, Any], text: str
) -> None:
    make(tmp_path, model_type)
    side = BASE[model_type].get("image_size", 32)
    save_processor(tmp_path, side, side)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(InputError, match=text):
        Written(tmp_path)


@pytest.mark.parametrize("fixture", ["efficientnet_folder", "open_nsfw_folder"])
def test_trained_networks_give_the_logits_of_transformers(
    fixture: str, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(fixture)
    model = transformers.AutoModelForImageClassification.from_pretrained(folder).eval()
    graph = Written(folder)
    assert graph.spec.part("encoder").inputs[0].shape == ("batch", 3, 224, 224)
    pixels = images(3, 224, 224) * (60 if fixture == "open_nsfw_folder" else 1)
    assert farthest(graph.run(pixels), told(model, pixels)) <= LIMIT
