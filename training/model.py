"""The small HunyuanOCR: sizes, Tencent's layout of positions, and a forward pass over pages of one shape at once.

The weights live in transformers' own class, so that what is saved is a checkpoint like any other. Its forward pass goes
image by image and computes other positions than Tencent's code does (README.md), so training and reading here use
`see` and `read`, which are the same arithmetic over whole batches; tests hold them to the class, put right by
`as_tencent`, and to the graphs that alula writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import HunYuanVLConfig, HunYuanVLForConditionalGeneration

from training.tokenizer import (
    ASSISTANT,
    BEGIN,
    DONE,
    IMAGE,
    IMAGE_BEGIN,
    IMAGE_END,
    NEWLINE,
    PAD,
    build,
)

AXES = 4
STRETCH = 0.1
"""What Tencent's code adds to the sides of a grid where it spreads the learned positions over it."""
MEAN = (0.48145466, 0.4578275, 0.40821073)
DEVIATION = (0.26862954, 0.26130258, 0.27577711)
LEAST_PIXELS, MOST_PIXELS = 192 * 192, 640 * 640
"""What the processor brings a page to: the most that training has. Of larger pages lines are missed or misplaced."""

SIZES: Mapping[str, Mapping[str, Mapping[str, int]]] = {
    "small": {
        "text": {"hidden_size": 256, "intermediate_size": 576, "num_hidden_layers": 5, "num_attention_heads": 4,
                 "num_key_value_heads": 2, "head_dim": 64},
        "vision": {"hidden_size": 192, "intermediate_size": 768, "num_hidden_layers": 6, "num_attention_heads": 6,
                   "max_image_size": 640},
    },
    "tiny": {
        "text": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
                 "num_key_value_heads": 1, "head_dim": 32},
        "vision": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
                   "max_image_size": 320},
    },
}  # fmt: skip


def config_of(size: str) -> HunYuanVLConfig:
    """The configuration by name: `small` is what ships, `tiny` is for tests."""
    ids, sizes = build().token_to_id, SIZES[size]
    section = sizes["text"]["head_dim"] // 2 // AXES
    text: dict[str, Any] = {
        **sizes["text"],
        "vocab_size": build().get_vocab_size(),
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "bos_token_id": ids(BEGIN),
        "eos_token_id": ids(ASSISTANT),
        "eod_token_id": ids(DONE),
        "pad_token_id": ids(PAD),
        # A base of 108: the rows and columns of a small page turn by angles that can be told apart.
        "rope_parameters": {
            "rope_type": "dynamic",
            "alpha": 10.0,
            "rope_theta": 10.0,
            "factor": 1.0,
            "mrope_section": [section] * AXES,
        },
    }
    vision = {
        **sizes["vision"],
        "patch_size": 16,
        "spatial_merge_size": 2,
        "out_hidden_size": text["hidden_size"],
        "text_hidden_size": text["hidden_size"],
        "img_max_token_num": 1024,
        "max_vit_seq_len": 4096,
        "min_image_size": 192,
    }
    return HunYuanVLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=ids(IMAGE),
        im_start_id=ids(IMAGE_BEGIN),
        im_end_id=ids(IMAGE_END),
        im_newline_id=ids(NEWLINE),
        tie_word_embeddings=True,
    )


def made(size: str, seed: int) -> Any:
    """A model at its start; its learned positions begin as waves, so that neighbours are alike from the first step."""
    torch.manual_seed(seed)
    model = HunYuanVLForConditionalGeneration(config_of(size))
    embeddings = model.model.vision_tower.embeddings
    with torch.no_grad():
        embeddings.position_embedding.weight[1:] = _waves(embeddings.position_edge, embeddings.embed_dim)
        for name, module in model.named_modules():
            if isinstance(module, (nn.Linear, nn.Conv2d)) and "lm_head" not in name:
                # transformers starts all with 0.02, which is for layers four times as wide.
                ends = name.endswith(("o_proj", "fc2", "down_proj"))
                nn.init.normal_(module.weight, std=module.weight[0].numel() ** -0.5 * (0.3 if ends else 1))
    return model


def _waves(edge: int, size: int) -> Tensor:
    """Sines and cosines of a place's row and column, [edge * edge, size]."""
    quarter = size // 4
    speeds = 1.5 * (0.02 ** (torch.arange(quarter) / max(1, quarter - 1)))
    turned = torch.arange(edge)[:, None] * speeds
    side = torch.cat((turned.sin(), turned.cos()), dim=1)
    down, across = side[:, None].expand(-1, edge, -1), side[None].expand(edge, -1, -1)
    return torch.cat((down, across), dim=-1).reshape(edge * edge, -1)


