"""The part of config.json that shapes a decoder-only model, with the defaults transformers gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from alula.core.errors import InputError, ManifestError
from alula.core.parse import get
from alula.families.rope import frequencies

_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_FEED_FORWARD = ("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadNorms:
    """Norms over each head of queries and keys, before or after they are turned to their positions."""

    query: str
    key: str
    turned: bool


_HEAD_NORMS: Mapping[str, HeadNorms] = {
    "qwen3": HeadNorms(query="q_norm", key="k_norm", turned=False),
    "hunyuan_v1_dense": HeadNorms(query="query_layernorm", key="key_layernorm", turned=True),
}
_COMMON: Mapping[str, Any] = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
}
# A size that is null follows from others; one that is not there is what the class says.
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "llama": {**_COMMON, "max_position_embeddings": 2048},
    "mistral": {
        **_COMMON,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
    },
    "qwen2": {**_COMMON, "num_key_value_heads": 32, "max_position_embeddings": 32768},
    "qwen3": {**_COMMON, "num_key_value_heads": 32, "max_position_embeddings": 32768, "head_dim": 128},
    "hunyuan_v1_dense": {**_COMMON, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5},
}
FAMILIES = tuple(_DEFAULTS)
_REFUSED: Mapping[str, tuple[Any, ...]] = {
    "quantization_config": (None,),
    "add_cross_attention": (None, False),
    "use_sliding_window": (None, False),
    "use_cla": (None, False),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class DecoderSettings:
    """Sizes and choices; `biased` names the products that add a bias, `angles` turn a head's pairs per position.

    With `sections` a token has a position on each of several axes, and each turns so many of the pairs; `apart` counts
    the sections over a head instead of its half, as transformers does for HunyuanOCR. Where there is an `image` token,
    its places are taken by what a vision part made of an image.
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    intermediate: int
    vocab: int
    positions: int
    epsilon: float
    activation: str
    tied: bool
    biased: tuple[str, ...]
    norms: HeadNorms | None
    angles: tuple[float, ...]
    sections: tuple[int, ...] = ()
    apart: bool = False
    image: int | None = None


def read_decoder_settings(config: Mapping[str, Any], source: str = "config.json") -> DecoderSettings:
    """Parse config.json, refusing by name what the graph would not honour."""
    family = str(config.get("model_type"))
    if family not in _DEFAULTS:
        raise InputError(f"{source}: model_type is {family!r}, expected one of {', '.join(FAMILIES)}")
    raw = {**_DEFAULTS[family], **config}
    _refuse(family, raw, source)
    try:
        return _parse(family, raw)
    except ManifestError as error:
        raise error.under(source) from error


def _parse(family: str, raw: Mapping[str, Any]) -> DecoderSettings:
    hidden, heads = _size(raw, "hidden_size"), _size(raw, "num_attention_heads")
    kv_heads = _size(raw, "num_key_value_heads", heads)
    if heads % kv_heads:
        raise ManifestError(f"is {kv_heads}, expected a divisor of {heads} heads", "num_key_value_heads")
    if raw.get("head_dim") is None and hidden % heads:
        raise ManifestError(
            f"is {heads}, expected a divisor of a hidden size of {hidden}", "num_attention_heads"
        )
    head_size = _size(raw, "head_dim", hidden // heads)
    if head_size % 2 or head_size < 4:
        raise ManifestError(f"is {head_size}, expected an even number of at least 4", "head_dim")
    positions = _size(raw, "max_position_embeddings")
    return DecoderSettings(
        hidden=hidden,
        layers=_size(raw, "num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        intermediate=_size(raw, "intermediate_size"),
        vocab=_size(raw, "vocab_size"),
        positions=positions,
        epsilon=get(raw, float, "rms_norm_eps"),
        activation=get(raw, str, "hidden_act"),
        tied=get(raw, bool, "tie_word_embeddings"),
        biased=_biased(family, raw),
        norms=_HEAD_NORMS.get(family),
        angles=tuple(frequencies(raw, head_size, positions).tolist()),
    )


def _biased(family: str, raw: Mapping[str, Any]) -> tuple[str, ...]:
    if family == "qwen2":
        return _ATTENTION[:3]
    if family == "mistral":
        return ()
    attention = _ATTENTION if get(raw, bool, "attention_bias") else ()
    return (*attention, *_FEED_FORWARD) if family == "llama" and get(raw, bool, "mlp_bias") else attention


def _size(raw: Mapping[str, Any], key: str, otherwise: int | None = None) -> int:
    size = otherwise if otherwise is not None and raw.get(key) is None else get(raw, int, key)
    if size < 1:
        raise ManifestError(f"is {size}, expected at least 1", key)
    return size


def _refuse(family: str, raw: Mapping[str, Any], source: str) -> None:
    for key, allowed in _REFUSED.items():
        if raw.get(key) not in allowed:
            raise InputError(f"{source}: {key} is {raw[key]!r}, which no graph is written for")
    kinds = raw.get("layer_types") or []
    if other := sorted({str(kind) for kind in kinds} - {"full_attention"}):
        raise InputError(f"{source}: layer_types has {', '.join(other)}, which no graph is written for")
    window, positions = raw.get("sliding_window"), raw.get("max_position_embeddings")
    if family == "mistral" and isinstance(window, int) and isinstance(positions, int) and window < positions:
        raise InputError(
            f"{source}: sliding_window is {window}, less than the {positions} positions; "
            "no graph is written for attention that forgets"
        )
