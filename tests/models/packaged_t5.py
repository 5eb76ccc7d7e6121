"""A FLAN-T5-small that comes inside an ordinary package, as a folder in the HuggingFace layout.

It ships as two ONNX files of eight bits; integers times scales are the weights, and activations stay floats here.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper
from packaged import package
from safetensors.numpy import save_file

TITLES = "traceforge_title_model"

# What the files do not say is FLAN-T5-small's own.
_CONFIG: dict[str, object] = {
    "architectures": ["T5ForConditionalGeneration"],
    "model_type": "t5",
    "vocab_size": 32128,
    "d_model": 512,
    "d_kv": 64,
    "d_ff": 1024,
    "num_layers": 8,
    "num_decoder_layers": 8,
    "num_heads": 6,
    "feed_forward_proj": "gated-gelu",
    "is_encoder_decoder": True,
    "tie_word_embeddings": False,
    "decoder_start_token_id": 0,
    "pad_token_id": 0,
    "eos_token_id": 1,
}
_SIDES = {"enc": "encoder", "m": ""}
_QUANTISED = "_quantized"


def flan_t5(to: Path) -> Path:
    """FLAN-T5-small, trained further to title the steps of a program; its head is not tied."""
    source = package(TITLES) / "data" / "span"
    to.mkdir(parents=True)
    weights: dict[str, NDArray[Any]] = {}
    for file in ("encoder.onnx", "decoder.onnx"):
        weights.update(_weights(onnx.load(source / file).graph))
    # Both files hold the embedding, in the same eight bits.
    assert np.array_equal(weights.pop("encoder.embed_tokens.weight"), weights["shared.weight"])
    save_file(
        {name: np.ascontiguousarray(array) for name, array in weights.items()}, to / "model.safetensors"
    )
    (to / "config.json").write_text(json.dumps(_CONFIG, indent=2), "utf-8")
    shutil.copyfile(source / "tokenizer.json", to / "tokenizer.json")
    named = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", **named}
    (to / "tokenizer_config.json").write_text(json.dumps(kind), "utf-8")
    return to


def _weights(graph: onnx.GraphProto) -> Iterator[tuple[str, NDArray[Any]]]:
    tensors = {tensor.name: tensor for tensor in graph.initializer}

    def restored(name: str) -> NDArray[Any]:
        base = name.removesuffix(_QUANTISED)
        whole, zero, scale = (
            numpy_helper.to_array(tensors[each]).astype(np.float32)
            for each in (name, f"{base}_zero_point", f"{base}_scale")
        )
        weights: NDArray[Any] = (whole - zero) * scale
        return weights

    for name, tensor in tensors.items():
        if name.endswith(".weight"):
            yield _module(name), numpy_helper.to_array(tensor)
        elif name.endswith(f".weight{_QUANTISED}"):
            yield _module(name.removesuffix(_QUANTISED)), restored(name)
    for node in graph.node:
        if node.op_type == "MatMulInteger" and node.input[1] in tensors:
            # ONNX multiplies from the right, torch's Linear keeps [out, in].
            path = node.name.rpartition("/")[0].strip("/").replace("/", ".")
            yield f"{_module(path)}.weight", restored(node.input[1]).T


def _module(name: str) -> str:
    """Such as "encoder.block.0" from "enc.block.0", and "decoder.block.0" from "m.decoder.block.0"."""
    side, _, rest = name.partition(".")
    return f"{_SIDES[side]}.{rest}".lstrip(".")