def normalised(colours: Tensor) -> Tensor:
    """Pages of colours 0 to 255, [pages, height, width, 3], as the model takes them, [pages, 3, height, width]."""
    mean, deviation = (colours.new_tensor(each, dtype=torch.float32) for each in (MEAN, DEVIATION))
    return ((colours.float() / 255 - mean) / deviation).permute(0, 3, 1, 2)


def see(model: Any, pixels: Tensor) -> Tensor:
    """Pages of one shape, [pages, 3, height, width], to tokens of the language model, [pages, tokens, hidden]."""
    tower = model.model.vision_tower
    side = tower.embeddings.patch_size
    down, across = pixels.shape[2] // side, pixels.shape[3] // side
    x = _convolved(tower.embeddings.patch_embedding, pixels.permute(0, 2, 3, 1))
    x = (x + spread(tower.embeddings, down, across)).flatten(1, 2)
    for layer in tower.layers:
        y = functional.layer_norm(x, (x.shape[-1],), layer.layer_norm1.weight, layer.layer_norm1.bias, 1e-5)
        own = layer.self_attn
        query, key, value = (_split(each(y), own.num_heads) for each in (own.q_proj, own.k_proj, own.v_proj))
        x = x + own.o_proj(_joined(functional.scaled_dot_product_attention(query, key, value)))
        y = functional.layer_norm(x, (x.shape[-1],), layer.layer_norm2.weight, layer.layer_norm2.bias, 1e-5)
        x = x + layer.mlp.fc2(functional.gelu(layer.mlp.fc1(y)))
    return _merged(tower.patch_merger, x, down, across)


def _merged(merger: Any, x: Tensor, down: int, across: int) -> Tensor:
    x = _rms(x, merger.before_rms).reshape(len(x), down, across, -1)
    x = _convolved(merger.proj_out, functional.gelu(_convolved(merger.proj_conv, x)))
    newline = merger.image_newline.to(x.dtype).expand(*x.shape[:2], 1, -1)
    x = merger.mlp(torch.cat((x, newline), dim=2).flatten(1, 2))
    first, last = (
        each.to(x.dtype).expand(x.shape[0], 1, -1) for each in (merger.image_begin, merger.image_end)
    )
    return _rms(torch.cat((first, x, last), dim=1), merger.after_rms)


def _convolved(convolution: Any, x: Tensor) -> Tensor:
    """A convolution whose steps are as wide as its kernel, over [pages, down, across, channels], as one product."""
    side = convolution.kernel_size[0]
    pages, down, across, channels = x.shape
    cut = x.reshape(pages, down // side, side, across // side, side, channels).permute(0, 1, 3, 5, 2, 4)
    return functional.linear(cut.flatten(3), convolution.weight.flatten(1), convolution.bias)


def spread(embeddings: Any, down: int, across: int) -> Tensor:
    """The learned square spread over a grid as Tencent's code does, bilinearly, [down, across, hidden]."""
    edge = embeddings.position_edge
    table = embeddings.position_embedding.weight[1:].float().reshape(edge, edge, -1)
    more = 0.0 if (down, across) == (edge, edge) else STRETCH
    rows, columns = (_taken(count, edge, more, table.device) for count in (down, across))
    with torch.autocast(table.device.type, enabled=False):
        return torch.einsum("ij,kl,jlh->ikh", rows, columns, table)


def _taken(count: int, edge: int, more: float, device: torch.device) -> Tensor:
    """What each of `count` places takes of each of the learned ones, [count, edge]."""
    at = (torch.arange(count, device=device) + 0.5) * (edge / (count + more)) - 0.5
    away = at.clamp(0, edge - 1)[:, None] - torch.arange(edge, device=device)
    return (1 - away.abs()).clamp(min=0)


@dataclass(kw_only=True)
class Past:
    """Keys and values of every layer for rows of different lengths, [rows, heads, most, size] each."""

    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)


Watched: TypeAlias = list[tuple[Tensor, Tensor]]
"""Queries and keys of every layer, [rows, heads, length, size] each."""


