"""Classifiers whose height and width stay open: one graph, any size, what transformers gives at each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import tiny_images
import torch
import transformers
from numpy.typing import NDArray

from alula.core.errors import InputError
from alula.core.model import ModelSpec
from alula.core.profile import Range
from alula.families import describe, open_checkpoint, write
from alula.graphs import layers, passes_for, rewrite

Floats = NDArray[np.float32]

LIMIT = 2e-5
OPEN = {"height": Range(32, 48, 64), "width": Range(32, 48, 64)}
WITH_PATCHES = ("vit", "dinov2")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def spec_of(folder: Path, asked: Mapping[str, Range] = OPEN) -> ModelSpec:
    return describe(open_checkpoint(str(folder)), asked=asked)


def graph_of(folder: Path, asked: Mapping[str, Range] = OPEN) -> ir.Model:
    return write(open_checkpoint(str(folder)), spec_of(folder, asked), "encoder")


def opened(model: ir.Model) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), options)


def run(session: onnxruntime.InferenceSession, pixels: Floats) -> Floats:
    (logits,) = session.run(["logits"], {"pixel_values": pixels})
    found: Floats = logits
    return found


def images(count: int, height: int, width: int) -> Floats:
    rng = np.random.default_rng(height * 1000 + width)
    return rng.normal(size=(count, 3, height, width)).astype(np.float32)


def told(folder: Path, pixels: Floats) -> Floats:
    """What transformers says, its positions interpolated."""
    model = transformers.AutoModelForImageClassification.from_pretrained(folder).eval()
    options = {"interpolate_pos_encoding": True} if model.config.model_type == "vit" else {}
    with torch.no_grad():
        logits: Floats = model(pixel_values=torch.from_numpy(pixels), **options).logits.numpy()
    return logits


def farthest(found: Floats, expected: Floats) -> float:
    assert found.shape == expected.shape
    return float(np.abs(found - expected).max() / max(1, np.abs(expected).max()))


@pytest.mark.parametrize(
    ("model_type", "settings"),
    [
        ("resnet", {}),
        ("resnet", {"layer_type": "basic", "downsample_in_first_stage": True}),
        ("efficientnet", {}),
        ("efficientnet", {"depthwise_padding": [1], "pooling_type": "max"}),
        ("vit", {}),
        ("vit", {"image_size": 39}),
        ("vit", {"image_size": [32, 36]}),
        ("dinov2", {"image_size": 56}),
    ],
)
def test_one_graph_equals_transformers_at_every_size(
    tmp_path: Path, model_type: str, settings: dict[str, Any]
) -> None:
    """The report huggingface/transformers#33226: positions stayed those of the size that was traced."""
    folder = tiny_images.image_checkpoint(tmp_path, model_type, **settings)
    session = opened(graph_of(folder))
    for height, width in ((32, 32), (32, 48), (64, 40), (45, 67), (16, 24), (100, 20)):
        pixels = images(2, height, width)
        expected = told(folder, pixels)
        assert np.ptp(expected, axis=0).max() > 0.1
        assert farthest(run(session, pixels), expected) <= LIMIT, (height, width)


@pytest.mark.parametrize("fault", ["float32__0.5", "embeddings.position_embeddings", "float32__0.75"])
@pytest.mark.parametrize("model_type", WITH_PATCHES)
def test_other_positions_would_be_noticed(tmp_path: Path, model_type: str, fault: str) -> None:
    """The fault planted: places counted from their corners, no positions at all, another curve between them."""
    folder = tiny_images.image_checkpoint(tmp_path, model_type)
    model = graph_of(folder)
    value = model.graph.initializers[fault]
    assert value.const_value is not None
    value.const_value = ir.tensor(np.zeros_like(value.const_value.numpy()))
    pixels = images(2, 48, 64)
    assert farthest(run(opened(model), pixels), told(folder, pixels)) > 100 * LIMIT


@pytest.mark.parametrize("model_type", WITH_PATCHES)
def test_at_the_size_of_training_positions_are_not_rounded(tmp_path: Path, model_type: str) -> None:
    folder = tiny_images.image_checkpoint(tmp_path, model_type)
    model = graph_of(folder)
    positions = next(node.outputs[0] for node in model.graph if node.name == "embeddings.positions/Reshape")
    positions.dtype = ir.DataType.FLOAT
    model.graph.outputs.append(positions)
    session = opened(model)
    _, found = session.run(None, {"pixel_values": images(1, 32, 32)})
    weights = transformers.AutoModelForImageClassification.from_pretrained(folder).state_dict()
    (name,) = (name for name in weights if name.endswith("position_embeddings"))
    assert (weights[name][0, 1:].numpy() == found.T).all()


