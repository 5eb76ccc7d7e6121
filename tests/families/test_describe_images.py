"""What a checkpoint of a classifier of images is described as, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from alula.core.errors import InputError
from alula.core.model import ModelSpec
from alula.families import describe, open_checkpoint, write

RESNET = {
    "model_type": "resnet",
    "architectures": ["ResNetForImageClassification"],
    "id2label": {"0": "cat", "1": "dog"},
}
EFFICIENTNET = {
    "model_type": "efficientnet",
    "architectures": ["EfficientNetForImageClassification"],
    "id2label": {"0": "cat", "1": "dog"},
}
VIT = {
    "model_type": "vit",
    "architectures": ["ViTForImageClassification"],
    "image_size": [48, 32],
    "id2label": {"0": "cat", "1": "dog"},
}
DINOV2 = {**VIT, "model_type": "dinov2", "architectures": ["Dinov2ForImageClassification"], "image_size": 518}
SQUARE = {"image_processor_type": "ViTImageProcessor", "size": {"height": 48, "width": 32}}
Told = Callable[..., ModelSpec]


@pytest.fixture
def told(tmp_path: Path) -> Told:
    """Describe a checkpoint of these settings, with the head alone for weights."""

    def make(config: dict[str, Any], processor: dict[str, Any] | None = SQUARE, **asked: str) -> ModelSpec:
        heads = ("classifier.weight", "classifier.1.weight")
        save_file({name: np.zeros((2, 8), np.float32) for name in heads}, tmp_path / "model.safetensors")
        (tmp_path / "config.json").write_text(json.dumps(config))
        if processor is not None:
            (tmp_path / "preprocessor_config.json").write_text(json.dumps(processor))
        return describe(open_checkpoint(str(tmp_path)), asked.get("task"), asked.get("pooling"))

    return make


@pytest.mark.parametrize("config", [RESNET, EFFICIENTNET, VIT, DINOV2])
def test_a_classifier_of_images_takes_pixels_and_gives_a_logit_per_label(
    told: Told, config: dict[str, Any]
) -> None:
    spec = told(config)
    assert (spec.family, spec.task) == (config["model_type"], "image-classification")
    assert (spec.labels, spec.activation) == (("cat", "dog"), "softmax")
    assert (spec.max_length, spec.vocab_size, spec.reads_text) == (0, 0, False)
    (pixels,), (logits,) = spec.parts[0].inputs, spec.parts[0].outputs
    assert (pixels.name, pixels.dtype, pixels.shape) == ("pixel_values", "float32", ("batch", 3, 48, 32))
    assert (logits.name, logits.dtype, logits.shape) == ("logits", "float32", ("batch", 2))
    assert told(config, task="image-classification") == spec


def test_several_labels_at_once_are_scored_each_for_itself(told: Told) -> None:
    assert told({**RESNET, "problem_type": "multi_label_classification"}).activation == "sigmoid"


@pytest.mark.parametrize(
    ("processor", "height", "width"),
    [
        ({"image_processor_type": "ViTImageProcessorFast", "size": 40}, 40, 40),
        ({"feature_extractor_type": "ConvNextFeatureExtractor", "size": 224, "crop_pct": 0.875}, 224, 224),
        ({"size": {"shortest_edge": 384}}, 384, 384),
        (
            {
                "image_processor_type": "BitImageProcessor",
                "size": {"shortest_edge": 256},
                "crop_size": {"height": 224, "width": 200},
            },
            *(224, 200),
        ),
        (
            {
                "image_processor_type": "EfficientNetImageProcessor",
                "size": {"height": 346, "width": 346},
                "crop_size": {"height": 289, "width": 289},
                "do_center_crop": False,
            },
            *(346, 346),
        ),
    ],
)
def test_the_image_processor_names_the_size(
    told: Told, processor: dict[str, Any], height: int, width: int
) -> None:
    assert told(RESNET, processor).parts[0].inputs[0].shape == ("batch", 3, height, width)


BIT = {"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 256}}


@pytest.mark.parametrize(
    ("processor", "text"),
    [
        (None, r"has no preprocessor_config.json, without which nobody knows what size .*; copy it from"),
        (
            {"image_processor_type": "Swin2SRImageProcessor"},
            r"preprocessor_config.json.image_processor_type: is 'Swin2SRImageProcessor', expected one of: Bit",
        ),
        ({**SQUARE, "size": None}, "preprocessor_config.json.size: is NoneType, expected dict"),
        ({**SQUARE, "size": {"height": 4}}, "preprocessor_config.json.size.width: is missing"),
        ({**SQUARE, "size": 0}, "images of 0 x 0 pixels; expected at least 1 x 1"),
        ({**SQUARE, "do_resize": False}, "do_resize: is false, and nothing is cropped"),
        ({**BIT, "do_center_crop": False}, "size: is that of one edge, and nothing is cropped"),
        (BIT, "crop_size: is missing"),
        ({"size": {"shortest_edge": "a"}}, "size.shortest_edge: is 'a', expected a whole number"),
    ],
)
def test_images_of_no_fixed_size_are_refused(told: Told, processor: dict[str, Any] | None, text: str) -> None:
    with pytest.raises(InputError, match=text):
        told(RESNET, processor)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({**RESNET, "layer_type": "wide"}, "config.json.layer_type: is 'wide', expected one of: basic, bott"),
        ({**RESNET, "num_channels": 1}, "config.json.num_channels: is 1, expected 3"),
        ({**RESNET, "depths": [3, 4]}, "config.json.depths: has 2 stages, hidden_sizes has 4"),
        ({**RESNET, "depths": [3, 4, 6, 0]}, "depths: has 0, expected whole numbers from 1"),
        (
            {**RESNET, "quantization_config": {}},
            "quantization_config: is set; expected a checkpoint in float",
        ),
        ({**EFFICIENTNET, "pooling_type": "sum"}, "pooling_type: is 'sum', expected one of: mean, max"),
        ({**EFFICIENTNET, "strides": [1, 2]}, "kernel_sizes: has 7 stages, strides has 2"),
        ({**EFFICIENTNET, "strides": [1, 2, 2, 2, 1, 4, 1]}, "strides: has 4, expected 1 or 2"),
        ({**EFFICIENTNET, "kernel_sizes": [3, 3, 4, 3, 5, 5, 3]}, "kernel_sizes: has 4, expected odd"),
        ({**EFFICIENTNET, "depth_divisor": 0}, "depth_divisor: is 0, expected at least 1"),
        ({**EFFICIENTNET, "id2label": {"0": "a", "2": "b"}}, r"id2label has ids \[0, 2\]"),
        (
            {**VIT, "image_size": 48},
            r"config.json.image_size: is 48 x 48; the image processor gives 48 x 32, and positions are interp",
        ),
        ({**VIT, "image_size": "48"}, "image_size: is '48', expected a whole number or two"),
        ({**VIT, "patch_size": 64}, "patch_size: is 64, expected 1 to the size of an image, 48 x 32"),
        ({**VIT, "num_attention_heads": 7}, "is 7, which does not divide a hidden size of 768"),
        ({**DINOV2, "use_swiglu_ffn": True}, "use_swiglu_ffn: is true, which no graph is written for"),
        ({**DINOV2, "image_size": [48, 32]}, r"image_size: is \[48, 32\], expected a square"),
        ({**DINOV2, "patch_size": 40}, "config.json.patch_size: is 40; images have 48 x 32 pixels"),
        (
            {**RESNET, "architectures": ["ResNetBackbone"]},
            "ResNetBackbone .model type 'resnet'. has no classifier that is known here; expected "
            r"...ForImageClassification or ...Model, the first with the layer 'classifier.1'; --task image-emb",
        ),
    ],
)
def test_what_no_graph_would_honour_is_refused_by_name(told: Told, config: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        told(config)


def test_another_task_or_pooling_is_refused(told: Told) -> None:
    with pytest.raises(InputError, match=r"task is image-classification or image-embeddings, not embeddings"):
        told(RESNET, task="embeddings")
    with pytest.raises(InputError, match=r"pooling 'mean' is for embeddings; the task is image-classif"):
        told(RESNET, pooling="mean")


ENCODER = {**VIT, "architectures": ["ViTModel"]}


def test_an_encoder_gives_an_embedding_as_the_checkpoint_pools_it(told: Told, tmp_path: Path) -> None:
    spec = told(ENCODER)
    (embedding,) = spec.parts[0].outputs
    assert (spec.task, spec.pooling, spec.labels) == ("image-embeddings", "cls", ())
    assert (embedding.name, embedding.shape) == ("embedding", ("batch", 768))
    assert told(VIT, task="image-embeddings").pooling == "cls"
    assert told(ENCODER, pooling="none").parts[0].outputs[0].shape == ("batch", 1 + 3 * 2, 768)
    save_file({"pooler.dense.weight": np.zeros((5, 768), np.float32)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({**ENCODER, "pooler_output_size": 5}))
    spec = describe(open_checkpoint(str(tmp_path)))
    assert (spec.pooling, spec.parts[0].outputs[0].shape) == ("pooler", ("batch", 5))


@pytest.mark.parametrize(
    ("config", "pooling", "text"),
    [
        (ENCODER, "pooler", "pooling 'pooler' is not one of: cls, mean, none"),
        (ENCODER, "max", "pooling 'max' is not one of: cls, mean, none"),
        (
            {**RESNET, "architectures": ["ResNetModel"]},
            "cls",
            "pooling 'cls': .* pools its maps by their mean",
        ),
    ],
)
def test_a_pooling_that_a_network_has_not_is_refused(
    told: Told, config: dict[str, Any], pooling: str, text: str
) -> None:
    with pytest.raises(InputError, match=text):
        told(config, pooling=pooling)


def test_a_taught_deit_needs_both_of_its_heads(told: Told) -> None:
    taught = {**VIT, "model_type": "deit", "architectures": ["DeiTForImageClassificationWithTeacher"]}
    with pytest.raises(InputError, match="the layer 'cls_classifier' and 'distillation_classifier'"):
        told(taught)
    assert told({**taught, "architectures": ["DeiTForImageClassification"]}).labels == ("cat", "dog")


def test_a_task_of_images_is_not_one_for_text(told: Told) -> None:
    config = {"model_type": "bert", "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1}
    with pytest.raises(InputError, match=r"task 'image-classification' is not one of: embeddings, "):
        told({**config, "vocab_size": 20}, task="image-classification")


def test_a_checkpoint_without_its_weights_is_refused_when_it_is_written(told: Told, tmp_path: Path) -> None:
    spec = told(RESNET)
    with pytest.raises(InputError, match=r"no weight 'embedder.embedder.convolution.weight'"):
        write(open_checkpoint(str(tmp_path)), spec, "encoder")


def test_the_image_processor_is_part_of_the_digest(told: Told) -> None:
    assert told(RESNET).digest != told(RESNET, {**SQUARE, "do_normalize": False}).digest


def test_a_classifier_whose_weights_lack_the_classifier_is_refused(told: Told, tmp_path: Path) -> None:
    told(RESNET)
    save_file({"resnet.any": np.zeros((2, 8), np.float32)}, tmp_path / "model.safetensors")
    for task in (None, "image-classification"):
        with pytest.raises(
            InputError, match=r"has no classifier that is known here; expected ...ForImageCla"
        ):
            describe(open_checkpoint(str(tmp_path)), task)