def read(
    model: Any, x: Tensor, places: Tensor, past: Past | None = None, watched: Watched | None = None
) -> Tensor:
    """Embeddings [rows, length, hidden] at places [axes, rows, length] to final states.

    Causal over the rows, which are padded on the right. A past keeps keys and values; what is `watched` is added to.
    """
    language = model.model.language_model
    turns = turned(language.rotary_emb, places)
    for layer in language.layers:
        own = layer.self_attn
        query, key, value = heads_of(own, _rms(x, layer.input_layernorm), turns)
        if past is not None:
            past.keys.append(key)
            past.values.append(value)
        if watched is not None:
            watched.append((query, key))
        y = functional.scaled_dot_product_attention(query, *grouped(own, key, value), is_causal=True)
        x = _fed(layer, x + own.o_proj(_joined(y)))
    return _rms(x, language.norm)


def step(model: Any, x: Tensor, lengths: Tensor, past: Past) -> Tensor:
    """One more token of every row, [rows, 1, hidden], at its own place `lengths`, which it takes in the past."""
    language = model.model.language_model
    turns = turned(language.rotary_emb, lengths[None, :, None].expand(AXES, -1, -1))
    rows = torch.arange(len(lengths), device=lengths.device)
    seen = (torch.arange(past.keys[0].shape[2], device=lengths.device) <= lengths[:, None])[:, None, None]
    for layer, keys, values in zip(language.layers, past.keys, past.values, strict=True):
        own = layer.self_attn
        query, key, value = heads_of(own, _rms(x, layer.input_layernorm), turns)
        keys[rows, :, lengths] = key[:, :, 0].to(keys.dtype)
        values[rows, :, lengths] = value[:, :, 0].to(values.dtype)
        y = functional.scaled_dot_product_attention(query, *grouped(own, keys, values), attn_mask=seen)
        x = _fed(layer, x + own.o_proj(_joined(y)))
    return _rms(x, language.norm)


def turned(rotary: Any, places: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines, [rows, 1, length, head / 2]: each axis turns its share of a half head, as Tencent trained."""
    axis = _axis_of(tuple(rotary.mrope_section), places.device)
    angles = places.float().permute(1, 2, 0)[..., axis] * rotary.inv_freq.float()
    return angles.cos()[:, None], angles.sin()[:, None]


@cache
def _axis_of(sections: tuple[int, ...], device: torch.device) -> Tensor:
    """Which axis each pair of a head turns by."""
    return torch.tensor([axis for axis, pairs in enumerate(sections) for _ in range(pairs)], device=device)


def heads_of(own: Any, x: Tensor, turns: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Queries and keys turned, then normalised; and values."""
    query = _split(own.q_proj(x), own.q_proj.out_features // own.head_dim)
    key, value = (
        _split(each(x), own.k_proj.out_features // own.head_dim) for each in (own.k_proj, own.v_proj)
    )
    query, key = _rms(_turn(query, turns), own.query_layernorm), _rms(_turn(key, turns), own.key_layernorm)
    return query.to(value.dtype), key.to(value.dtype), value


def grouped(own: Any, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values, each for the queries that share it."""
    shared = own.num_key_value_groups
    return key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)


def _turn(x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    cosine, sine = turns
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


def _fed(layer: Any, x: Tensor) -> Tensor:
    y, mlp = _rms(x, layer.post_attention_layernorm), layer.mlp
    more: Tensor = mlp.down_proj(functional.silu(mlp.gate_proj(y)) * mlp.up_proj(y))
    return x + more


def _rms(x: Tensor, norm: Any) -> Tensor:
    return functional.rms_norm(x.float(), (x.shape[-1],), norm.weight, norm.variance_epsilon)


def _split(x: Tensor, heads: int) -> Tensor:
    return x.reshape(*x.shape[:2], heads, -1).transpose(1, 2)


def _joined(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


def as_tencent(model: Any) -> Any:
    """Put transformers' own forward pass right: sections of half a head, and positions spread by Tencent's scale."""
    rotary = model.model.language_model.rotary_emb
    embeddings = model.model.vision_tower.embeddings

    def sections(angles: Tensor) -> Tensor:
        axis = _axis_of(tuple(rotary.mrope_section), angles.device)
        half = angles.permute(1, 2, 3, 0)[..., torch.arange(len(axis)), axis]
        return torch.cat((half, half), dim=-1)

    def interpolated(states: Tensor, height: int, width: int) -> Tensor:
        return spread(embeddings, height, width).flatten(0, 1)[None].to(states.dtype)

    rotary.recomposition_frequencies = sections
    embeddings.interpolate_pos_encoding = interpolated
    return model