@pytest.mark.parametrize("model_type", WITH_PATCHES)
def test_positions_are_neither_rounded_nor_quantised_by_any_precision(
    tmp_path: Path, model_type: str
) -> None:
    folder = tiny_images.image_checkpoint(tmp_path, model_type)
    model = graph_of(folder)
    quantised = layers(model)
    assert "embeddings.patch_embeddings.projection/Conv" in quantised
    assert not [name for name in quantised if name.startswith("embeddings.positions/")]
    for engine, precision in (("openvino", "bf16"), ("onnxruntime", "fp16"), ("tensorrt", "fp16")):
        lowered = rewrite(model, passes_for(engine, precision))
        own = [node for node in lowered.graph if str(node.name).startswith("embeddings.positions/")]
        assert [node.op_type for node in own].count("MatMul") == 2
        halves = {ir.DataType.FLOAT16, ir.DataType.BFLOAT16}
        assert not halves & {value.dtype for node in own for value in (*node.inputs, *node.outputs) if value}
        assert halves & {value.dtype for node in lowered.graph for value in node.outputs}


def test_one_side_alone_may_be_open(tmp_path: Path) -> None:
    folder = tiny_images.image_checkpoint(tmp_path, "vit")
    wide = {"width": OPEN["width"]}
    assert spec_of(folder, wide).parts[0].inputs[0].shape == ("batch", 3, 32, "width")
    session = opened(graph_of(folder, wide))
    for width in (32, 56):
        pixels = images(1, 32, width)
        assert farthest(run(session, pixels), told(folder, pixels)) <= LIMIT


@pytest.mark.parametrize("model_type", tiny_images.SIZES)
def test_sizes_are_open_only_where_they_are_asked_for(tmp_path: Path, model_type: str) -> None:
    folder = tiny_images.image_checkpoint(tmp_path, model_type)
    assert spec_of(folder, {"batch": Range(1, 1, 2)}).parts[0].inputs[0].shape == ("batch", 3, 32, 32)
    assert spec_of(folder).parts[0].inputs[0].shape == ("batch", 3, "height", "width")
    assert spec_of(folder).part("encoder").axes == ("batch", "height", "width")


def test_a_processor_of_another_size_than_that_of_training_is_no_obstacle(tmp_path: Path) -> None:
    folder = tiny_images.image_checkpoint(tmp_path, "vit", image_size=64)
    with pytest.raises(
        InputError, match=r"64 x 64; .* gives 32 x 32, .* unless sizes are asked for with --height"
    ):
        spec_of(folder, {})
    assert spec_of(folder).parts[0].inputs[0].shape == ("batch", 3, "height", "width")


@pytest.mark.parametrize(
    ("model_type", "settings", "least"),
    [
        ("resnet", {}, 1),
        ("vit", {}, 8),
        ("dinov2", {}, 8),
        ("efficientnet", {}, 4),
        ("efficientnet", {"depthwise_padding": [1]}, 2),
        ("efficientnet", {"strides": [2, 2]}, 8),
        ("efficientnet", {"strides": [2, 2], "depthwise_padding": [0]}, 8 - 2),
    ],
)
def test_the_smallest_image_is_what_the_network_leaves_something_of(
    tmp_path: Path, model_type: str, settings: dict[str, Any], least: int
) -> None:
    folder = tiny_images.image_checkpoint(tmp_path, model_type, **settings)
    asked = {"height": Range(least, 64, 64), "width": OPEN["width"]}
    pixels = images(1, least, 32)
    assert farthest(run(opened(graph_of(folder, asked)), pixels), told(folder, pixels)) <= LIMIT
    if least == 1:
        return
    with pytest.raises(RuntimeError):
        told(folder, images(1, least - 1, 32))
    with pytest.raises(
        InputError, match=rf"axis 'height' from {least - 1}; .* takes a height and width from {least} "
    ):
        spec_of(folder, {**asked, "height": Range(least - 1, 64, 64)})


def test_images_that_come_too_small_from_the_processor_are_refused(tmp_path: Path) -> None:
    folder = tiny_images.image_checkpoint(tmp_path, "efficientnet")
    told_size = {"image_processor_type": "ViTImageProcessor", "size": {"height": 3, "width": 32}}
    (folder / "preprocessor_config.json").write_text(json.dumps(told_size))
    with pytest.raises(
        InputError, match=r"images have a height of 3; .* takes a height and width from 4 pixels"
    ):
        spec_of(folder, {})


def test_positions_of_no_square_cannot_be_open(tmp_path: Path) -> None:
    folder = tiny_images.image_checkpoint(tmp_path, "vit", image_size=[16, 64])
    with pytest.raises(
        InputError,
        match=r"config.json.image_size: is 16 x 64; expected a square, since images of several sizes",
    ):
        spec_of(folder)
