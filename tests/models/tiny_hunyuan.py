"""A small HunyuanOCR with random weights, as transformers saves one: tokenizer, chat template, image processor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import HunYuanVLConfig, HunYuanVLForConditionalGeneration

if TYPE_CHECKING:
    from alula.bundles import Bundle

Floats = NDArray[np.float32]

VOCAB, PATCH = 96, 4
BEGIN, END, IMAGE, EOS, EOD, BOS, PLACE = 91, 92, 93, 94, 95, 90, 89
NAMED = {
    PLACE: "<place>",
    BOS: "<begin>",
    BEGIN: "<image>",
    END: "</image>",
    IMAGE: "<patch>",
    EOS: "<end>",
    EOD: "<eod>",
}
TEXT: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 40,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {
        "rope_type": "dynamic",
        "alpha": 1000.0,
        "rope_theta": 10000.0,
        "factor": 1.0,
        "mrope_section": [2] * 4,
    },
}
VISION: dict[str, Any] = {
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "patch_size": PATCH,
    "max_image_size": 64,
    "text_hidden_size": 40,
    "out_hidden_size": 40,
}
CONFIG: dict[str, Any] = {
    "model_type": "hunyuan_vl",
    "text_config": TEXT,
    "vision_config": VISION,
    "image_token_id": IMAGE,
    "image_start_token_id": BEGIN,
    "image_end_token_id": END,
    "eos_token_id": EOS,
    "eod_token_id": EOD,
    "pad_token_id": 0,
    "tie_word_embeddings": True,
}
PROCESSOR: dict[str, Any] = {
    "min_pixels": 16 * 16,
    "max_pixels": 192 * 192,
    "patch_size": PATCH,
    "merge_size": 2,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "rescale_factor": 1 / 255,
    "resample": 1,
}
SPELLED = {
    "layer_norm1": "input_layernorm",
    "layer_norm2": "post_attention_layernorm",
    "mlp.fc1": "mlp.dense_h_to_4h",
    "mlp.fc2": "mlp.dense_4h_to_h",
    "patch_merger.proj_conv": "perceive.proj.0",
    "patch_merger.proj_out": "perceive.proj.2",
    "patch_merger.": "perceive.",
}
TEMPLATE = (
    "{{ '<begin>' }}{% for message in messages %}{% if message.role == 'system' %}{{ message.content }}<place>"
    "{% elif message.role == 'user' %}{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}{% if part.type == 'image' %}<image><patch></image>{% else %}{{ part.text }}"
    "{% endif %}{% endfor %}{% endif %}<end>{% else %}{{ message.content }}<end>{% endif %}{% endfor %}"
)


def checkpoint(to: Path, seed: int = 0) -> Any:
    """Save a model whose random weights are so large that other images get other answers; the model in eval mode."""
    torch.manual_seed(seed)
    model = HunYuanVLForConditionalGeneration(HunYuanVLConfig(**CONFIG)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            scale = 0.1 if "embed_tokens" in name else 0.3 if parameter.ndim == 1 else 0.6
            parameter.copy_(torch.randn_like(parameter) * scale + ("norm" in name or "rms" in name))
    model.tie_weights()
    model.save_pretrained(to)
    write_text_files(to)
    return model


def built(model: Path, to: Path) -> Bundle:
    """A bundle of a checkpoint that is there, in fp32 for ONNX Runtime."""
    from alula.build import BuildRequest, build  # noqa: PLC0415 - a checkpoint is written without it
    from alula.core.progress import Silent  # noqa: PLC0415 - likewise

    asked = BuildRequest(model=str(model), to=to, use_cache=False, precision="fp32", target="onnxruntime")
    return build(asked, Silent()).bundle


def write_text_files(to: Path, **processor: Any) -> None:
    """A tokenizer of single letters, the chat template, generation settings and those of the image processor."""
    letters = {chr(33 + at): at for at in range(PLACE - 1)}
    tokenizer = Tokenizer(models.WordLevel({**letters, "[UNK]": PLACE - 1}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.add_special_tokens([AddedToken(NAMED[at], special=True) for at in sorted(NAMED)])
    assert all(tokenizer.token_to_id(text) == at for at, text in NAMED.items())
    tokenizer.save(str(to / "tokenizer.json"))
    settings = {
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": NAMED[EOS]},
        "preprocessor_config.json": {**PROCESSOR, **processor},
        "generation_config.json": {"eos_token_id": EOD, "repetition_penalty": 1.03, "pad_token_id": 0},
    }
    for name, content in settings.items():
        (to / name).write_text(json.dumps(content), "utf-8")
    (to / "chat_template.jinja").write_text(TEMPLATE, "utf-8")


def spelled_as_tencent(folder: Path, to: Path) -> None:
    """The same checkpoint in the spelling of Tencent's files: version 1.0's flat config, and its names of weights."""
    to.mkdir()
    weights = load_file(folder / "model.safetensors")
    save_file({_tencents(name): tensor for name, tensor in weights.items()}, to / "model.safetensors")
    text = {key: value for key, value in TEXT.items() if key not in {"rope_parameters", "head_dim"}}
    rope = {"type": "xdrope", "alpha": 1000.0, "factor": 1.0, "xdrope_section": [0.25] * 4}
    flat = {key: value for key, value in CONFIG.items() if key != "text_config"}
    flat |= {**text, "attention_head_dim": TEXT["head_dim"], "rope_theta": 10000.0, "rope_scaling": rope}
    named = {"architectures": ["HunYuanVLForConditionalGeneration"], **flat}
    (to / "config.json").write_text(json.dumps(named), "utf-8")
    write_text_files(to)


def _tencents(name: str) -> str:
    name = name.replace("model.language_model.", "model.")
    if name.startswith("model.vision_tower."):
        name = name.replace("model.vision_tower.", "vit.")
        for theirs, other in SPELLED.items():
            name = name.replace(theirs, other)
    return name


def page(down: int, across: int, seed: int = 0) -> NDArray[np.uint8]:
    """A noisy page of so many patches, [height, width, 3]."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (down * PATCH, across * PATCH, 3), dtype=np.uint8)
